# SPDX-License-Identifier: Apache-2.0
"""RoCE and iWARP devices: which there are and in which order, and what an iWARP one tells and refuses."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rnic
from rnic import (
    MTU,
    AccessFlags,
    AtomicCap,
    DeviceCap,
    Faults,
    GIDType,
    LinkLayer,
    Lose,
    NodeType,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    SendWR,
    SRQInitAttrEx,
    SRQType,
    Transport,
    VerbsError,
    WROpcode,
)
from rnic.testing import Pair

NAME = "iwarp_lo"


@pytest.fixture
def ctx() -> Iterator[rnic.Context]:
    with rnic.open_device(NAME) as context:
        yield context


def names() -> list[str]:
    return [device.name for device in rnic.get_device_list()]


def refusal(call: Callable[[], object]) -> VerbsError:
    with pytest.raises(VerbsError) as caught:
        call()
    return caught.value


# ---------------------------------------------------------------- which there are


def test_an_interface_has_one_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RNIC_TRANSPORT", raising=False)
    found = rnic.get_device_list()
    roce = [one for one in found if one.transport is Transport.IB]
    iwarp = [one for one in found if one.transport is Transport.IWARP]
    assert found == roce + iwarp
    assert [one.netdev for one in roce] == [one.netdev for one in iwarp]
    assert {one.name for one in iwarp} == {f"iwarp_{one.netdev}" for one in roce}
    assert {one.node_type for one in roce} == {NodeType.CA}
    assert {one.node_type for one in iwarp} == {NodeType.RNIC}
    assert len({one.guid for one in found}) == len(found)


def test_the_environment_says_which_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_TRANSPORT", "roce")
    before = names()
    monkeypatch.setenv("RNIC_TRANSPORT", "iwarp")
    after = names()
    assert (before[0], after[0]) == ("roce_lo", NAME)
    assert sorted(before) == sorted(after)
    with rnic.open_device() as first:
        assert first.name == NAME
    monkeypatch.setenv("RNIC_TRANSPORT", "infiniband")
    assert "RNIC_TRANSPORT: infiniband is neither roce nor iwarp" in str(refusal(names))


def test_names_are_for_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_NAMES", "siw0=lo:iwarp,siw1=lo:iwarp,mlx5_0=lo,mlx5_1=lo:roce")
    found = {one.name: one for one in rnic.get_device_list() if one.netdev == "lo"}
    assert list(found) == ["mlx5_0", "mlx5_1", "siw0", "siw1"]
    assert found["siw1"].transport is Transport.IWARP
    assert len({one.guid for one in found.values()}) == 4
    monkeypatch.setenv("RNIC_NAMES", f"{NAME}=lo")
    assert "has the name iwarp_lo already" in str(refusal(names))
    monkeypatch.setenv("RNIC_NAMES", "siw0=lo:siw")
    assert "behind an interface stands :roce or :iwarp, not :siw" in str(refusal(names))


def test_devices_are_left_out_by_name_whatever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_DEVICES", f"{NAME},roce_lo")
    assert names() == [NAME, "roce_lo"]


# ---------------------------------------------------------------- what it says of itself


def test_what_it_has_not_is_told(ctx: rnic.Context) -> None:
    attr, more = ctx.query_device(), ctx.query_device_ex()
    assert (attr.max_ah, attr.max_mcast_grp, attr.max_mcast_qp_attach, attr.max_pkeys) == (0, 0, 0, 0)
    roce_only = DeviceCap.XRC | DeviceCap.AUTO_PATH_MIG | DeviceCap.RC_RNR_NAK_GEN | DeviceCap.RAW_IP_CSUM
    assert not attr.device_cap_flags & roce_only
    assert attr.device_cap_flags & DeviceCap.MEM_WINDOW_TYPE_2B
    assert attr.atomic_cap is AtomicCap.GLOB
    assert (attr.max_srq > 0, attr.max_mw > 0, attr.max_qp_rd_atom > 0) == (True, True, True)
    assert not more.device_cap_flags_ex & ~int(attr.device_cap_flags)
    assert not any((more.tm_caps.max_num_tags, more.max_wq_type_rq, more.rss_caps.supported_qpts))
    assert not any((more.odp_caps.uc_odp_caps, more.odp_caps.ud_odp_caps, more.xrc_odp_caps))
    assert more.packet_pacing_caps.supported_qpts == 1 << QPType.RC


def test_its_port_is_ethernet_with_one_gid_and_no_pkey(ctx: rnic.Context) -> None:
    port = ctx.query_port(1)
    assert (port.link_layer, port.gid_tbl_len, port.pkey_tbl_len) == (LinkLayer.ETHERNET, 1, 0)
    (entry,) = ctx.query_gid_table()
    assert entry.gid_type is GIDType.IB
    assert entry.ndev_ifindex == ctx.device.index
    assert not any(entry.gid.raw[8:])
    assert any(entry.gid.raw[:8]), "lo has no hardware address: it is made of a GUID"
    assert "table has 1 entries" in str(refusal(lambda: ctx.query_gid(1, 1)))
    assert "table has 0 entries" in str(refusal(lambda: ctx.query_pkey(1, 0)))


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("kind", [one for one in QPType if one is not QPType.RC])
def test_queue_pairs_are_of_rc(ctx: rnic.Context, kind: QPType) -> None:
    with ctx.alloc_pd() as pd, ctx.create_cq(1) as cq:
        error = refusal(lambda: pd.create_qp(QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=kind)))
    assert error.errno == errno.EOPNOTSUPP
    assert f"queue pair type {kind.name} ({int(kind)}): {NAME} is an iWARP device, which has RC (2)" in str(
        error
    )


def test_a_queue_pair_is_not_connected_by_hand(ctx: rnic.Context) -> None:
    with ctx.alloc_pd() as pd, ctx.create_cq(1) as cq:
        qp = pd.create_qp(QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=QPType.RC))
        qp.modify(QPAttr(qp_state=QPState.INIT, port_num=1, pkey_index=0, qp_access_flags=AccessFlags(0)))
        by_hand = QPAttr(qp_state=QPState.RTR, path_mtu=MTU.MTU_1024, dest_qp_num=1, rq_psn=0)
        error = refusal(lambda: qp.modify(by_hand))
        qp.close()
    assert error.errno == errno.EINVAL
    cure = "queue pairs of iWARP are connected by RDMA-CM"
    assert f"INIT -> RTR does not take path_mtu, rq_psn, dest_qp_num: {cure}" in str(error)


def test_an_operation_that_is_not_there_is_named() -> None:
    with Pair(NAME) as pair:
        error = refusal(lambda: pair.a.qp.post_send(SendWR(1, WROpcode.FLUSH)))
    assert error.errno == errno.EOPNOTSUPP
    assert "FLUSH (opcode 14) is not supported by iWARP" in str(error)


def calls(ctx: Any, pd: Any, cq: Any, qp: Any) -> dict[str, Callable[[], Any]]:
    """By what is missing."""
    return {
        "address handles": lambda: pd.create_ah(rnic.AHAttr(rnic.GID("127.0.0.1"))),
        "multicast": lambda: qp.attach_mcast("::ffff:239.1.2.3"),
        "XRC domains": lambda: ctx.open_xrcd(),
        "XRC": lambda: ctx.create_srq_ex(SRQInitAttrEx(pd=pd, srq_type=SRQType.XRC)),
        "tag matching": lambda: ctx.create_srq_ex(SRQInitAttrEx(pd=pd, srq_type=SRQType.TM)),
        "flow rules": lambda: qp.create_flow(rnic.FlowAttr(specs=(rnic.SpecEth(),))),
        "flow rules to count": lambda: ctx.create_counters(),
        "work queues": lambda: ctx.create_wq(rnic.WQInitAttr(pd=pd, cq=cq)),
        "RAW_PACKET queue pairs": lambda: ctx.query_raw_packet(),
        "partitions": lambda: ctx.set_pkeys([0xFFFF]),
        "queue pair 1, to which requests of the CM come": lambda: ctx.cm_listen(1),
    }


@pytest.mark.parametrize("what", calls(*[None] * 4))
def test_what_it_lacks_is_refused_with_the_reason(ctx: rnic.Context, what: str) -> None:
    with ctx.alloc_pd() as pd, ctx.create_cq(1) as cq, pd.create_qp(QPInitAttr(send_cq=cq, recv_cq=cq)) as qp:
        error = refusal(calls(ctx, pd, cq, qp)[what])
    assert error.errno == errno.EOPNOTSUPP
    assert f"{NAME} is an iWARP device, which has no {what} [" in str(error)


def test_a_table_of_pkeys_is_refused_at_open() -> None:
    error = refusal(lambda: rnic.open_device(NAME, pkeys=[0xFFFF]))
    assert (error.errno, "iWARP has no partitions" in str(error)) == (errno.EOPNOTSUPP, True)


PACKETS = [
    Faults(loss=0.1),
    Faults(duplicate=0.1),
    Faults(reorder=0.1),
    Faults(mark=0.1),
    Faults(lose=[Lose()]),
]
STREAMS = [
    Faults(reset=0.1),
    Faults(stall=0.1),
    Faults(reset_after=1),
    Faults(stall_after=1),
    Faults(chunk=1),
]
STREAMS.append(Faults(flip_header=0.1))


@pytest.mark.parametrize(
    ("name", "faults"), [(NAME, one) for one in PACKETS] + [("roce_lo", one) for one in STREAMS]
)
def test_faults_are_of_packets_or_of_streams(name: str, faults: Faults) -> None:
    with rnic.open_device(name) as context:
        assert refusal(lambda: context.set_faults(faults)).errno == errno.EOPNOTSUPP
        context.set_faults(Faults(delay=0.1, flip=0.1))


@pytest.mark.parametrize(
    "fault", ["loss=0.1", "reset_after=100,stall=1%,chunk=7,flip_header=.1,reset=.5,stall_after=3"]
)
def test_of_the_environment_each_device_takes_what_it_has(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that opens all devices goes on."""
    monkeypatch.setenv("RNIC_FAULT", fault)
    monkeypatch.setenv("RNIC_PKEYS", "0xffff,0x8001")
    for name in (NAME, "roce_lo"):
        rnic.open_device(name).close()


