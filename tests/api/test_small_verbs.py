# SPDX-License-Identifier: Apache-2.0
"""What libibverbs has small functions for: names, words, rates, addresses, partitions, forks."""

import ctypes
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rnic
from rnic import ForkStatus, Rate
from rnic.rdmacm import EventType as CmEventType

WORDED = (rnic.WCStatus, rnic.EventType, rnic.NodeType, rnic.PortState)


@pytest.fixture
def ctx() -> Iterator[rnic.Context]:
    with rnic.open_device("roce_lo") as opened:
        yield opened


@pytest.fixture(scope="module")
def stored() -> Any:
    return json.loads(Path(__file__).with_name("libibverbs_values.json").read_text())["enums"]


@pytest.fixture(scope="module")
def libibverbs() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libibverbs.so.1")
    except OSError as error:
        pytest.skip(str(error))


# ---------------------------------------------------------------- devices


def test_a_device_says_what_it_is() -> None:
    device = next(one for one in rnic.get_device_list() if one.name == "roce_lo")
    assert device.index == int(Path("/sys/class/net/lo/ifindex").read_text())
    with rnic.open_device(device) as ctx:
        assert ctx.name == device.name
        assert ctx.query_device().node_guid == device.guid
    assert device.node_type.text == "channel adapter"


def test_the_limits_that_a_device_tells_are_those_that_it_keeps(ctx: rnic.Context) -> None:
    attr = ctx.query_device()
    with ctx.create_cq(attr.max_cqe) as cq, ctx.alloc_pd() as pd:
        assert cq.cqe >= attr.max_cqe
        with pytest.raises(rnic.VerbsError) as caught:
            ctx.create_cq(attr.max_cqe + 1)
        assert caught.value.errno == errno.EINVAL
        cap = rnic.QPCap(attr.max_qp_wr, attr.max_qp_wr, attr.max_sge, attr.max_sge, attr.max_inline_data)
        with pd.create_qp(rnic.QPInitAttr(cq, cq, cap=cap)) as qp:
            assert qp.cap == cap
        for name, value in (("max_send_wr", attr.max_qp_wr), ("max_recv_sge", attr.max_sge)):
            with pytest.raises(rnic.VerbsError) as caught:
                pd.create_qp(rnic.QPInitAttr(cq, cq, cap=rnic.QPCap(**{name: value + 1})))
            assert caught.value.errno == errno.EINVAL


def test_a_port_tells_its_state_and_tables(ctx: rnic.Context) -> None:
    port = ctx.query_port(1)
    assert (port.state, port.state.text) == (rnic.PortState.ACTIVE, "active")
    assert (port.link_layer, port.pkey_tbl_len) == (rnic.LinkLayer.ETHERNET, 32)
    assert rnic.MTU.MTU_256 <= port.active_mtu <= port.max_mtu
    for number in (0, 2):
        with pytest.raises(rnic.VerbsError) as caught:
            ctx.query_port(number)
        assert caught.value.errno == errno.EINVAL


def test_every_gid_is_an_address_of_the_netdev(ctx: rnic.Context) -> None:
    table = ctx.query_gid_table()
    assert rnic.GID("127.0.0.1") in [entry.gid for entry in table]
    size = ctx.query_port().gid_tbl_len
    assert len(table) <= size
    for entry in table:
        assert ctx.query_gid(1, entry.gid_index) == entry.gid
        assert ctx.query_gid_ex(1, entry.gid_index) == entry
        assert (entry.gid_type, entry.ndev_ifindex) == (rnic.GIDType.ROCE_V2, ctx.device.index)
    for ask in (ctx.query_gid, ctx.query_gid_ex):
        with pytest.raises(rnic.VerbsError) as caught:
            ask(1, size)
        assert caught.value.errno == errno.EINVAL


def test_a_partition_key_is_found_where_it_stands(ctx: rnic.Context) -> None:
    assert ctx.query_pkey(1, 0) == 0xFFFF
    assert ctx.get_pkey_index(1, 0xFFFF) == 0
    with pytest.raises(rnic.VerbsError, match="no P_Key 0x7fff; it has 0xffff") as caught:
        ctx.get_pkey_index(1, 0x7FFF)
    assert (caught.value.errno, caught.value.verb) == (errno.ENOENT, "get_pkey_index")
    with pytest.raises(rnic.VerbsError) as caught:
        ctx.query_pkey(1, ctx.query_port(1).pkey_tbl_len)
    assert caught.value.errno == errno.EINVAL


