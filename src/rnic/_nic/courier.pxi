# SPDX-License-Identifier: Apache-2.0
# The short way: messages go and come, a piece in each SEND, without a step of the interpreter between the caller and the
# device.  Whatever else there is, rnic.conn does: then nothing has changed here, and the caller goes the long way.
#
# The frames are those of docs/endpoint-protocol.md.

cdef enum:
    OF_RECEIVE = 0          # the lower bits of a wr_id, as conn/operating.py has them
    OF_SEND
    OF_OPERATION
    WR_KINDS = 4
    FRAME_MESSAGE = 1       # endpoint/frame.py
    FRAME_MORE = 2
    FRAME_CREDIT = 3
    FRAME_LAST = 1
    FRAME_TAGGED = 2
    FRAME_HEADER = 8
    MESSAGE_HEADER = 16
    TAGGED_HEADER = 24
    CREDITS_RESERVED = 1    # endpoint/flow.py, and the receives that are for TAKEN
    RECEIVES_SPARE = 1
    LEAST_REFILL = 2
    RECEIVE_CHAIN = 16
    MOST_MISSES = 64
    MOST_SOON = 8           # looks that are left out while messages come soon, but not soon enough
    PATIENCE = 8            # in the middle of a message a call looks longer: so many times `spin`,
    MOST_INSIDE = 8         # and is not told so soon that it is in vain
    PIECES = 64             # that a call moves at most; then others have their turn
    LARGE = 4096            # bytes that are copied without the GIL
    WORTH = 4               # what came so soon, in times of `spin`, is worth a look the next time


cdef extern from "<endian.h>" nogil:
    uint16_t htobe16(uint16_t)
    uint32_t htobe32(uint32_t)
    uint64_t htobe64(uint64_t)
    uint16_t be16toh(uint16_t)
    uint32_t be32toh(uint32_t)
    uint64_t be64toh(uint64_t)

cdef extern from "<time.h>" nogil:
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec *)


cdef packed struct frame_header:
    uint8_t kind, flags
    uint16_t credits
    uint32_t ident
    uint64_t total          # of MESSAGE alone,
    uint64_t tag            # and with FRAME_TAGGED


cdef inline int64_t nanoseconds() noexcept nogil:
    cdef timespec ts
    clock_gettime(CLOCK_MONOTONIC, &ts)
    return <int64_t>ts.tv_sec * 1000000000 + ts.tv_nsec


