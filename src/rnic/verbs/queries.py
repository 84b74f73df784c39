# SPDX-License-Identifier: Apache-2.0
"""What an open device tells of itself: its attributes, its ports and their addresses, its counters."""

import errno
from typing import Any

from rnic._nic import nic
from rnic.enums import (
    MTU,
    AtomicCap,
    DeviceCap,
    GIDType,
    LinkLayer,
    PortState,
    QPAttachCompCntrOp,
    ValuesMask,
)
from rnic.errors import VerbsError
from rnic.records import Record
from rnic.verbs.ah import GID, AHAttr
from rnic.verbs.cntr import CompCntrCaps
from rnic.verbs.counters import Counters
from rnic.verbs.device_ex import DeviceAttrEx
from rnic.verbs.wq import RawPacketAttr

__all__ = ["DeviceAttr", "GIDEntry", "PortAttr", "Queries", "ValuesEx"]


class DeviceAttr(Record):
    """What a device can do: libibverbs' fields, limits as numbers of objects (ibv_query_device(3))."""

    fw_ver: str
    """Version of the firmware; of a software RNIC, of rnic."""
    node_guid: int
    """EUI-64 of the device."""
    sys_image_guid: int
    """EUI-64 of what the device belongs to; the same as node_guid."""
    max_mr_size: int
    """Bytes of a memory region."""
    page_size_cap: int
    """The page sizes that it can use: a bit for each."""
    vendor_id: int
    """Whose device it is; 0x524e49 ("RNI") of a software RNIC, which is nobody's number."""
    vendor_part_id: int
    """Which of the vendor's it is."""
    hw_ver: int
    """Version of the hardware."""
    max_qp: int
    """Queue pairs."""
    max_qp_wr: int
    """Work requests in a send or receive queue."""
    device_cap_flags: DeviceCap
    """Optional features."""
    max_sge: int
    """SGEs in a work request."""
    max_sge_rd: int
    """SGEs in a READ."""
    max_cq: int
    """Completion queues."""
    max_cqe: int
    """Completions in a completion queue."""
    max_mr: int
    """Memory regions."""
    max_pd: int
    """Protection domains."""
    max_qp_rd_atom: int
    """READs and atomics that a queue pair can serve at a time."""
    max_res_rd_atom: int
    """READs and atomics that the device can serve at a time."""
    max_qp_init_rd_atom: int
    """READs and atomics that a queue pair can have outstanding."""
    atomic_cap: AtomicCap
    """Against whom atomics are atomic."""
    max_mw: int
    """Memory windows."""
    max_mcast_grp: int
    """Multicast groups."""
    max_mcast_qp_attach: int
    """Queue pairs in a multicast group."""
    max_ah: int
    """Address handles."""
    max_srq: int
    """Shared receive queues."""
    max_srq_wr: int
    """Receives in a shared receive queue."""
    max_srq_sge: int
    """SGEs in a receive of a shared receive queue."""
    max_pkeys: int
    """P_Keys in the table of a port."""
    local_ca_ack_delay: int
    """How late an acknowledgement may leave: 4.096 us * 2**n."""
    phys_port_cnt: int
    """Ports."""
    max_inline_data: int
    """The most bytes of an INLINE request; libibverbs does not have this field."""


class ValuesEx(Record):
    """Values of a device that change all the time (ibv_query_rt_values_ex(3)); a value that was not requested
    is None.
    """

    comp_mask: ValuesMask
    """Which values are here."""
    raw_clock: int | None
    """The clock of completion timestamps, now; the software RNIC counts nanoseconds of CLOCK_MONOTONIC."""


class PortAttr(Record):
    """The state and the limits of a port: libibverbs' fields (ibv_query_port(3))."""

    state: PortState
    """Whether the port works."""
    max_mtu: MTU
    """The largest path MTU that it can have."""
    active_mtu: MTU
    """The largest path MTU that it has now."""
    gid_tbl_len: int
    """Entries of the GID table."""
    port_cap_flags: int
    """InfiniBand's optional features of a port: bits."""
    max_msg_sz: int
    """The longest message, in bytes."""
    bad_pkey_cntr: int
    """Packets that had a wrong P_Key."""
    qkey_viol_cntr: int
    """Datagrams that had a wrong Q_Key."""
    pkey_tbl_len: int
    """Entries of the P_Key table."""
    lid: int
    """InfiniBand's local address; 0 over Ethernet."""
    sm_lid: int
    """InfiniBand: the subnet manager's LID."""
    lmc: int
    """InfiniBand: how many bits of the LID are path bits."""
    max_vl_num: int
    """InfiniBand: virtual lanes, as a code."""
    sm_sl: int
    """InfiniBand: the subnet manager's service level."""
    subnet_timeout: int
    """InfiniBand: how long a packet can be under way, 4.096 us * 2**n."""
    init_type_reply: int
    """InfiniBand: what the subnet manager has kept at its last start."""
    active_width: int
    """Lanes of the link, as a code (IBA 14.2.5.6)."""
    active_speed: int
    """Speed of a lane, as a code (IBA 14.2.5.6)."""
    phys_state: int
    """State of the link, as a code: 5 is up, 3 down."""
    link_layer: LinkLayer
    """What carries its packets."""
    flags: int
    """Bits: 1, packets need a global route (GRH)."""


