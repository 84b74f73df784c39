# SPDX-License-Identifier: Apache-2.0
"""MADs and CM messages: what kernels sent, what tshark reads, and any bytes at all."""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import fields, replace
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packages import lacking
from rnic.capture import PcapWriter, Record, read_pcap
from rnic.capture.dissect import describe, dissect_file
from rnic.wire import (
    BTH,
    DETH,
    GSI_QKEY,
    GSI_QPN,
    IP_REQ_PRIVATE_BYTES,
    IP_SIDR_REQ_PRIVATE_BYTES,
    MAD,
    MESSAGES,
    Apr,
    AprStatus,
    CmAttr,
    CmMessage,
    CmPath,
    Drep,
    Dreq,
    IpCmHeader,
    Lap,
    LinkType,
    MgmtClass,
    Mra,
    NotRoCEError,
    Opcode,
    Packet,
    PortSpace,
    Rej,
    RejReason,
    Rep,
    Req,
    Rtu,
    SidrRep,
    SidrReq,
    SidrStatus,
    Transport,
    WireError,
    describe_mad,
    parse_cm,
    service_id,
    split_service_id,
)

VECTORS = Path(__file__).parent.parent / "vectors"
CM_CAPTURES = ["rcopy", "rdma-server", "reject", "rping-ipv6", "rping", "ucmatose", "udaddy"]
CLASSES = sorted(MESSAGES.values(), key=lambda cls: cls.ATTR)


def datagrams(name: str) -> list[bytes]:
    """What went to queue pair 1 in a capture."""
    found = []
    for record in read_pcap(VECTORS / f"rxe-{name}.pcap"):
        try:
            packet = Packet.parse(record.data, record.linktype)
        except NotRoCEError:
            continue
        if packet.bth.dqpn == GSI_QPN:
            found.append(packet.payload)
    return found


def messages(name: str) -> list[CmMessage]:
    return [parse_cm(MAD.parse(data)) for data in datagrams(name)]


def names(name: str) -> list[str]:
    return [type(message).__name__ for message in messages(name)]


# -------------------------------------------------------------------------------- what kernels sent


def test_every_capture_with_cm_datagrams_is_listed() -> None:
    with_cm = [path.stem[4:] for path in sorted(VECTORS.glob("rxe-*.pcap")) if datagrams(path.stem[4:])]
    assert sorted(with_cm) == sorted(CM_CAPTURES)


@pytest.mark.parametrize("name", CM_CAPTURES)
def test_every_datagram_is_emitted_as_it_was(name: str) -> None:
    for data in datagrams(name):
        mad = MAD.parse(data)
        message = parse_cm(mad)
        assert mad.emit() == data
        assert message.emit() == mad.data
        assert message.to_mad(mad.tid, mad.attr_mod) == mad


def test_a_connection_is_req_rep_rtu_and_ends_with_dreq_drep() -> None:
    assert names("rping") == names("rping-ipv6") == ["Req", "Rep", "Rtu", "Dreq", "Drep"]
    req, rep, rtu, dreq, drep = messages("rping")
    assert isinstance(req, Req)
    assert isinstance(rep, Rep)
    assert isinstance(rtu, Rtu)
    assert isinstance(dreq, Dreq)
    assert isinstance(drep, Drep)
    ids = (req.local_comm_id, rep.local_comm_id)
    assert (rtu.local_comm_id, rtu.remote_comm_id) == ids
    assert (rep.remote_comm_id, drep.remote_comm_id) == (ids[0], dreq.local_comm_id)
    assert {MAD.parse(data).tid for data in datagrams("rping")} == {0x237DAC380}


