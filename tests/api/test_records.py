# SPDX-License-Identifier: Apache-2.0
"""Records: addresses, attributes, faults, errors."""

import copy
import dataclasses
import errno
import pickle
import warnings
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rnic
from rnic import GID
from rnic.verbs import device

MAPPED = bytes(10) + b"\xff\xff"


@pytest.mark.parametrize(
    ("value", "text", "ip"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", IPv4Address("10.0.0.1")),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1", IPv4Address("10.0.0.1")),
        (IPv4Address("10.0.0.1"), "::ffff:10.0.0.1", IPv4Address("10.0.0.1")),
        (MAPPED + bytes([10, 0, 0, 1]), "::ffff:10.0.0.1", IPv4Address("10.0.0.1")),
        ("fe80::1", "fe80::1", IPv6Address("fe80::1")),
        (IPv6Address("fe80::1"), "fe80::1", IPv6Address("fe80::1")),
        (GID("fe80::1"), "fe80::1", IPv6Address("fe80::1")),
        (bytes(16), "::", IPv6Address("::")),
    ],
)
def test_gid_forms(value: Any, text: str, ip: object) -> None:
    gid = GID(value)
    assert (str(gid), gid.ip, repr(gid)) == (text, ip, f"GID('{text}')")
    assert GID(text) == gid == GID(gid.raw)
    assert hash(GID(text)) == hash(gid)


