# SPDX-License-Identifier: Apache-2.0
"""Connected queue pairs for tests and experiments: in one process, or one end in each of two.

    with rnic.testing.Pair() as pair:                        # both ends here, over the loopback interface
        pair.a.qp.post_send(...)
        (wc,) = pair.a.wait()

    with rnic.testing.End() as end:                          # one end here, the other one behind the socket
        rnic.testing.connect_through(end.qp, sock)

connect() connects any two queue pairs of this process, as rnic.connect_qps() does, with Options for each end.
prepare() and complete() are its two halves, for programs that send the Address to the peer themselves.
"""

from rnic.testing.connection import connect_through
from rnic.testing.pair import ALL_ACCESS, End, Pair, loopback
from rnic.verbs.connect import Address, Options, complete, meet, prepare
from rnic.verbs.connect import connect_both as connect
from rnic.verbs.meeting import addresses

__all__ = [
    "ALL_ACCESS",
    "Address",
    "End",
    "Options",
    "Pair",
    "addresses",
    "complete",
    "connect",
    "connect_through",
    "loopback",
    "meet",
    "prepare",
]