def test_the_fields_of_a_req() -> None:
    req = messages("rping")[0]
    assert isinstance(req, Req)
    assert (req.local_comm_id, req.local_ca_guid, req.local_qpn) == (0x80C3DA37, 0x505400FFFE770109, 0x17)
    assert split_service_id(req.service_id) == (PortSpace.TCP, 7174)
    assert (req.remote_cm_timeout, req.local_cm_timeout, req.max_cm_retries) == (20, 20, 15)
    assert (req.retry_count, req.rnr_retry_count, req.path_mtu, req.starting_psn) == (7, 7, 3, 0xA318B1)
    assert (req.primary.hop_limit, req.primary.ack_timeout) == (64, 19)
    assert req.primary.local_gid == IPv6Address("::ffff:10.77.255.8")
    assert (req.primary.flow_label, req.primary.packet_rate) == (0xB29DC, 0)
    assert CmPath(flow_label=0xB29DC, packet_rate=0x2A).emit()[36:40].hex() == "b29dc02a"
    assert req.alternate == CmPath()
    header = IpCmHeader.parse(req.private_data)
    assert (str(header.src), header.sport, str(header.dst)) == ("10.77.255.8", 0xDF6A, "10.77.255.9")


def test_the_addresses_of_an_ipv6_caller() -> None:
    req = messages("rping-ipv6")[0]
    assert isinstance(req, Req)
    header = IpCmHeader.parse(req.private_data)
    assert (str(header.src), str(header.dst)) == ("fd77:0:0:ff::8", "fd77:0:0:ff::9")
    assert header.src == req.primary.local_gid


def test_a_port_without_listener_is_rejected_without_an_id() -> None:
    req, rej = messages("reject")
    assert isinstance(req, Req)
    assert isinstance(rej, Rej)
    assert (rej.local_comm_id, rej.remote_comm_id, rej.message) == (0, req.local_comm_id, 0)
    assert rej.reason == RejReason.INVALID_SERVICE_ID


def test_a_datagram_service_is_resolved_to_a_queue_pair() -> None:
    asked, answered = messages("udaddy")
    assert isinstance(asked, SidrReq)
    assert isinstance(answered, SidrRep)
    assert split_service_id(asked.service_id) == (PortSpace.UDP, 7174)
    assert (answered.request_id, answered.status) == (asked.request_id, SidrStatus.SUCCESS)
    assert (answered.qpn, answered.qkey) == (0x1B, 0x01234567)
    assert str(IpCmHeader.parse(asked.private_data).dst) == "10.77.255.9"


# -------------------------------------------------------------------------------- any bytes


def bits(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << n) - 1)


@pytest.mark.parametrize("cls", [*CLASSES, CmPath, IpCmHeader, MAD], ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_any_bytes_of_the_right_number_come_out_again(cls: Any, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=cls.SIZE, max_size=cls.SIZE))
    found = cls.parse(raw)
    assert found.emit() == raw
    assert cls.parse(found.emit()) == found
    assert str(found)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_fields_come_back_as_they_were_given(cls: type[CmMessage], data: st.DataObject) -> None:
    filled = cls.parse(data.draw(st.binary(min_size=cls.SIZE, max_size=cls.SIZE)))
    given_fields: Any = {f.name: getattr(filled, f.name) for f in fields(cls) if f.name != "resv"}
    message = cls(**given_fields)
    tid, attr_mod = data.draw(bits(64)), data.draw(bits(32))
    mad = MAD.parse(message.to_mad(tid, attr_mod).emit())
    assert (mad.tid, mad.attr_mod, mad.attr_id) == (tid, attr_mod, cls.ATTR)
    assert parse_cm(mad) == message


@given(st.binary(max_size=300))
def test_any_bytes_parse_or_raise_wire_error(data: bytes) -> None:
    assert describe_mad(data)
    try:
        mad = MAD.parse(data)
        message = parse_cm(mad)
    except WireError:
        return
    assert message.to_mad(mad.tid, mad.attr_mod).data == mad.data


