# SPDX-License-Identifier: Apache-2.0
"""The modules' peers, with each other or with a client of the test: no machine is needed."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rnic import SGE
from rnic.rdmacm import ConnParam, EventChannel, EventType, create_id
from waiting import until

COURSE = Path(__file__).resolve().parents[2] / "examples/kernel"
PATIENCE = 180.0  # seconds that nothing takes
DEVICES = ["roce_lo", "iwarp_lo"]


@contextmanager
def peer(program: str | Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """One of them; it is killed at the end."""
    command = [sys.executable, "-u", str(COURSE / program), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout
    return process.stdout.readline().rstrip("\n")


@pytest.mark.parametrize("device", DEVICES)
def test_a_client_that_stays_notices_that_its_server_was_killed(device: str) -> None:
    with peer("peer_listener.py", "--port", 0, "--device", device) as server:
        port = line(server).split()[3]
        words = ("127.0.0.1", "--port", port, "--device", device, "--count", 1, "--hold")
        with peer("peer_client.py", *words) as client:
            assert line(client) == "1 texts answered"
            server.kill()
            out, _ = client.communicate(timeout=PATIENCE)
    assert client.returncode == 1
    assert "the connection has ended: " in out


# peer_listener.py, which takes all asks that it has receives for, and answers none.
SILENT = f"""
import runpy, signal, sys
sys.path.insert(0, "{COURSE}")
import serving

def serve(agent):
    for _ in range(agent.depth):
        assert agent.cm_id.get_recv_comp().status == 0
    print("taken", flush=True)
    signal.pause()

class Clients(serving.Server):
    def __init__(self, service, client):
        client.func.serve = serve
        super().__init__(service, client)

serving.Server = Clients
runpy.run_path("{COURSE}/peer_listener.py", run_name="__main__")
"""


def test_a_client_that_waits_for_an_answer_notices_that_its_server_stands_still(tmp_path: Path) -> None:
    """All that it has sent is acknowledged, so nothing is under way that could fail."""
    (program := tmp_path / "server.py").write_text(SILENT)
    with peer(program, "--port", 0, "--device", "roce_lo") as server:
        port = line(server).split()[3]
        with peer("peer_client.py", "127.0.0.1", "--port", port, "--device", "roce_lo") as client:
            assert line(server) == "taken"
            server.send_signal(signal.SIGSTOP)
            out, _ = client.communicate(timeout=PATIENCE)
    assert client.returncode == 1
    assert out == "the connection has ended: RETRY_EXC_ERR\n"


# peer_listener.py, which has no thread for its first client: so a limit of processes shows itself.
WITHOUT_THREAD = f"""
import runpy, sys
sys.path.insert(0, "{COURSE}")
import serving

def start(client):
    del serving.Client.start
    raise RuntimeError("can't start new thread")

serving.Client.start = start
runpy.run_path("{COURSE}/peer_listener.py", run_name="__main__")
"""


def test_a_server_without_a_thread_for_a_client_serves_the_next_one(tmp_path: Path) -> None:
    (program := tmp_path / "server.py").write_text(WITHOUT_THREAD)
    with peer(program, "--port", 0, "--device", "roce_lo") as server:
        words = ("127.0.0.1", "--port", line(server).split()[3], "--device", "roce_lo", "--count", 1)
        for returncode in (1, 0):
            with peer("peer_client.py", *words) as client:
                client.communicate(timeout=PATIENCE)
            assert client.returncode == returncode
        assert line(server).endswith("not accepted: can't start new thread")


def test_a_file_that_is_longer_than_the_size_stays_as_it_is(tmp_path: Path) -> None:
    """It might be a disk with somebody's data."""
    (file := tmp_path / "disk").write_bytes(data := bytes(range(256)) * 64)
    with peer("peer_memory.py", "--port", 0, "--size", "4K", "--file", file) as server:
        out, _ = server.communicate(timeout=PATIENCE)
    assert file.read_bytes() == data
    assert server.returncode == 1
    assert out.startswith(f"peer_memory.py: --size 4096: {file} has 16384 bytes, and would be cut")


@pytest.mark.parametrize(("size", "length"), [("8K", 8192), ("16K", 16384), (None, 8192)])
def test_a_file_grows_to_the_size(tmp_path: Path, size: str | None, length: int) -> None:
    (file := tmp_path / "disk").write_bytes(data := b"x" * 8192)
    words = ("--size", size) if size else ()
    with peer("peer_memory.py", "--port", 0, "--file", file, *words) as server:
        assert line(server).startswith(f"{length} bytes at port ")
    assert file.read_bytes() == data + bytes(length - len(data))


