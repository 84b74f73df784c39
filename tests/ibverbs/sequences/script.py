# SPDX-License-Identifier: Apache-2.0
"""Random sequences of verbs, right ones and wrong ones, as lines of a word and numbers.

Objects have slots: the n-th domain, region (of the n-th buffer), queue and so on. The players say "taken" or
"absent" where a slot is in use or empty. After each line a player waits until all work has completed that
will. So a queue pair that can send has a peer that answers, or none at all and a short timeout.

    pd S; mr S PD BYTES ACCESS; cq S CQE; srq S PD WR SGE; ah S PD GID_INDEX PORT       make; pd- S destroys
    qp S TYPE PD SEND_CQ RECV_CQ SRQ  SEND_WR RECV_WR SEND_SGE RECV_SGE INLINE  SIG_ALL     a slot -1 is none
    qp= S MASK STATE CUR PKEY PORT ACCESS MTU PEER RQ_PSN SQ_PSN RD DEST_RD
            RNR_TIMER TIMEOUT RETRY RNR GID QKEY                                        modify
    cq= S CQE; srq= S MASK WR LIMIT                 change it
    qp? S; srq? S                                   its attributes
    send QP OPCODE FLAGS  MR OFFSET LENGTH N KEY  MR OFFSET KEY     N elements; KEY is added to the right key
    recv QP MR OFFSET LENGTH N KEY; srecv SRQ ...   receives
    poll CQ; sum BUFFER                             what has completed; what is in memory
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from rnic import AccessFlags, QPAttrMask, QPState, QPType, SendFlags, WROpcode

SLOTS = 3  # of the 8 that players have: so that lines meet each other's objects
RC, UC, UD = QPType.RC, QPType.UC, QPType.UD
BYTES = 4096  # of a region: the buffer is larger, as bytes that go inline need no region
ALL_ACCESS = (
    AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
)
ACCESSES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 1 << 5)
M = QPAttrMask
INIT = M.STATE | M.PKEY_INDEX | M.PORT | M.ACCESS_FLAGS
RTR = M.STATE | M.AV | M.PATH_MTU | M.DEST_QPN | M.RQ_PSN | M.MAX_DEST_RD_ATOMIC | M.MIN_RNR_TIMER
RTS = M.STATE | M.TIMEOUT | M.RETRY_CNT | M.RNR_RETRY | M.SQ_PSN | M.MAX_QP_RD_ATOMIC
MASKS = (
    M.STATE,
    INIT,
    RTR,
    RTS,
    M.ACCESS_FLAGS,
    M.STATE | M.CUR_STATE,
    M.STATE | M.PKEY_INDEX | M.PORT | M.QKEY,
)
OPCODES = (
    *(WROpcode.SEND, WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM),
    *(WROpcode.RDMA_READ, WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD),
)
NOBODY = 0xABCDE  # the number of no queue pair


class Script:
    """Writes one sequence. It knows which queue pairs can send without a wait for ever."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.peers: dict[int, int] = {}  # connected RC queue pairs, by slot
        self.senders = set[int]()  # of which these can send: what they send completes

    def lines(self, count: int) -> Iterator[str]:
        """The sequence: some objects to begin with, and then whatever comes."""
        yield from (
            "begin",
            "pd 0",
            "mr 0 0 4096 15",
            "mr 1 0 4096 15",
            "cq 0 500",
            "cq 1 500",
            "ah 0 0 0 1",
            "srq 0 0 8 2",
        )
        yield from self.pair()
        for _ in range(count):
            yield from self.random.choices(*zip(*self.kinds(), strict=True))[0]()
        for slot in range(SLOTS):
            yield from (f"poll {slot}", f"qp? {slot}", f"sum {slot}")

    def kinds(self) -> Iterator[tuple[object, int]]:
        """What a line can be, and how often."""
        yield from ((self.make, 6), (self.destroy, 3), (self.modify, 4), (self.pair, 3), (self.send, 22))
        yield from ((self.receive, 12), (self.datagram, 1), (self.look, 6))

    def slot(self) -> int:
        return self.random.randrange(SLOTS)

    def one(self, *values: int) -> int:
        return int(self.random.choice(values))

    def make(self) -> Iterator[str]:
        s, pd = self.slot(), self.one(0, 0, 0, self.slot())
        yield self.random.choice(
            (
                f"pd {s}",
                f"mr {s} {pd} {self.one(1, 64, BYTES, BYTES)} {self.one(*ACCESSES, 15, 15)}",
                f"cq {s} {self.one(-1, 0, 300, 300, 1 << 30)}",
                f"srq {s} {pd} {self.one(0, 1, 8, 1 << 30)} {self.one(0, 1, 4, 1000)}",
                f"ah {s} {pd} {self.one(0, 0, 200)} {self.one(1, 1, 0, 9)}",
                f"cq= {s} {self.one(-1, 0, 300, 400, 1 << 30)}",
                f"srq= {s} {self.one(0, 1, 2, 3, 4)} {self.one(0, 4, 16, 1 << 30)} {self.one(0, 1, 100)}",
                self.make_qp(s, pd),
            )
        )

    def make_qp(self, s: int, pd: int) -> str:
        kind = self.one(RC, RC, UC, UD, 1, 77)
        self.forget(s)  # if the slot is taken, too: what is known of it is less then
        sizes = (
            f"{self.one(0, 1, 8, 1 << 30)} {self.one(0, 8, 64)} {self.one(0, 1, 4, 1000)} {self.one(0, 1, 4)}"
        )
        srq = self.one(-1, -1, -1, self.slot())
        cqs, inline = f"{self.one(-1, 0, 1)} {self.one(0, 1)}", self.one(0, 16, 100)
        return f"qp {s} {kind:d} {pd} {cqs} {srq} {sizes} {inline} {self.one(0, 1)}"

    def destroy(self) -> Iterator[str]:
        kind, s = self.random.choice(("pd", "mr", "cq", "srq", "qp", "ah")), self.slot()
        if kind == "qp":
            self.forget(s)
        yield f"{kind}- {s}"

    def forget(self, s: int) -> None:
        """This queue pair and its peer are not connected any more, or perhaps not."""
        self.senders.discard(s)
        if s in self.peers:
            other = self.peers.pop(s)
            self.peers.pop(other, None)
            self.senders.discard(other)

    def set(self, s: int, mask: int, state: int, peer: int, **more: int) -> str:
        known = {"cur": 0, "pkey": 0, "port": 1, "access": int(ALL_ACCESS), "mtu": 3}
        last = {
            "rq": 5,
            "sq": 5,
            "rd": 1,
            "dest": 1,
            "timer": 1,
            "timeout": 18,
            "retry": 7,
            "rnr": 0,
            "gid": 0,
        }
        values = [*(known | more).values(), peer, *(last | {}).values(), 0x1234]
        return f"qp= {s} {int(mask)} {int(state)} {' '.join(str(int(value)) for value in values)}"

    def pair(self) -> Iterator[str]:
        """Two connected RC queue pairs, in slots that may have been taken."""
        a, b = self.random.sample(range(SLOTS), 2)
        for s in (a, b):
            self.forget(s)
            yield f"qp- {s}"
            yield f"qp {s} 2 0 {self.one(0, 1)} {self.one(0, 1)} -1 8 64 4 4 64 {self.one(0, 1)}"
        for s, peer in ((a, b), (b, a)):
            yield self.set(s, INIT, QPState.INIT, peer, access=self.one(0, 2, 4, 15, 15, 15))
            yield self.set(s, RTR, QPState.RTR, peer)
        for s, peer in ((a, b), (b, a)):
            yield self.set(s, RTS, QPState.RTS, peer)
            self.peers[s] = peer
            self.senders.add(s)
        yield f"qp? {a}"

    def modify(self) -> Iterator[str]:
        """Any change, or the one to ERR, which is always possible for a queue pair that was connected."""
        s = self.slot()
        is_connected = s in self.peers
        self.forget(s)
        if self.random.random() < 0.5:
            yield self.set(s, M.STATE, QPState.ERR, s)
            if is_connected:
                self.senders.add(s)  # all is flushed
        else:
            state = self.one(0, 1, 2, 3, 5, 6, 9)
            port, pkey, mtu = self.one(1, 1, 1, 0, 7), self.one(0, 0, 0, 500), self.one(3, 3, 3, 0, 9)
            yield self.set(
                s,
                self.one(*MASKS),
                state,
                self.slot(),
                cur=self.one(0, 1, 3),
                port=port,
                pkey=pkey,
                mtu=mtu,
                access=self.one(0, 2, 15),
            )
        yield f"qp? {s}"

    def send(self) -> Iterator[str]:
        """A request that may be wrong. Then its queue pair is in ERR, and the peer would not be answered."""
        s = self.slot()
        if s not in self.senders:
            return
        self.senders.discard(self.peers.get(s, s))
        self.senders.add(s)
        flags = SendFlags.SIGNALED | self.one(0, 0, 0, SendFlags.SOLICITED, SendFlags.FENCE, SendFlags.INLINE)
        length, n, key = (
            self.one(0, 1, 8, 8, 8, 16, 64, 1000),
            self.one(1, 1, 1, 0, 2, 9),
            self.one(0, 0, 0, 0, 0, 0, 99),
        )
        there = f"{self.one(0, 1)} {self.one(0, 8, 8, 1, 4090)} {self.one(0, 0, 0, 0, 0, 0, 256)}"
        here = f"{self.one(0, 1)} {self.one(0, 8, 4090)} {length} {n} {key}"
        yield f"send {s} {self.one(*OPCODES, 77)} {int(flags)} {here} {there}"
        yield f"poll {self.one(0, 1)}"

    def datagram(self) -> Iterator[str]:
        """To a queue pair that is not there: that does not take long."""
        s = self.slot()
        self.forget(s)
        yield f"qp- {s}"
        yield f"qp {s} {int(UD)} 0 0 0 -1 8 8 4 4 16 0"
        yield self.set(s, M.STATE | M.PKEY_INDEX | M.PORT | M.QKEY, QPState.INIT, s)
        yield self.set(s, M.STATE, QPState.RTR, s)
        yield self.set(s, M.STATE | M.SQ_PSN, QPState.RTS, s)
        opcode, length = (
            self.one(WROpcode.SEND, WROpcode.SEND_WITH_IMM, WROpcode.RDMA_READ),
            self.one(0, 8, 64),
        )
        yield f"send {s} {opcode} 2 0 0 {length} 1 0 0 {NOBODY} {self.one(0x1234, 1)}"
        yield "poll 0"

    def receive(self) -> Iterator[str]:
        where = self.random.choice(("recv", "recv", "recv", "recv", "srecv"))
        length, n, key = (
            self.one(0, 8, 64, 64, 1000),
            self.one(0, 1, 1, 1, 2, 9),
            self.one(0, 0, 0, 0, 0, 0, 0, 99),
        )
        for _ in range(self.one(1, 2, 3)):
            yield f"{where} {self.slot()} {self.one(0, 1)} {self.one(0, 64)} {length} {n} {key}"

    def look(self) -> Iterator[str]:
        s = self.slot()
        yield self.random.choice((f"qp? {s}", f"srq? {s}", f"poll {s}", f"sum {s}"))