@given(st.sampled_from(range(0x0C, 0x20)), st.binary(min_size=232, max_size=232))
def test_any_bytes_behind_a_good_header_parse(attr_id: int, data: bytes) -> None:
    mad = MAD(attr_id=attr_id, data=data)
    assert describe_mad(mad.emit())
    if attr_id in MESSAGES:
        assert parse_cm(mad).emit() == data
    else:
        with pytest.raises(WireError, match="attribute"):
            parse_cm(mad)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mgmt_class": 4}, "class"),
        ({"class_version": 1}, "version 1.1"),
        ({"base_version": 0x80}, "version 128.2"),
        ({"method": 0x81}, "method"),
        ({"attr_id": 0x30}, "attribute"),
    ],
)
def test_what_is_no_cm_message_is_refused_in_words(changed: dict[str, int], words: str) -> None:
    mad = replace(Rtu().to_mad(1), **changed)
    with pytest.raises(WireError, match=words):
        parse_cm(mad)
    assert describe_mad(mad.emit())


def test_a_datagram_has_256_bytes() -> None:
    for size in (0, 24, 255, 257):
        with pytest.raises(WireError, match="256"):
            MAD.parse(bytes(size))
    for cls in CLASSES:
        with pytest.raises(WireError, match=f"{cls.__name__} needs 232"):
            cls.parse(bytes(231))


# -------------------------------------------------------------------------------- sizes and values


def test_the_room_for_private_data_is_the_kernels() -> None:
    assert {cls.__name__: cls.PRIVATE_BYTES for cls in CLASSES} == {
        "Req": 92, "Mra": 222, "Rej": 148, "Rep": 196, "Rtu": 224, "Dreq": 220, "Drep": 224,
        "SidrReq": 216, "SidrRep": 136, "Lap": 168, "Apr": 148,
    }  # fmt: skip
    assert (IP_REQ_PRIVATE_BYTES, IP_SIDR_REQ_PRIVATE_BYTES) == (56, 180)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_private_data_is_padded_and_never_cut(cls: Any) -> None:
    room = cls.PRIVATE_BYTES
    assert cls.parse(cls(private_data=b"abc").emit()).private_data == b"abc".ljust(room, b"\0")
    assert cls.parse(cls(private_data=b"x" * room).emit()).private_data == b"x" * room
    with pytest.raises(WireError, match="private_data"):
        cls(private_data=bytes(room + 1)).emit()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_field_never_reaches_into_another(cls: Any) -> None:
    empty = cls().emit()
    for one in fields(cls):
        if one.type == "int" and one.name != "resv":
            with pytest.raises(WireError, match=one.name):
                cls(**{one.name: 1 << 64}).emit()
            with pytest.raises(WireError, match=one.name):
                cls(**{one.name: -1}).emit()
    assert cls.parse(empty) == replace(cls(), **{
        f.name: getattr(cls.parse(empty), f.name) for f in fields(cls) if f.type == "bytes"
    })  # fmt: skip
    with pytest.raises(WireError, match="resv"):
        cls(resv=(1 << 232 * 8) - 1).emit()


def test_ece_vendor_ids_lie_where_the_kernel_has_them() -> None:
    vendor = 0x15B3C1
    assert Req(vendor_id=vendor).emit()[4:8].hex() == "0015b3c1"
    rep = Rep(vendor_id=vendor, local_qpn=0xABCDEF, starting_psn=0x123456).emit()
    assert rep[12:24].hex() == "abcdef15" + "000000b3" + "123456c1"
    sidr = SidrRep(vendor_id=vendor, qpn=0xABCDEF).emit()
    assert sidr[6:12].hex() == "15b3" + "abcdefc1"
    assert Req().to_mad(1, attr_mod=0x55).emit()[20:24].hex() == "00000055"


def test_additional_information_is_as_long_as_it_says() -> None:
    assert Rej.parse(Rej(ari=b"abcdef", ari_length=4).emit()).info == b"abcd"
    assert len(Rej.parse(Rej(ari=b"abcdef", ari_length=127).emit()).info) == 72
    assert len(SidrRep.parse(SidrRep(info_length=255).emit()).info) == 72
    assert Apr.parse(Apr(additional=b"xyz", info_length=2).emit()).info == b"xy"


