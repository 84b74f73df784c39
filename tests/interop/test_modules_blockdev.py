# SPDX-License-Identifier: Apache-2.0
"""The kernel module blockdev on rnic's memory: a file system, raw sectors, losses, a peer that dies."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from memory import TRANSPORTS, Liar, Memory, losing, one_device
from modules import Box, built
from program import noise

from rnic.vm import MachineError

pytestmark = pytest.mark.interop

MiB = 1 << 20
SIZE = 24 * MiB + 511  # of the memory: the last bytes are no sector
DISK = "/dev/rnicblk0"
MOUNT = "/run/disk"
PATIENCE = 180.0  # seconds that nothing takes


@pytest.fixture(scope="module", params=["rxe", "siw"])
def kind(request: pytest.FixtureRequest, box: Box) -> Iterator[str]:
    """The guest's device, which is the only one meanwhile."""
    with one_device(box, request.param):
        box.machine.check(f"mkdir -p {MOUNT}")
        yield request.param


@pytest.fixture
def memory(kind: str, tmp_path: Path) -> Iterator[Memory]:
    """A peer of this test alone."""
    with Memory(tmp_path / "disk", SIZE, kind) as memory:
        yield memory


@contextmanager
def disk(box: Box, memory: Memory, **parameters: object) -> Iterator[None]:
    """The module loaded; when it is unloaded nothing is left of it."""
    with box.loaded("blockdev", addr=box.machine.host_ip, port=memory.port, **parameters):
        yield


@contextmanager
def mounted(box: Box) -> Iterator[None]:
    """The disk's file system."""
    box.machine.check(f"mount {DISK} {MOUNT}")
    try:
        yield
    finally:
        box.machine.check(f"umount {MOUNT}", PATIENCE)


