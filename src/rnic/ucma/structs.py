# SPDX-License-Identifier: Apache-2.0
"""rnic's records as the structs of the kernel's interface, and back."""

from __future__ import annotations

from collections.abc import Callable
from errno import EINVAL, EOPNOTSUPP
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rnic.enums import MTU, Transport
from rnic.errors import VerbsError
from rnic.rdmacm import ConnParam, Event, EventType, IdState, Option, Path, UDParam
from rnic.records import Record, replace
from rnic.ucma.layouts import (
    ADDR_RESP,
    AH_ATTR,
    CMA_HDR,
    CONN_PARAM,
    ECE,
    EVENT_RESP,
    PATH_DATA,
    PATH_REC,
    PATH_RESP,
    QP_ATTR,
    ROUTE_RESP,
    UD_PARAM,
)
from rnic.ucma.sockaddrs import write, write_ib
from rnic.verbs import ece as vendor
from rnic.verbs.ah import GID

if TYPE_CHECKING:
    from rnic.rdmacm import CmId
    from rnic.ucma.files import Handle
    from rnic.verbs.ah import AHAttr
    from rnic.verbs.qp import QPAttr

ANY_INDEX = 0xFFFFFFFF
"""As the index of a device: librdmacm is to find it by its GUID alone."""
_PKEY = b"\xff\xff"
_EXACTLY = 2  # a selector of a path record (IBA 15.2.5.16)
_RATE = 3  # 10 Gbit/s (IBA 15.2.5.16)
_GMP_PRIMARY_BIDIRECTIONAL = 1 | 2 | 8 | 32
_HAS_PATH = (IdState.ROUTE_RESOLVED, IdState.CONNECT, IdState.DISCONNECT)
_ALL = (1 << 64) - 1  # of the bits of a service id
_MAX_RETRIES = 7  # 3 bits
_MOST_LIFE_TIME = 31  # 5 bits

# ---------------------------------------------------------------- connections


def conn_param(data: bytes) -> tuple[bool, dict[str, Any]]:
    """Whether a struct rdma_ucm_conn_param is valid, and its fields, with the private data cut to their
    length.
    """
    fields = CONN_PARAM.read(data)
    fields["private_data"] = fields["private_data"][: fields["private_data_len"]]
    return bool(fields["valid"]), fields


def connected(fields: dict[str, Any]) -> ConnParam:
    """The parameters of a connection."""
    return ConnParam(
        private_data=fields["private_data"],
        responder_resources=fields["responder_resources"],
        initiator_depth=fields["initiator_depth"],
        flow_control=bool(fields["flow_control"]),
        retry_count=min(fields["retry_count"], _MAX_RETRIES),
        rnr_retry_count=min(fields["rnr_retry_count"], _MAX_RETRIES),
        srq=bool(fields["srq"]),
        qp_num=fields["qp_num"],
    )


def service(fields: dict[str, Any]) -> UDParam:
    """The parameters of a datagram service."""
    return UDParam(fields["private_data"], qp_num=fields["qp_num"], qkey=fields["qkey"])


def ece(data: bytes) -> vendor.ECE:
    """A vendor's options."""
    fields = ECE.read(data)
    return vendor.ECE(fields["vendor_id"], fields["attr_mod"])


OF_PROGRAMS = (18, 19)
"""The numbers of events that programs write: USER, and librdmacm's own INTERNAL."""


class Written(Record):
    """What a program has written as an event: number, status, and 8 bytes of its own."""

    event: int
    status: int
    param: bytes


def event(found: Event, number: int, uid: int) -> bytes:
    """What GET_EVENT answers."""
    if isinstance(found.arg, Written):
        written = found.arg
        return EVENT_RESP.write(
            uid=uid, id=number, event=written.event, status=written.status, param=written.param
        )
    options = found.id.get_remote_ece()
    return EVENT_RESP.write(
        uid=uid,
        id=number,
        event=int(found.event),
        status=found.status & 0xFFFFFFFF,
        param=_param(found.param, _header(found)),
        ece=ECE.write(vendor_id=options.vendor_id, attr_mod=options.options),
    )


def _header(found: Event) -> bytes:
    """What precedes the private data of a request: the header of RDMA-CM, for ids with addresses of
    InfiniBand.
    """
    one = found.id
    if found.event is not EventType.CONNECT_REQUEST or _service_of(one) is None or one.remote is None:
        return b""
    return CMA_HDR.write(
        ip_version=one.remote.ip.version << 4,
        port=one.remote.port.to_bytes(2, "big"),
        src=one.remote.ip.packed.rjust(16, b"\0"),
        dst=one.local.ip.packed.rjust(16, b"\0"),
    )