def test_reasons_have_the_numbers_of_the_specification() -> None:
    assert [reason.value for reason in RejReason] == [*range(1, 34), 35]
    assert (RejReason.NO_QP, RejReason.STALE_CONN, RejReason.CONSUMER_DEFINED) == (1, 10, 28)
    assert [attr.value for attr in CmAttr] == list(range(0x10, 0x1B))


def test_service_ids_of_rdma_cm() -> None:
    assert service_id(PortSpace.TCP, 7174) == 0x0000000001061C06
    assert service_id(PortSpace.UDP, 7174) == 0x0000000001111C06
    assert service_id(PortSpace.IPOIB, 1) == 0x0000000000020001
    assert service_id(PortSpace.IB, 0xFFFF) == 0x00000000013FFFFF
    for space in PortSpace:
        assert split_service_id(service_id(space, 4242)) == (space, 4242)
    assert split_service_id(0x1000000000000000) is None
    with pytest.raises(WireError, match="port"):
        service_id(PortSpace.TCP, 65536)


@given(st.one_of(st.tuples(*[st.ip_addresses(v=4)] * 2), st.tuples(*[st.ip_addresses(v=6)] * 2)), bits(16))
def test_ip_addresses_round_trip(ends: Any, sport: int) -> None:
    header = IpCmHeader.parse(IpCmHeader.build(*ends, sport).emit() + b"user's")
    assert (header.src, header.dst, header.sport, header.known) == (*ends, sport, True)


def test_an_ip_header_of_another_version_has_no_addresses() -> None:
    good = IpCmHeader.build(ip_address("10.0.0.1"), ip_address("10.0.0.2"), 5)
    assert good.emit().hex() == "00400005" + "00" * 12 + "0a000001" + "00" * 12 + "0a000002"
    for bad in (replace(good, major=1), replace(good, ip_version=5), replace(good, ip_version=0)):
        assert not bad.known
        with pytest.raises(WireError, match="IP CM version"):
            _ = bad.src
    with pytest.raises(WireError, match="famil"):
        IpCmHeader.build(ip_address("10.0.0.1"), ip_address("::1"), 5)
    with pytest.raises(WireError, match="source port"):
        IpCmHeader.build(ip_address("::1"), ip_address("::1"), 65536)


# -------------------------------------------------------------------------------- words


def test_messages_read_well() -> None:
    assert [str(message) for message in messages("rping")] == [
        "CM REQ 0x80c3da37 TCP:7174 RC QP 0x000017 PSN 10688689 10.77.255.8 to 10.77.255.9"
        " from 10.77.255.8:57194 for 10.77.255.9",
        "CM REP 0xfad84ccc to 0x80c3da37 QP 0x000017 PSN 1999110",
        "CM RTU 0x80c3da37 to 0xfad84ccc",
        "CM DREQ 0x80c3da37 to 0xfad84ccc of QP 0x000017",
        "CM DREP 0xfad84ccc to 0x80c3da37",
    ]
    assert [str(message) for message in messages("udaddy")] == [
        "CM SIDR_REQ 0x84c3da37 UDP:7174 from 10.77.255.8:36125 for 10.77.255.9",
        "CM SIDR_REP 0x84c3da37 QP 0x00001b Q_Key 0x01234567",
    ]
    assert str(Rej(remote_comm_id=7, reason=28)).endswith("of the REQ, reason 28: consumer defined")
    assert str(Rej(reason=99)).endswith("reason 99: RejReason 99")
    assert str(Mra(message=1, service_timeout=20)).endswith("of the REP, wait 4.29 s")
    assert str(SidrRep(status=2)).endswith("status 2: reject")
    assert str(Apr(status=AprStatus.UNSUPPORTED)).endswith("status 2: unsupported")
    assert "fd00::1 to fd00::2" in str(
        Lap(local_gid=IPv6Address("fd00::1"), remote_gid=IPv6Address("fd00::2"))
    )
    assert str(SidrReq(service_id=1 << 60)).endswith("service 0x1000000000000000")