# ---------------------------------------------------------------- words


def test_what_is_known_by_a_number_is_known_in_words() -> None:
    assert rnic.WCStatus.LOC_LEN_ERR.text == "local length error"
    assert rnic.WCStatus.RNR_RETRY_EXC_ERR.text == "receiver not ready retry counter exceeded error"
    assert rnic.WCStatus.SUCCESS.text == "success"
    assert rnic.EventType.SRQ_LIMIT_REACHED.text == "SRQ limit reached"
    assert rnic.EventType.SQ_DRAINED.text == "send queue drained"
    assert rnic.PortState.ACTIVE_DEFER.text == "active defer"
    assert rnic.NodeType.RNIC.text == "RNIC"


def test_no_two_members_have_the_same_words() -> None:
    for kind in WORDED:
        assert len({member.text for member in kind}) == len(kind)
        assert all(member.text for member in kind)


def test_events_of_the_cm_are_called_as_in_c() -> None:
    assert CmEventType.ESTABLISHED.text == "RDMA_CM_EVENT_ESTABLISHED"


# ---------------------------------------------------------------- rates


def test_rates_have_libibverbs_values(stored: Any) -> None:
    assert {rate.name: rate.value for rate in Rate} == stored["ibv_rate"]
    assert {status.name: status.value for status in ForkStatus} == stored["ibv_fork_status"]


def test_a_rate_is_a_speed_and_back() -> None:
    assert (Rate.RATE_10_GBPS.mult, Rate.RATE_10_GBPS.mbps) == (4, 10000)
    assert (Rate.RATE_14_GBPS.mult, Rate.RATE_14_GBPS.mbps) == (None, 14062)
    assert (Rate.RATE_MAX.mult, Rate.RATE_MAX.mbps) == (None, None)
    for rate in Rate:
        assert rate.mult is None or Rate.from_mult(rate.mult) is rate
        assert rate.mbps is None or Rate.from_mbps(rate.mbps) is rate
    assert Rate.from_mult(7) is Rate.from_mbps(7) is Rate.RATE_MAX


def test_rates_are_those_of_libibverbs_itself(libibverbs: ctypes.CDLL) -> None:
    for rate in Rate:
        assert rate.mult in (None, libibverbs.ibv_rate_to_mult(rate))
        assert rate.mbps in (None, libibverbs.ibv_rate_to_mbps(rate))
    for mult in range(500):
        assert Rate.from_mult(mult) == libibverbs.mult_to_ibv_rate(mult)
    for rate in Rate:
        assert Rate.from_mbps(rate.mbps or 0) == libibverbs.mbps_to_ibv_rate(rate.mbps or 0)


# ---------------------------------------------------------------- memory, forks and flows


@pytest.mark.parametrize("right", ["REMOTE_WRITE", "REMOTE_ATOMIC"])
def test_remote_changes_need_the_right_to_change(ctx: rnic.Context, right: str) -> None:
    access = rnic.AccessFlags[right]
    with ctx.alloc_pd() as pd:
        with pytest.raises(rnic.VerbsError, match="need LOCAL_WRITE as well") as caught:
            pd.reg_mr(bytearray(8), access)
        assert caught.value.errno == errno.EINVAL
        pd.reg_mr(bytearray(8), access | rnic.AccessFlags.LOCAL_WRITE).close()


def test_registered_memory_survives_a_fork(ctx: rnic.Context) -> None:
    rnic.fork_init()
    assert rnic.is_fork_initialized() is ForkStatus.UNNEEDED
    memory = bytearray(b"before")
    with ctx.alloc_pd() as pd, pd.reg_mr(memory) as mr:
        pid = os.fork()
        if pid == 0:  # pragma: no cover
            os._exit(0 if memory == b"before" else 1)
        memory[:] = b"after!"
        assert os.waitpid(pid, 0)[1] == 0
        assert bytes(mr.buf) == b"after!"


@pytest.mark.parametrize(
    ("label", "port"),
    [
        (0, 0xC000),
        (0x3FFF, 0xFFFF),
        (0xFC000, 0xC03F),
        (0xFFFFF, 0xFFC0),
        (0x12345, 0xE341),
        (1 << 20, 0xC000),
    ],
)
def test_a_flow_label_becomes_a_port_from_49152_on(label: int, port: int) -> None:
    assert rnic.flow_label_to_udp_sport(label) == port
