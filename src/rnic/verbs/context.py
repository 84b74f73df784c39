# SPDX-License-Identifier: Apache-2.0
"""An open device, and what it tells about itself."""

import errno
import os
import warnings
from collections.abc import Sequence
from typing import Any, Self

from rnic._nic import nic
from rnic.enums import (
    MTU,
    AtomicCap,
    DeviceCap,
    EventType,
    GIDType,
    LinkLayer,
    NodeType,
    PortState,
    QPAttachCompCntrOp,
    Transport,
    ValuesMask,
    WCFlags,
)
from rnic.errors import VerbsError
from rnic.records import Record, field
from rnic.verbs.ah import GID, AHAttr, Route
from rnic.verbs.cntr import CompCntrCaps, CompCntrInitAttr
from rnic.verbs.counters import Counters
from rnic.verbs.cq import CQInitAttrEx
from rnic.verbs.device import Device
from rnic.verbs.device_ex import DeviceAttrEx
from rnic.verbs.faults import Faults
from rnic.verbs.memory import AllocDMAttr, ParentDomainInitAttr
from rnic.verbs.pd import PD
from rnic.verbs.qp import QP, QPOpenAttr
from rnic.verbs.qp_ex import QPEx, QPInitAttrEx
from rnic.verbs.srq import SRQ, SRQInitAttrEx
from rnic.verbs.wq import (
    WQ,
    RawPacketAttr,
    RwqIndTable,
    RwqIndTableInitAttr,
    WQInitAttr,
)
from rnic.verbs.xrcd import XRCD

__all__ = ["AsyncEvent", "Context", "DeviceAttr", "GIDEntry", "PortAttr", "ValuesEx"]


class DeviceAttr(Record):
    """What a device can do: libibverbs' fields, limits as numbers of objects (ibv_query_device(3))."""

    fw_ver: str
    node_guid: int
    sys_image_guid: int
    max_mr_size: int
    page_size_cap: int
    vendor_id: int
    vendor_part_id: int
    hw_ver: int
    max_qp: int
    max_qp_wr: int
    device_cap_flags: DeviceCap
    max_sge: int
    max_sge_rd: int
    max_cq: int
    max_cqe: int
    max_mr: int
    max_pd: int
    max_qp_rd_atom: int
    max_res_rd_atom: int
    max_qp_init_rd_atom: int
    atomic_cap: AtomicCap
    max_mw: int
    max_mcast_grp: int
    max_mcast_qp_attach: int
    max_ah: int
    max_srq: int
    max_srq_wr: int
    max_srq_sge: int
    max_pkeys: int
    local_ca_ack_delay: int
    phys_port_cnt: int
    max_inline_data: int
    """Bytes; not among libibverbs' fields."""


class ValuesEx(Record):
    """Values of a device that change all the time (ibv_query_rt_values_ex(3)); None was not asked for."""

    comp_mask: ValuesMask
    raw_clock: int | None
    """What the timestamp of a completion would be now; the software RNIC counts ns of CLOCK_MONOTONIC."""


class PortAttr(Record):
    """The state and the limits of a port: libibverbs' fields (ibv_query_port(3))."""

    state: PortState
    max_mtu: MTU
    active_mtu: MTU
    gid_tbl_len: int
    port_cap_flags: int
    max_msg_sz: int
    """Bytes."""
    bad_pkey_cntr: int
    qkey_viol_cntr: int
    pkey_tbl_len: int
    lid: int
    sm_lid: int
    lmc: int
    max_vl_num: int
    sm_sl: int
    subnet_timeout: int
    init_type_reply: int
    active_width: int
    active_speed: int
    phys_state: int
    link_layer: LinkLayer
    flags: int


class GIDEntry(Record):
    """One of a port's addresses (ibv_query_gid_ex(3))."""

    gid: GID
    gid_index: int
    port_num: int
    gid_type: GIDType
    ndev_ifindex: int
    """The netdev that has the address."""


