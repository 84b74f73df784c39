# SPDX-License-Identifier: Apache-2.0
"""How the structs of rdma/rdma_user_cm.h lie in memory: each is a list of its fields.

Numbers are the host's, as everything between a program and its kernel; addresses, GIDs and LIDs are bytes in
network order. A struct inside another one is bytes, too, which its own layout reads.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any


class Layout:
    """A struct: read() makes a dict of its fields, write() bytes of keywords; what is not given is zero.
    unpack() and pack() are the same with the values alone, in their order: for what each command has.
    """

    def __init__(self, *fields: str) -> None:
        pairs = [field.split() for field in fields]
        self.names = tuple(name for name, _ in pairs)
        self.kinds = tuple(kind for _, kind in pairs)
        self._struct = struct.Struct("=" + "".join(self.kinds))
        self._empty = {name: b"" if kind.endswith("s") else 0 for name, kind in pairs}
        self.size = self._struct.size
        self.unpack = self._struct.unpack_from
        self.pack = self._struct.pack

    def read(self, data: bytes) -> dict[str, Any]:
        """The fields; data that is too short counts as followed by zeros."""
        if len(data) < self.size:
            data = data.ljust(self.size, b"\0")
        return dict(zip(self.names, self.unpack(data), strict=True))

    def write(self, **values: Any) -> bytes:
        """The bytes of the struct."""
        return self.pack(*(self._empty | values).values())

    def offset(self, name: str) -> int:
        """Where a field begins."""
        at = self.names.index(name)
        return sum(struct.calcsize("=" + kind) for kind in self.kinds[:at])


class Cmd(IntEnum):
    """The numbers of the commands."""

    CREATE_ID = 0
    DESTROY_ID = 1
    BIND_IP = 2
    RESOLVE_IP = 3
    RESOLVE_ROUTE = 4
    QUERY_ROUTE = 5
    CONNECT = 6
    LISTEN = 7
    ACCEPT = 8
    REJECT = 9
    DISCONNECT = 10
    INIT_QP_ATTR = 11
    GET_EVENT = 12
    GET_OPTION = 13
    SET_OPTION = 14
    NOTIFY = 15
    JOIN_IP_MCAST = 16
    LEAVE_MCAST = 17
    MIGRATE_ID = 18
    QUERY = 19
    BIND = 20
    RESOLVE_ADDR = 21
    JOIN_MCAST = 22
    RESOLVE_IB_SERVICE = 23
    WRITE_CM_EVENT = 24


MISSING = 0xFFFFFFFF
"""Not a command of the kernel's: src/preload could not take bytes of events back, `in` of them."""

RETURNED = 0xFFFFFFFE
"""The opposite: it has taken `in` bytes, and could not fetch their events."""

HOLDS = 0xFFFFFFFD
"""Nor is this: whether an id is one of the file."""

HEADER = Layout("cmd I", "in H", "out H")
ANSWER = Layout("result i", "undone I", "address Q", "length Q", "orders Q")
"""What precedes an answer: struct answer of src/preload/ucma.c."""

ORDER = Layout(
    "guid Q",
    "qp_num I",
    "kind I",
    *("rtr I", "initiator I", "crc I", "markers_in I", "markers_out I", "rfc7306 I"),
    *("max_dest_rd_atomic I", "max_rd_atomic I"),
)
"""What follows its data: struct order of src/ibverbs/orders.h."""

# ---------------------------------------------------------------- structs inside others

SOCKADDR_IN = Layout("family H", "port 2s", "addr 4s", "zero 8s")
SOCKADDR_IN6 = Layout("family H", "port 2s", "flowinfo 4s", "addr 16s", "scope_id I")
SOCKADDR_IB = Layout("family H", "pkey 2s", "flowinfo 4s", "addr 16s", "sid 8s", "sid_mask 8s", "scope_id 8s")
STORAGE = 128  # bytes of struct __kernel_sockaddr_storage

ECE = Layout("vendor_id I", "attr_mod I")
CONN_PARAM = Layout(
    "qp_num I",
    "qkey I",
    "private_data 256s",
    "private_data_len B",
    "srq B",
    "responder_resources B",
    "initiator_depth B",
    "flow_control B",
    "retry_count B",
    "rnr_retry_count B",
    "valid B",
)
AH_ATTR = Layout(
    "dgid 16s",
    "flow_label I",
    "sgid_index B",
    "hop_limit B",
    "traffic_class B",
    "reserved B",
    "dlid H",
    "sl B",
    "src_path_bits B",
    "static_rate B",
    "is_global B",
    "port_num B",
    "reserved2 B",
)
UD_PARAM = Layout(
    "qp_num I",
    "qkey I",
    f"ah_attr {AH_ATTR.size}s",
    "private_data 256s",
    "private_data_len B",
    "reserved 7s",
)
PATH_REC = Layout(  # struct ib_user_path_rec
    "dgid 16s",
    "sgid 16s",
    "dlid 2s",
    "slid 2s",
    "raw_traffic I",
    "flow_label 4s",
    "reversible I",
    "mtu I",
    "pkey 2s",
    "hop_limit B",
    "traffic_class B",
    "numb_path B",
    "sl B",
    "mtu_selector B",
    "rate_selector B",
    "rate B",
    "packet_life_time_selector B",
    "packet_life_time B",
    "preference B",
)
CMA_HDR = Layout(
    "version B", "ip_version B", "port 2s", "src 16s", "dst 16s"
)  # annex A11: ahead of private data
PATH_DATA = Layout("flags I", "reserved I", "path_rec 64s")  # struct ib_path_rec_data

