# SPDX-License-Identifier: Apache-2.0
"""Attributes that a program fills in one by one, as it fills in the structs of libibverbs."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import rnic
from rnic import AccessFlags, QPAttrMask, QPState
from rnic.records import values

FILLED = [
    rnic.QPCap(max_send_wr=7),
    rnic.QPInitAttr(sq_sig_all=True, cap=rnic.QPCap(max_recv_wr=3)),
    rnic.QPAttr(qp_state=QPState.INIT, port_num=1),
    rnic.SRQAttr(max_wr=5),
    rnic.SRQInitAttr(srq_context="mine"),
    rnic.SRQInitAttrEx(tm_cap=rnic.TMCap(max_num_tags=4)),
    rnic.QPInitAttrEx(max_tso_header=3),
    rnic.TMCap(max_ops=3),
    rnic.WQAttr(wq_state=rnic.WQState.RDY),
    rnic.RateLimitAttr(rate_limit=5),
    rnic.ModerateCQ(cq_count=4),
    rnic.ModifyCQAttr(moderate=rnic.ModerateCQ()),
    rnic.MWBindInfo(length=8),
    rnic.CompCntrInitAttr(type=rnic.CompCntrType.BYTES),
]
each = pytest.mark.parametrize("attr", FILLED, ids=lambda attr: type(attr).__name__)


def test_a_queue_pair_is_led_by_attributes_that_are_assigned() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(4) as cq:
        init = rnic.QPInitAttr()
        init.send_cq = init.recv_cq = cq
        init.cap.max_send_wr = 5
        with pd.create_qp(init) as qp:
            assert qp.cap.max_send_wr >= 5
            attr = rnic.QPAttr()
            attr.qp_state = QPState.INIT
            attr.pkey_index, attr.port_num = 0, 1
            attr.qp_access_flags = AccessFlags.REMOTE_READ
            qp.modify(attr)
            attr = rnic.QPAttr(qp_state=QPState.RTR)
            attr.path_mtu, attr.dest_qp_num, attr.rq_psn = rnic.MTU.MTU_1024, qp.qp_num, 9
            attr.max_dest_rd_atomic, attr.min_rnr_timer = 1, 12
            attr.ah_attr = rnic.AHAttr(dgid=ctx.query_gid(1, 0), sgid_index=0, port_num=1)
            qp.modify(attr)
            attr = qp.query()[0]
            assert (attr.qp_state, attr.rq_psn, attr.path_mtu) == (QPState.RTR, 9, rnic.MTU.MTU_1024)
            init.cap.max_send_wr = 77
            assert qp.cap.max_send_wr < 77


def test_a_mask_is_of_what_is_set_when_it_is_asked_for() -> None:
    attr = rnic.QPAttr(qp_state=QPState.RTS)
    attr.timeout = 0  # which is a value
    assert attr.mask() == QPAttrMask.STATE | QPAttrMask.TIMEOUT
    attr.timeout = None
    attr.sq_psn = 3
    assert attr.mask() == QPAttrMask.STATE | QPAttrMask.SQ_PSN


def test_a_shared_receive_queue_is_made_and_changed_by_assignment() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd:
        init = rnic.SRQInitAttr()
        init.attr.max_wr = 9
        with pd.create_srq(init) as srq:
            assert (srq.query().max_wr or 0) >= 9
            attr = rnic.SRQAttr()
            attr.max_wr = 99
            assert attr.mask() == rnic.SRQAttrMask.MAX_WR
            srq.modify(attr)
            assert (srq.query().max_wr or 0) >= 99


@each
def test_no_default_is_shared(attr: Any) -> None:
    one, other = type(attr)(), type(attr)()
    for name, value in values(one).items():
        if type(value).__hash__ is None:
            assert value is not getattr(other, name)


def test_what_is_assigned_inside_stays_there() -> None:
    one = rnic.QPInitAttr()
    one.cap.max_send_wr = 1
    assert rnic.QPInitAttr().cap.max_send_wr == 128
    more = rnic.SRQInitAttrEx()
    more.attr.max_wr, more.tm_cap.max_ops = 1, 1
    assert rnic.SRQInitAttr().attr.max_wr == 128
    assert rnic.SRQInitAttrEx().tm_cap.max_ops == 64


@each
def test_copies_are_equal_and_their_own(attr: Any) -> None:
    for made in (copy.copy(attr), copy.deepcopy(attr), pickle.loads(pickle.dumps(attr))):
        assert made == attr
        assert repr(made) == repr(attr)
        name = next(iter(values(attr)))
        setattr(made, name, "another")
        assert made != attr


@each
def test_what_can_change_has_no_hash(attr: Any) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(attr)


@pytest.mark.parametrize(
    ("cls", "wrong", "right"),
    [
        (rnic.QPAttr, "qp_stat", "qp_state"),
        (rnic.QPAttr, "state", "qp_state"),
        (rnic.QPAttr, "dest_qpn", "dest_qp_num"),
        (rnic.QPAttr, "access_flags", "qp_access_flags"),
        (rnic.QPCap, "max_send_wrs", "max_send_wr"),
        (rnic.QPInitAttr, "sendcq", "send_cq"),
        (rnic.QPInitAttrEx, "create_flag", "create_flags"),
        (rnic.SRQAttr, "limit", "srq_limit"),
    ],
)
def test_a_misspelt_attribute_is_answered(cls: Any, wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"argument '{wrong}'. Did you mean '{right}'") as by_keyword:
        cls(**{wrong: 1})
    attr = cls()
    with pytest.raises(AttributeError, match=f"'{wrong}'.*Did you mean '{right}'") as assigned:
        setattr(attr, wrong, 1)
    assert attr == cls()
    for error in (by_keyword, assigned):
        assert str(error.value).count("Did you mean") == 1


unchecked: Any = rnic.TMCap


def test_what_is_like_no_attribute_is_refused_without_a_guess() -> None:
    for refused in (lambda: unchecked(zzz=1), lambda: setattr(rnic.QPAttr(), "zzz", 1)):
        with pytest.raises((TypeError, AttributeError), match="zzz") as caught:
            refused()
        assert "Did you mean" not in str(caught.value)


def test_an_error_of_a_programs_own_constructor_is_left_as_it_is() -> None:
    class Mine(rnic.QPCap):
        def __init__(self, max_send: int) -> None:
            super().__init__(max_send)
            raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        Mine(max_send=3)