def _param(param: ConnParam | UDParam | None, header: bytes) -> bytes:
    if param is None:
        return b""
    data = header + param.private_data
    if isinstance(param, UDParam):
        return UD_PARAM.write(
            qp_num=param.qp_num,
            qkey=param.qkey,
            ah_attr=_ah_attr(param.ah_attr),
            private_data=data,
            private_data_len=len(data),
        )
    return CONN_PARAM.write(
        qp_num=param.qp_num,
        private_data=data,
        private_data_len=len(data),
        srq=param.srq,
        responder_resources=param.responder_resources,
        initiator_depth=param.initiator_depth,
        flow_control=param.flow_control,
        retry_count=param.retry_count,
        rnr_retry_count=param.rnr_retry_count,
    )


# ---------------------------------------------------------------- queue pairs


def _ah_attr(attr: AHAttr | None) -> bytes:
    if attr is None:
        return b""
    return AH_ATTR.write(
        dgid=attr.dgid.raw,
        flow_label=attr.flow_label,
        sgid_index=attr.sgid_index,
        hop_limit=attr.hop_limit,
        traffic_class=attr.traffic_class,
        dlid=attr.dlid,
        sl=attr.sl,
        src_path_bits=attr.src_path_bits,
        static_rate=attr.static_rate,
        is_global=attr.is_global,
        port_num=attr.port_num,
    )


_NOT_PLAIN = {
    *("qp_attr_mask", "ah_attr", "alt_ah_attr", "reserved"),
    *("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data"),  # never changed
}
_PLAIN = tuple(name for name in QP_ATTR.names if name not in _NOT_PLAIN)
_plain_of = attrgetter(*_PLAIN)


def qp_attr(one: CmId, attr: QPAttr) -> bytes:
    """What INIT_QP_ATTR answers; of iWARP always with the port, and without a partition, as the kernel's."""
    if _is_iwarp(one):
        attr = replace(attr, port_num=1, pkey_index=None)
    plain = {name: value or 0 for name, value in zip(_PLAIN, _plain_of(attr), strict=True)}
    return QP_ATTR.write(
        qp_attr_mask=int(attr.mask()),
        ah_attr=_ah_attr(attr.ah_attr),
        alt_ah_attr=_ah_attr(attr.alt_ah_attr),
        **plain,
    )


# ---------------------------------------------------------------- addresses and paths


def _device(one: CmId) -> dict[str, Any]:
    """The device and its port, as far as the program may know them.

    An id that is bound to the loopback, and no more, has none, as a kernel takes such an address for any. So
    libfabric finds out, by "localhost", which devices there are.
    """
    if one.verbs is None or (one.state is IdState.ADDR_BOUND and one.local.ip.is_loopback):
        return {}
    return {"node_guid": one.verbs.device.guid.to_bytes(8, "big"), "port_num": one.port_num}


def _is_iwarp(one: CmId) -> bool:
    return one.verbs is not None and one.verbs.device.transport is Transport.IWARP


def _has_local(one: CmId) -> bool:
    return one.state is not IdState.IDLE or one.local.port != 0


def _pkey(one: CmId) -> bytes:
    return _PKEY if one.verbs is not None and not _is_iwarp(one) else bytes(2)


def _service_of(one: CmId) -> int | None:
    """The service id, if its program has addresses of InfiniBand."""
    handle: Handle = one.context  # type: ignore[assignment] # what Table.add() says
    return handle.service


def _local(one: CmId) -> bytes:
    service = _service_of(one)
    if service is not None:
        return write_ib(_gids(one)[0], service, _ALL)
    return write(one.local) if _has_local(one) else b""


def _peer(one: CmId) -> bytes:
    """The peer's address; of a bound id without a peer the family alone, as from the kernel."""
    if one.remote is None:
        local = _local(one)
        return local[:2].ljust(len(local), b"\0")
    return write(one.remote) if _service_of(one) is None else write_ib(_gids(one)[1], 0)


def _gids(one: CmId) -> tuple[bytes, bytes]:
    """Of this end and of the peer; zeros where there is none. Of iWARP the device's, and of the
    peer none: it is made of a hardware address.
    """
    if one.verbs is not None and _is_iwarp(one):
        return one.verbs.query_gid(1, 0).raw, bytes(16)
    local = GID(one.local.ip).raw if one.verbs and not one.local.ip.is_unspecified else bytes(16)
    return local, GID(one.remote.ip).raw if one.remote else bytes(16)


def _path(one: CmId) -> dict[str, Any]:
    """The path as the fields of a path record that are not zero."""
    assert one.verbs is not None
    sgid, dgid = _gids(one)
    path, most = one.path or Path(one.options.get(Option.TOS, 0)), one.verbs.query_port(1).active_mtu
    return {
        "dgid": dgid,
        "sgid": sgid,
        "reversible": 1,
        "mtu": int(min(path.mtu or most, most)),
        "pkey": _PKEY,
        "hop_limit": path.hop_limit,
        "traffic_class": path.traffic_class,
        "numb_path": 1,
        "mtu_selector": _EXACTLY,
        "rate_selector": _EXACTLY,
        "rate": _RATE,
        "packet_life_time_selector": _EXACTLY,
        "packet_life_time": one.packet_life_time,
    }


