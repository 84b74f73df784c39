/* SPDX-License-Identifier: Apache-2.0
 *
 * iWARP: RDMAP (RFC 5040, 7306) over DDP (RFC 5041) over MPA (RFC 5044, 6581), for RC queue pairs of a device of its own.  The
 * face of the room.  It does no I/O and reads no clock.
 *
 * What goes out leaves by the stream functions of the way's link (link/link.h).  What comes in is read by whoever has the
 * stream, who asks the queue pair where the next bytes belong: of a payload that is straight in its place.  So nothing is
 * copied in between, and a conversation can be cut at any byte.
 *
 * All is under the device's lock.
 */
#ifndef RNIC_IWARP_IWARP_H
#define RNIC_IWARP_IWARP_H

#include <sys/uio.h>

#include "qp/qp.h"

extern const struct transport iwarp_transport;

/* What the start-up has agreed (struct rnic_stream_attr), before RTS, when the queue pair's way leads to the stream and is held.
 * Its descriptor and bytes are not looked at: from RTS on, what came behind the start-up is given as all else is, first. */
void iwarp_agree(struct qp *qp, const struct rnic_stream_attr *agreed);

/* From now on signaled SENDs and WRITEs complete when the peer has them, if max_rd_atomic is not 0.  both: the peer's, too, so that
 * this end closes only when it has been asked for the last one. */
void iwarp_confirm(struct qp *qp, bool both);

#define IWARP_PIECES 36

/* Where the next bytes of its stream belong: so many pieces, at most IWARP_PIECES, to be filled in their order, and good until
 * the lock is let go of, or the queue pair has its turn.  0: nothing is wanted: not before RTS, nor any more. In ERR bytes are
 * still wanted, and forgotten, until the peer has closed. */
int iwarp_want(struct qp *qp, struct iovec *pieces);
/* n bytes have been put there: sched_input() is to follow. */
void iwarp_got(struct qp *qp, size_t n, uint64_t now);
/* They could not be: memory is gone where they belong.  True: iwarp_want() knows another place; false: it was not that. */
bool iwarp_lost(struct qp *qp);
/* No more will come: the peer has closed (0), or -errno. */
void iwarp_ended(struct qp *qp, int error, uint64_t now);

#endif
