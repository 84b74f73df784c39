# SPDX-License-Identifier: Apache-2.0
"""Extended queue pairs: builders make work requests, which are posted all together or not at all
(ibv_wr_post(3)).
"""

import errno
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from rnic._nic import nic
from rnic._nic.nic import AH, SGE, SendWR
from rnic.enums import (
    PlacementType,
    QPCreateFlags,
    QPInitAttrMask,
    QPType,
    SelectivityLevel,
    SendFlags,
    SendOpsFlags,
    WROpcode,
)
from rnic.errors import VerbsError
from rnic.records import field
from rnic.verbs.qp import QP, QPInitAttr
from rnic.verbs.section import Section

__all__ = ["QPEx", "QPInitAttrEx"]

_ATOMIC_WRITE_BYTES = 8


class QPInitAttrEx(QPInitAttr):
    """Attributes of a new extended queue pair (ibv_create_qp_ex(3)); an attribute that is None is not set."""

    pd: nic.PD | None = field(default=None, kw_only=True)
    """The protection domain; required."""
    send_ops_flags: SendOpsFlags | None = field(default=None, kw_only=True)
    """The operations whose builders the program will use."""
    create_flags: QPCreateFlags | None = field(default=None, kw_only=True)
    """How it is created."""
    max_tso_header: int | None = field(default=None, kw_only=True)
    """Bytes of the header in front of a TSO request; not supported."""
    source_qpn: int | None = field(default=None, kw_only=True)
    """The queue pair number that its packets carry; not supported."""
    comp_mask: QPInitAttrMask | None = field(default=None, kw_only=True)
    """Which attributes count; None: those that are set."""

    def mask(self) -> QPInitAttrMask:
        """The fields that count."""
        if self.comp_mask is not None:
            return self.comp_mask
        found = QPInitAttrMask(0)
        for name, bit in _MASKS.items():
            if getattr(self, name) is not None:
                found |= bit
        return found

    def extension(self) -> dict[str, int]:
        """The fields of struct rnic_qp_init_attr_ex that stand behind those of struct rnic_qp_init_attr."""
        return {
            "comp_mask": self.mask(),
            "create_flags": self.create_flags or 0,
            "source_qpn": self.source_qpn or 0,
            "max_tso_header": self.max_tso_header or 0,
            "send_ops_flags": self.send_ops_flags or 0,
        }


_MASKS = {
    "pd": QPInitAttrMask.PD,
    "create_flags": QPInitAttrMask.CREATE_FLAGS,
    "max_tso_header": QPInitAttrMask.MAX_TSO_HEADER,
    "send_ops_flags": QPInitAttrMask.SEND_OPS_FLAGS,
}


