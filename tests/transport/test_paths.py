# SPDX-License-Identifier: Apache-2.0
"""Automatic path migration over sockets (IBA 17.2.8): two addresses at each end, one of which goes."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

import rnic
from rnic import GID, AHAttr, EventType, MigState, QPAttr, QPType
from rnic.testing import End, Options, connect
from transport.netdev import Netdevs, no_event, wait_event
from transport.test_netdev import exchange

pytestmark = pytest.mark.roce

A, B = ("10.99.0.1", "fd00:99::1"), ("10.99.1.1", "fd00:99:1::1")


@pytest.fixture
def devs() -> Iterator[Netdevs]:
    with Netdevs() as made:
        made.address(made.a, f"{A[0]}/24", f"{A[1]}/64")
        made.address(made.b, f"{B[0]}/24", f"{B[1]}/64")
        yield made


@pytest.fixture
def ends(devs: Netdevs) -> Iterator[tuple[End, End]]:
    with End(f"roce_{devs.a}") as a, End(f"roce_{devs.b}") as b:
        options = {"retry_cnt": 2, "timeout": 12}
        connect(a.qp, b.qp, Options(address=A[0], **options), Options(address=B[0], **options))
        yield a, b


def index_of(ctx: rnic.Context, address: str) -> int:
    return next(e.gid_index for e in ctx.query_gid_table() if e.gid == GID(address))


def alternate(end: End, own: str, peer: str) -> QPAttr:
    """The other path, and the wish to have it armed."""
    path = AHAttr(GID(peer), index_of(end.ctx, own))
    return QPAttr(
        alt_ah_attr=path, alt_port_num=1, alt_timeout=14, alt_pkey_index=0, path_mig_state=MigState.REARM
    )


def mig_state(end: End) -> MigState | None:
    return end.qp.query()[0].path_mig_state


def arm(a: End, b: End) -> None:
    a.qp.modify(alternate(a, A[1], B[1]))
    b.qp.modify(alternate(b, B[1], A[1]))
    assert mig_state(a) is MigState.REARM
    exchange(a, b, b"armed with this")
    exchange(b, a, b"and this")
    assert mig_state(a) is MigState.ARMED
    assert mig_state(b) is MigState.ARMED


def on_second(a: End, b: End) -> None:
    for end, own, peer in ((a, A[1], B[1]), (b, B[1], A[1])):
        assert wait_event(end.ctx, EventType.PATH_MIG).element is end.qp
        attr, _ = end.qp.query()
        assert attr.path_mig_state is MigState.MIGRATED
        assert attr.ah_attr is not None
        assert attr.ah_attr.dgid == GID(peer)
        assert attr.ah_attr.sgid_index == index_of(end.ctx, own)
        assert attr.timeout == 14


def test_a_program_migrates_from_ipv4_to_ipv6(ends: tuple[End, End]) -> None:
    a, b = ends
    assert a.ctx.query_device().device_cap_flags & rnic.DeviceCap.AUTO_PATH_MIG
    arm(a, b)
    a.qp.modify(QPAttr(path_mig_state=MigState.MIGRATED))
    exchange(a, b, bytes(range(256)) * 100)
    on_second(a, b)
    exchange(b, a, bytes(range(256)) * 100)
    assert no_event(a.ctx)
    assert no_event(b.ctx)


def test_a_connection_survives_the_loss_of_its_address(devs: Netdevs, ends: tuple[End, End]) -> None:
    a, b = ends
    arm(a, b)
    devs.remove(devs.b, f"{B[0]}/24")
    wait_event(b.ctx, EventType.GID_CHANGE)
    exchange(a, b, bytes(range(256)) * 100)
    on_second(a, b)
    exchange(b, a, b"the other way")


def test_a_migration_that_the_peer_cannot_follow_is_told_there_and_fails_here(ends: tuple[End, End]) -> None:
    a, b = ends
    arm(a, b)
    b.qp.modify(alternate(b, B[1], A[1]))  # anew, so that it waits for a packet of a peer that has done so
    assert mig_state(b) is MigState.REARM
    a.qp.modify(QPAttr(path_mig_state=MigState.MIGRATED))
    a.qp.post_send(rnic.SendWR(7, send_flags=rnic.SendFlags.SIGNALED))
    assert wait_event(b.ctx, EventType.PATH_MIG_ERR).element is b.qp
    (wc,) = a.wait()
    assert wc.status is rnic.WCStatus.RETRY_EXC_ERR
    assert no_event(b.ctx)
    assert mig_state(b) is MigState.REARM
    assert b.qp.statistics().counters.drop_bad_source > 1


def test_without_an_alternate_path_nothing_is_armed(ends: tuple[End, End]) -> None:
    a, _ = ends
    with pytest.raises(rnic.VerbsError, match="alternate path") as caught:
        a.qp.modify(QPAttr(path_mig_state=MigState.REARM))
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(rnic.VerbsError, match="ARMED is the device's to set"):
        a.qp.modify(QPAttr(path_mig_state=MigState.ARMED))


def test_an_alternate_path_is_checked_as_the_first_one(ends: tuple[End, End]) -> None:
    a, _ = ends
    wrong = QPAttr(
        alt_ah_attr=AHAttr(GID(B[1]), index_of(a.ctx, A[0])), alt_port_num=1, alt_timeout=1, alt_pkey_index=0
    )
    with pytest.raises(rnic.VerbsError, match="not both IPv4 or both IPv6"):
        a.qp.modify(wrong)
    assert mig_state(a) is MigState.MIGRATED


def test_datagrams_have_no_path_to_migrate(ends: tuple[End, End]) -> None:
    a, _ = ends
    attr = QPAttr(qp_state=rnic.QPState.INIT, pkey_index=0, port_num=1, qkey=1, path_mig_state=MigState.REARM)
    refused = pytest.raises(rnic.VerbsError, match="does not take path_mig_state")
    with a.pd.create_qp(rnic.QPInitAttr(a.cq, a.cq, QPType.UD)) as qp, refused:
        qp.modify(attr)