@cython.final
cdef class Courier:
    """Sends and receives messages by the short way.  Where it cannot, the caller goes the long way.

    The short way is `open` while nothing on the long way must go first.  Nobody else polls the queue meanwhile.
    """

    cdef QP qp
    cdef CQ cq
    cdef MR mr
    cdef Ledger ledger
    cdef uint8_t *base
    cdef int64_t receive_size, sends_at, send_size, bounces, every
    cdef uint64_t max_message, longest_coming
    cdef int64_t spin           # nanoseconds
    cdef int64_t patience       # those that are left to this call in the middle of a message
    cdef int64_t since          # when it was last looked in vain
    cdef int64_t refill         # credits that the SEND returns that is looked at
    cdef int misses[2]          # looks in vain, one after the other: between messages, and inside of one;
    cdef int rest_of[2]         # looks that are left out because of them
    cdef public int64_t frame      #: Bytes in each SEND at most; 0: not known yet.
    cdef public uint64_t longest   #: Bytes in the longest message that goes by here.
    cdef public bint tags       #: Both ends know tags.
    cdef readonly bint failed   #: A piece of a message could not be posted: the connection cannot go on.
    cdef bytes coming           # a message that has not come whole,
    cdef int64_t came           # and bytes of it that have
    cdef int64_t total          # the length of the message whose first piece is looked at
    cdef int64_t header         # bytes in the header of the piece that is looked at
    cdef readonly uint64_t tag  #: The tag of the message in `hand` that came by here, or of the one that is coming.
    cdef public bint armed      #: The queue was armed: its channel has an event, or will.
    cdef public object hand     #: The next message, until somebody takes it and puts None here; bytes: it came by here.
    cdef readonly bint open     #: The short way may be taken.
    cdef readonly bint busy     #: Another thread is on it.

    def __cinit__(self, QP qp not None, CQ cq not None, MR mr not None, Ledger ledger not None, *, int64_t receive_size,
                  int64_t sends_at, int64_t send_size, int64_t bounces, uint64_t max_message, double spin):
        """The receives lie at the start of the memory, the SENDs from `sends_at` on; `spin`: seconds to look before sleep."""
        self.qp, self.cq, self.mr, self.ledger = qp, cq, mr, ledger
        self.base = <uint8_t *><uintptr_t>mr.addr
        self.receive_size, self.sends_at, self.send_size = receive_size, sends_at, send_size
        self.bounces, self.max_message = bounces, max_message
        self.every = max(1, bounces // 2)
        self.longest_coming = ledger.receives * receive_size    # it has its memory with its first piece
        self.spin = <int64_t>(spin * 1e9)
        self.frame = 0

    def reopen(self):
        """Open the short way if nothing must go the long way first; return whether it is open."""
        self.open = (self.hand is None and self.frame > 0 and self.cq.kept is NULL and not self.failed
                     and self.is_live())
        return self.open

    def shut(self):
        """Close the short way, because something goes the long way."""
        self.open = False

    # What goes out

    def send(self, message, tag=0):
        """Send a message.  True: it is on its way, and the buffer is free.  False: nothing was done, unless `failed`.

        What has come is looked at first, up to a message: the long way answers some of it, and ahead of this message.
        """
        cdef Py_buffer view
        cdef uint64_t number
        if not self.open or self.busy:
            return False
        try:
            number = PyNumber_Index(tag)
            take_buffer(message, &view, PyBUF_C_CONTIGUOUS, "send()")
        except Exception:   # the long way raises what is right
            return False
        self.busy = True
        try:
            if <uint64_t>view.len > self.longest or (number and not self.tags):
                return False
            self.has_message(False, False)
            return self.open and self.send_pieces(<const uint8_t *>view.buf, view.len, number)
        finally:
            self.busy = False
            PyBuffer_Release(&view)

    cdef bint send_pieces(self, const uint8_t *data, int64_t length, uint64_t tag) except -1:
        """Post all SENDs of a message; False: none was posted, or only some and the courier has `failed`."""
        cdef int64_t went = 0, n, header = TAGGED_HEADER if tag else MESSAGE_HEADER
        if not self.has_room(1 if length <= self.frame - header else
                             1 + (length - self.frame + header - 1) // (self.frame - FRAME_HEADER) + 1):
            return False
        while True:
            n = min(length - went, self.frame - header)
            if not self.send_piece(data + went, n, length, tag, header, went + n == length):
                self.failed = went > 0
                return False
            went += n
            if went == length:
                return True
            header = FRAME_HEADER

    cdef bint send_piece(self, const uint8_t *data, int64_t n, int64_t length, uint64_t tag, int64_t header, bint last):
        cdef Ledger led = self.ledger
        cdef frame_header *h = self.slot(led.handed_out + 1)
        cdef bint first = header != FRAME_HEADER
        h.kind, h.flags = FRAME_MESSAGE if first else FRAME_MORE, FRAME_LAST if last else 0
        h.credits = htobe16(<uint16_t>(led.posted - led.told))
        h.ident = htobe32(<uint32_t>(led.begun - (not first)))
        if first:
            h.total = htobe64(<uint64_t>length)
        if header == TAGGED_HEADER:
            h.flags |= FRAME_TAGGED
            h.tag = htobe64(tag)
        self.copy(<uint8_t *>h + header, data, n)
        if not self.post(header + n):
            return False
        led.begun += first
        if last:
            led.short_ones[led.handed_out % SHORT_ONES] = led.handed_out
        return True

    cdef void copy(self, uint8_t *to, const uint8_t *data, int64_t n):
        if n < LARGE:
            memcpy(to, data, n)
            return
        self.mr.calls += 1
        self.qp.calls += 1
        self.cq.calls += 1
        with nogil:
            memcpy(to, data, n)
        self.cq.calls -= 1
        self.qp.calls -= 1
        self.mr.calls -= 1

    cdef frame_header *slot(self, int64_t number):
        return <frame_header *>(self.base + self.sends_at + number % self.bounces * self.send_size)

    cdef bint has_room(self, int64_t pieces) except -1:
        """Whether there are places and credits for so many SENDs; all free receives are posted, too.

        When there is no room, poll for a moment for completions that make room.
        """
        cdef Ledger led = self.ledger
        cdef rnic_wc wc
        cdef int left = PIECES
        while (led.handed_out - led.completed + pieces > self.bounces
               or led.credits + led.returned - led.spent - pieces < CREDITS_RESERVED):
            left -= 1
            if left == 0 or self.take(&wc, False, True) <= 0:
                return False
            if self.is_noted(&wc):
                self.return_credits()
            elif not self.is_taken(&wc, False):
                return False
        return self.post_receives() and self.is_live()

    cdef bint post(self, int64_t length):
        cdef Ledger led = self.ledger
        cdef int64_t number = led.handed_out + 1
        cdef bint signaled = number - led.signaled >= self.every
        cdef rnic_send_wr wr
        cdef rnic_sge sge
        memset(&wr, 0, sizeof(wr))
        sge.addr, sge.length, sge.lkey = <uintptr_t>self.slot(number), <uint32_t>length, self.mr.lkey
        wr.wr_id, wr.sg_list, wr.num_sge = <uint64_t>number * WR_KINDS + OF_SEND, &sge, 1
        wr.opcode, wr.send_flags = RNIC_WR_SEND, RNIC_SEND_SIGNALED if signaled else 0
        if not self.is_posted(&wr):
            return False
        led.handed_out, led.told, led.spent = number, led.posted, led.spent + 1
        if signaled:
            led.signaled = number
        return True

    cdef bint is_posted(self, rnic_send_wr *wr):
        """Post one work request; False: the post has failed, and the long way finds out why."""
        cdef const rnic_send_wr *bad
        cdef rnic_err err
        cdef int rc = 0
        if self.qp.now is NULL or not self.qp.now.post_send(self.qp.p, wr):
            self.qp.calls += 1
            with nogil:
                rc = self.qp.ops.post_send(self.qp.p, wr, &bad, &err)
            self.qp.calls -= 1
        if rc < 0:
            self.open = False
        return rc >= 0

    # What comes in

    def recv(self, bint wait=True):
        """Receive a message.  True: it is in `hand`, also when an exception hides the result.

        `wait`: look for it for a moment.
        False: there is none yet, or it does not come the short way.
        """
        if not self.open or self.busy:
            return False
        self.busy = True
        try:
            return self.has_message(wait, True)
        finally:
            self.busy = False

    def sleep(self, timeout):
        """Receive a message as recv() does, and sleep until it comes, for `timeout` seconds at most (None: no limit).

        False also when something else has come, which the long way finds.
        """
        cdef double deadline = deadline_of(timeout)
        if not self.open or self.busy:
            return False
        self.busy = True
        try:
            while not self.has_message(False, True):
                if not self.open or not self.is_woken(deadline):
                    return False
            self.note_wait()
            return True
        finally:
            self.busy = False

    def woken(self):
        """Receive a message after the channel's descriptor became readable, and arm the queue again.

        Returns as more() does.
        """
        return self.open and not self.busy and self.takes_event() and self.more()

    def more(self):
        """Receive a message if one is there, with the queue armed.  False: the long way has to go on.

        When there is a message in `hand`, call more() again: the queue may hold further ones, and tells nobody.
        """
        if not self.open or self.busy:
            return False
        self.busy = True
        try:
            if (self.armed or self.arm()) and self.has_message(False, True):
                self.note_wait()
            return self.open
        finally:
            self.busy = False

    cdef bint arm(self):
        cdef rnic_err err
        self.armed = True
        if self.cq.ops.req_notify_cq(self.cq.p, 0, &err) < 0:
            self.open = False
        return self.open

    cdef void note_wait(self):
        """Note the end of a wait; if it was short, look for longer the next time."""
        if nanoseconds() - self.since < WORTH * self.spin:
            self.misses[0] = min(self.misses[0], MOST_SOON)
            self.rest_of[0] = min(self.rest_of[0], MOST_SOON)

    cdef bint takes_event(self):
        """Takes the queue's event out of the channel; False: something else has made the descriptor readable."""
        cdef rnic_cq *cq = NULL
        cdef rnic_err err
        if not self.cq.live or self.cq.ops.get_cq_event(self.cq.channel.p, &cq, &err) < 0:
            self.open = False
            return False
        self.cq.ops.ack_cq_events(cq, 1, &err)
        self.armed = False
        return True

    cdef bint is_woken(self, double deadline) except -1:
        """Arms the queue, or sleeps until the armed one has an event; False: there is nothing to look for."""
        cdef CompChannel channel = self.cq.channel
        if not self.armed:
            return self.arm()
        return is_readable(channel, channel.p.fd, deadline, "recv") and self.takes_event()

    cdef bint has_message(self, bint wait, bint wanted) except -1:
        """Whether a message is in `hand`, after polling; `wanted`: a call waits, so the message may be long."""
        cdef rnic_wc wc
        cdef bint inside
        cdef int left = PIECES
        self.patience = PATIENCE * self.spin
        while self.hand is None:
            inside = self.coming is not None
            if self.take(&wc, inside, wait or (inside and wanted)) <= 0:
                return False
            if self.is_noted(&wc):
                self.return_credits()   # what it brought may be worth it, or make room
            elif not self.is_taken(&wc, wanted):
                return False
            left -= 1
            if left == 0 and self.hand is None:   # the long way lets others have their turn
                self.open = False
                return False
        return True

    cdef bint is_taken(self, rnic_wc *wc, bint wanted) except -1:
        """Take in a message or a piece of one; False: the completion is something else, for the long way."""
        if self.hand is not None or not self.is_piece(wc, wanted):
            self.stash(wc)
            return False
        try:
            self.take_piece(wc)
        except MemoryError:
            self.stash(wc)
            raise
        self.arrive()
        self.return_credits()
        return True

    cdef int take_piece(self, const rnic_wc *wc) except -1:
        cdef int64_t header = self.header
        cdef const uint8_t *piece = self.place(wc)
        if self.coming is None:
            self.coming, self.came = PyBytes_FromStringAndSize(NULL, self.total), 0
        self.copy(<uint8_t *>PyBytes_AS_STRING(self.coming) + self.came, piece + header, wc.byte_len - header)
        self.came += wc.byte_len - header
        if self.came == len(self.coming):
            self.hand, self.coming = self.coming, None
            self.ledger.complete += 1
        return 0

    @property
    def part(self):
        """The length of the message that has not come whole, the bytes that are here, and its tag; or None."""
        return None if self.coming is None else (len(self.coming), self.coming[:self.came], self.tag)

    def let_part_go(self):
        """Forget the incomplete message, which the long way has taken over."""
        self.coming = None

    cdef int take(self, rnic_wc *wc, bint inside, bint wait):
        """Take one completion: 1; 0: there is none; -1: the long way finds out why.  `inside` a message: look longer."""
        cdef int got = -EAGAIN
        if self.cq.kept is not NULL or not self.is_live():
            self.open = False
            return -1
        if self.cq.now is not NULL:
            got = self.cq.now.poll_cq(self.cq.p, 1, wc)
        if got == -EAGAIN:
            got = self.look(wc, 0)
        if got == 0 and wait and self.looks(inside):
            got = self.look_on(wc) if inside else self.look(wc, self.spin)
            self.misses[inside] = 0 if got else min(2 * self.misses[inside] + 1, MOST_INSIDE if inside else MOST_MISSES)
            self.rest_of[inside] = self.misses[inside]
        if got == 0 and wait:
            self.since = nanoseconds()
        if got < 0 or not self.is_live():   # no longer, perhaps: look() lets others run
            self.open = False
            return -1
        return got

    cdef bint is_live(self):
        """Whether the objects are open.  At the end of the interpreter, threads may run after all was closed."""
        return self.qp.live and self.cq.live and self.mr.live

    cdef bint looks(self, bint inside):
        """Whether to look now.  After each look in vain, twice as many looks are left out."""
        if self.rest_of[inside] > 0:
            self.rest_of[inside] -= 1
            return False
        return self.spin > 0

    cdef int look_on(self, rnic_wc *wc):
        """Look for the next piece of a message.  All such looks of one call share one time limit."""
        cdef int64_t began = nanoseconds()
        cdef int got = self.look(wc, self.patience)
        self.patience = max(0, self.patience - (nanoseconds() - began))
        return got

    cdef int look(self, rnic_wc *wc, int64_t spin):
        cdef int got
        cdef int64_t until
        self.cq.calls += 1
        self.qp.calls += 1
        with nogil:
            got = self.cq.ops.poll_cq(self.cq.p, 1, wc)
            if got == 0 and spin > 0:
                until = nanoseconds() + spin
                while got == 0 and nanoseconds() < until:
                    got = self.cq.ops.poll_cq(self.cq.p, 1, wc)
        self.qp.calls -= 1
        self.cq.calls -= 1
        return got

    cdef void stash(self, rnic_wc *wc):
        """Keep a completion for the long way's next poll."""
        self.cq.keep(NULL, wc, 1)
        self.open = False

    cdef uint8_t *place(self, const rnic_wc *wc):
        return self.base + <int64_t>(wc.wr_id // WR_KINDS) % self.ledger.receives * self.receive_size

    cdef bint is_noted(self, const rnic_wc *wc):
        """Handle a completed SEND or a CREDIT, which the user never sees; False: it is neither."""
        cdef Ledger led = self.ledger
        cdef int64_t number = <int64_t>(wc.wr_id // WR_KINDS)
        if wc.status != RNIC_WC_SUCCESS:
            return False
        if wc.wr_id % WR_KINDS == OF_SEND:
            if number > led.completed:
                led.delivered += led.short_between(led.completed, number)
                led.completed = number
            led.heard = True
            return True
        if wc.byte_len != FRAME_HEADER or not self.is_next(wc, 0):
            return False
        h = <frame_header *>self.place(wc)
        if h.kind != FRAME_CREDIT or h.flags or self.refill < LEAST_REFILL:
            return False
        self.arrive()
        return True

    cdef bint is_next(self, const rnic_wc *wc, int64_t reserve):
        """Whether the peer has a credit for this SEND, and the SEND returns no more credits than there can be."""
        cdef Ledger led = self.ledger
        if (wc.status != RNIC_WC_SUCCESS or wc.wr_id % WR_KINDS != OF_RECEIVE or wc.opcode != RNIC_WCO_RECV
                or wc.byte_len < FRAME_HEADER or <int64_t>(wc.wr_id // WR_KINDS) != led.seen):
            return False
        self.refill = be16toh((<const frame_header *>self.place(wc)).credits)
        return led.told - led.arrived - RECEIVES_SPARE > reserve and led.returned + self.refill <= led.spent

    cdef bint is_piece(self, const rnic_wc *wc, bint wanted):
        """Whether this is the piece that is due; the first of several pieces only if a call waits for it."""
        cdef const frame_header *h
        cdef bint first, last, tagged
        cdef uint64_t total, n, there = 0
        if not self.is_next(wc, CREDITS_RESERVED):
            return False
        h = <const frame_header *>self.place(wc)
        first, last, tagged = h.kind == FRAME_MESSAGE, (h.flags & FRAME_LAST) != 0, (h.flags & FRAME_TAGGED) != 0
        if (h.flags & ~(FRAME_LAST | FRAME_TAGGED) or (tagged and not (first and self.tags))
                or be32toh(h.ident) != <uint32_t>self.ledger.complete):
            return False
        self.header = TAGGED_HEADER if tagged else MESSAGE_HEADER if first else FRAME_HEADER
        if first:
            if self.coming is not None or wc.byte_len < self.header:
                return False
            total, n = be64toh(h.total), wc.byte_len - self.header
            if total > self.max_message or (total and not n):
                return False
            if not last and (not wanted or total > self.longest_coming):
                return False
            self.total = total
            self.tag = be64toh(h.tag) if tagged else 0
        else:
            if h.kind != FRAME_MORE or self.coming is None or wc.byte_len == FRAME_HEADER:
                return False
            total, n, there = len(self.coming), wc.byte_len - FRAME_HEADER, self.came
        return there + n <= total and (there + n == total) == last

    cdef void arrive(self):
        """Count the SEND that is_next() has checked."""
        cdef Ledger led = self.ledger
        led.returned += self.refill
        led.freed += 1
        led.arrived += 1
        led.seen += 1
        led.heard = True

    cdef bint return_credits(self):
        """Return credits in a SEND of their own when there are enough; False: that was not possible."""
        cdef Ledger led = self.ledger
        cdef frame_header *h
        if led.receives + led.freed - led.told < led.threshold:
            return True
        if (led.handed_out - led.completed >= self.bounces or led.credits + led.returned - led.spent <= 0
                or not self.post_receives()):
            return False
        h = self.slot(led.handed_out + 1)
        h.kind, h.flags, h.credits, h.ident = FRAME_CREDIT, 0, htobe16(<uint16_t>(led.posted - led.told)), 0
        if not self.post(FRAME_HEADER):
            return False
        led.credit_sends += 1
        return True

    cdef bint post_receives(self):
        cdef Ledger led = self.ledger
        cdef rnic_recv_wr wr[RECEIVE_CHAIN]
        cdef rnic_sge sge[RECEIVE_CHAIN]
        cdef const rnic_recv_wr *bad = NULL
        cdef rnic_err err
        cdef int64_t i, n, number
        while led.receives + led.freed > led.posted:
            n = min(<int64_t>RECEIVE_CHAIN, led.receives + led.freed - led.posted)
            for i in range(n):
                number = led.posted + i
                sge[i].addr = <uintptr_t>(self.base + number % led.receives * self.receive_size)
                sge[i].length, sge[i].lkey = <uint32_t>self.receive_size, self.mr.lkey
                wr[i].wr_id, wr[i].sg_list, wr[i].num_sge = <uint64_t>number * WR_KINDS + OF_RECEIVE, &sge[i], 1
                wr[i].next = &wr[i + 1] if i + 1 < n else NULL
            if self.qp.ops.post_recv(self.qp.p, wr, &bad, &err) < 0:
                led.posted += bad - wr
                self.open = False
                return False
            led.posted += n
        return True