class AsyncEvent(Record):
    """Something happened that no completion reports (ibv_get_async_event(3)).

    While an event of a QP, CQ, SRQ or WQ is not acknowledged, its object cannot be closed: EBUSY, where
    libibverbs waits, as a thread that waited for itself would wait for ever.  ack() acknowledges; so does
    dropping it.
    """

    event_type: EventType
    element: "nic.QP | nic.CQ | nic.SRQ | nic.WQ | int | None"
    """The QP, CQ, SRQ or WQ that it happened to, the port number, or None: the whole device."""
    _token: nic.AsyncToken | None = field(default=None, compare=False, repr=False)

    def ack(self) -> None:
        """Acknowledge it (ibv_ack_async_event(3)).

        Raises VerbsError, EINVAL, the second time.  Events of a port or of the device hold nothing.
        """
        if self._token is not None:
            self._token.ack()


_WORK_REQUESTS = CompCntrInitAttr()


class Context(nic.Context):
    """An open device (ibv_open_device(3)); rnic.open_device() makes it.

    The software RNIC works in a thread of its own until close(): peers are served whatever Python does.
    """

    __slots__ = ("device",)

    device: Device
    """The device that was opened."""

    @classmethod
    def of_device(
        cls,
        device: Device,
        *,
        rcvbuf: int,
        max_window: int,
        gso: bool,
        pkeys: Sequence[int],
        congestion_control: bool | None,
        local: bool,
    ) -> Self:
        """Open the device; what rnic.open_device() does once it knows which."""
        congestion = 0 if congestion_control is None else 1 if congestion_control else -1
        context = cls.open_soft(
            device.name, device.netdev, rcvbuf, max_window, not gso, pkeys, congestion, 1 if local else -1
        )
        context.device = device
        if context.counters().unfit_ip_ids:
            warnings.warn(
                f"{device.name}: this kernel does not fill IPv4 headers as the ICRC needs "
                "(identification 0, DF): "
                "hardware and kernel peers will drop what rnic sends over IPv4; IPv6 is not affected",
                RuntimeWarning,
                stacklevel=3,
            )
        return context

    @classmethod
    def of_cmd_fd(cls, cmd_fd: int) -> Self:
        """The context behind a cmd_fd; what rnic.import_device() calls."""
        context, info = cls.import_soft(cmd_fd)
        context.device = Device.from_struct(info)
        return context

    @classmethod
    def from_pointer(cls, address: int, device: Device | None = None) -> Self:
        """Take over a context that another provider made: the address of a struct rnic_context of nic.h.

        close() calls the provider's close.
        """
        device = device or Device("foreign", "", 0, 0, Transport.UNKNOWN, NodeType.CA)
        context = cls.wrap(device.name, address)
        context.device = device
        return context

    def query_device(self) -> DeviceAttr:
        """What the device can do (ibv_query_device(3))."""
        return _device_attr(self.raw_query_device())

    def query_device_ex(self) -> DeviceAttrEx:
        """What the device can do, with all that came later (ibv_query_device_ex(3))."""
        fields = self.raw_query_device_ex()
        return DeviceAttrEx.from_struct(fields, _device_attr(fields["orig_attr"]))

    def query_rt_values_ex(self, comp_mask: ValuesMask = ValuesMask.RAW_CLOCK) -> ValuesEx:
        """The device's clock, now (ibv_query_rt_values_ex(3)); EINVAL for what it does not have."""
        known, seconds, nanoseconds = self.raw_query_rt_values(int(comp_mask))
        clock = seconds * 1_000_000_000 + nanoseconds if known & ValuesMask.RAW_CLOCK else None
        return ValuesEx(ValuesMask(known), clock)

    def query_port(self, port_num: int = 1) -> PortAttr:
        """The state and the limits of a port (ibv_query_port(3)); EINVAL when there is no such port."""
        fields = self.raw_query_port(port_num)
        fields["state"] = PortState(fields["state"])
        fields["max_mtu"] = MTU(fields["max_mtu"])
        fields["active_mtu"] = MTU(fields["active_mtu"])
        fields["link_layer"] = LinkLayer(fields["link_layer"])
        return PortAttr(**fields)

    def query_gid(self, port_num: int, index: int) -> GID:
        """The address at an index of a port's table (ibv_query_gid(3)); EINVAL beyond the table."""
        return self._gid_entry(port_num, index).gid

    def query_gid_ex(self, port_num: int, index: int) -> GIDEntry:
        """The same with its type and netdev (ibv_query_gid_ex(3)); EINVAL beyond the table."""
        return self._gid_entry(port_num, index)

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """Where a partition key stands in a port's table (ibv_get_pkey_index(3)), all 16 bits of it.

        Raises VerbsError: ENOENT when it does not, where libibverbs returns -1.
        """
        table = [self.query_pkey(port_num, i) for i in range(self.query_port(port_num).pkey_tbl_len)]
        if pkey in table:
            return table.index(pkey)
        known = ", ".join(f"0x{one:04x}" for one in table)
        text = f"port {port_num} has no P_Key 0x{pkey:04x}; it has {known or 'none'}"
        raise VerbsError(errno.ENOENT, text, "get_pkey_index")

    def query_gid_table(self) -> list[GIDEntry]:
        """All addresses of all ports, without the empty entries (ibv_query_gid_table(3))."""
        ports = range(1, self.query_device().phys_port_cnt + 1)
        entries = (
            self._gid_entry(port, index)
            for port in ports
            for index in range(self.query_port(port).gid_tbl_len)
        )
        return [entry for entry in entries if entry.gid]

    def _gid_entry(self, port_num: int, index: int) -> GIDEntry:
        fields: dict[str, Any] = self.raw_query_gid(port_num, index)
        fields["gid"] = GID(bytes(fields["gid"]["raw"]))
        fields["gid_type"] = GIDType(fields["gid_type"])
        return GIDEntry(**fields)

    def init_ah_from_wc(
        self,
        port_num: int,
        wc: nic.WC,
        grh: bytes | bytearray | memoryview,
        *,
        sgid_index: int | None = None,
    ) -> AHAttr:
        """The address vector that leads back to a datagram's sender (ibv_init_ah_from_wc(3), IBA 11.4.2.1).

        `grh` is the beginning of the receive's memory.  Packets will leave from the address that the datagram
        came to.  Raises VerbsError, EINVAL, when that is not in the port's table, as with a multicast group:
        then name an address of our own with `sgid_index`.
        """
        if not wc.wc_flags & WCFlags.GRH:
            raise VerbsError(errno.EINVAL, f"{wc!r} came without a GRH", "init_ah_from_wc")
        try:
            route = Route.from_grh(grh)
        except ValueError as error:
            raise VerbsError(errno.EINVAL, str(error), "init_ah_from_wc") from None
        if sgid_index is None:
            sgid_index = self._gid_index(port_num, route.dgid)
        return AHAttr(
            dgid=route.sgid,
            sgid_index=sgid_index,
            port_num=port_num,
            hop_limit=route.hop_limit,
            traffic_class=route.traffic_class,
            flow_label=route.flow_label,
            sl=wc.sl,
            dlid=wc.slid,
            src_path_bits=wc.dlid_path_bits,
        )

    def _gid_index(self, port_num: int, gid: GID) -> int:
        for index in range(self.query_port(port_num).gid_tbl_len):
            if self.query_gid(port_num, index) == gid:
                return index
        cure = "give sgid_index to choose the address to answer from"
        raise VerbsError(
            errno.EINVAL,
            f"it was sent to {gid.ip}, which is no address of {self.name}: {cure}",
            "init_ah_from_wc",
        )

    def cm_listen(
        self,
        service_id: int,
        addr: "GID | str | None" = None,
        *,
        afonly: bool = False,
        reuse: bool = False,
        hold: bool = False,
    ) -> nic.Listener:
        """Bring the CM's requests for a service to this context's GSI queue pair until the listener closes.

        `addr` is one of the device's addresses; "0.0.0.0" stands for every IPv4 one, "::" (or None) for every
        one, with `afonly` for every IPv6 one.  Whichever process gets a REQ or SIDR_REQ hands it on; one that
        nobody listens for is refused at once (IBA 12.6.7.2, reason 8; 12.11.2, status 1).  With `hold`
        this is so here, too: the service is only taken, so that nobody else on this host can have it.

        Raises VerbsError: EADDRINUSE when somebody on this host has the service at that address, at all
        addresses, or at one of all (the last two not with `reuse`); EADDRNOTAVAIL when the device does not
        have the address.
        """
        gid = GID("::" if addr is None else addr)
        return nic.Listener(self, service_id, gid.raw, afonly, reuse, hold)

    def cm_watch_service(self, service_id: int, addr: "GID | str") -> int:
        """What cm_watch() is for a slot, for whoever has a service at an address of this device.

        The file descriptor also hangs up when nobody listens there any longer.
        """
        return self.raw_cm_watch_service(service_id, GID(addr).raw)

    def counters(self) -> Counters:
        """What the device has sent, received, retried and dropped since it was opened."""
        return Counters.from_values(self.raw_counters())

    def set_faults(self, faults: Faults | None) -> None:
        """Put a fault injector behind the link, from the next packet on; None takes it away."""
        if faults is None:
            self.raw_set_fault(None)
        else:
            self.raw_set_fault(faults.as_struct(), faults.rules())

    def get_async_event(self, timeout: float | None = None) -> AsyncEvent:
        """Wait for something that no completion reports (ibv_get_async_event(3)).

        `timeout` is in seconds, None for ever, 0 not at all; TimeoutError at its end.  async_fileno() tells
        without waiting whether there is one.  docs/async-events.md says what causes which.
        """
        kind, port_num, element, token = self.raw_get_async_event(timeout)
        return AsyncEvent(EventType(kind), port_num or None if element is None else element, token)

    def ack_async_event(self, event: AsyncEvent) -> None:
        """What event.ack() does (ibv_ack_async_event(3))."""
        event.ack()

    def alloc_pd(self) -> PD:
        """A new protection domain (ibv_alloc_pd(3))."""
        return PD(self)

    def open_xrcd(self, fd: int | None = None, oflags: int = os.O_CREAT) -> XRCD:
        """An XRC domain (ibv_open_xrcd(3)): that of a file, by its descriptor, or a new one of nobody else.

        `oflags`: with O_CREAT a file that has no domain gets one, with O_EXCL as well it must have none.  The
        domain of a file lives in the Context that made it, and goes with the last XRCD that is open.

        Raises VerbsError: EAGAIN when the file has none and O_CREAT is not given, EINVAL when it has one and
        O_EXCL is (as the kernel's verbs), EOPNOTSUPP when another Context, of this process or another, has
        it: objects are not shared between open devices.
        """
        return XRCD(self, -1 if fd is None else fd, oflags)

    def create_srq_ex(self, init_attr: SRQInitAttrEx) -> SRQ:
        """A new shared receive queue, ordinary, XRC or tag matching (ibv_create_srq_ex(3)).

        The queue pairs of a tag matching one are RC, complete their receives at its cq, and cannot be sent
        with: their send queues are the device's, for rendezvous.

        SRQ.get_srq_num() is an XRC one's number.  Raises VerbsError: EINVAL for what is missing, or beyond
        DeviceAttr's limits, EOPNOTSUPP for other types.
        """
        return SRQ(None, init_attr)

    def open_qp(self, attr: QPOpenAttr) -> QP:
        """An XRC_RECV queue pair that exists, once more (ibv_open_qp(3)).

        It can be modified and queried through either, its events go to all of them, and it ends with the
        last one that is closed.  Raises VerbsError: EINVAL when the domain has none of that number and type.
        """
        return QP(None, attr)

    def alloc_td(self) -> nic.TD:
        """A new thread domain (ibv_alloc_td(3)), a hint that alloc_parent_domain() takes."""
        return nic.TD(self)

    def alloc_parent_domain(self, attr: ParentDomainInitAttr) -> PD:
        """A domain that stands for attr.pd wherever one is asked for (ibv_alloc_parent_domain(3)).

        What is made in it can be used with what is made in attr.pd.  Its close() raises EBUSY while it has
        objects, that of attr.pd and attr.td while it is open.

        Raises VerbsError: EOPNOTSUPP for allocators, EINVAL for a parent domain of a parent domain.
        """
        attr.check()
        return PD(self, attr.pd, attr.td)

    def alloc_dm(self, attr: AllocDMAttr) -> nic.DM:
        """Memory of the device (ibv_alloc_dm(3)).

        Raises VerbsError: EINVAL for a length that is no multiple of 4, or an alignment beyond a page's;
        ENOMEM when there is less left of DeviceAttrEx.max_dm_size.
        """
        return nic.DM(self, attr.length, attr.log_align_req)

    def import_pd(self, handle: int) -> PD:
        """The protection domain with this handle (PD.handle) of this context (ibv_import_pd(3)).

        close() lets it go.  Within a process it is the domain itself, which cannot be closed meanwhile
        (EBUSY). Of another process' context it is a domain of this one's, for its queue pairs, into which
        PD.import_mr() brings the other's memory.

        Raises VerbsError: ENOENT when there is none; EOPNOTSUPP when the other process has none to share.
        """
        return PD(self, handle=handle)

    def import_dm(self, handle: int) -> nic.DM:
        """The device memory with this handle (DM.handle), as import_pd() does it (ibv_import_dm(3))."""
        return nic.DM(self, handle=handle)

    def create_qp_ex(self, init_attr: QPInitAttrEx) -> QPEx:
        """A new queue pair with builders of work requests (ibv_create_qp_ex(3)); init_attr.pd is its domain.

        Raises VerbsError as PD.create_qp() does, and EOPNOTSUPP when the device does not have all of
        send_ops_flags for that type, or a creation flag.
        """
        return QPEx.create(init_attr)

    def create_comp_channel(self) -> nic.CompChannel:
        """A new channel for completion events (ibv_create_comp_channel(3))."""
        return nic.CompChannel(self)

    def create_cq(
        self,
        cqe: int,
        channel: nic.CompChannel | None = None,
        cq_context: object = None,
        comp_vector: int = 0,
    ) -> nic.CQ:
        """A new completion queue for at least cqe completions (ibv_create_cq(3)).

        With a channel, CQ.req_notify() makes it report there.  `cq_context` is the caller's own.  Raises
        VerbsError: EINVAL for a `comp_vector` that is not below num_comp_vectors.
        """
        return nic.CQ(self, cqe, channel, cq_context, comp_vector)

    def create_cq_ex(self, attr: CQInitAttrEx) -> nic.CQEX:
        """A new completion queue whose completions are looked at one by one (ibv_create_cq_ex(3)).

        Raises VerbsError: EOPNOTSUPP for fields that the device's completions do not have.
        """
        return nic.CQEX(
            self, attr.cqe, attr.channel, attr.cq_context, attr.comp_vector, extensions=attr.extensions()
        )

    def create_counters(self) -> nic.FlowCounters:
        """A new object for counters of flows (ibv_create_counters(3))."""
        return nic.FlowCounters(self)

    def query_raw_packet(self) -> RawPacketAttr:
        """Where the frames of RAW_PACKET queue pairs go; what else there is to know, DeviceAttrEx has."""
        fields = self.raw_query_raw()
        return RawPacketAttr(fields["max_frame"], bool(fields["wire"]), fields["why"].decode())

    def create_wq(self, init_attr: WQInitAttr) -> WQ:
        """A new receive work queue in the state RESET (ibv_create_wq(3)).

        Raises VerbsError: EINVAL for a size beyond DeviceAttr's limits, EOPNOTSUPP for flags, ENOMEM beyond
        DeviceAttrEx.max_wq_type_rq.
        """
        return WQ(self, init_attr)

    def create_rwq_ind_table(self, init_attr: RwqIndTableInitAttr) -> RwqIndTable:
        """A new table of work queues (ibv_create_rwq_ind_table(3)).

        Raises VerbsError: EINVAL when ind_tbl has another length than log_ind_tbl_size says, or is too long.
        """
        return RwqIndTable(self, init_attr)

    def query_comp_cntr_caps(self) -> CompCntrCaps:
        """What completion counters can count (rdma-core 64: ibv_query_comp_cntr_caps(3))."""
        fields = self.raw_query_comp_cntr_caps()
        fields["supported_qp_attach_ops"] = QPAttachCompCntrOp(fields["supported_qp_attach_ops"])
        return CompCntrCaps(**fields)

    def create_comp_cntr(self, attr: CompCntrInitAttr = _WORK_REQUESTS) -> nic.CompCntr:
        """A new completion counter, at 0 (rdma-core 64: ibv_create_comp_cntr(3))."""
        return nic.CompCntr(self, attr)


def _device_attr(fields: dict[str, Any]) -> DeviceAttr:
    fields["fw_ver"] = fields["fw_ver"].decode()
    fields["device_cap_flags"] = DeviceCap(fields["device_cap_flags"])
    fields["atomic_cap"] = AtomicCap(fields["atomic_cap"])
    return DeviceAttr(**fields)