def test_a_file_system(box: Box, memory: Memory) -> None:
    """Made and written there, read again when nothing of it is cached, and checked on this side."""
    check, digests = box.machine.check, f"cd {MOUNT} && sha256sum $(find . -type f | sort)"
    with disk(box, memory):
        # It is asked for FLUSHes, and never for a FLUSH with a WRITE; nobody changes what is being written.
        of_the_queue = check("cd /sys/block/rnicblk0/queue && cat write_cache fua stable_writes")
        assert of_the_queue == "write back\n0\n1\n"
        check(f"mkfs.ext4 -q {DISK}", PATIENCE)
        with mounted(box):
            check(
                f"cd {MOUNT}; mkdir a b; for i in 1 2 3 4 5; do "
                "head -c $((i * 70001)) /dev/urandom >a/$i; head -c $i /dev/urandom >b/$i; done; "
                "head -c 3000000 /dev/urandom >large; rm a/3; sync",
                PATIENCE,
            )
            before = check(digests, PATIENCE)
            with pytest.raises(MachineError, match="in use"):
                check("rmmod blockdev")
        check("echo 3 >/proc/sys/vm/drop_caches")
        with mounted(box):
            assert check(digests, PATIENCE) == before
    assert before.count("\n") == 10
    memory.kill()
    if fsck := shutil.which("e2fsck", path="/sbin:/usr/sbin:/bin:/usr/bin"):
        done = subprocess.run([fsck, "-f", "-n", memory.path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("block", "count"), [(512, 40), (1536, 40), (4096, 40), (2 * MiB, 2)])
def test_sectors_are_the_bytes_of_the_memory(
    box: Box, memory: Memory, tmp_path: Path, block: int, count: int
) -> None:
    """Written there in blocks of some size without a cache, and read: byte for byte what is here."""
    data, skip = noise(count * block, seed=block), 7
    source = tmp_path / "source"
    source.write_bytes(data)
    with disk(box, memory):
        assert int(box.machine.check(f"blockdev --getsize64 {DISK}")) == 24 * MiB
        move = f"dd bs={block} count={count} status=none"
        box.machine.check(f"{move} if={source} of={DISK} seek={skip} oflag=direct conv=fsync", PATIENCE)
        start = skip * block
        assert memory.bytes[:start] + memory.bytes[start + len(data) :] == bytes(SIZE - len(data))
        assert memory.bytes[start : start + len(data)] == data
        memory.write(start, data[::-1])
        read = box.machine.check(f"{move} if={DISK} skip={skip} iflag=direct | sha256sum", PATIENCE)
    assert read.split()[0] == hashlib.sha256(data[::-1]).hexdigest()


GAPS = f"""
import mmap, os
disk = os.open("{DISK}", os.O_RDONLY | os.O_DIRECT)
area = memoryview(mmap.mmap(-1, 3 << 12))
parts = [area[512:1024], area[4096:5632], area[11264:12288]]
assert os.preadv(disk, parts, 512) == 3072
print(b"".join(parts).hex())
"""


def test_request_whose_memory_has_gaps(box: Box, memory: Memory) -> None:
    """A memory region of siw's cannot have any: the block layer must divide the request."""
    memory.write(0, data := noise(MiB, seed=1))
    with disk(box, memory):
        assert box.machine.check(f"python3 -c '{GAPS}'").strip() == data[512:3584].hex()


@pytest.mark.parametrize("percent", [1, 5])
def test_lost_packets(box: Box, memory: Memory, tmp_path: Path, percent: int) -> None:
    """Of a WRITE what the guest loses are data, of a READ requests and acknowledgements."""
    data, source = noise(256 << 10, seed=percent), tmp_path / "source"
    source.write_bytes(data)
    with disk(box, memory), losing(box, percent):
        box.machine.check(f"dd if={source} of={DISK} bs=64k oflag=direct conv=fsync status=none", PATIENCE)
        assert memory.bytes[: len(data)] == data
        read = box.machine.check(
            f"dd if={DISK} bs=64k count=4 iflag=direct status=none | sha256sum", PATIENCE
        )
    assert read.split()[0] == hashlib.sha256(data).hexdigest()


@pytest.mark.skipif(not shutil.which("fio"), reason="this machine lacks fio")
def test_fio_verifies_what_it_has_written(box: Box, memory: Memory) -> None:
    """Random blocks of several sizes, many of them under way at once, each with a checksum."""
    with disk(box, memory):
        box.machine.check(
            f"cd /run && fio --name=all --filename={DISK} --rw=randwrite --bsrange=4k-64k "
            "--size=4m --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 "
            "--randseed=3 --output=/run/fio",
            PATIENCE,
        )


def test_peer_that_is_killed(box: Box, memory: Memory) -> None:
    """What is under way ends with I/O errors, and so does all later; then all can be taken down."""
    check = box.machine.check
    with disk(box, memory, timeout=10):
        check(f"mkfs.ext4 -q {DISK} && mount {DISK} {MOUNT}", PATIENCE)
        raw = box.machine.spawn(
            f"while dd if=/dev/zero of={DISK} bs=1M seek=20 count=3 oflag=direct; do echo turn; done"
        )
        raw.expect("turn")
        memory.kill()
        assert "Input/output error" in raw.wait(PATIENCE).out
        rc, out = box.machine.run(f"dd if={DISK} of=/run/none bs=4k count=1 iflag=direct", PATIENCE)
        assert (rc, "Input/output error" in out) == (1, True)
        rc, _ = box.machine.run(f"dd if=/dev/zero of={MOUNT}/file bs=64k count=1 conv=fsync", PATIENCE)
        assert rc == 1
        check(f"umount {MOUNT}", PATIENCE)


def test_peer_that_stands_still_for_a_moment(box: Box, memory: Memory) -> None:
    """It is waited for, for `timeout` seconds."""
    with disk(box, memory, timeout=120):
        memory.stop()
        job = box.machine.spawn(
            f"tr '\\0' A </dev/zero | dd of={DISK} bs=64k count=16 iflag=fullblock oflag=direct"
        )
        box.machine.check("sleep 1")
        memory.go_on()
        assert job.wait(PATIENCE).rc == 0
    assert memory.bytes[:MiB] == b"A" * MiB


def test_peer_that_stands_still_for_ever(box: Box, memory: Memory) -> None:
    """After `timeout` it counts as lost."""
    with disk(box, memory, timeout=2):
        memory.stop()
        rc, out = box.machine.run(f"dd if={DISK} of=/run/none bs=4k count=1 iflag=direct", PATIENCE)
        assert (rc, "Input/output error" in out) == (1, True)
        assert "no answer for 2 s" in box.log()
        memory.go_on()


def test_device_that_goes(box: Box, memory: Memory, kind: str) -> None:
    """Its removal waits for the module to let it go; the disk has I/O errors then."""
    box.machine.check("dmesg -C")
    box.load("blockdev", addr=box.machine.host_ip, port=memory.port)
    try:
        box.machine.check(f"rdma link delete {kind}0", PATIENCE)
        rc, out = box.machine.run(f"dd if={DISK} of=/run/none bs=4k count=1 iflag=direct", PATIENCE)
        assert (rc, "Input/output error" in out) == (1, True)
    finally:
        box.machine.check(f"rdma link add {kind}0 type {kind} netdev eth0")
        box.unload("blockdev")
    assert not box.splat()


WRONG = "depth=0", "depth=10241", "timeout=0", "timeout=86401"


def test_no_disk(box: Box, memory: Memory) -> None:
    """Wrong parameters, and nobody who listens: the module is not loaded, and nothing is left."""
    for words in ("", "addr=nonsense", *(f"addr=10.77.0.1 {word}" for word in WRONG)):
        rc, _ = box.machine.run(f"insmod {built() / 'blockdev.ko'} port={memory.port} {words}", PATIENCE)
        assert rc == 1, words
    before = box.resources()
    rc, _ = box.machine.run(f"insmod {built() / 'blockdev.ko'} addr={box.machine.host_ip} port=1", PATIENCE)
    assert (rc, box.resources()) == (1, before)


@pytest.mark.parametrize(("length", "why"), [(4095, "No space left"), (1 << 63, "File too large")])
def test_peer_that_offers_what_is_no_disk(box: Box, kind: str, length: int, why: str) -> None:
    """A disk of 2**63 bytes would have a negative size: reading it brings nothing, and no error."""
    with Liar(f"{TRANSPORTS[kind]}_{box.machine.netdev}", length) as liar, box.nothing_left():
        words = f"addr={box.machine.host_ip} port={liar.port}"
        rc, out = box.machine.run(f"insmod {built() / 'blockdev.ko'} {words}", PATIENCE)
        box.machine.run("rmmod blockdev")
        assert (rc, why in out) == (1, True), out
        assert f"offers {length} bytes" in box.log()


def test_ten_loads(box: Box, memory: Memory) -> None:
    module = f"{built() / 'blockdev.ko'} addr={box.machine.host_ip} port={memory.port}"
    write = f"printf turn$i | dd of={DISK} bs=512 seek=$i conv=sync oflag=direct status=none"
    before = box.resources()
    box.machine.check(
        f"set -e; for i in $(seq 0 9); do insmod {module}; {write}; rmmod blockdev; done", PATIENCE
    )
    assert box.resources() == before
    assert [memory.bytes[i * 512 : i * 512 + 5] for i in range(10)] == [b"turn%d" % i for i in range(10)]