class QPEx(QP):
    """A queue pair with builders of work requests (ibv_wr_post(3)); Context.create_qp_ex() makes it.

        with qp.wr_start():
            qp.wr_id, qp.wr_flags = 1, SendFlags.SIGNALED
            qp.wr_rdma_write(rkey, remote_addr)
            qp.wr_set_sge(SGE(mr))

    Between wr_start() and wr_complete(), other threads wait in wr_start(). A builder, such as
    wr_rdma_write(), begins a request with the current wr_id and wr_flags. A setter, such as wr_set_sge(),
    belongs to the last request. If anything is wrong, wr_complete() raises it and posts nothing; so it does
    for an operation that is not in send_ops_flags.
    """

    wr_id: int
    """The number that the completion of the next request will carry."""
    wr_flags: SendFlags
    """The flags of the next request; INLINE is set by wr_set_inline_data()."""

    _ops: SendOpsFlags
    _section: Section
    _data: str  # the builder whose data is not set yet
    _address: str  # the builder whose request has no address yet

    @classmethod
    def create(cls, init: QPInitAttrEx) -> Self:
        """What Context.create_qp_ex() does."""
        if init.xrcd is not None:
            text = "an XRC_RECV queue pair sends nothing, so it has no builders: XRCD.create_qp() makes it"
            raise VerbsError(errno.EINVAL, text, "create_qp_ex")
        if init.pd is None or QPInitAttrMask.PD not in init.mask():
            raise VerbsError(errno.EINVAL, "a queue pair needs a protection domain: give pd", "create_qp_ex")
        qp = cls(init.pd, init, init.extension())
        counts = QPInitAttrMask.SEND_OPS_FLAGS in init.mask()
        qp.wr_id, qp.wr_flags = 0, SendFlags(0)
        qp._ops = init.send_ops_flags if counts and init.send_ops_flags else SendOpsFlags(0)
        qp._section, qp._data, qp._address = Section(), "", ""
        return qp

    # ------------------------------------------------------------------ the critical section

    def wr_start(self, timeout: float | None = 60.0) -> "_Open":
        """Begin to build requests (ibv_wr_start(3)).

        In a `with` block, the end of the block completes; an exception that leaves the block aborts.
        wr_start() waits while another thread is between its wr_start() and wr_complete() or wr_abort().
        Raises TimeoutError after `timeout` seconds. Raises VerbsError: EINVAL if this thread has begun
        already; EOPNOTSUPP if the queue pair was created without send_ops_flags.
        """
        if not self._ops:
            cure = "give send_ops_flags to create_qp_ex()"
            raise VerbsError(
                errno.EOPNOTSUPP, f"the queue pair was made without builders: {cure}", "wr_start"
            )
        self._section.enter(timeout)
        self._data = self._address = ""
        return _Open(self)

    def wr_complete(self) -> None:
        """Post all requests since wr_start(), or none (ibv_wr_complete(3)).

        Raises VerbsError with the first error of a builder or setter, or the error of post_send().
        """
        self._section.need("wr_complete")
        try:
            self._end_request()
            if self._section.error is not None:
                raise self._section.error
            self.raw_post_whole(self._section.requests)
        finally:
            self._section.leave()

    def wr_abort(self) -> None:
        """Drop all requests since wr_start() (ibv_wr_abort(3))."""
        self._section.need("wr_abort")
        self._section.leave()

    @property
    def wr_is_open(self) -> bool:
        """Whether this thread is between wr_start() and wr_complete() or wr_abort()."""
        return self._section.is_mine

    def post_send(self, wrs: SendWR | Iterable[SendWR]) -> None:
        """Post as QP.post_send() does. Raises VerbsError: EINVAL between wr_start() and wr_complete()."""
        if self._section.is_mine:
            cure = "wr_complete() first, or build this request too"
            raise VerbsError(errno.EINVAL, f"this thread is in its critical section: {cure}", "post_send")
        super().post_send(wrs)

    # ------------------------------------------------------------------ builders

    def wr_send(self) -> None:
        """SEND a message (ibv_wr_send(3))."""
        self._begin("wr_send", WROpcode.SEND)

    def wr_send_imm(self, imm_data: int) -> None:
        """SEND a message with 32 bits of immediate data."""
        self._begin("wr_send_imm", WROpcode.SEND_WITH_IMM, imm_data=imm_data)

    def wr_send_inv(self, invalidate_rkey: int) -> None:
        """SEND a message that invalidates a key of the peer."""
        self._begin("wr_send_inv", WROpcode.SEND_WITH_INV, invalidate_rkey=invalidate_rkey)

    def wr_send_tso(self, hdr: Any, hdr_sz: int, mss: int) -> None:  # noqa: ARG002
        """Not supported, EOPNOTSUPP: send a TCP stream in segments (TSO)."""
        self._section.need("wr_send_tso")
        self._section.fail(errno.EOPNOTSUPP, "wr_send_tso: this device does not segment (TSO)")

    def wr_rdma_write(self, rkey: int, remote_addr: int) -> None:
        """WRITE to the peer's memory (ibv_wr_rdma_write(3))."""
        self._begin("wr_rdma_write", WROpcode.RDMA_WRITE, rkey=rkey, remote_addr=remote_addr)

    def wr_rdma_write_imm(self, rkey: int, remote_addr: int, imm_data: int) -> None:
        """WRITE to the peer's memory, and complete a receive there with 32 bits of immediate data."""
        self._begin(
            "wr_rdma_write_imm",
            WROpcode.RDMA_WRITE_WITH_IMM,
            rkey=rkey,
            remote_addr=remote_addr,
            imm_data=imm_data,
        )

    def wr_rdma_read(self, rkey: int, remote_addr: int) -> None:
        """READ from the peer's memory (ibv_wr_rdma_read(3))."""
        self._begin("wr_rdma_read", WROpcode.RDMA_READ, rkey=rkey, remote_addr=remote_addr)

    def wr_atomic_cmp_swp(self, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
        """Replace the peer's 8 bytes by `swap` if they equal `compare`; the old value is stored in this
        request's data.
        """
        self._begin(
            "wr_atomic_cmp_swp",
            WROpcode.ATOMIC_CMP_AND_SWP,
            rkey=rkey,
            remote_addr=remote_addr,
            compare_add=compare,
            swap=swap,
        )

    def wr_atomic_fetch_add(self, rkey: int, remote_addr: int, add: int) -> None:
        """Add to the peer's 8 bytes; the old value is stored in this request's data."""
        self._begin(
            "wr_atomic_fetch_add",
            WROpcode.ATOMIC_FETCH_AND_ADD,
            rkey=rkey,
            remote_addr=remote_addr,
            compare_add=add,
        )

    def wr_atomic_write(self, rkey: int, remote_addr: int, atomic_wr: Any) -> None:
        """Write 8 bytes to the peer's memory in one step (IBA A19.4.2).

        The bytes are copied now, so no setter follows. They are sent INLINE: cap.max_inline_data must be at
        least 8.
        """
        piece = SGE.inline(atomic_wr)
        self._begin("wr_atomic_write", WROpcode.ATOMIC_WRITE, data=False, rkey=rkey, remote_addr=remote_addr)
        if piece.length != _ATOMIC_WRITE_BYTES:
            self._section.fail(errno.EINVAL, f"wr_atomic_write takes 8 bytes, not {piece.length}")
        self._put([piece], SendFlags.INLINE)

    def wr_flush(
        self,
        rkey: int,
        remote_addr: int,
        length: int,
        type: PlacementType,  # noqa: A002 - libibverbs' name
        level: SelectivityLevel = SelectivityLevel.RANGE,
    ) -> None:
        """Make the peer's bytes visible to all there (GLOBAL), or PERSISTENT (IBA A19.4.3).

        It covers everything that was written before. With level MR it covers the whole region of the key.
        """
        self._begin(
            "wr_flush",
            WROpcode.FLUSH,
            data=False,
            rkey=rkey,
            remote_addr=remote_addr,
            flush_length=length,
            flush_type=type,
            flush_level=level,
        )

    def wr_local_inv(self, invalidate_rkey: int) -> None:
        """Invalidate a key of this end (ibv_wr_local_inv(3))."""
        self._begin("wr_local_inv", WROpcode.LOCAL_INV, data=False, invalidate_rkey=invalidate_rkey)

    def wr_bind_mw(self, mw: Any, rkey: int, bind_info: Any) -> None:
        """Bind a memory window of type 2 (ibv_wr_bind_mw(3))."""
        self._begin("wr_bind_mw", WROpcode.BIND_MW, data=False, rkey=rkey)
        self._extend("wr_bind_mw", mw=mw, bind_info=bind_info)

    # ------------------------------------------------------------------ setters

    def wr_set_sge(self, sge: SGE | int, addr: int | None = None, length: int | None = None) -> None:
        """Set the request's data: an SGE, or lkey, addr and length (ibv_wr_set_sge(3))."""
        if not isinstance(sge, SGE):
            sge = SGE(addr=addr, length=length, lkey=sge)
        elif addr is not None or length is not None:
            raise TypeError("wr_set_sge takes an SGE, or lkey, addr and length")
        self._set_data("wr_set_sge", [sge], SendFlags(0))

    def wr_set_sge_list(self, sg_list: Iterable[SGE]) -> None:
        """Set the request's data: a list of SGEs; an empty list means no data."""
        self._set_data("wr_set_sge_list", sg_list, SendFlags(0))

    def wr_set_inline_data(self, data: Any) -> None:
        """Set the request's data, and copy it now; for SEND and RDMA_WRITE, at most cap.max_inline_data
        bytes.
        """
        self._set_data("wr_set_inline_data", [SGE.inline(data)], SendFlags.INLINE)

    def wr_set_inline_data_list(self, data: Iterable[Any]) -> None:
        """Set the request's data from several buffers, one behind the other, and copy it now."""
        self._set_data("wr_set_inline_data_list", [SGE.inline(b"".join(data))], SendFlags.INLINE)

    def wr_set_ud_addr(self, ah: AH, remote_qpn: int, remote_qkey: int) -> None:
        """Set the destination of a datagram; each datagram needs one (ibv_wr_set_ud_addr(3))."""
        wr = self._last("wr_set_ud_addr")
        if self.qp_type not in (QPType.UD, QPType.GSI):
            self._section.fail(errno.EINVAL, f"wr_set_ud_addr on a queue pair of type {self.qp_type.name}")
        elif wr is not None:
            wr.ah, wr.remote_qpn, wr.remote_qkey = ah, remote_qpn, remote_qkey
            self._address = ""

    def wr_set_xrc_srqn(self, remote_srqn: int) -> None:
        """Set the number of the peer's shared receive queue; each request of an XRC_SEND queue pair needs
        one.
        """
        if self._last("wr_set_xrc_srqn") is None:
            return
        if self.qp_type is not QPType.XRC_SEND:
            self._section.fail(errno.EINVAL, f"wr_set_xrc_srqn on a queue pair of type {self.qp_type.name}")
            return
        self._extend("wr_set_xrc_srqn", remote_srqn=remote_srqn)
        self._address = ""

    # ------------------------------------------------------------------ what they share

    def _begin(self, verb: str, opcode: WROpcode, *, data: bool = True, **values: Any) -> None:
        self._section.need(verb)
        self._end_request()
        needed = SendOpsFlags[opcode.name]
        if needed not in self._ops:
            cure = f"create the queue pair with SendOpsFlags.{needed.name}"
            self._section.fail(errno.EINVAL, f"{verb} is not among send_ops_flags: {cure}")
        self._section.requests.append(SendWR(self.wr_id, opcode, self.wr_flags, **values))
        self._data = verb if data else ""
        carried = opcode not in (WROpcode.BIND_MW, WROpcode.LOCAL_INV)
        addressed = carried and self.qp_type in (QPType.UD, QPType.GSI, QPType.XRC_SEND)
        self._address = verb if addressed else ""

    def _end_request(self) -> None:
        """Nothing that the last request needs may be missing."""
        if self._data:
            self._section.fail(
                errno.EINVAL, f"{self._data} has no data: wr_set_sge(), or wr_set_sge_list([]) for none"
            )
        if self._address:
            setter = "wr_set_xrc_srqn()" if self.qp_type is QPType.XRC_SEND else "wr_set_ud_addr()"
            self._section.fail(errno.EINVAL, f"{self._address} has no address: {setter}")
        self._data = self._address = ""

    def _last(self, verb: str) -> SendWR | None:
        self._section.need(verb)
        if not self._section.requests:
            self._section.fail(errno.EINVAL, f"{verb} belongs behind a builder, such as wr_send()")
            return None
        return self._section.requests[-1]

    def _set_data(self, verb: str, pieces: Iterable[SGE], flag: SendFlags) -> None:
        if self._last(verb) is None:
            return
        if not self._data:
            self._section.fail(errno.EINVAL, f"{verb}: the request has its data already, or takes none")
        else:
            self._put(pieces, flag)

    def _put(self, pieces: Iterable[SGE], flag: SendFlags) -> None:
        wr = self._section.requests[-1]
        wr.sg_list = pieces
        wr.send_flags = wr.send_flags | flag
        self._data = ""

    def _extend(self, verb: str, **values: Any) -> None:
        """Fields that a SendWR has only where the device knows the operation."""
        wr = self._section.requests[-1]
        for name, value in values.items():
            if hasattr(wr, name):
                setattr(wr, name, value)
            else:
                self._section.fail(errno.EOPNOTSUPP, f"{verb}: this device does not know such requests")


class _Open:
    """The critical section as a `with` block."""

    def __init__(self, qp: QPEx) -> None:
        self._qp = qp

    def __enter__(self) -> QPEx:
        return self._qp

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._qp.wr_is_open:
            return
        if kind is None:
            self._qp.wr_complete()
        else:
            self._qp.wr_abort()
