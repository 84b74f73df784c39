# SPDX-License-Identifier: Apache-2.0
"""iWARP devices: queue pairs over TCP connections, how they get them, and what goes over them."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rnic
from rnic import (
    SGE,
    AccessFlags,
    Faults,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    RecvWR,
    SendFlags,
    SendWR,
    StreamAttr,
    StreamRTR,
    VerbsError,
    WCOpcode,
    WROpcode,
)
from rnic.testing import ALL_ACCESS, End, Options, Pair, connect
from transport.conftest import Start
from transport.joining import join, move
from transport.scene import perform
from waiting import until

pytestmark = pytest.mark.own_way

DEVICE = "iwarp_lo"
SIZES = [0, 1, 3, 8, 255, 1460, 4097, 65535, (1 << 20) + 1]
WAYS = {
    "ipv4": Options(address="127.0.0.1"),
    "ipv6": Options(address="::1"),
    "no crc": Options(crc=False),
    "markers": Options(markers=True),
    "markers, no crc": Options(markers=True, crc=False),
}


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(DEVICE, options=WAYS[request.param]) as made:
        yield made


@pytest.fixture
def plain() -> Iterator[Pair]:
    with Pair(DEVICE) as made:
        yield made


def content(n: int) -> bytes:
    return random.Random(n).randbytes(n)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        a = socket.create_connection(listener.getsockname())
        return a, listener.accept()[0]


def refusal(call: Any, *args: Any) -> VerbsError:
    with pytest.raises(VerbsError) as caught:
        call(*args)
    return caught.value


# ---------------------------------------------------------------- operations


def test_every_operation_at_every_size_by_every_way(pair: Pair) -> None:
    """A READ behind a WRITE shows that it has arrived: a WRITE itself is complete before that."""
    a, b = pair.a, pair.b
    here, there = a.memory(2 * max(SIZES)), b.memory(2 * max(SIZES))
    for n in SIZES:
        here.buf[:n] = sent = content(n)
        b.qp.post_recv(RecvWR(n, [SGE(there, 0, n)]))
        a.qp.post_send(SendWR(n, WROpcode.SEND, SendFlags.SIGNALED, [SGE(here, 0, n)]))
        assert a.wait_ok()[0].opcode is WCOpcode.SEND
        (wc,) = b.wait_ok()
        assert (wc.wr_id, wc.byte_len, wc.qp_num) == (n, n, b.qp.qp_num)
        assert there.buf[:n] == sent
        here.buf[:n] = sent = content(n + 1)[:n]
        assert perform(a, WROpcode.RDMA_WRITE, [SGE(here, 0, n)], there).ok
        assert perform(a, WROpcode.RDMA_READ, [SGE(here, max(SIZES), n)], there).byte_len == n
        assert there.buf[:n] == here.buf[max(SIZES) : max(SIZES) + n] == sent


def test_atomics_and_immediate_data_between_two_of_rnic(pair: Pair) -> None:
    a, b = pair.a, pair.b
    here, there = a.memory(64), b.memory(64)
    there.buf[:8] = (40).to_bytes(8, "little")
    assert perform(a, WROpcode.ATOMIC_FETCH_AND_ADD, [SGE(here, 0, 8)], there, compare_add=2).ok
    assert perform(a, WROpcode.ATOMIC_CMP_AND_SWP, [SGE(here, 8, 8)], there, compare_add=42, swap=7).ok
    assert [int.from_bytes(here.buf[at : at + 8], "little") for at in (0, 8)] == [40, 42]
    assert int.from_bytes(there.buf[:8], "little") == 7
    b.qp.post_recv(RecvWR(3))
    assert perform(a, WROpcode.RDMA_WRITE_WITH_IMM, [SGE(here, 0, 8)], there, imm_data=5).ok
    (wc,) = b.wait_ok()
    assert (wc.opcode, wc.imm_data, wc.byte_len) == (WCOpcode.RECV_RDMA_WITH_IMM, 5, 8)
    wr = SendWR(1, WROpcode.SEND_WITH_IMM, SendFlags.SIGNALED, [])
    assert refusal(a.qp.post_send, wr).errno == errno.EOPNOTSUPP


def test_both_ends_send_at_once(pair: Pair) -> None:
    n, count = 200_001, 6
    for end in (pair.a, pair.b):
        memory = end.memory(2 * n * count)
        memory.buf[: n * count] = content(n * count)
        end.qp.post_recv([RecvWR(i, [SGE(memory, n * (count + i), n)]) for i in range(count)])
        end.arrived = memory.buf[n * count :]  # type: ignore[attr-defined]
        end.work = [
            SendWR(i, WROpcode.SEND, SendFlags.SIGNALED, [SGE(memory, n * i, n)]) for i in range(count)
        ]  # type: ignore[attr-defined]
    for end in (pair.a, pair.b):
        end.qp.post_send(end.work)  # type: ignore[attr-defined]
    for end in (pair.a, pair.b):
        end.wait_ok(2 * count)
        assert end.arrived == content(n * count)  # type: ignore[attr-defined]
        del end.arrived, end.work  # type: ignore[attr-defined]


def test_the_end_that_has_not_connected_may_send_first() -> None:
    with End(DEVICE) as a, End(DEVICE) as b:
        connect(a.qp, b.qp)  # a is the initiator
        a.qp.post_recv(RecvWR(1))
        b.qp.post_send(SendWR(2, WROpcode.SEND, SendFlags.SIGNALED, []))
        assert a.wait_ok()[0].opcode is WCOpcode.RECV
        b.wait_ok()


def test_two_processes(start: Start) -> None:
    a, b = start(), start()
    _, remote = join(a, b, 4 << 20, device=DEVICE)
    digest = a.call("fill", "main", 1)
    move(a, WROpcode.RDMA_WRITE, remote, 1 << 18)
    a.call("zero", "main")
    move(a, WROpcode.RDMA_READ, remote, 1 << 18)
    assert a.call("digest", "main") == b.call("digest", "main") == digest
    assert a.call("fetch_add", "main", remote, 100, 3)


def test_what_is_in_front_of_others_waits_for_nobody_else(plain: Pair) -> None:
    """A peer that takes nothing holds up its own connection alone: others of the same context go on."""
    a, b = plain.a, plain.b
    with a.pd.create_qp(QPInitAttr(send_cq=a.cq, recv_cq=a.cq)) as c, End(DEVICE) as d:
        connect(c, d.qp)
        here, there, other = a.memory(1 << 20), b.memory(1 << 20), d.memory(8)
        b.ctx.set_faults(Faults(stall_after=1))
        b.qp.post_recv(RecvWR(1))
        b.qp.post_send(SendWR(2, WROpcode.SEND, sg_list=[SGE(there, 0, 8)]))
        until(lambda: b.ctx.counters().fault_stalled, "it stands still")
        flags, remote = SendFlags.SIGNALED, (there.addr, there.rkey)
        a.qp.post_send([SendWR(9, WROpcode.RDMA_WRITE, flags, [SGE(here)], *remote) for _ in range(64)])
        c.post_send(
            SendWR(7, WROpcode.RDMA_READ, SendFlags.SIGNALED, [SGE(here, 0, 8)], other.addr, other.rkey)
        )
        while (wc := a.wait_ok()[0]).wr_id != 7:
            assert wc.wr_id == 9
        b.ctx.set_faults(None)
        while a.cq.poll(64):
            pass


# ---------------------------------------------------------------- a connection of the program's own


def initialised(end: End) -> rnic.QP:
    end.qp.modify(QPAttr(qp_state=QPState.INIT, qp_access_flags=ALL_ACCESS))
    return end.qp


@pytest.mark.parametrize("early", [1, 7, 20, 41, 200])
def test_what_was_read_behind_the_start_up_is_not_lost(early: int) -> None:
    with End(DEVICE) as a, End(DEVICE) as b:
        sock_a, sock_b = tcp_pair()
        initialised(a).attach_stream(sock_a, StreamAttr(initiator=True, rtr=StreamRTR.NONE))
        a.qp.modify(QPAttr(qp_state=QPState.RTS))
        here, there = a.memory(300), b.memory(300)
        here.buf[:] = content(300)
        initialised(b).post_recv(RecvWR(1, [SGE(there)]))
        a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, [SGE(here)]))
        read = sock_b.recv(early, socket.MSG_WAITALL)
        attr = StreamAttr(initiator=False, rtr=StreamRTR.NONE, early=read)
        b.qp.attach_stream(sock_b, attr)
        b.qp.modify(QPAttr(qp_state=QPState.RTS))
        assert b.wait_ok()[0].byte_len == 300
        assert there.buf == here.buf


def test_a_socket_that_cannot_be_one_is_refused_and_stays_the_programs() -> None:
    attr = StreamAttr(initiator=True)
    a, b = tcp_pair()
    with End(DEVICE) as end, End("roce_lo") as roce, a, b, socket.socket() as lone:
        assert "is in RESET" in str(refusal(end.qp.attach_stream, a, attr))
        initialised(end)
        for sock in (socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)):
            with sock:
                assert "is not a TCP socket" in str(refusal(end.qp.attach_stream, sock, attr))
        assert "is not connected" in str(refusal(end.qp.attach_stream, lone, attr))
        error = refusal(end.qp.modify, QPAttr(qp_state=QPState.RTS))
        assert (error.errno, "needs a connection" in str(error)) == (errno.ENOTCONN, True)
        error = refusal(roce.qp.attach_stream, a, attr)
        assert (error.errno, "which has no streams" in str(error)) == (errno.EOPNOTSUPP, True)
        end.qp.attach_stream(a, attr)
        assert a.fileno() == -1
        assert refusal(end.qp.attach_stream, b, attr).errno == errno.EBUSY
        assert b.fileno() >= 0


def test_a_queue_pair_gets_another_connection_after_reset(plain: Pair) -> None:
    for _ in range(3):
        for end in (plain.a, plain.b):
            end.qp.modify(QPAttr(qp_state=QPState.RESET))
        connect(plain.a.qp, plain.b.qp)
        plain.b.qp.post_recv(RecvWR(1))
        plain.a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, []))
        plain.a.wait_ok()
        plain.b.wait_ok()


def test_a_stranger_that_comes_first_is_left_out() -> None:
    with End(DEVICE) as a, End(DEVICE) as b:
        at_a, at_b = rnic.testing.prepare(a.qp), rnic.testing.prepare(b.qp)
        with socket.create_connection((str(at_b.gid.ip), at_b.port)) as silent:
            silent.sendall(bytes(len(bytes(at_a))))
            rnic.testing.complete(a.qp, at_a, at_b)
            rnic.testing.complete(b.qp, at_b, at_a)
        assert (a.qp.state, b.qp.state) == (QPState.RTS, QPState.RTS)


def test_a_roce_and_an_iwarp_queue_pair_are_no_peers() -> None:
    with End(DEVICE) as a, End("roce_lo") as b, pytest.raises(ValueError, match="different transports"):
        connect(a.qp, b.qp)


# ---------------------------------------------------------------- many, again and again, and a fork


def descriptors(pid: int | str = "self") -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


class Crowd:
    """Queue pairs of two contexts that share what is not theirs alone."""

    def __init__(self, a: End, b: End, size: int) -> None:
        self.a, self.b = a, b
        self.here, self.there = a.memory(8), b.memory(8)
        self.pairs = [self.make() for _ in range(size)]

    def make(self) -> tuple[rnic.QP, rnic.QP]:
        cap = QPCap(2, 2, 1, 1, 0)
        one, other = (end.pd.create_qp(QPInitAttr(end.cq, end.cq, cap=cap)) for end in (self.a, self.b))
        connect(one, other, Options(access=AccessFlags.REMOTE_WRITE))
        return one, other

    def talk(self) -> None:
        for _, other in self.pairs:
            other.post_recv(RecvWR(1, [SGE(self.there)]))
        for one, _ in self.pairs:
            one.post_send(SendWR(2, WROpcode.SEND, SendFlags.SIGNALED, [SGE(self.here)]))
        for end in (self.a, self.b):
            end.wait_ok(len(self.pairs))

    def close(self) -> None:
        for qps in self.pairs:
            for qp in qps:
                qp.close()
        self.pairs = []


@pytest.fixture
def descriptors_for_all() -> Iterator[None]:
    """A login shell allows 1,024, and a connection has one at each end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2500:
        pytest.skip(f"needs 2,500 descriptors, and ulimit -Hn is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("descriptors_for_all")
def test_a_thousand_connections_at_once() -> None:
    with End(DEVICE, cqe=4096) as a, End(DEVICE, cqe=4096) as b:
        before = descriptors()
        crowd = Crowd(a, b, 1000)
        crowd.talk()
        crowd.talk()
        crowd.close()
        until(lambda: len(descriptors()) <= len(before), "every socket is closed")


def test_rounds_of_connecting_leave_nothing(soak: bool) -> None:
    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with End(DEVICE) as a, End(DEVICE) as b:
        crowd, before, first = Crowd(a, b, 0), descriptors(), 0
        for i in range(10_000 if soak else 500):
            crowd.pairs = [crowd.make()]
            crowd.talk()
            crowd.close()
            first = first or (memory() if i == 200 else 0)
        until(lambda: len(descriptors()) <= len(before), "every socket is closed")
        assert memory() < first + (2 << 20)


def test_a_forked_child_has_no_connection_and_ends_none(plain: Pair) -> None:
    sockets = {path.readlink() for path in descriptors() if is_tcp(path)}
    begun, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(begins, b"!")
        signal.pause()
    try:
        os.read(begun, 1)
        assert sockets
        assert not sockets & {path.readlink() for path in descriptors(pid)}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(begun)
        os.close(begins)
    plain.b.qp.post_recv(RecvWR(1))
    plain.a.qp.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, []))
    plain.a.wait_ok()
    plain.b.wait_ok()


def is_tcp(path: Path) -> bool:
    try:
        with socket.socket(fileno=os.dup(int(path.name))) as sock:
            return sock.type == socket.SOCK_STREAM and sock.family == socket.AF_INET
    except OSError:
        return False
