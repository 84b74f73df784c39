# SPDX-License-Identifier: Apache-2.0
"""`rnic demo`: the file, the table, and an end whatever happens."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from cli.commands import Command, Start
from cli.test_doctor import within
from rnic import WC, QPAttr, QPAttrMask, QPState, WCStatus
from rnic.cli import demo, transfer
from rnic.cli.demo import read_exactly
from rnic.cli.params import Failure


def receiver_of(command: Command) -> int:
    """The process that the demo has started; waits for it."""
    pid = command.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    until = time.monotonic() + 300
    while time.monotonic() < until:
        if found := children.read_text().split():
            return int(found[0])
        time.sleep(0.01)
    raise AssertionError("the demo started no receiver")


@pytest.mark.parametrize("length", [0, 1, 3 * (1 << 20) + 17])
def test_file_arrives_and_operations_are_measured(rnic: Start, tmp_path: Path, length: int) -> None:
    path = tmp_path / "[red]a file.bin"
    path.write_bytes(os.urandom(length))
    result = rnic("demo", path).wait()
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith(f"{path}: ")
    assert lines[2] == f"verified by the receiver: SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
    table = {line.split("  ")[0]: line for line in lines[3:]}
    for operation in ("SEND", "RDMA WRITE", "RDMA READ"):
        assert table[operation].count("B/s") == 2
        assert any(unit in table[operation] for unit in (" ns ", " us ", " ms "))
    assert {"FETCH_AND_ADD", "CMP_AND_SWP"} < set(table)
    assert "\x1b" not in result.out


def test_a_loopback_that_is_down_is_named_before_anything_is_made() -> None:
    result = within(sys.executable, "-m", "rnic", "demo", "--size", "1M", up=False)
    cure = "`ip link set lo up` brings it up, and `rnic doctor` looks for more"
    text = f"rnic: the network interface lo is down: {cure}\n"
    assert (result.status, result.out, result.err) == (1, "", text)


@pytest.mark.parametrize(
    "command", [["demo"], ["lab3", "sender", "--id", "a", "127.0.0.1"], ["lab3", "grade"]]
)
def test_what_is_no_regular_file_is_refused(rnic: Start, tmp_path: Path, command: list[str]) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        kinds = {fifo: "a FIFO", "/dev/zero": "a character device", one.getsockname(): "a socket"}
        for path, kind in kinds.items():
            result = rnic(*command, path).wait()
            assert result.status == 2
            assert result.err.endswith(f"'{path}' is {kind}: a regular file is needed\n")
    assert rnic(*command, tmp_path).wait().err.endswith(f"'{tmp_path}' is a directory.\n")


def test_a_file_whose_length_is_not_told_is_refused(rnic: Start) -> None:
    result = rnic("demo", "/proc/self/status").wait()
    assert result.status == 1
    assert result.err.startswith("rnic: /proc/self/status: the system says that it has 0 bytes, and gives ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_cannot_be_read_is_refused(rnic: Start, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o200)
    result = rnic("demo", path).wait()
    assert (result.status, "is not readable" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("variable", "way"),
    [
        ("RNIC_LOCAL=on", "by shared memory"),
        ("RNIC_LOCAL=off", "over UDP"),
        ("RNIC_TRANSPORT=iwarp", "over TCP"),
    ],
)
def test_the_way_of_the_data_is_told(
    rnic: Start, monkeypatch: pytest.MonkeyPatch, variable: str, way: str
) -> None:
    monkeypatch.setenv(*variable.split("="))
    result = rnic("demo", "--size", "1M").wait()
    assert (result.status, result.err) == (0, "")
    (line,) = (line for line in result.out.splitlines() if "sent in" in line)
    assert f"1 RDMA WRITE {way}; reading the file took" in line


@pytest.mark.parametrize(
    ("option", "device", "way"),
    [("-d", "roce_lo", "by shared memory"), ("--ib-dev", "iwarp_lo", "over TCP")],
)
def test_a_device_can_be_chosen(
    rnic: Start, monkeypatch: pytest.MonkeyPatch, option: str, device: str, way: str
) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "on")
    monkeypatch.setenv("RNIC_TRANSPORT", "iwarp" if device == "roce_lo" else "roce")
    result = rnic("demo", "--size", "1M", option, device).wait()
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"random bytes: 1 MiB over {device}\n")
    assert f"1 RDMA WRITE {way}; " in result.out


def test_a_device_that_is_not_there_is_named(rnic: Start) -> None:
    result = rnic("demo", "-d", "mlx5_0").wait()
    assert (result.status, result.out) == (1, "")
    assert "no device mlx5_0; there are: roce_" in result.err


def test_a_generated_file_is_gone_whatever_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SIGTERM and SIGKILL leave no time to remove a file, so it has no name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as stack:
        file = demo.make_file(stack, 100_000, Console(quiet=True))
        assert os.fstat(file.fileno()).st_dev == tmp_path.stat().st_dev
        assert not list(tmp_path.iterdir())


def test_a_generated_file_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before the file system is full."""
    monkeypatch.setattr(demo, "available", lambda _file: 5 << 20)
    with (
        ExitStack() as stack,
        pytest.raises(Failure, match=r"--size 6 MiB: .* has room for 5 MiB; choose less"),
    ):
        demo.make_file(stack, 6 << 20, Console(quiet=True))


