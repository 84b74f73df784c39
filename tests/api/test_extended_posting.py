# SPDX-License-Identifier: Apache-2.0
"""ibv_create_qp_ex and ibv_wr_post(3): builders, setters, all or nothing, one thread at a time."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import rnic
from api.conftest import Objects
from rnic import (
    SGE,
    AHAttr,
    DeviceCapEx,
    PlacementType,
    QPAttr,
    QPCap,
    QPCreateFlags,
    QPEx,
    QPInitAttrEx,
    QPInitAttrMask,
    QPState,
    QPType,
    RecvWR,
    SelectivityLevel,
    SendFlags,
    SendOpsFlags,
    SendWR,
    VerbsError,
    WCOpcode,
)
from rnic.testing import ALL_ACCESS, End, Options, connect

RC_OPS = (
    SendOpsFlags.RDMA_WRITE
    | SendOpsFlags.RDMA_WRITE_WITH_IMM
    | SendOpsFlags.SEND
    | SendOpsFlags.SEND_WITH_IMM
    | SendOpsFlags.RDMA_READ
    | SendOpsFlags.ATOMIC_CMP_AND_SWP
    | SendOpsFlags.ATOMIC_FETCH_AND_ADD
    | SendOpsFlags.FLUSH
    | SendOpsFlags.ATOMIC_WRITE
)
FLUSHABLE = ALL_ACCESS | rnic.AccessFlags.FLUSH_GLOBAL
OPTIONS = Options(
    access=FLUSHABLE & ~rnic.AccessFlags.LOCAL_WRITE,
)


class Ends:
    """An extended queue pair and its peer."""

    def __init__(self, a: End, b: End, qp: QPEx) -> None:
        self.a, self.b, self.qp = a, b, qp
        self.source = a.pd.reg_mr(bytearray(range(256)) * 16, ALL_ACCESS)
        self.target = b.pd.reg_mr(bytearray(4096), FLUSHABLE)

    def done(self, n: int) -> list[rnic.WC]:
        return self.a.wait_ok(n)


@pytest.fixture
def ends() -> Iterator[Ends]:
    with End() as a, End() as b:
        init = QPInitAttrEx(a.cq, a.cq, pd=a.pd, send_ops_flags=RC_OPS)
        with a.ctx.create_qp_ex(init) as qp:
            connect(qp, b.qp, OPTIONS)
            made = Ends(a, b, qp)
            yield made
            made.source.close()
            made.target.close()


def error(build: Callable[[], object]) -> VerbsError:
    with pytest.raises(VerbsError) as caught:
        build()
    return caught.value


# -------------------------------------------------------------------------------- each builder


def test_every_builder_does_what_it_says(ends: Ends) -> None:
    qp, source, target = ends.qp, ends.source, ends.target
    receives = ends.b.pd.reg_mr(bytearray(4096), ALL_ACCESS)
    ends.b.qp.post_recv([RecvWR(i, [SGE(receives, i * 256, 256)]) for i in range(3)])
    with qp.wr_start():
        qp.wr_flags = SendFlags.SIGNALED
        qp.wr_id = 1
        qp.wr_rdma_write(target.rkey, target.addr)
        qp.wr_set_sge(SGE(source, 0, 64))
        qp.wr_id = 2
        qp.wr_rdma_write_imm(target.rkey, target.addr + 64, 0x01020304)
        qp.wr_set_sge_list([SGE(source, 64, 32), SGE(source, 128, 32)])
        qp.wr_id = 3
        qp.wr_send()
        qp.wr_set_inline_data(b"inline")
        qp.wr_id = 4
        qp.wr_send_imm(77)
        qp.wr_set_inline_data_list([b"in", bytearray(b"li"), memoryview(b"ne")])
        qp.wr_id = 5
        qp.wr_atomic_fetch_add(target.rkey, target.addr + 1024, 5)
        qp.wr_set_sge(source.lkey, source.addr + 1024, 8)
        qp.wr_id = 6
        qp.wr_atomic_cmp_swp(target.rkey, target.addr + 1024, 5, 9)
        qp.wr_set_sge(SGE(source, 1032, 8))
        qp.wr_id = 7
        qp.wr_atomic_write(target.rkey, target.addr + 1032, b"8 bytes!")
        qp.wr_id = 8
        qp.wr_flush(target.rkey, target.addr, 2048, PlacementType.GLOBAL)
        qp.wr_id = 9
        qp.wr_flush(target.rkey, 0, 0, PlacementType.GLOBAL, SelectivityLevel.MR)
        qp.wr_id = 10
        qp.wr_rdma_read(target.rkey, target.addr)
        qp.wr_set_sge(SGE(source, 2048, 1040))
    done = ends.done(10)
    assert [(wc.wr_id, wc.opcode) for wc in done] == [
        (1, WCOpcode.RDMA_WRITE),
        (2, WCOpcode.RDMA_WRITE),
        (3, WCOpcode.SEND),
        (4, WCOpcode.SEND),
        (5, WCOpcode.FETCH_ADD),
        (6, WCOpcode.COMP_SWAP),
        (7, WCOpcode.ATOMIC_WRITE),
        (8, WCOpcode.FLUSH),
        (9, WCOpcode.FLUSH),
        (10, WCOpcode.RDMA_READ),
    ]
    expected = bytearray(4096)
    expected[:64] = range(64)
    expected[64:96], expected[96:128] = range(64, 96), range(128, 160)
    expected[1024:1040] = (9).to_bytes(8, "little") + b"8 bytes!"
    assert bytes(target.buf) == expected
    assert bytes(source.buf[1024:1040]) == bytes(8) + (5).to_bytes(8, "little")
    assert bytes(source.buf[2048 : 2048 + 1040]) == expected[:1040]
    came = ends.b.wait_ok(3)
    assert [(wc.imm_data, wc.byte_len) for wc in came] == [(0x01020304, 64), (None, 6), (77, 6)]
    assert bytes(receives.buf[256:262]) == bytes(receives.buf[512:518]) == b"inline"
    receives.close()


WINDOW_OPS = SendOpsFlags.SEND_WITH_INV | SendOpsFlags.BIND_MW | SendOpsFlags.LOCAL_INV


def test_builders_bind_and_invalidate_windows() -> None:
    with End() as a, End() as b:
        init = QPInitAttrEx(b.cq, b.cq, pd=b.pd, send_ops_flags=WINDOW_OPS)
        shown = b.pd.reg_mr(bytearray(64), ALL_ACCESS | rnic.AccessFlags.MW_BIND)
        mw, info = b.pd.alloc_mw(rnic.MWType.TYPE_2), rnic.MWBindInfo(shown, shown.addr, 8, ALL_ACCESS & 2)
        with b.ctx.create_qp_ex(init) as qp:
            connect(qp, a.qp, OPTIONS)
            first = mw.rkey
            qp.wr_start()
            qp.wr_bind_mw(mw, rnic.inc_rkey(first), info)
            qp.wr_bind_mw(mw, rnic.inc_rkey(rnic.inc_rkey(first)), info)
            qp.wr_bind_mw(mw, first + 0x100, info)
            assert error(qp.wr_complete).errno == errno.EINVAL
            assert mw.rkey == first, "nothing was posted, so the window has its old key"
            a.qp.post_recv(RecvWR(1))
            with qp.wr_start():
                qp.wr_flags = SendFlags.SIGNALED
                qp.wr_bind_mw(mw, rnic.inc_rkey(first), info)
                qp.wr_local_inv(rnic.inc_rkey(first))
            assert [wc.opcode for wc in b.wait_ok(2)] == [WCOpcode.BIND_MW, WCOpcode.LOCAL_INV]
            with qp.wr_start():
                qp.wr_send_inv(mw.rkey)  # a key of the wrong end
                qp.wr_set_inline_data(b"")
            assert b.wait()[0].status is rnic.WCStatus.REM_ACCESS_ERR
            qp.wr_start()
            qp.wr_send_tso(b"", 0, 0)
            assert error(qp.wr_complete).errno == errno.EOPNOTSUPP
            mw.close()
        shown.close()


def test_wr_id_and_wr_flags_count_when_the_builder_is_called(ends: Ends) -> None:
    qp = ends.qp
    qp.wr_start()
    for number in range(4):
        qp.wr_id, qp.wr_flags = number, SendFlags.SIGNALED if number % 2 else SendFlags(0)
        qp.wr_rdma_write(ends.target.rkey, ends.target.addr)
        qp.wr_id = 1000
        qp.wr_set_sge_list([])
    qp.wr_complete()
    assert [wc.wr_id for wc in ends.done(2)] == [1, 3]


def test_inline_data_is_copied_by_its_setter(ends: Ends) -> None:
    data = bytearray(b"before")
    with ends.qp.wr_start() as qp:
        qp.wr_flags = SendFlags.SIGNALED
        qp.wr_rdma_write(ends.target.rkey, ends.target.addr)
        qp.wr_set_inline_data(data)
        data[:] = b"after "
        gc.collect()
    ends.done(1)
    assert bytes(ends.target.buf[:6]) == b"before"


def test_datagrams_have_their_address_from_a_setter() -> None:
    ops = SendOpsFlags.SEND | SendOpsFlags.SEND_WITH_IMM
    with End() as a, End() as b:
        ah = a.pd.create_ah(AHAttr(dgid=b.ctx.query_gid(1, 0)))
        init = QPInitAttrEx(a.cq, a.cq, QPType.UD, pd=a.pd, send_ops_flags=ops)
        to = b.pd.create_qp(rnic.QPInitAttr(b.cq, b.cq, QPType.UD))
        receives = b.pd.reg_mr(bytearray(4096), ALL_ACCESS)
        with a.ctx.create_qp_ex(init) as qp, ah, to, receives:
            for one in (qp, to):
                one.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=5))
                one.modify(QPAttr(qp_state=QPState.RTR))
                one.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
            to.post_recv(RecvWR(1, [SGE(receives)]))
            with qp.wr_start():
                qp.wr_flags = SendFlags.SIGNALED
                qp.wr_send_imm(3)
                qp.wr_set_ud_addr(ah, to.qp_num, 5)
                qp.wr_set_inline_data(b"datagram")
            a.wait_ok()
            (came,) = b.wait_ok()
            assert (came.imm_data, came.src_qp) == (3, qp.qp_num)
            assert bytes(receives.buf[40:48]) == b"datagram"

            def unaddressed() -> None:
                with qp.wr_start():
                    qp.wr_send()
                    qp.wr_set_ud_addr(ah, to.qp_num, 5)
                    qp.wr_set_sge_list([])
                    qp.wr_send()
                    qp.wr_set_sge_list([])

            assert "wr_send has no address: wr_set_ud_addr()" in str(error(unaddressed))

            def too_many() -> None:  # 128 have room: none of them may keep the address handle
                with qp.wr_start():
                    for _ in range(200):
                        qp.wr_send()
                        qp.wr_set_ud_addr(ah, to.qp_num, 5)
                        qp.wr_set_sge_list([])

            assert error(too_many).errno == errno.ENOMEM
            assert qp.statistics().sq_depth == 0


# -------------------------------------------------------------------------------- all or nothing


def test_abort_posts_nothing(ends: Ends) -> None:
    qp = ends.qp
    qp.wr_start()
    qp.wr_rdma_write(ends.target.rkey, ends.target.addr)
    qp.wr_set_inline_data(b"nothing")
    qp.wr_abort()
    qp.wr_start()
    qp.wr_complete()
    assert qp.statistics().sq_depth == 0
    assert ends.a.cq.poll(1) == []
    assert not any(ends.target.buf)


def test_an_exception_in_the_block_aborts_and_leaks_nothing(ends: Ends) -> None:
    qp = ends.qp
    mr = ends.a.pd.reg_mr(bytearray(64), ALL_ACCESS)
    sge = SGE(mr)
    ref = weakref.ref(mr)
    with pytest.raises(ZeroDivisionError), qp.wr_start():
        qp.wr_rdma_write(ends.target.rkey, ends.target.addr)
        qp.wr_set_sge(sge)
        1 / 0  # noqa: B018
    assert not qp.wr_is_open
    mr.close()
    del sge, mr
    gc.collect()
    assert ref() is None
    with qp.wr_start():
        pass


def test_a_chain_that_does_not_fit_is_not_posted_in_part() -> None:
    with End() as a, End() as b:
        init = QPInitAttrEx(a.cq, a.cq, pd=a.pd, cap=QPCap(max_send_wr=4), send_ops_flags=RC_OPS)
        with a.ctx.create_qp_ex(init) as qp, b.memory(64) as target:
            connect(qp, b.qp, OPTIONS)

            def build(n: int) -> None:
                with qp.wr_start():
                    qp.wr_flags = SendFlags.SIGNALED
                    for number in range(n):
                        qp.wr_id = number
                        qp.wr_rdma_write(target.rkey, target.addr)
                        qp.wr_set_inline_data(b"x")

            room = qp.cap.max_send_wr
            failed = error(lambda: build(room + 1))
            assert failed.errno == errno.ENOMEM
            assert f"(work request {room} of {room + 1}; none is posted)" in str(failed)
            assert failed.verb == "wr_complete"
            assert not isinstance(failed, rnic.PostError)
            assert not any(target.buf)
            build(room)
            assert len(a.wait_ok(room)) == room


def test_the_first_thing_that_was_wrong_is_raised(ends: Ends) -> None:
    qp = ends.qp

    def build() -> None:
        with qp.wr_start():
            qp.wr_rdma_write(ends.target.rkey, ends.target.addr)
            qp.wr_set_inline_data(b"fine")
            qp.wr_set_inline_data(b"twice")
            qp.wr_send_inv(1)

    failed = error(build)
    assert failed.errno == errno.EINVAL
    assert "has its data already, or takes none; nothing is posted" in str(failed)
    assert not any(ends.target.buf)


def misuses(qp: QPEx, target: rnic.MR) -> dict[str, tuple[int, str, Callable[[], None]]]:
    def flush_with_data() -> None:
        qp.wr_flush(target.rkey, 0, 0, PlacementType.GLOBAL)
        qp.wr_set_sge_list([])

    return {
        "setter first": (errno.EINVAL, "belongs behind a builder", lambda: qp.wr_set_sge_list([])),
        "no data": (errno.EINVAL, "wr_send has no data: wr_set_sge()", lambda: qp.wr_send()),
        "not asked for": (errno.EINVAL, "SendOpsFlags.SEND_WITH_INV", lambda: qp.wr_send_inv(1)),
        "window": (errno.EINVAL, "SendOpsFlags.BIND_MW", lambda: qp.wr_bind_mw(None, 1, None)),
        "local inv": (errno.EINVAL, "SendOpsFlags.LOCAL_INV", lambda: qp.wr_local_inv(1)),
        "tso": (errno.EOPNOTSUPP, "does not segment", lambda: qp.wr_send_tso(b"", 0, 1460)),
        "seven": (errno.EINVAL, "8 bytes, not 7", lambda: qp.wr_atomic_write(1, 0, bytes(7))),
        "data of none": (errno.EINVAL, "takes none", flush_with_data),
        "type": (errno.EINVAL, "flush type 0x0", lambda: qp.wr_flush(1, 0, 8, PlacementType(0))),
        "long": (errno.EINVAL, "max_inline_data is 256", lambda: write(qp, bytes(257))),
    }


def write(qp: QPEx, data: bytes) -> None:
    qp.wr_rdma_write(0, 0)
    qp.wr_set_inline_data(data)


@pytest.mark.parametrize("name", misuses(None, None))  # type: ignore[arg-type]
def test_misuse_is_collected_and_raised_at_the_end(ends: Ends, name: str) -> None:
    number, words, build = misuses(ends.qp, ends.target)[name]
    ends.qp.wr_start()
    build()
    failed = error(ends.qp.wr_complete)
    assert failed.errno == number
    assert words in str(failed)
    assert ends.qp.statistics().sq_depth == 0
    with ends.qp.wr_start():
        pass


@pytest.mark.parametrize("name", ["wr_set_ud_addr", "wr_set_xrc_srqn"])
def test_setters_of_other_types_are_refused(ends: Ends, name: str) -> None:
    ends.qp.wr_start()
    ends.qp.wr_rdma_write(0, 0)
    ends.qp.wr_set_sge_list([])
    if name == "wr_set_xrc_srqn":
        ends.qp.wr_set_xrc_srqn(1)
    else:
        ends.qp.wr_set_ud_addr(None, 1, 1)  # type: ignore[arg-type]
    assert f"{name} on a queue pair of type RC" in str(error(ends.qp.wr_complete))


# -------------------------------------------------------------------------------- the critical section


def test_outside_of_the_section_nothing_is_built(ends: Ends) -> None:
    qp = ends.qp
    for call in (qp.wr_send, qp.wr_complete, qp.wr_abort, lambda: qp.wr_set_sge_list([])):
        failed = error(call)
        assert failed.errno == errno.EINVAL
        assert "call wr_start() first" in str(failed)


def test_a_thread_does_not_wait_for_itself(ends: Ends) -> None:
    qp = ends.qp
    qp.wr_start()
    assert "this thread has begun already" in str(error(qp.wr_start))
    assert "in its critical section" in str(error(lambda: qp.post_send(SendWR())))
    qp.wr_abort()


def test_another_thread_waits_for_its_turn(ends: Ends) -> None:
    qp, order = ends.qp, []
    qp.wr_start()

    def other() -> None:
        with qp.wr_start(timeout=60):
            order.append("other")
            qp.wr_flags = SendFlags.SIGNALED
            qp.wr_rdma_write(ends.target.rkey, ends.target.addr)
            qp.wr_set_inline_data(b"2")

    thread = threading.Thread(target=other)
    thread.start()
    failed = error(lambda: in_thread(qp.wr_complete))
    assert "in this thread" in str(failed)
    qp.wr_rdma_write(ends.target.rkey, ends.target.addr)
    qp.wr_set_inline_data(b"1")
    order.append("main")
    qp.wr_complete()
    thread.join()
    ends.done(1)
    assert order == ["main", "other"]
    assert bytes(ends.target.buf[:1]) == b"2"


def in_thread(call: Callable[[], object]) -> None:
    """Runs the call in a thread of its own and raises what it raises."""
    caught: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as failure:
            caught.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]


def test_the_wait_for_another_thread_ends(ends: Ends) -> None:
    ends.qp.wr_start()
    with pytest.raises(TimeoutError, match=r"has not called wr_complete\(\) or wr_abort\(\) in time"):
        in_thread(lambda: ends.qp.wr_start(timeout=0.05))
    ends.qp.wr_abort()


def test_a_thread_that_ends_in_its_section_gives_way(ends: Ends) -> None:
    def half() -> None:
        ends.qp.wr_start()
        ends.qp.wr_rdma_write(ends.target.rkey, ends.target.addr)
        ends.qp.wr_set_inline_data(b"lost")

    in_thread(half)
    with ends.qp.wr_start(timeout=60):
        assert ends.qp.wr_is_open
    assert ends.qp.statistics().sq_depth == 0
    assert not any(ends.target.buf)


def test_what_one_thread_builds_stays_together(ends: Ends) -> None:
    threads_, batches, requests = 4, 6, 4  # fewer in all than the send queue holds

    def build(thread: int) -> None:
        for batch in range(batches):
            with ends.qp.wr_start():
                for place in range(requests):
                    ends.qp.wr_id, ends.qp.wr_flags = thread * 100 + batch, SendFlags.SIGNALED
                    ends.qp.wr_rdma_write(ends.target.rkey, ends.target.addr + 8 * thread + place)
                    ends.qp.wr_set_inline_data(bytes([batch + 1]))

    threads = [threading.Thread(target=build, args=(thread,)) for thread in range(threads_)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [wc.wr_id for wc in ends.done(threads_ * batches * requests)]
    heads = ids[::requests]
    assert ids == [head for head in heads for _ in range(requests)]
    assert sorted(heads) == [t * 100 + b for t in range(threads_) for b in range(batches)]
    for thread_number in range(threads_):
        at = 8 * thread_number
        assert bytes(ends.target.buf[at : at + 5]) == bytes([batches] * requests) + b"\0"


# -------------------------------------------------------------------------------- creation


def test_creation_fails_for_operations_that_the_type_does_not_have() -> None:
    with End() as a:
        for qp_type, ops in [
            (QPType.UD, SendOpsFlags.RDMA_WRITE),
            (QPType.UC, SendOpsFlags.RDMA_READ),
            (QPType.UC, SendOpsFlags.ATOMIC_WRITE),
            (QPType.UD, SendOpsFlags.FLUSH),
            (QPType.RC, SendOpsFlags.TSO),
            (QPType.RC, SendOpsFlags(1 << 20)),
        ]:
            init = QPInitAttrEx(a.cq, a.cq, qp_type, pd=a.pd, send_ops_flags=ops)
            assert error(partial(a.ctx.create_qp_ex, init)).errno == errno.EOPNOTSUPP


def test_creation_flags_are_what_the_device_has() -> None:
    with End() as a:
        for flag in QPCreateFlags:
            init = QPInitAttrEx(a.cq, a.cq, QPType.UD, pd=a.pd, create_flags=flag)
            if flag is QPCreateFlags.BLOCK_SELF_MCAST_LB:
                a.ctx.create_qp_ex(init).close()
            else:
                assert error(partial(a.ctx.create_qp_ex, init)).errno == errno.EOPNOTSUPP
        init = QPInitAttrEx(a.cq, a.cq, pd=a.pd, max_tso_header=64)
        assert "max_tso_header is 64" in str(error(lambda: a.ctx.create_qp_ex(init)))
        unknown = QPInitAttrEx(a.cq, a.cq, pd=a.pd, comp_mask=QPInitAttrMask.PD | QPInitAttrMask.RX_HASH)
        assert "comp_mask 0x20" in str(error(lambda: a.ctx.create_qp_ex(unknown)))


def test_a_protection_domain_is_needed_and_builders_are_asked_for() -> None:
    with End() as a:
        failed = error(lambda: a.ctx.create_qp_ex(QPInitAttrEx(a.cq, a.cq)))
        plain = error(partial(a.pd.create_qp, QPInitAttrEx(a.cq, a.cq, pd=a.pd)))
        assert "is for create_qp_ex()" in str(plain)
        assert (failed.errno, "give pd" in str(failed)) == (errno.EINVAL, True)
        with a.ctx.create_qp_ex(QPInitAttrEx(a.cq, a.cq, pd=a.pd)) as qp:
            assert error(qp.wr_start).errno == errno.EOPNOTSUPP
            assert qp.query()[1].cap == qp.cap
        masked = QPInitAttrEx(
            a.cq, a.cq, pd=a.pd, send_ops_flags=SendOpsFlags.TSO, comp_mask=QPInitAttrMask.PD
        )
        with a.ctx.create_qp_ex(masked) as qp:  # what the mask leaves out does not count
            assert error(qp.wr_start).errno == errno.EOPNOTSUPP


def test_the_device_says_what_it_has() -> None:
    with End() as a:
        attr = a.ctx.query_device_ex()
        assert attr.orig_attr == a.ctx.query_device()
        assert attr.device_cap_flags_ex & 0xFFFFFFFF == attr.orig_attr.device_cap_flags
        for cap in DeviceCapEx:
            assert attr.device_cap_flags_ex & cap
        pacing = attr.packet_pacing_caps
        paced = {QPType.RC, QPType.UC, QPType.UD, QPType.RAW_PACKET}
        assert {kind for kind in QPType if pacing.supports(kind)} == paced
        assert 0 < pacing.qp_rate_limit_min < pacing.qp_rate_limit_max


# -------------------------------------------------------------------------------- the seam


def test_builders_reach_the_provider(objects: Objects) -> None:
    init = QPInitAttrEx(
        objects.cq,
        objects.cq,
        pd=objects.pd,
        send_ops_flags=RC_OPS,
        create_flags=QPCreateFlags.SOURCE_QPN,
        source_qpn=7,
        max_tso_header=9,
    )
    with objects.recorder.context.create_qp_ex(init) as qp:
        with qp.wr_start():
            qp.wr_id = 5
            qp.wr_flush(1, 2, 3, PlacementType.PERSISTENT, SelectivityLevel.MR)
            qp.wr_id = 6
            qp.wr_rdma_write(8, 9)
            qp.wr_set_sge(10, 11, 12)
        qp.modify_rate_limit(rnic.RateLimitAttr(1, 2, 3, 4))
        assert qp.query_data_in_order(rnic.WROpcode.RDMA_READ, 1) == 1
        assert qp.set_ece(rnic.ECE(1, 3)) == rnic.ECE(1, 1)
        assert qp.query_ece() == rnic.ECE(1, 2, 3)
        number = qp.qp_num
        objects.recorder.fail("post_send", errno.ENOSPC, "no room", at=1)
        with (
            pytest.raises(VerbsError, match=r"no room \(work request 1 of 2; none is posted\)"),
            qp.wr_start(),
        ):
            for _ in range(2):
                qp.wr_send()
                qp.wr_set_sge_list([])
    lines = objects.recorder.take()
    assert lines[0] == f"create_qp_ex mask=0x4d flags=0x400 source=7 tso=9 ops=0x{RC_OPS:x}"
    assert lines[2:9] == [
        "post_send_whole",
        f"post_send qp={number} wr_id=5 opcode=14 flags=0 imm=00000000 flush=2,3,1,2,1",
        f"post_send qp={number} wr_id=6 opcode=0 flags=0 imm=00000000 rdma=9,8 sge=11,12,10",
        "modify_qp_rate_limit 1,2,3,4",
        "query_qp_data_in_order 4 1",
        "set_ece 1,3,0",
        "query_ece",
    ]
    assert objects.recorder.context.query_device_ex().packet_pacing_caps == rnic.PacketPacingCaps(2, 3, 4)
