# SPDX-License-Identifier: Apache-2.0
"""The binding over the software RNIC: lifetime, events and threads with a real engine behind them."""

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import rnic
from rnic import AccessFlags, QPAttr, QPState, SendFlags, SendWR, WCStatus, WROpcode

REMOTE = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC


def connect(qp: rnic.QP, peer: rnic.QP) -> None:
    """Leads one side from RESET to RTS."""
    entry = qp.context.query_gid_table()[0]  # type: ignore[attr-defined]
    path = rnic.AHAttr(entry.gid, entry.gid_index)
    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=REMOTE))
    qp.modify(
        QPAttr(
            qp_state=QPState.RTR,
            path_mtu=rnic.MTU.MTU_1024,
            dest_qp_num=peer.qp_num,
            rq_psn=7,
            max_dest_rd_atomic=4,
            min_rnr_timer=1,
            ah_attr=path,
        )
    )
    qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=7, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=4))


@dataclass
class Loop:
    """Two connected queue pairs of one device."""

    ctx: rnic.Context
    pd: rnic.PD
    channel: rnic.CompChannel
    cq: rnic.CQ
    mr: rnic.MR
    near: rnic.QP
    far: rnic.QP

    def wait(self, n: int = 1) -> list[rnic.WC]:
        """n completions, within 20 seconds."""
        found: list[rnic.WC] = []
        end = time.monotonic() + 60
        while len(found) < n:
            assert time.monotonic() < end, f"{len(found)} of {n} completions"
            found += self.cq.poll(16)
        return found


@pytest.fixture
def loop() -> Iterator[Loop]:
    with (
        rnic.open_device("roce_lo") as ctx,
        ctx.alloc_pd() as pd,
        ctx.create_comp_channel() as channel,
        ctx.create_cq(2048, channel) as cq,
        pd.alloc_mr(8192, AccessFlags.LOCAL_WRITE | REMOTE) as mr,
        pd.create_qp(rnic.QPInitAttr(cq, cq)) as near,
        pd.create_qp(rnic.QPInitAttr(cq, cq)) as far,
    ):
        connect(near, far)
        connect(far, near)
        yield Loop(ctx, pd, channel, cq, mr, near, far)


def write(loop: Loop, text: bytes) -> SendWR:
    """A signaled WRITE of the text to offset 4096."""
    loop.mr.buf[: len(text)] = text
    return SendWR(
        1,
        WROpcode.RDMA_WRITE,
        SendFlags.SIGNALED,
        [rnic.SGE(loop.mr, 0, len(text))],
        remote_addr=loop.mr.addr + 4096,
        rkey=loop.mr.rkey,
    )


def test_bytes_arrive(loop: Loop) -> None:
    loop.near.post_send(write(loop, b"hello"))
    (wc,) = loop.wait()
    assert wc.ok
    assert bytes(loop.mr.buf[4096:4101]) == b"hello"


def test_immediate_data_arrives_as_the_same_number(loop: Loop) -> None:
    loop.far.post_recv(rnic.RecvWR(2, [rnic.SGE(loop.mr, 100, 4)]))
    loop.near.post_send(
        SendWR(1, WROpcode.SEND_WITH_IMM, SendFlags.INLINE, [rnic.SGE(loop.mr, 0, 4)], imm_data=258)
    )
    (wc,) = loop.wait()
    assert (wc.wr_id, wc.imm_data, wc.byte_len, wc.opcode) == (2, 258, 4, rnic.WCOpcode.RECV)


def test_completion_events(loop: Loop) -> None:
    loop.cq.req_notify()
    with pytest.raises(TimeoutError):
        loop.channel.get_cq_event(0)
    loop.near.post_send(write(loop, b"x"))
    assert loop.channel.get_cq_event(60) is loop.cq
    assert len(loop.wait()) == 1
    with pytest.raises(rnic.VerbsError) as caught:  # queue pairs use it, and so does the event
        loop.cq.close()
    assert caught.value.errno == errno.EBUSY
    loop.cq.ack_events()


def test_a_failure_explains_itself_and_raises_an_event(loop: Loop) -> None:
    wr = write(loop, b"x")
    wr.rkey ^= 1 << 20
    loop.near.post_send(wr)
    (wc,) = loop.wait()
    assert wc.status is WCStatus.REM_ACCESS_ERR
    assert "remote side" in wc.explain()
    assert loop.near.state is QPState.ERR
    event = loop.ctx.get_async_event(60)
    assert event == rnic.AsyncEvent(rnic.EventType.QP_ACCESS_ERR, loop.far)


def test_attributes_read_back_as_they_were_set(loop: Loop) -> None:
    attr, init = loop.near.query()
    assert (attr.qp_state, attr.path_mtu, attr.dest_qp_num) == (
        QPState.RTS,
        rnic.MTU.MTU_1024,
        loop.far.qp_num,
    )
    assert (attr.rq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry) == (7, 14, 7, 7)
    assert attr.qp_access_flags == REMOTE
    assert attr.ah_attr is not None
    assert str(attr.ah_attr.dgid.ip) == "127.0.0.1"
    assert init.cap == loop.near.cap


def test_a_refused_transition_says_what_is_missing(loop: Loop) -> None:
    with loop.pd.create_qp(rnic.QPInitAttr(loop.cq, loop.cq)) as qp:
        with pytest.raises(rnic.VerbsError, match="modify_qp: ") as caught:
            qp.modify(QPAttr(qp_state=QPState.INIT, port_num=1))
        assert caught.value.errno == errno.EINVAL
        assert qp.state is QPState.RESET