class GIDEntry(Record):
    """An entry of a port's GID table: address, type and network interface (ibv_query_gid_ex(3))."""

    gid: GID
    """The address."""
    gid_index: int
    """Its place in the table: AHAttr.sgid_index."""
    port_num: int
    """The port."""
    gid_type: GIDType
    """What is spoken from this address."""
    ndev_ifindex: int
    """Index of the network interface that has the address."""


class Queries(nic.Context):
    """The verbs of an open device that change nothing: Context derives from it."""

    __slots__ = ()

    def query_device(self) -> DeviceAttr:
        """The capabilities and limits of the device (ibv_query_device(3))."""
        return _device_attr(self.raw_query_device())

    def query_device_ex(self) -> DeviceAttrEx:
        """The capabilities of the device, including extended ones such as timestamps and pacing
        (ibv_query_device_ex(3)).
        """
        fields = self.raw_query_device_ex()
        return DeviceAttrEx.from_struct(fields, _device_attr(fields["orig_attr"]))

    def query_rt_values_ex(self, comp_mask: ValuesMask = ValuesMask.RAW_CLOCK) -> ValuesEx:
        """The device's clock now (ibv_query_rt_values_ex(3)). Raises VerbsError: EINVAL for a value that the
        device does not have.
        """
        known, seconds, nanoseconds = self.raw_query_rt_values(int(comp_mask))
        clock = seconds * 1_000_000_000 + nanoseconds if known & ValuesMask.RAW_CLOCK else None
        return ValuesEx(ValuesMask(known), clock)

    def query_port(self, port_num: int = 1) -> PortAttr:
        """The state and the limits of a port (ibv_query_port(3)). Raises VerbsError: EINVAL if there is no
        such port.
        """
        fields = self.raw_query_port(port_num)
        fields["state"] = PortState(fields["state"])
        fields["max_mtu"] = MTU(fields["max_mtu"])
        fields["active_mtu"] = MTU(fields["active_mtu"])
        fields["link_layer"] = LinkLayer(fields["link_layer"])
        return PortAttr(**fields)

    def query_gid(self, port_num: int, index: int) -> GID:
        """The address at an index of a port's GID table (ibv_query_gid(3)). Raises VerbsError: EINVAL beyond
        the table.
        """
        return self._gid_entry(port_num, index).gid

    def query_gid_ex(self, port_num: int, index: int) -> GIDEntry:
        """An entry of a port's GID table with its type and network interface (ibv_query_gid_ex(3)). Raises
        VerbsError: EINVAL beyond the table.
        """
        return self._gid_entry(port_num, index)

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """The index of a partition key in a port's table (ibv_get_pkey_index(3)); all 16 bits must match.

        Raises VerbsError: ENOENT if the key is not in the table, where libibverbs returns -1.
        """
        table = [self.query_pkey(port_num, i) for i in range(self.query_port(port_num).pkey_tbl_len)]
        if pkey in table:
            return table.index(pkey)
        known = ", ".join(f"0x{one:04x}" for one in table)
        text = f"port {port_num} has no P_Key 0x{pkey:04x}; it has {known or 'none'}"
        raise VerbsError(errno.ENOENT, text, "get_pkey_index")

    def query_gid_table(self) -> list[GIDEntry]:
        """All addresses of all ports, without empty entries (ibv_query_gid_table(3))."""
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

    def query_raw_packet(self) -> RawPacketAttr:
        """Whether the frames of RAW_PACKET queue pairs reach the network; DeviceAttrEx has their other
        properties.
        """
        fields = self.raw_query_raw()
        return RawPacketAttr(fields["max_frame"], bool(fields["wire"]), fields["why"].decode())

    def query_comp_cntr_caps(self) -> CompCntrCaps:
        """The limits of completion counters (rdma-core 64: ibv_query_comp_cntr_caps(3))."""
        fields = self.raw_query_comp_cntr_caps()
        fields["supported_qp_attach_ops"] = QPAttachCompCntrOp(fields["supported_qp_attach_ops"])
        return CompCntrCaps(**fields)

    def counters(self) -> Counters:
        """The counters of the device since it was opened: packets sent, received, retried and dropped, with
        reasons.
        """
        return Counters.from_values(self.raw_counters())

    def init_ah_from_wc(
        self,
        port_num: int,
        wc: nic.WC,
        grh: bytes | bytearray | memoryview,
        *,
        sgid_index: int | None = None,
    ) -> AHAttr:
        """The address vector of the way back to a datagram's sender (ibv_init_ah_from_wc(3), IBA 11.4.2.1).

        `grh` is the beginning of the receive's memory. Packets to the sender will use the address that the
        datagram came to. Raises VerbsError: EINVAL if that address is not in the port's GID table, as with a
        multicast group. Then give the index of an address of our own as `sgid_index`.
        """
        index = -1 if sgid_index is None else sgid_index
        return AHAttr.from_struct(self.raw_init_ah_from_wc(port_num, wc, grh, index))


def _device_attr(fields: dict[str, Any]) -> DeviceAttr:
    fields["fw_ver"] = fields["fw_ver"].decode()
    fields["device_cap_flags"] = DeviceCap(fields["device_cap_flags"])
    fields["atomic_cap"] = AtomicCap(fields["atomic_cap"])
    return DeviceAttr(**fields)