# ---------------------------------------------------------------- commands

_IN6, _STORAGE, _CONN = f"{SOCKADDR_IN6.size}s", f"{STORAGE}s", f"{CONN_PARAM.size}s"
CREATE_ID = Layout("uid Q", "response Q", "ps H", "qp_type B", "reserved 5s")
OF_ID = Layout("response Q", "id I", "reserved I")
BIND_IP = Layout("response Q", f"addr {_IN6}", "id I")
BIND = Layout("id I", "addr_size H", "reserved H", f"addr {_STORAGE}")
RESOLVE_IP = Layout(f"src_addr {_IN6}", f"dst_addr {_IN6}", "id I", "timeout_ms I")
RESOLVE_ADDR = Layout(
    "id I",
    "timeout_ms I",
    "src_size H",
    "dst_size H",
    "reserved I",
    f"src_addr {_STORAGE}",
    f"dst_addr {_STORAGE}",
)
RESOLVE_ROUTE = Layout("id I", "timeout_ms I")
QUERY = Layout("response Q", "id I", "option I")
CONNECT = Layout(f"conn_param {_CONN}", "id I", "reserved I", f"ece {ECE.size}s")
LISTEN = Layout("id I", "backlog I")
ACCEPT = Layout("uid Q", f"conn_param {_CONN}", "id I", "reserved I", f"ece {ECE.size}s")
REJECT = Layout("id I", "private_data_len B", "reason B", "reserved 2s", "private_data 256s")
DISCONNECT = Layout("id I")
OF_FILE = Layout("id I")
INIT_QP_ATTR = Layout("response Q", "id I", "qp_state I")
GET_EVENT = Layout("response Q")
SET_OPTION = Layout("optval Q", "id I", "level I", "optname I", "optlen I")
NOTIFY = Layout("id I", "event I")
JOIN_IP_MCAST = Layout("response Q", "uid Q", f"addr {_IN6}", "id I")
JOIN_MCAST = Layout("response Q", "uid Q", "id I", "addr_size H", "join_flags H", f"addr {_STORAGE}")
RESOLVE_IB_SERVICE = Layout("id I", "reserved I", "service 80s")
WRITE_CM_EVENT = Layout("id I", "reserved I", "event I", "status I", f"param {UD_PARAM.size}s")
MIGRATE_ID = Layout("response Q", "id I", "fd I")

# ---------------------------------------------------------------- answers

ID_RESP = Layout("id I")
EVENTS_RESP = Layout("events_reported I")
ROUTE_RESP = Layout(
    "node_guid 8s",
    f"route0 {PATH_REC.size}s",
    f"route1 {PATH_REC.size}s",
    f"src_addr {_IN6}",
    f"dst_addr {_IN6}",
    "num_paths I",
    "port_num B",
    "reserved 3s",
    "ibdev_index I",
    "reserved1 I",
)
ADDR_RESP = Layout(
    "node_guid 8s",
    "port_num B",
    "reserved B",
    "pkey H",
    "src_size H",
    "dst_size H",
    f"src_addr {_STORAGE}",
    f"dst_addr {_STORAGE}",
    "ibdev_index I",
    "reserved1 I",
)
PATH_RESP = Layout("num_paths I", "reserved I")
EVENT_RESP = Layout(
    "uid Q",
    "id I",
    "event I",
    "status I",
    f"param {UD_PARAM.size}s",
    "reserved I",
    f"ece {ECE.size}s",
)
QP_ATTR = Layout(  # struct ib_uverbs_qp_attr
    "qp_attr_mask I",
    "qp_state I",
    "cur_qp_state I",
    "path_mtu I",
    "path_mig_state I",
    "qkey I",
    "rq_psn I",
    "sq_psn I",
    "dest_qp_num I",
    "qp_access_flags I",
    f"ah_attr {AH_ATTR.size}s",
    f"alt_ah_attr {AH_ATTR.size}s",
    "max_send_wr I",
    "max_recv_wr I",
    "max_send_sge I",
    "max_recv_sge I",
    "max_inline_data I",
    "pkey_index H",
    "alt_pkey_index H",
    "en_sqd_async_notify B",
    "sq_draining B",
    "max_rd_atomic B",
    "max_dest_rd_atomic B",
    "min_rnr_timer B",
    "port_num B",
    "timeout B",
    "retry_cnt B",
    "rnr_retry B",
    "alt_port_num B",
    "alt_timeout B",
    "reserved 5s",
)