def test_limits_that_it_has_not_are_for_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LIMITS", "max_ah=3,max_qp=5")
    with rnic.open_device(NAME) as context:
        attr = context.query_device()
    assert (attr.max_ah, attr.max_qp) == (0, 5)


# ---------------------------------------------------------------- import


def test_a_context_is_imported_on_a_device_of_its_kind(ctx: rnic.Context) -> None:
    with rnic.import_device(ctx.cmd_fd) as again:
        assert again.device == ctx.device


def test_streams_are_iwarps(ctx: rnic.Context) -> None:
    assert ctx.next_stream_event() is None
    assert ctx.stream_fileno() >= 0
    with rnic.open_device("roce_lo") as roce:
        for call in (roce.next_stream_event, roce.stream_fileno):
            assert refusal(call).errno == errno.EOPNOTSUPP


def test_modify_without_attributes_changes_nothing(ctx: rnic.Context) -> None:
    """As the kernel's drivers of iWARP: librdmacm makes the call."""
    with ctx.alloc_pd() as pd, ctx.create_cq(1) as cq, pd.create_qp(QPInitAttr(send_cq=cq, recv_cq=cq)) as qp:
        for state in (rnic.QPState.INIT, rnic.QPState.RTR, rnic.QPState.ERR):
            qp.modify(rnic.QPAttr(qp_state=state))
            qp.modify(rnic.QPAttr())
            assert qp.state is state
        qp.modify(rnic.QPAttr(qp_state=rnic.QPState.RESET))
        qp.modify(rnic.QPAttr(qp_state=rnic.QPState.INIT, qp_access_flags=AccessFlags.REMOTE_WRITE))