def test_dissected_captures_show_the_handshake() -> None:
    lines = list(dissect_file(VECTORS / "rxe-reject.pcap"))
    assert "CM REQ 0x86c3da37 TCP:7174" in lines[0]
    assert lines[1].endswith("CM REJ 0x00000000 to 0x86c3da37 of the REQ, reason 8: invalid service id")


def to_qp1(payload: bytes) -> Record:
    transport = Transport(BTH(Opcode.UD_SEND_ONLY, GSI_QPN, 1), (DETH(GSI_QKEY, GSI_QPN),), payload)
    data = Packet.build("10.0.0.1", "10.0.0.2", transport).emit()
    return Record(0, data, len(data), LinkType.RAW)


@given(st.binary(max_size=260))
def test_any_datagram_to_queue_pair_1_is_described(payload: bytes) -> None:
    assert describe(to_qp1(payload))


def test_other_management_classes_are_named() -> None:
    other = MAD(mgmt_class=MgmtClass.PERF, class_version=1, method=1, attr_id=0x12)
    assert describe(to_qp1(other.emit())).endswith("MAD class perf method 0x01 attribute 0x0012")


# -------------------------------------------------------------------------------- a second reader

# Our fields, and what tshark calls them behind "infiniband.cm."; it knows no MRA, SIDR, LAP and APR,
# and reads flow label and packet rate from three bytes where there are four (4.0.17).
TSHARK: dict[type[CmMessage], dict[str, str]] = {
    Req: {
        "local_comm_id": "req", "local_ca_guid": "req.localcaguid", "local_qkey": "req.localqkey",
        "local_qpn": "req.localqpn", "responder_resources": "req.responderres",
        "local_eecn": "req.localeecn", "initiator_depth": "req.initdepth",
        "remote_eecn": "req.remoteeecn", "remote_cm_timeout": "req.remoteresptout",
        "transport_type": "req.transpsvctype", "flow_control": "req.e2eflowctrl",
        "starting_psn": "req.startpsn", "local_cm_timeout": "req.localresptout",
        "retry_count": "req.retrcount", "pkey": "req.pkey", "path_mtu": "req.pppmtu",
        "rdc_exists": "req.rdcexist", "rnr_retry_count": "req.rnrretrcount",
        "max_cm_retries": "req.maxcmretr", "srq": "req.srq",
        "extended_transport_type": "req.ext_transport",
        "primary.local_lid": "req.prim_locallid", "primary.remote_lid": "req.prim_remotelid",
        "primary.traffic_class": "req.prim_tfcclass", "primary.hop_limit": "req.prim_hoplim",
        "primary.sl": "req.prim_sl", "primary.subnet_local": "req.prim_subnetlocal",
        "primary.ack_timeout": "req.prim_localacktout",
        "alternate.local_lid": "req.alt_locallid", "alternate.remote_lid": "req.alt_remotelid",
        "alternate.traffic_class": "req.alt_tfcclass", "alternate.hop_limit": "req.alt_hoplim",
        "alternate.sl": "req.alt_sl", "alternate.subnet_local": "req.alt_subnetlocal",
        "alternate.ack_timeout": "req.alt_localacktout",
    },
    Rep: {
        "local_comm_id": "rep", "remote_comm_id": "rep.remotecommid", "local_qkey": "rep.localqkey",
        "local_qpn": "rep.localqpn", "local_eecn": "rep.localeecn", "starting_psn": "rep.startpsn",
        "responder_resources": "rep.respres", "initiator_depth": "rep.initdepth",
        "target_ack_delay": "rep.tgtackdelay", "failover_accepted": "rep.failoveracc",
        "flow_control": "rep.e2eflowctrl", "rnr_retry_count": "rep.rnrretrcount", "srq": "rep.srq",
        "local_ca_guid": "rep.localcaguid",
    },
    Rtu: {"local_comm_id": "rtu.localcommid", "remote_comm_id": "rtu.remotecommid"},
    Rej: {
        "local_comm_id": "rej.localcommid", "remote_comm_id": "rej.remotecommid", "message": "rej.msgrej",
        "ari_length": "rej.rejinfolen", "reason": "rej.reason",
    },
    Dreq: {
        "local_comm_id": "dreq.localcommid", "remote_comm_id": "dreq.remotecommid",
        "remote_qpn": "req.remoteqpneecn",
    },
    Drep: {"local_comm_id": "drsp.localcommid", "remote_comm_id": "drsp.remotecommid"},
}  # fmt: skip