def given_path(data: bytes, one: CmId) -> Path:
    """The path in an array of struct ib_path_rec_data, as RDMA_OPTION_IB_PATH has it. Raises VerbsError:
    EINVAL if there is none, or it is none; EOPNOTSUPP if it leads from or to another address than the id's.
    """
    each = [PATH_DATA.read(data[at : at + PATH_DATA.size]) for at in range(0, len(data), PATH_DATA.size)]
    found = next((one["path_rec"] for one in each if one["flags"] == _GMP_PRIMARY_BIDIRECTIONAL), None)
    if found is None or len(data) % PATH_DATA.size:
        raise VerbsError(EINVAL, "there is no path that is primary, for both ways and for GMPs", "rdma_cm")
    mtu, life_time = found[54] & 0x3F, found[56] & 0x3F
    if mtu not in tuple(MTU) or life_time > _MOST_LIFE_TIME or found[50:52] != _PKEY:
        raise VerbsError(EINVAL, "the path has an MTU, life time or P_Key that no port has", "rdma_cm")
    if one.remote is not None and (found[24:40], found[8:24]) != _gids(one):
        raise VerbsError(EOPNOTSUPP, "paths to other addresses than the id's are not supported", "rdma_cm")
    return Path(found[48], found[47], MTU(mtu), life_time)


def has_path(one: CmId) -> bool:
    """Whether the path to the peer is known; iWARP has none, as TCP finds it."""
    if _is_iwarp(one):
        return False
    return one.state in _HAS_PATH and one.verbs is not None and one.remote is not None


def route(one: CmId) -> bytes:
    """What QUERY_ROUTE answers."""
    sgid, dgid = _gids(one)
    path = _path(one) if has_path(one) else {"dgid": dgid, "sgid": sgid, "pkey": _pkey(one)}
    return ROUTE_RESP.write(
        **_device(one),
        route0=PATH_REC.write(**path),
        src_addr=_local(one),
        dst_addr=_peer(one),
        num_paths=int(has_path(one)),
        ibdev_index=ANY_INDEX,
    )


def addresses(one: CmId) -> bytes:
    """What QUERY answers to ADDR."""
    return _addresses(one, _local(one), _peer(one))


def gids(one: CmId) -> bytes:
    """What QUERY answers to GID: the addresses as those of InfiniBand."""
    if _service_of(one) is not None:
        return addresses(one)
    sgid, dgid = _gids(one)
    source = write_ib(sgid, _service(one, one.get_src_port()))
    return _addresses(one, source, write_ib(dgid, _service(one, one.get_dst_port())))


def _service(one: CmId, port: int) -> int:
    """The service id of a port (IBA Annex A11.2)."""
    return int(one.ps) << 16 | port


def _addresses(one: CmId, source: bytes, destination: bytes) -> bytes:
    return ADDR_RESP.write(
        **_device(one),
        pkey=int.from_bytes(_pkey(one)),
        src_size=len(source),
        dst_size=len(destination),
        src_addr=source,
        dst_addr=destination,
        ibdev_index=ANY_INDEX,
    )


def paths(one: CmId) -> bytes:
    """What QUERY answers to PATH: path records as in a MAD (IBA 15.2.5.16)."""
    if not has_path(one):
        return PATH_RESP.write()
    path = _path(one)
    record = b"".join(
        (
            bytes(8),  # the service id
            path["dgid"],
            path["sgid"],
            bytes(4),  # the LIDs
            path["hop_limit"].to_bytes(4, "big"),  # raw traffic and flow label, 0, are ahead of it
            bytes([path["traffic_class"], 1 << 7 | path["numb_path"]]),  # reversible
            _PKEY,
            bytes(2),  # QoS class and SL
            bytes([_EXACTLY << 6 | path["mtu"], _EXACTLY << 6 | path["rate"]]),
            bytes([_EXACTLY << 6 | path["packet_life_time"], 0]),  # the preference
        )
    )
    return PATH_RESP.write(num_paths=1) + PATH_DATA.write(flags=_GMP_PRIMARY_BIDIRECTIONAL, path_rec=record)


QUERY_ADDR, QUERY_PATH, QUERY_GID, QUERY_IB_SERVICE = range(4)
QUERIES: dict[int, tuple[Callable[[CmId], bytes], int]] = {  # and the least room for the answer
    QUERY_ADDR: (addresses, ADDR_RESP.offset("ibdev_index")),
    QUERY_PATH: (paths, PATH_RESP.size),
    QUERY_GID: (gids, ADDR_RESP.offset("ibdev_index")),
}