def test_a_file_that_cannot_have_the_size_is_said(tmp_path: Path) -> None:
    with peer("peer_memory.py", "--port", 0, "--size", f"{2**63}", "--file", tmp_path / "disk") as server:
        out, _ = server.communicate(timeout=PATIENCE)
    assert server.returncode == 1
    assert out.startswith(
        f"peer_memory.py: --size {2**63}: no space for so many bytes in {tmp_path / 'disk'}: "
    )
    assert not (tmp_path / "disk").stat().st_size


MEMORY = struct.pack(">IHH", 0x726E6963, 1, 2)  # rnic_request of message.h
WRONG, LEND = 3, 4  # its rnic_kind
REGION = struct.Struct(">QII")  # its rnic_region
WRONG_MESSAGES = {
    b"abc": "a message has 12 bytes or more, these are 3",
    struct.pack(">III", 1, 7, 2) + b"hi": "kind 1 is not 4, memory that is lent",
    struct.pack(">III", LEND, 7, 17) + bytes(16): "a message says 17 bytes of text, and has 16",
    struct.pack(">III", LEND, 7, 15) + bytes(15): "a region has 16 bytes, these are 15",
    struct.pack(">III", LEND, 7, 16) + REGION.pack(0, 0, 0): "a region has 1 to 1024 bytes, not 0",
    struct.pack(">III", LEND, 7, 16) + REGION.pack(0, 0, 1025): "a region has 1 to 1024 bytes, not 1025",
}


def test_wrong_messages_are_answered_and_a_key_that_is_none_ends_the_connection() -> None:
    with (
        peer("peer_memory.py", "--port", 0, "--size", "4K", "--device", "roce_lo") as server,
        EventChannel() as events,
        create_id(events, device="roce_lo") as client,
    ):

        def expect(kind: EventType) -> None:
            with events.get_cm_event(PATIENCE) as event:
                assert event.event is kind, event.explain()

        client.resolve_addr(None, ("127.0.0.1", int(line(server).split()[-1])))
        expect(EventType.ADDR_RESOLVED)
        client.resolve_route()
        expect(EventType.ROUTE_RESOLVED)
        client.create_qp()
        with (
            client.reg_msgs(received := bytearray(2048)) as inbox,
            client.reg_msgs(sent := bytearray(64)) as outbox,
        ):
            client.post_recv(inbox)
            client.connect(ConnParam(private_data=MEMORY))
            expect(EventType.ESTABLISHED)

            def ask(data: bytes) -> bytes:
                sent[: len(data)] = data
                client.post_send(SGE(outbox, 0, len(data)))
                client.get_send_comp(PATIENCE)
                answered = client.get_recv_comp(PATIENCE)
                return bytes(received[: answered.byte_len])

            for message, why in WRONG_MESSAGES.items():
                number = 7 if len(message) > 3 else 0
                assert ask(message) == struct.pack(">III", WRONG, number, len(why)) + why.encode()
                client.post_recv(inbox)
            ask(struct.pack(">III", LEND, 7, 16) + REGION.pack(4096, 77, 10))
            expect(EventType.DISCONNECTED)
            client.disconnect()
        assert line(server).endswith("connected")
        assert line(server).endswith("READ: REM_ACCESS_ERR")


def test_a_client_of_another_service_is_refused_and_told_what_there_is() -> None:
    with peer("peer_memory.py", "--port", 0, "--size", "4K", "--device", "roce_lo") as server:
        words = ("127.0.0.1", "--port", line(server).split()[-1], "--device", "roce_lo")
        with peer("peer_client.py", *words) as client:
            out, _ = client.communicate(timeout=PATIENCE)
        assert client.returncode == 1
        assert out.endswith("; this program wants service 1, the server has 2\n")
        assert line(server).endswith("refused: service 1 is not 2")


def test_nothing_is_left_of_clients_that_have_gone() -> None:
    """Something of the last client may stay open until another comes; the earlier ones leave nothing."""
    clients, kept = 12, 6

    def files() -> int:
        return len([*Path(f"/proc/{server.pid}/fd").iterdir()])

    with peer("peer_listener.py", "--port", 0, "--device", "roce_lo") as server:
        words = ("127.0.0.1", "--port", line(server).split()[3], "--device", "roce_lo", "--count", 1)
        first = 0
        for _ in range(clients):
            with peer("peer_client.py", *words) as client:
                client.communicate(timeout=PATIENCE)
            assert line(server).endswith("1 texts answered, 0 messages wrong")
            first = first or files()
        until(lambda: files() <= first + kept, "what the clients had is closed")