ATTRIBUTE, CM = "infiniband.mad.attributeid", "infiniband.cm."
needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason=lacking("tshark"))


def tshark_rows(path: Path, columns: list[str]) -> list[list[str]]:
    command = ["tshark", "-r", str(path), "-T", "fields", *(x for name in columns for x in ("-e", name))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def number(text: str) -> int:
    return {"True": 1, "False": 0}[text] if text in ("True", "False") else int(text, 0)


def member(message: CmMessage, name: str) -> int:
    found: Any = message
    for part in name.split("."):
        found = getattr(found, part)
    return int(found)


def agree(path: Path, expected: list[CmMessage]) -> int:
    """How many messages of TSHARK a capture of MADs holds; each of their fields is what tshark says."""
    columns = [ATTRIBUTE, *dict.fromkeys(CM + name for names in TSHARK.values() for name in names.values())]
    rows = [dict(zip(columns, row, strict=True)) for row in tshark_rows(path, columns)]
    count = 0
    for cls, names in TSHARK.items():
        theirs = [row for row in rows if row[ATTRIBUTE] and int(row[ATTRIBUTE], 0) == cls.ATTR]
        ours = [message for message in expected if isinstance(message, cls)]
        assert len(theirs) == len(ours)
        for row, message in zip(theirs, ours, strict=True):
            seen = {name: number(row[CM + known]) for name, known in names.items()}
            assert seen == {name: member(message, name) for name in names}
        count += len(ours)
    return count


@pytest.mark.one_in(3)
@needs_tshark
@pytest.mark.parametrize("name", [name for name in CM_CAPTURES if name != "udaddy"])
def test_tshark_reads_the_captures_as_we_do(name: str) -> None:
    expected = messages(name)
    assert agree(VECTORS / f"rxe-{name}.pcap", expected) == len(expected)


@pytest.mark.one_in(3)
@needs_tshark
@pytest.mark.parametrize("cls", TSHARK, ids=lambda cls: cls.__name__)
def test_tshark_reads_what_we_write(cls: type[CmMessage], tmp_path: Path) -> None:
    rng = random.Random(cls.__name__)
    written = [cls.parse(rng.randbytes(cls.SIZE)) for _ in range(20)]
    path = tmp_path / "cm.pcap"
    with PcapWriter(path, LinkType.RAW) as writer:
        for message in written:
            writer.write(0, to_qp1(message.to_mad(7).emit()).data)
    assert agree(path, written) == len(written)


@needs_tshark
def test_tshark_finds_the_addresses_of_the_annex() -> None:
    columns = [f"infiniband.cm.req.ip_cm.{name}" for name in ("ipv", "sport", "sip4", "dip4")]
    row = tshark_rows(VECTORS / "rxe-rping.pcap", columns)[0]
    req = messages("rping")[0]
    assert isinstance(req, Req)
    header = IpCmHeader.parse(req.private_data)
    assert [number(row[0]), number(row[1]), row[2], row[3]] == [
        header.ip_version, header.sport, str(header.src), str(header.dst),
    ]  # fmt: skip
