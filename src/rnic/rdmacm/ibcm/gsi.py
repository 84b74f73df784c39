# SPDX-License-Identifier: Apache-2.0
"""Queue pair 1 of a context: it sends and receives management datagrams, with their address handles."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from time import monotonic

from rnic._nic import nic
from rnic.enums import AccessFlags, QPState, QPType, SendFlags, WCStatus, WROpcode
from rnic.errors import VerbsError
from rnic.log import DEBUG, WARNING, Log
from rnic.records import Record
from rnic.verbs.ah import AH, GID, GRH_BYTES, AHAttr, Route
from rnic.verbs.context import Context
from rnic.verbs.pd import PD
from rnic.verbs.qp import QPAttr, QPCap, QPInitAttr
from rnic.wire import GSI_QKEY, GSI_QPN, MAD_BYTES

_log = Log("rnic.rdmacm")

RECEIVES = 2048  # datagrams that can come while the agent is busy
SENDS = 256
AHS = 256  # destinations whose address handles are kept
_PATIENCE = 1.0  # seconds for sends to go out: more is a device that has failed
_ROOM = GRH_BYTES + MAD_BYTES
_HOW = SendFlags.SIGNALED | SendFlags.INLINE


class Peer(Record):
    """The source or destination of datagrams: the communication manager's `Address`."""

    gid: GID
    sgid_index: int  # of our own address that they leave from, or came to


class Gsi:
    """The queue pair with receives posted; one thread at a time."""

    def __init__(self, context: Context, pd: PD) -> None:
        self._pd = pd
        self._context = context
        self._indices: dict[GID, int] = {}
        self._ahs: OrderedDict[tuple[bytes, int], AH] = OrderedDict()  # by GID and index
        self._unpolled = 0
        self._taken: list[nic.WC] = []  # not read yet
        with ExitStack() as stack:
            self.channel = stack.enter_context(context.create_comp_channel())
            self._send_cq = stack.enter_context(context.create_cq(SENDS))
            self._recv_cq = stack.enter_context(context.create_cq(RECEIVES, self.channel))
            self._memory = bytearray(RECEIVES * _ROOM)
            self._mr = stack.enter_context(pd.reg_mr(self._memory, AccessFlags.LOCAL_WRITE))
            self._out = bytearray(MAD_BYTES)
            self._out_mr = stack.enter_context(pd.reg_mr(self._out))
            init = QPInitAttr(
                self._send_cq,
                self._recv_cq,
                QPType.GSI,
                cap=QPCap(max_send_wr=SENDS, max_recv_wr=RECEIVES, max_inline_data=MAD_BYTES),
            )
            self._qp = stack.enter_context(pd.create_qp(init))
            self._ready()
            self._stack = stack.pop_all()

    def _ready(self) -> None:
        self._qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=GSI_QKEY))
        self._wrs = [nic.RecvWR(i, [nic.SGE(self._mr, i * _ROOM, _ROOM)]) for i in range(RECEIVES)]
        self._qp.post_recv(self._wrs)
        self._qp.modify(QPAttr(qp_state=QPState.RTR))
        self._qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
        self._recv_cq.req_notify()

    def index_of(self, gid: GID) -> int | None:
        """The index of an address in the port's GID table, which may have changed since it was last read."""
        if gid not in self._indices:
            self._indices = {entry.gid: entry.gid_index for entry in self._context.query_gid_table()}
        return self._indices.get(gid)

    def quiet(self) -> None:
        """Take the channel's event and arm the queue again, before take()."""
        try:
            while True:
                self.channel.get_cq_event(0)
                self._recv_cq.ack_events()
        except TimeoutError:
            self._recv_cq.req_notify()

    def take(self) -> list[tuple[bytes, Peer]] | None:
        """The datagrams that have come, with their sources; None if the queue is empty."""
        self._taken = self._taken or self._recv_cq.poll(64)
        if not self._taken:
            return None
        found = [pair for wc in self._taken if (pair := self._read(wc))]
        again = [self._wrs[wc.wr_id] for wc in self._taken if wc.status != WCStatus.WR_FLUSH_ERR]
        if again:  # what is flushed would be flushed again: the device has gone
            self._qp.post_recv(again)
        self._taken = []
        return found

    def _read(self, wc: nic.WC) -> tuple[bytes, Peer] | None:
        if not wc.ok:
            level = DEBUG if wc.status == WCStatus.WR_FLUSH_ERR else WARNING
            _log.log(level, "queue pair 1: %s", wc.explain())
            return None
        at = wc.wr_id * _ROOM
        raw = bytes(self._memory[at : at + wc.byte_len])
        route = Route.from_grh(raw)
        index = self.index_of(route.dgid)
        return None if index is None else (raw[GRH_BYTES:], Peer(route.sgid, index))

    def send(self, peer: Peer, data: bytes) -> None:
        """Send a datagram. If it cannot be sent, that is logged, and the datagram is lost as on the wire."""
        self._reap(SENDS - 1)
        self._out[:] = data
        try:
            self._qp.post_send(
                nic.SendWR(
                    0,
                    WROpcode.SEND,
                    _HOW,
                    [nic.SGE(self._out_mr, 0, MAD_BYTES)],
                    ah=self._ah(peer),
                    remote_qpn=GSI_QPN,
                    remote_qkey=GSI_QKEY,
                )
            )
        except VerbsError as error:
            _log.warning("queue pair 1: to %s: %s", peer.gid.ip, error)
            return
        self._unpolled += 1

    def _reap(self, room_for: int) -> None:
        """Poll send completions until at most this many sends are outstanding."""
        until = monotonic() + _PATIENCE
        while self._unpolled > room_for and monotonic() < until:
            if not (done := self._send_cq.poll(64)):
                continue
            self._unpolled -= len(done)
            for wc in done:
                if not wc.ok:
                    _log.warning("queue pair 1: %s", wc.explain())
            if self._qp.state == QPState.SQE:
                self._qp.modify(QPAttr(qp_state=QPState.RTS, cur_qp_state=QPState.SQE))

    def _ah(self, peer: Peer) -> AH:
        key = peer.gid.raw, peer.sgid_index
        found = self._ahs.get(key)
        if found is None:
            found = self._ahs[key] = self._pd.create_ah(AHAttr(peer.gid, peer.sgid_index))
            if len(self._ahs) > AHS:
                self._ahs.popitem(last=False)[1].close()
        else:
            self._ahs.move_to_end(key)
        return found

    def close(self) -> None:
        """Close everything when the posted datagrams have been sent."""
        self._reap(0)
        for ah in self._ahs.values():
            ah.close()
        self._stack.close()