def test_a_generated_file_is_described(rnic: Start) -> None:
    result = rnic("demo", "--size", "4M", anew=True).wait()
    assert result.status == 0
    assert result.out.startswith("random bytes: 4 MiB over roce_")


def test_receiver_that_dies_ends_the_demo(rnic: Start) -> None:
    command = rnic("demo", "--size", "1M")
    os.kill(receiver_of(command), signal.SIGKILL)
    result = command.wait()
    assert result.status == 1
    assert result.err.startswith("rnic: ")
    assert "the receiver ended with exit code -9" in result.err


def test_what_the_receiver_says_is_told(rnic: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its reason stands behind what this end has seen of it, in one line."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    poor = "import sys\nif 'demo-receiver' in sys.orig_argv:\n    import rnic.cli.transfer as one\n"
    (tmp_path / "sitecustomize.py").write_text(poor + "    one.available_memory = lambda: 5\n")
    result = rnic("demo", "--size", "1M").wait()
    assert result.status == 1
    assert re.fullmatch(r"rnic: .*: receiver: .* has room for 5\n", result.err), result.err


def test_sender_that_dies_ends_the_receiver(rnic: Start) -> None:
    command = rnic("demo", "--size", "1M")
    receiver = receiver_of(command)
    command.process.kill()
    command.process.wait()
    until = time.monotonic() + 300
    while Path(f"/proc/{receiver}").exists():
        assert time.monotonic() < until, "the receiver outlived the sender"
        time.sleep(0.05)


def test_interrupt_ends_both(rnic: Start) -> None:
    command = rnic("demo", "--size", "16M")
    receiver = receiver_of(command)
    command.process.send_signal(signal.SIGINT)
    result = command.wait()
    assert result.status == 130
    assert result.err == "rnic: interrupted\n"
    until = time.monotonic() + 300
    while Path(f"/proc/{receiver}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_file_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "available_memory", lambda: 4096)
    link = transfer.Link.__new__(transfer.Link)
    with pytest.raises(Failure, match="big has 4097 bytes, the receiver's memory has room for 4096"):
        transfer.receive_file(link, {"name": "big", "length": 4097})


def test_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"12345")
    with path.open("rb") as file:
        part = bytearray(4)
        read_exactly(file, memoryview(part))
        assert part == b"1234"
        with pytest.raises(Failure, match="short became shorter"):
            read_exactly(file, memoryview(part))


class Flushed:
    """A completion queue; behind a SEND that has completed, the queue pair's receives are flushed at once."""

    def __init__(self, lane: transfer.Lane) -> None:
        self._cq, self._qp = lane.cq, lane.qp
        self.req_notify, self.ack_events = lane.cq.req_notify, lane.cq.ack_events

    def poll(self, n: int) -> list[WC]:
        found = self._cq.poll(n)
        if any(wc.wr_id & transfer.SEND_WRID for wc in found):
            self._qp.modify(QPAttr(qp_state=QPState.ERR), QPAttrMask.STATE)
            found += self._cq.poll(n)
            assert found[-1].status is WCStatus.WR_FLUSH_ERR
        return found


def linked(sock: socket.socket, stack: ExitStack) -> transfer.Link:
    return transfer.Link(sock, stack, lambda: None)


@pytest.mark.parametrize("kind", ["bye", "offer"])
def test_who_has_heard_the_last_message_may_close_at_once(kind: str) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = stack.enter_context(socket.create_connection(listener.getsockname()))
        other = stack.enter_context(listener.accept()[0])
        waiting = pool.submit(linked, other, stack)
        control = linked(one, stack).control
        waiting.result()
        control.cq = Flushed(control)  # type: ignore[assignment]
        with ExitStack() if kind == "bye" else pytest.raises(Failure, match="WR_FLUSH_ERR"):
            control.send(kind)
