# SPDX-License-Identifier: Apache-2.0
"""The kernel module rw against rnic's memory: each command, its result, and what is in the memory then."""

from __future__ import annotations

import resource
import shlex
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from errno import (
    EACCES,
    ECONNREFUSED,
    ECONNRESET,
    EHOSTUNREACH,
    EINVAL,
    EOPNOTSUPP,
    EPROTO,
    ERANGE,
    ETIMEDOUT,
)
from pathlib import Path

import pytest
from memory import TRANSPORTS, Liar, Memory, losing, one_device
from modules import Box, built
from program import noise

pytestmark = pytest.mark.interop

SIZE = 2 << 20  # of the memory
PATIENCE = 120.0  # seconds that nothing takes
PAGE = 4096
LONGEST = 256 * PAGE  # of one command
NOISE = noise(SIZE, seed=7)


@pytest.fixture(scope="module", params=["rxe", "siw"])
def kind(request: pytest.FixtureRequest, box: Box) -> Iterator[str]:
    """The guest's device, which is the only one meanwhile."""
    with one_device(box, request.param):
        yield request.param


@pytest.fixture(scope="module")
def peer(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    with Memory(tmp_path_factory.mktemp("rw") / "memory", SIZE, kind) as memory:
        yield memory


@pytest.fixture(scope="module")
def rw(box: Box, peer: Memory) -> Iterator[Rw]:
    """The module, loaded once for all tests: at the end nothing may be left of any."""
    with box.loaded("rw", addr=box.machine.host_ip, port=peer.port):
        yield Rw(box, peer)


@pytest.fixture
def memory(peer: Memory) -> Memory:
    """The peer's memory, with known bytes."""
    peer.write(0, NOISE)
    return peer


class Rw:
    """The module, loaded."""

    def __init__(self, box: Box, peer: Memory) -> None:
        self.box, self.peer = box, peer

    @contextmanager
    def meanwhile(self, peer: Memory | Liar, **parameters: object) -> Iterator[None]:
        """Load it for another peer."""
        self._load(peer, **parameters)
        yield
        self._load(self.peer)

    def _load(self, peer: Memory | Liar, **parameters: object) -> None:
        self.box.unload("rw")
        self.box.load("rw", addr=self.box.machine.host_ip, port=peer.port, **parameters)

    def run(self, command: str) -> tuple[int, str]:
        """Its errno, or 0, and its text."""
        write = f"printf %s {shlex.quote(command)} >/proc/rnic_rw 2>/dev/null"
        shown = self.box.machine.check(f"{write}; echo $?; cat /proc/rnic_rw")
        failed, _, result, text = shown.split("\n", 3)
        assert bool(int(failed)) == (result != "result: 0"), shown
        return -int(result.removeprefix("result: ")), text.removeprefix("text: ").rstrip("\n")

    def check(self, command: str) -> str:
        """The text of a command that must succeed."""
        errno, text = self.run(command)
        assert errno == 0, (command, errno, text)
        return text


def pattern(length: int, seed: int) -> bytes:
    """As rw.c makes it."""
    return bytes((seed + i + i // 251) & 0xFF for i in range(length))


def test_write_and_read(rw: Rw, memory: Memory, kind: str) -> None:
    rw.check("write 4090 hello world")  # across two pages; over iWARP it may be under way still
    assert rw.check("read 4090 11").endswith(": hello world")  # behind the WRITE
    assert memory.bytes == NOISE[:4090] + b"hello world" + NOISE[4101:]
    assert f"connected with {rw.box.machine.host_ip}:{rw.peer.port} by {kind}0" in rw.box.log()


@pytest.mark.parametrize("length", [1, PAGE + 1, LONGEST])
def test_read_brings_what_is_there(rw: Rw, memory: Memory, length: int) -> None:
    crc = zlib.crc32(memory.bytes[777 : 777 + length])
    assert rw.check(f"read 777 {length}").startswith(f"crc32 {crc:08x}: ")


@pytest.mark.parametrize("command", ["pattern", "api"])
def test_there_and_back(rw: Rw, memory: Memory, command: str) -> None:
    """By hand and by <rdma/rw.h>: some lengths, up to what needs a page list of 256."""
    expected = bytearray(NOISE)
    for length, offset in [(1, 0), (PAGE, 3), (5 * PAGE - 3, PAGE), (LONGEST, 5000)]:
        rw.check(f"{command} {offset} {length} {length % 100}")
        expected[offset : offset + length] = pattern(length, length % 100)
    assert memory.bytes == expected


def test_atomics(rw: Rw, memory: Memory, kind: str) -> None:
    memory.write(16, struct.pack("=Q", 40))
    if kind == "siw":
        assert rw.run("add 16 2")[0] == rw.run("swap 16 42 7")[0] == EOPNOTSUPP
        return
    assert rw.check("add 16 2") == "before: 40"
    assert rw.check("swap 16 41 7") == "before: 42"  # another value than expected: it stays
    assert rw.check("swap 16 42 7") == "before: 42"
    assert memory.bytes[16:24] == struct.pack("=Q", 7)


def test_memory_that_is_lent(rw: Rw) -> None:
    assert rw.check("lend the quick brown fox") == "THE QUICK BROWN FOX"
    longest = "the quick brown fox " * 25 + "jumps!"  # of a command
    assert rw.check(f"lend {longest}") == longest.upper()


def test_invalidated_key_opens_nothing(rw: Rw, memory: Memory) -> None:
    """The peer is told so, and the connection ends."""
    assert rw.run("stale the quick brown fox") == (ECONNRESET, "WR flushed")
    memory.line("READ: REM_ACCESS_ERR")
    assert rw.check("lend and the next one works") == "AND THE NEXT ONE WORKS"


def test_access_that_the_peer_refuses(rw: Rw, kind: str) -> None:
    """On RoCE the completion says why. On iWARP the connection ends."""
    refused = {"rxe": (EACCES, "remote access error"), "siw": (ECONNRESET, "WR flushed")}[kind]
    assert rw.run("beyond") == refused
    assert rw.run("badkey") == refused
    assert rw.run(f"read {SIZE - 10} 11") == refused
    rw.check(f"read {SIZE - 10} 10")


@pytest.mark.parametrize(
    "command",
    [" ", "reads 0 1", "rea 0 1", "read", "read 0 0", "write 5", "pattern 0 1", "lend"],
)
def test_wrong_command(rw: Rw, command: str) -> None:
    assert rw.run(command)[0] == EINVAL


@pytest.mark.one_in(2)  # the device makes no difference
def test_command_that_is_not_taken_in_part(rw: Rw, memory: Memory) -> None:
    """A number is the whole number, and nothing stands behind what a command needs."""
    assert rw.run(f"read {2**64} 1")[0] == rw.run(f"swap 0 {2**64} 0")[0] == ERANGE
    lengths = f"read 0 {2**32 + 1}", f"read 0 {LONGEST + 1}", f"pattern 0 {LONGEST + 1} 0"
    for command in (*lengths, f"pattern 0 1 {2**32}", "read 0 1x", "read 0 1 1", "beyond 1"):
        assert rw.run(command)[0] == EINVAL, command
    texts = dict.fromkeys(("write 0 a\\0b", "write 0 a\\nb", "lend a\\0b"), "Invalid argument")
    for text, why in (texts | {"lend " + "a" * 507: "Message too long"}).items():
        assert why in rw.box.machine.run(f"/usr/bin/printf '{text}' >/proc/rnic_rw")[1]
    assert memory.bytes == NOISE


@pytest.mark.parametrize("percent", [1, 5])
def test_lost_packets(rw: Rw, memory: Memory, box: Box, percent: int) -> None:
    with losing(box, percent):
        rw.check("pattern 4000 100000 3")
        rw.check("api 400000 100000 4")
    assert memory.bytes[4000:104000] == pattern(100000, 3)
    assert memory.bytes[400000:500000] == pattern(100000, 4)


@pytest.fixture
def other(kind: str, tmp_path: Path) -> Iterator[Memory]:
    """One more peer, which a test may end."""
    with Memory(tmp_path / "memory", SIZE, kind) as memory:
        yield memory


def test_peer_that_is_killed(rw: Rw, other: Memory) -> None:
    """A command under way ends with an error, and so does the next one."""
    with rw.meanwhile(other, timeout=10):
        loop = "while echo pattern 0 1000000 1 >/proc/rnic_rw; do echo done; done"
        job = rw.box.machine.spawn(loop)
        job.expect("done")
        other.kill()
        job.wait(PATIENCE)
        assert rw.run("read 0 1")[0] in (ECONNREFUSED, ECONNRESET, ETIMEDOUT, EHOSTUNREACH)


def test_peer_that_stands_still_for_a_moment(rw: Rw, other: Memory) -> None:
    with rw.meanwhile(other):
        rw.check("read 0 1")
        other.stop()
        job = rw.box.machine.spawn("echo pattern 0 100000 1 >/proc/rnic_rw")
        rw.box.machine.check("sleep 1")
        other.go_on()
        assert job.wait(PATIENCE).rc == 0
        assert other.bytes[:100000] == pattern(100000, 1)


ANSWER, WRONG = 2, 3


@pytest.mark.parametrize(
    ("header", "text"),
    [((ANSWER, 9, 0), b""), ((ANSWER, 0, 8), b""), ((ANSWER, 0, 1), b"?"), ((WRONG, 0, 0), b"")],
    ids=["number", "length", "text", "kind"],
)
def test_answer_that_is_wrong(rw: Rw, kind: str, header: tuple[int, ...], text: bytes) -> None:
    """`lend` takes no other message for the answer."""
    device = f"{TRANSPORTS[kind]}_{rw.box.machine.netdev}"
    with Liar(device, message=struct.pack(">III", *header) + text) as liar, rw.meanwhile(liar, timeout=10):
        assert rw.run("lend a text")[0] == EPROTO


def test_peer_that_never_answers(rw: Rw, kind: str) -> None:
    """Over RoCE it never even takes the message."""
    device = f"{TRANSPORTS[kind]}_{rw.box.machine.netdev}"
    liar = Liar(device, message=b"", receives=int(kind == "siw"))
    with liar, rw.meanwhile(liar, timeout=1):
        assert rw.run("lend a text") == (ETIMEDOUT, "no answer")


OFFER = struct.Struct(">IHHQQI4x")  # rnic_offer of message.h: magic, version, depth, addr, length, rkey
MAGIC = 0x726E6963
WRONG_OFFERS = {
    "rxe": [
        OFFER.pack(MAGIC + 1, 1, 1, 0, SIZE, 0),
        OFFER.pack(MAGIC, 2, 1, 0, SIZE, 0),
        OFFER.pack(MAGIC, 1, 1, 2**64 - SIZE + 1, SIZE, 0),
    ],
    "siw": [OFFER.pack(MAGIC, 1, 1, 0, SIZE, 0)[:-1]],  # over RoCE a zero follows, and it is whole
}


def test_offer_that_is_wrong(rw: Rw, kind: str) -> None:
    for offer in WRONG_OFFERS[kind]:
        with Liar(f"{TRANSPORTS[kind]}_{rw.box.machine.netdev}") as liar, rw.meanwhile(liar):
            liar.offer = offer
            assert rw.run("read 0 1")[0] == EPROTO, offer


def test_peer_that_has_no_descriptor_left(rw: Rw, other: Memory) -> None:
    """It refuses the connection that it cannot serve, and serves the next one."""
    with rw.meanwhile(other, timeout=10):
        pid = other.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for spare in range(2):  # a connection needs two, or more
            rw.check("read 0 1")
            other.line("disconnected")
            limit = len([*Path(f"/proc/{pid}/fd").iterdir()]) + spare
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
            assert rw.run("read 0 1")[0] in (ECONNREFUSED, ECONNRESET)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        rw.check("read 0 1")


def test_ten_loads(rw: Rw, memory: Memory) -> None:
    module = f"{built() / 'rw.ko'} addr={rw.box.machine.host_ip} port={memory.port}"
    before = rw.box.resources()
    rw.box.machine.check(
        "set -e; for i in $(seq 0 9); do "
        f"rmmod rw; insmod {module}; echo pattern $i 10000 $i >/proc/rnic_rw; done",
        PATIENCE,
    )
    assert rw.box.resources() == before
    assert memory.bytes[9:10009] == pattern(10000, 9)