def test_a_full_queue_names_the_request(loop: Loop) -> None:
    chain = [SendWR(i) for i in range(loop.near.cap.max_send_wr + 5)]
    with pytest.raises(rnic.PostError) as caught:
        loop.near.post_send(chain)
    assert caught.value.errno == errno.ENOMEM
    assert caught.value.index == caught.value.bad_wr.wr_id >= loop.near.cap.max_send_wr


def test_a_signal_reaches_python_and_not_the_engine(loop: Loop) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                loop.channel.get_cq_event(60)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_dropped_region_is_not_freed_under_the_engine(loop: Loop) -> None:
    for _ in range(50):
        mr = loop.pd.reg_mr(bytearray(1 << 20))
        loop.near.post_send(
            SendWR(
                1,
                WROpcode.RDMA_WRITE,
                SendFlags.SIGNALED,
                [rnic.SGE(mr, 0, 4096)],
                remote_addr=loop.mr.addr,
                rkey=loop.mr.rkey,
            )
        )
        del mr
    gc.collect()
    assert all(wc.ok for wc in loop.wait(50))
    with pytest.warns(ResourceWarning, match="unclosed MR"):
        loop.near.close()


def test_threads_post_and_poll_at_once(loop: Loop) -> None:
    stop = threading.Event()

    def post(qp: rnic.QP) -> None:
        wr, posted = write(loop, b"12345678"), 0
        while posted < 500 and not stop.is_set():
            try:
                qp.post_send(wr)
            except rnic.PostError:  # full: the main thread polls
                continue
            posted += 1

    threads = [threading.Thread(target=post, args=(qp,)) for qp in (loop.near, loop.far)]
    for thread in threads:
        thread.start()
    try:
        assert all(wc.ok for wc in loop.wait(1000))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_forked_child_is_told_so_and_the_parent_goes_on(loop: Loop) -> None:
    wr = write(loop, b"fork")
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        failures = 0
        for call in (
            lambda: loop.near.post_send(wr),
            lambda: loop.cq.poll(),
            lambda: loop.ctx.alloc_pd(),
            lambda: loop.ctx.get_async_event(1),
            lambda: loop.channel.get_cq_event(1),
        ):
            try:
                call()
                failures += 1
            except rnic.VerbsError as error:
                failures += not (error.errno == errno.EINVAL and "fork" in str(error))
        for thing in (loop.near, loop.far, loop.mr, loop.cq, loop.channel, loop.pd, loop.ctx):
            thing.close()
        gc.collect()
        os._exit(failures)
    assert os.waitpid(pid, 0)[1] == 0
    loop.near.post_send(wr)
    assert loop.wait()[0].ok


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with the loop's connect()."""
    head = "import sys; from importlib.machinery import SourceFileLoader\n"
    head += f"test = SourceFileLoader('test_soft', {__file__!r}).load_module()\nimport rnic\n"
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore::DeprecationWarning", "-c"]
    return subprocess.run(
        [*command, head + textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=300
    )


SETUP = """
    ctx = rnic.open_device("roce_lo")
    pd = ctx.alloc_pd(); ch = ctx.create_comp_channel(); cq = ctx.create_cq(256, ch)
    mr = pd.reg_mr(bytearray(1 << 22), 15)
    a, b = (pd.create_qp(rnic.QPInitAttr(cq, cq)) for _ in "ab")
    test.connect(a, b); test.connect(b, a)
    wr = rnic.SendWR(1, rnic.WROpcode.RDMA_WRITE, 2, [rnic.SGE(mr)], remote_addr=mr.addr, rkey=mr.rkey)
    for _ in range(8): a.post_send(wr)
"""


def test_the_interpreter_ends_with_work_outstanding() -> None:
    done = run(SETUP + "    keep = [a, b, mr, cq, ch, pd, ctx]; keep.append(keep)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_interpreter_ends_while_a_thread_waits() -> None:
    done = run(
        SETUP + "    import threading; threading.Thread(target=ch.get_cq_event, daemon=True).start()\n"
        "    import time; time.sleep(0.1)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_interpreter_ends_in_a_forked_child() -> None:
    done = run(SETUP + "    import os; print(os.fork() == 0 or os.wait()[1])")
    assert done.returncode == 0
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == ["0", "True"]


ROUNDS = 100_000 if os.environ.get("RNIC_SOAK") else 20_000  # of five objects


@pytest.mark.slow
def test_a_hundred_thousand_objects_leave_nothing_behind() -> None:
    memory = bytearray(64)
    with rnic.open_device("roce_lo") as ctx, ctx.create_cq(4) as shared:

        def rounds(n: int) -> int:
            for _ in range(n):
                with (
                    ctx.alloc_pd() as pd,
                    ctx.create_cq(4) as cq,
                    pd.reg_mr(memory) as mr,
                    pd.create_qp(rnic.QPInitAttr(cq, shared, cap=rnic.QPCap(1, 1, 1, 1, 0))) as qp,
                ):
                    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=REMOTE))
                    qp.post_recv(rnic.RecvWR(sg_list=[rnic.SGE(mr)]))
            gc.collect()
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        before = rounds(ROUNDS // 5)
        assert rounds(ROUNDS) - before < 8192 * ROUNDS // 100_000  # KiB


def test_this_kernel_fills_ip_headers_as_the_icrc_needs() -> None:
    with rnic.open_device("roce_lo") as ctx:
        assert ctx.counters().unfit_ip_ids == 0


def test_a_kernel_that_does_not_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnic.Context, "counters", lambda _: rnic.Counters({"unfit_ip_ids": 1}))
    with (
        pytest.warns(RuntimeWarning, match="hardware and kernel peers will drop") as told,
        rnic.open_device("roce_lo"),
    ):
        pass
    assert told[0].filename == __file__