@pytest.mark.parametrize("value", ["", "10.0.0", "roce_lo", b"short", 17, None, bytes(17)])
def test_what_is_no_gid(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - ipaddress has its own words
        GID(value)


@given(st.binary(min_size=16, max_size=16))
def test_every_gid_survives_its_text(raw: bytes) -> None:
    gid = GID(raw)
    assert GID(str(gid)) == gid
    assert bytes(gid) == raw
    assert pickle.loads(pickle.dumps(gid)) == copy.copy(gid) == gid
    assert bool(gid) == any(raw)


def test_a_gid_never_changes() -> None:
    with pytest.raises(AttributeError, match="never changes"):
        GID().raw = b""
    assert GID("::1") < GID("::2")
    assert GID() != bytes(16)


def test_records_are_frozen_and_replaceable() -> None:
    path = rnic.AHAttr(dgid=GID())
    with pytest.raises(dataclasses.FrozenInstanceError):
        path.port_num = 2  # type: ignore[misc]
    assert dataclasses.replace(path, port_num=2) == rnic.AHAttr(dgid=GID(), port_num=2)


def test_every_attribute_but_sq_draining_has_its_mask() -> None:
    every = {field.name: 1 for field in dataclasses.fields(rnic.QPAttr)}
    assert rnic.QPAttr(**every).mask() == rnic.QPAttrMask(0x21FFFFF)  # type: ignore[arg-type]
    assert rnic.QPAttr(sq_draining=True).mask() == 0


@pytest.mark.parametrize("name", ["loss", "duplicate", "reorder", "delay", "flip"])
@pytest.mark.parametrize("value", [-0.1, 1.1, 5])
def test_faults_are_probabilities(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is a probability"):
        rnic.Faults(**{name: value})  # type: ignore[arg-type]


def test_lose_counts_from_one() -> None:
    with pytest.raises(ValueError, match="begin at 1"):
        rnic.Lose(nth=0)


def test_errors_are_os_errors_with_words() -> None:
    error = rnic.VerbsError(errno.EINVAL, "RESET -> RTS is not allowed", "modify_qp")
    assert isinstance(error, OSError)
    assert str(error) == "modify_qp: RESET -> RTS is not allowed [EINVAL]"
    assert (error.errno, error.verb, error.strerror) == (
        errno.EINVAL,
        "modify_qp",
        "RESET -> RTS is not allowed",
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.verb) == (str(error), "modify_qp")
    assert str(rnic.VerbsError(errno.ENOMEM)) == "Cannot allocate memory [ENOMEM]"
    post = pickle.loads(pickle.dumps(rnic.PostError(errno.ENOMEM, "full", "post_send", object(), 3)))
    assert (post.index, post.bad_wr, post.verb) == (3, None, "post_send")


DEVICES = [
    {
        "name": b"roce_lo",
        "netdev": b"lo",
        "guid": 1,
        "ifindex": 1,
        "transport": 0,
        "node_type": 1,
        "provider": "soft",
    },
    {
        "name": b"roce_eth0",
        "netdev": b"eth0",
        "guid": 0x02FC00FFFE000001,
        "ifindex": 2,
        "transport": 0,
        "node_type": 1,
        "provider": "soft",
    },
]


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two devices are listed; the netdevs that are opened."""
    opened: list[str] = []
    monkeypatch.delenv("RNIC_DEVICE", raising=False)
    monkeypatch.setattr("rnic.verbs.device.nic.device_list", lambda: DEVICES)
    monkeypatch.setattr(
        "rnic.verbs.context.Context.of_device",
        lambda device, **options: opened.append(f"{device.netdev} {options}"),
    )
    return opened


@pytest.mark.usefixtures("two_devices")
def test_devices() -> None:
    lo, eth0 = rnic.get_device_list()
    assert (lo.name, lo.netdev, lo.index, lo.transport) == ("roce_lo", "lo", 1, rnic.Transport.IB)
    assert (eth0.guid_str, eth0.node_type) == ("02fc:00ff:fe00:0001", rnic.NodeType.CA)


def test_a_device_is_found(two_devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lo, eth0 = rnic.get_device_list()
    for which in (None, "roce_eth0", eth0.guid, eth0.guid_str, eth0):
        rnic.open_device(which)
    monkeypatch.setenv("RNIC_DEVICE", "roce_eth0")
    rnic.open_device()
    lo.open(rcvbuf=1, max_window=2, gso=False, congestion_control=True, local=False)
    assert [line.split()[0] for line in two_devices] == ["lo", *["eth0"] * 5, "lo"]
    options = {"rcvbuf": 1, "max_window": 2, "gso": False, "pkeys": (), "congestion_control": True}
    options["local"] = False
    assert two_devices[-1] == f"lo {options}"


@pytest.mark.parametrize("which", ["mlx5_0", 0xDEAD])
@pytest.mark.usefixtures("two_devices")
def test_an_unknown_device(which: str | int) -> None:
    with pytest.raises(rnic.VerbsError, match="there are: roce_lo, roce_eth0") as caught:
        rnic.open_device(which)
    assert caught.value.errno == errno.ENODEV


def test_no_device_at_all_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "get_device_list", list)
    with pytest.raises(rnic.VerbsError, match="there are: none, as no network interface has an address"):
        rnic.open_device("roce_lo")
    monkeypatch.delenv("RNIC_DEVICE", raising=False)
    with pytest.raises(rnic.VerbsError, match="there is no device, as no network interface has an address"):
        rnic.open_device()


@pytest.mark.parametrize("which", [None, "roce_lo"])
def test_no_device_may_be_the_environments_doing(monkeypatch: pytest.MonkeyPatch, which: str | None) -> None:
    monkeypatch.setenv("RNIC_DEVICES", "nosuch")
    monkeypatch.delenv("RNIC_DEVICE", raising=False)
    with pytest.raises(rnic.VerbsError, match="or RNIC_DEVICES names none of theirs"):
        rnic.open_device(which)


def test_what_is_no_record_is_named() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(1) as cq:
        with pytest.raises(TypeError, match=r"create_qp\(\) takes a QPInitAttr, not str"):
            pd.create_qp("RC")  # type: ignore[arg-type]
        init = rnic.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=rnic.QPType.RC)
        with pd.create_qp(init) as qp, pytest.raises(TypeError, match=r"a QPAttr.* not QPState"):
            qp.modify(rnic.QPState.INIT)  # type: ignore[arg-type]


def test_a_warning_of_what_was_not_closed_names_the_program() -> None:
    def drop() -> None:
        ctx = rnic.open_device("roce_lo")
        assert ctx.name == "roce_lo"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drop()
    assert [(str(one.message), one.filename) for one in caught] == [("unclosed Context roce_lo", __file__)]
