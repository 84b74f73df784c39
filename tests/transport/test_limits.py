# SPDX-License-Identifier: Apache-2.0
"""What a program gives that no device can have: the message says what, why, and what there is."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

import rnic
from rnic import (
    MTU,
    AccessFlags,
    AllocDMAttr,
    CQInitAttrEx,
    ModerateCQ,
    ModifyCQAttr,
    QPAttr,
    QPAttrMask,
    QPCap,
    QPInitAttr,
    QPInitAttrEx,
    QPState,
    ReregMRFlags,
    SRQAttr,
    SRQInitAttr,
    SRQInitAttrEx,
    SRQType,
    TMCap,
    VerbsError,
    WQInitAttr,
)

BEYOND = [1 << 40, 1 << 70, -1]


@dataclass
class One:
    """One object of each kind."""

    ctx: rnic.Context
    pd: rnic.PD
    channel: rnic.CompChannel
    cq: rnic.CQ
    srq: rnic.SRQ
    qp: rnic.QP
    dm: rnic.DM
    mr: rnic.MR


@pytest.fixture(scope="module")
def one() -> Iterator[One]:
    with ExitStack() as stack:
        ctx = stack.enter_context(rnic.open_device("roce_lo"))
        pd = stack.enter_context(ctx.alloc_pd())
        channel = stack.enter_context(ctx.create_comp_channel())
        cq = stack.enter_context(ctx.create_cq(16, channel))
        srq = stack.enter_context(pd.create_srq())
        qp = stack.enter_context(pd.create_qp(QPInitAttr(cq, cq)))
        dm = stack.enter_context(ctx.alloc_dm(AllocDMAttr(64)))
        mr = stack.enter_context(pd.reg_mr(bytearray(64), AccessFlags.LOCAL_WRITE))
        yield One(ctx, pd, channel, cq, srq, qp, dm, mr)


def cap(field: str) -> tuple[Callable[[One, int], object], Callable[[One, int], object]]:
    def ordinary(one: One, n: int) -> object:
        return one.pd.create_qp(QPInitAttr(one.cq, one.cq, cap=QPCap(**{field: n})))

    def extended(one: One, n: int) -> object:
        return one.ctx.create_qp_ex(QPInitAttrEx(one.cq, one.cq, cap=QPCap(**{field: n}), pd=one.pd))

    return ordinary, extended


SIZES: dict[str, tuple[str, Callable[[One, int], object]]] = {
    "create_cq: cqe": ("max_cqe", lambda one, n: one.ctx.create_cq(n)),
    "create_cq_ex: cqe": ("max_cqe", lambda one, n: one.ctx.create_cq_ex(CQInitAttrEx(n))),
    "resize_cq: cqe": ("max_cqe", lambda one, n: one.cq.resize(n)),
    "modify_cq: cq_count": (
        "cq_mod_caps.max_cq_count",
        lambda one, n: one.cq.modify(ModifyCQAttr(ModerateCQ(n, 1))),
    ),
    "modify_cq: cq_period": (
        "cq_mod_caps.max_cq_period",
        lambda one, n: one.cq.modify(ModifyCQAttr(ModerateCQ(1, n))),
    ),
    **{
        f"{verb}: cap.{field}": (limit, call)
        for field, limit in (
            ("max_send_wr", "max_qp_wr"),
            ("max_recv_wr", "max_qp_wr"),
            ("max_send_sge", "max_sge"),
            ("max_recv_sge", "max_sge"),
            ("max_inline_data", "max_inline_data"),
        )
        for verb, call in zip(("create_qp", "create_qp_ex"), cap(field), strict=True)
    },
    "create_srq: max_wr": ("max_srq_wr", lambda one, n: one.pd.create_srq(SRQInitAttr(SRQAttr(n, 1)))),
    "create_srq: max_sge": ("max_srq_sge", lambda one, n: one.pd.create_srq(SRQInitAttr(SRQAttr(1, n)))),
    "create_srq_ex: max_wr": (
        "max_srq_wr",
        lambda one, n: one.ctx.create_srq_ex(SRQInitAttrEx(one.pd, attr=SRQAttr(n, 1))),
    ),
    "create_srq_ex: tm_cap.max_num_tags": (
        "tm_caps.max_num_tags",
        lambda one, n: one.ctx.create_srq_ex(
            SRQInitAttrEx(one.pd, SRQType.TM, cq=one.cq, tm_cap=TMCap(n, 1))
        ),
    ),
    "create_srq_ex: tm_cap.max_ops": (
        "tm_caps.max_ops",
        lambda one, n: one.ctx.create_srq_ex(
            SRQInitAttrEx(one.pd, SRQType.TM, cq=one.cq, tm_cap=TMCap(1, n))
        ),
    ),
    "modify_srq: max_wr": ("max_srq_wr", lambda one, n: one.srq.modify(SRQAttr(max_wr=n))),
    "modify_srq: srq_limit": ("max_srq_wr", lambda one, n: one.srq.modify(SRQAttr(srq_limit=n))),
    "create_wq: max_wr": ("max_qp_wr", lambda one, n: one.ctx.create_wq(WQInitAttr(one.pd, one.cq, n))),
    "create_wq: max_sge": ("max_sge", lambda one, n: one.ctx.create_wq(WQInitAttr(one.pd, one.cq, 1, n))),
}
LENGTHS: dict[str, tuple[str, Callable[[One, int], object]]] = {
    "reg_mr: length": ("max_mr_size", lambda one, n: one.pd.reg_mr(addr=4096, length=n)),
    "reg_mr_iova: length": ("max_mr_size", lambda one, n: one.pd.reg_mr_iova(addr=4096, length=n)),
    "reg_dmabuf_mr: length": ("max_mr_size", lambda one, n: one.pd.reg_dmabuf_mr(0, n, 0, 0)),
    "reg_dm_mr: length": ("max_mr_size", lambda one, n: one.pd.reg_dm_mr(one.dm, 0, n)),
    "rereg_mr: length": (
        "max_mr_size",
        lambda one, n: one.mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, addr=4096, length=n),
    ),
    "alloc_mr: nbytes": ("max_mr_size", lambda one, n: one.pd.alloc_mr(n, AccessFlags.LOCAL_WRITE)),
    "alloc_mr locked: nbytes": (
        "max_mr_size",
        lambda one, n: one.pd.alloc_mr(n, AccessFlags.LOCAL_WRITE, lock=True),
    ),
    "alloc_dm: length": ("max_dm_size", lambda one, n: one.ctx.alloc_dm(AllocDMAttr(n))),
}
NUMBERS: dict[str, Callable[[One, int], object]] = {
    "create_cq: comp_vector": lambda one, n: one.ctx.create_cq(1, comp_vector=n),
    "ack_cq_events: n": lambda one, n: one.cq.ack_events(n),
    "alloc_dm: log_align_req": lambda one, n: one.ctx.alloc_dm(AllocDMAttr(4, n)),
    "modify_qp: retry_cnt": lambda one, n: one.qp.modify(QPAttr(retry_cnt=n)),
    "modify_qp: pkey_index": lambda one, n: one.qp.modify(QPAttr(pkey_index=n)),
    "modify_qp: dest_qp_num": lambda one, n: one.qp.modify(QPAttr(dest_qp_num=n)),
}
ADDRESSES: dict[str, Callable[[One, int], object]] = {
    "reg_mr: addr": lambda one, n: one.pd.reg_mr(addr=n, length=1),
    "reg_mr_iova: iova": lambda one, n: one.pd.reg_mr_iova(bytearray(1), n),
    "reg_dmabuf_mr: offset": lambda one, n: one.pd.reg_dmabuf_mr(n, 1, 0, 0),
    "memcpy_from_dm: length": lambda one, n: one.dm.copy_from(0, n),
    "memcpy_from_dm: dm_offset": lambda one, n: one.dm.copy_from(n, 4),
    "memcpy_to_dm: dm_offset": lambda one, n: one.dm.copy_to(n, b"four"),
}


def limit_of(ctx: rnic.Context, name: str) -> int:
    attr: Any = ctx.query_device_ex()
    record, _, field = name.rpartition(".")
    for part in filter(None, [record]):
        attr = getattr(attr, part)
    return int(getattr(attr if hasattr(attr, field) else attr.orig_attr, field))


def refused(what: str, text: str, call: Callable[[], object]) -> None:
    verb, _, name = what.partition(": ")
    with pytest.raises(VerbsError, match=f"{re.escape(name)} is {text}") as caught:
        call()
    assert caught.value.errno == errno.EINVAL
    assert caught.value.verb == verb.partition(" ")[0]


@pytest.mark.parametrize("n", BEYOND)
@pytest.mark.parametrize("what", SIZES)
def test_a_size_that_no_field_holds_is_refused_with_the_limit(one: One, what: str, n: int) -> None:
    limit, call = SIZES[what]
    refused(what, f"{n}; allowed are [014] to {limit_of(one.ctx, limit)} .*{limit}", lambda: call(one, n))


@pytest.mark.parametrize("n", [1 << 64, 1 << 70, -1])
@pytest.mark.parametrize("what", LENGTHS)
def test_a_length_that_no_field_holds_is_refused_with_the_limit(one: One, what: str, n: int) -> None:
    limit, call = LENGTHS[what]
    refused(what, f"{n}; allowed are [14] to {limit_of(one.ctx, limit)} .*{limit}", lambda: call(one, n))


@pytest.mark.parametrize("n", BEYOND)
@pytest.mark.parametrize("what", NUMBERS)
def test_a_number_that_no_field_holds_is_refused(one: One, what: str, n: int) -> None:
    refused(what, f"{n}; allowed is a number of .* bits", lambda: NUMBERS[what](one, n))


@pytest.mark.parametrize("n", [1 << 64, -1])
@pytest.mark.parametrize("what", ADDRESSES)
def test_an_address_that_no_field_holds_is_refused(one: One, what: str, n: int) -> None:
    refused(what, f"{n}; allowed is a number of 64 bits", lambda: ADDRESSES[what](one, n))


@pytest.mark.parametrize("n", ["7", 2.5, None])
def test_what_is_no_whole_number_is_named(one: One, n: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"create_cq: cqe is {n!r}; it is a whole number")):
        one.ctx.create_cq(n)


def test_any_number_of_completions_may_be_asked_for(one: One) -> None:
    assert one.cq.poll(1 << 40) == one.cq.poll(sys.maxsize) == one.cq.poll(1 << 70) == []
    for n in (0, -1, -(1 << 70)):
        with pytest.raises(ValueError, match=re.escape(f"poll({n}): at least one")):
            one.cq.poll(n)


def test_a_piece_of_memory_is_shorter_than_4_gib() -> None:
    for length in (1 << 32, 1 << 70, -1):
        with pytest.raises(ValueError, match=f"{length} bytes: an SGE .* is shorter than 4 GiB"):
            rnic.SGE(addr=0, length=length, lkey=0)


# ---------------------------------------------------------------- queue pairs


def test_what_a_change_of_state_needs_is_named_as_the_attributes_are(one: One) -> None:
    with pytest.raises(VerbsError, match="RESET -> INIT needs qp_access_flags, pkey_index, port_num "):
        one.qp.modify(QPAttr(qp_state=QPState.INIT))
    attr = QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=AccessFlags(0), sq_psn=3)
    with pytest.raises(VerbsError, match="RESET -> INIT does not take sq_psn "):
        one.qp.modify(attr)
    assert one.qp.state is QPState.RESET


def test_a_mask_is_told_in_the_attributes_that_it_names(one: One) -> None:
    text = "the mask names path_mtu, sq_psn, which attr does not set: set it, or leave out the mask"
    with pytest.raises(VerbsError, match=text):
        one.qp.modify(QPAttr(qkey=0), QPAttrMask.PATH_MTU | QPAttrMask.SQ_PSN | QPAttrMask.QKEY)
    with pytest.raises(VerbsError, match="does not take the mask's 0x40000000, which is no attribute"):
        one.qp.modify(QPAttr(qp_state=QPState.INIT), QPAttrMask(1 << 30))


@pytest.mark.parametrize("mtu", [1024, 0, 7, -1, 1 << 40, "1024", 2.5])
def test_an_mtu_that_is_none_says_which_there_are(one: One, mtu: Any) -> None:
    there_are = "MTU.MTU_256, MTU.MTU_512, MTU.MTU_1024, MTU.MTU_2048, MTU.MTU_4096"
    with pytest.raises(VerbsError, match=re.escape(f"path_mtu is {mtu!r}: it is one of {there_are}")):
        one.qp.modify(QPAttr(qp_state=QPState.RTR, path_mtu=mtu))


def test_the_code_of_an_mtu_is_taken_as_a_number(one: One) -> None:
    with pytest.raises(VerbsError, match="RESET -> RTR is not allowed"):
        one.qp.modify(QPAttr(qp_state=QPState.RTR, path_mtu=int(MTU.MTU_1024)))  # type: ignore[arg-type]


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("lock", [False, True])
def test_empty_memory_is_refused_with_the_cure(one: One, lock: bool) -> None:
    for nothing in (b"", bytearray(), memoryview(b"")):
        with pytest.raises(VerbsError, match=r"the buffer is empty: .* such as bytearray\(4096\)"):
            one.pd.reg_mr(nothing, lock=lock)
    with pytest.raises(VerbsError, match="rereg_mr: the buffer is empty"):
        one.mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=bytearray())


@pytest.mark.parametrize("right", ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_ATOMIC"])
def test_read_only_memory_is_refused_with_the_cure(one: One, right: str) -> None:
    for buffer, kind in ((b"bytes", "bytes"), (memoryview(b"view"), "memoryview")):
        text = f"the buffer, of type {kind}, is read-only: give .* a bytearray, or leave LOCAL_WRITE"
        with pytest.raises(VerbsError, match=text):
            one.pd.reg_mr(buffer, AccessFlags[right] | AccessFlags.LOCAL_WRITE)
    one.pd.reg_mr(b"bytes", AccessFlags.REMOTE_READ).close()


# ---------------------------------------------------------------- time, descriptors


@pytest.mark.parametrize("timeout", [-1, -0.5, -math.inf, math.nan])
def test_a_time_before_now_is_refused_with_the_cure(one: One, timeout: float) -> None:
    pattern = re.escape(f"timeout is {timeout}: give seconds from 0 on, 0 not to wait, or None to wait")
    for call in (one.ctx.get_async_event, one.channel.get_cq_event):
        with pytest.raises(ValueError, match=pattern):
            call(timeout)
        with pytest.raises(TimeoutError):
            call(0)
        with pytest.raises(TypeError, match="timeout is '3': give a number of seconds"):
            call("3")
    with (
        one.ctx.create_qp_ex(
            QPInitAttrEx(one.cq, one.cq, pd=one.pd, send_ops_flags=rnic.SendOpsFlags.SEND)
        ) as qp,
        pytest.raises(ValueError, match=pattern),
    ):
        qp.wr_start(timeout)


def test_a_device_without_descriptors_says_which_limit_was_met() -> None:
    program = """
import errno, resource
import rnic
ctx = rnic.open_device("roce_lo")
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
made = []
for call in ctx.create_comp_channel, lambda: rnic.open_device("roce_lo"):
    try:
        while True:
            made.append(call())
    except rnic.VerbsError as error:
        assert error.errno == errno.EMFILE, error
        assert str(error).count("RLIMIT_NOFILE is 40 (ulimit -n)") == 1, error
for one in made:
    one.close()
ctx.close()
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


def test_a_limit_is_said_once() -> None:
    text = rnic.errors.with_limit(errno.EMFILE, "")
    assert text.startswith(os.strerror(errno.EMFILE))
    assert rnic.errors.with_limit(errno.EMFILE, text) == text
    assert rnic.errors.exhausted(VerbsError(errno.EMFILE, text)).count("ulimit -n") == 1
    assert rnic.errors.with_limit(errno.ENFILE, "eventfd").startswith("eventfd: of the whole machine")
    assert rnic.errors.with_limit(errno.EINVAL, "as it is") == "as it is"
