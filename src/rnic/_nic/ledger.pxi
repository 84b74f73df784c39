# SPDX-License-Identifier: Apache-2.0

cdef enum:
    SHORT_ONES = 64         # more than are outstanding at a time


cdef class Ledger:
    """What an end of a connection counts, all since the beginning; its protocol keeps it, and a Courier."""

    cdef public int64_t credits         #: Receives that the peer has.
    cdef public int64_t spent           #: SENDs that were handed out.
    cdef public int64_t returned        #: Credits that the peer has returned.
    cdef public int64_t receives        #: Receives that this end has.
    cdef public int64_t posted          #: Receives that were posted.
    cdef public int64_t told            #: Those of which the peer knows.
    cdef public int64_t arrived         #: SENDs that have come in.
    cdef public int64_t freed           #: Of these receives, those that may be posted again; the others are held back.
    cdef public int64_t seen            #: SENDs that came in, also after the end of the connection.
    cdef public int64_t threshold       #: Credits owed at which they are worth a SEND of their own.
    cdef public int64_t handed_out      #: Work requests that were handed out: the number of the last one.
    cdef public int64_t completed       #: The number up to which they have completed.
    cdef public int64_t signaled        #: The last one that tells of it when it completes.
    cdef public int64_t begun           #: Messages of which at least one piece was handed out.
    cdef public int64_t complete        #: Messages that have come whole: the number of the next one.
    cdef public int64_t delivered       #: Messages that the peer has whole.
    cdef public int64_t credit_sends    #: SENDs that carried nothing but credits.
    cdef public bint heard              #: A Courier has had a sign of life of the peer.
    cdef int64_t short_ones[SHORT_ONES]     # numbers of SENDs that were a whole message, of a Courier

    cpdef int64_t short_between(self, int64_t after, int64_t last):
        """Messages that a Courier has sent, of the work requests behind `after` up to `last`."""
        cdef int64_t number, found = 0
        for number in range(after + 1, last + 1):
            found += self.short_ones[number % SHORT_ONES] == number
        return found
