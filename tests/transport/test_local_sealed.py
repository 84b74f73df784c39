# SPDX-License-Identifier: Apache-2.0
"""Memory that peers on this host may only read is sealed: a file of its own, which they cannot write to."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import rnic
from rnic import SGE, AccessFlags, RecvWR, WCStatus, WROpcode
from rnic.testing import End, connect_through
from transport.scene import PATIENT, SIZE, Scene, by_lane, perform, send

pytestmark = pytest.mark.own_way


def sealed_files() -> list[int]:
    """Descriptors of regions that others may only read."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("/memfd:rnic-sealed"):
                found.append(int(entry.name))
    return found


def test_what_peers_may_only_read_is_sealed(scene: Scene) -> None:
    """By the kernel, not by good manners: who has the descriptor, or opens it again, cannot write there."""
    mr = scene.b.memory(5000, AccessFlags.REMOTE_READ)
    mr.buf[:] = os.urandom(5000)
    before = scene.counted("local_direct")
    for _ in range(2):
        assert scene.do(WROpcode.RDMA_READ, 5000, there=mr).ok
        assert bytes(scene.source.buf[:5000]) == bytes(mr.buf)
        mr.buf[:] = os.urandom(5000)
    assert scene.counted("local_direct") == before + 2
    (fd,) = sealed_files()
    for flags in (os.O_RDWR, os.O_RDONLY):
        again = os.open(f"/proc/self/fd/{fd}", flags)
        with pytest.raises(PermissionError):
            mmap.mmap(again, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(OSError, match="Errno"):
            os.pwrite(again, b"!", 0)
        with pytest.raises(OSError, match="Errno"):
            os.ftruncate(again, 0)
        os.close(again)
    assert scene.do(WROpcode.RDMA_WRITE, 8, there=mr).status is WCStatus.REM_ACCESS_ERR
    mr.close()
    assert not sealed_files()


def test_a_sealed_region_can_be_given_other_rights(scene: Scene) -> None:
    """Then its peers go by packets: nobody but its owner can write there."""
    mr = scene.b.memory(4096, AccessFlags.REMOTE_READ)
    mr.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=rnic.testing.ALL_ACCESS)
    before = scene.counted("local_direct")
    scene.source.buf[:4096] = os.urandom(4096)
    assert scene.do(WROpcode.RDMA_WRITE, 4096, there=mr).ok
    assert bytes(mr.buf) == bytes(scene.source.buf[:4096])
    assert scene.counted("local_direct") == before


def test_there_are_more_such_regions_than_descriptors_for_them(scene: Scene) -> None:
    regions = [scene.b.memory(8, AccessFlags.REMOTE_READ) for _ in range(300)]
    assert len(sealed_files()) == 256
    for i, mr in enumerate(regions):
        struct.pack_into("=Q", mr.buf, 0, i)
        assert scene.do(WROpcode.RDMA_READ, 8, there=mr).ok
        assert struct.unpack_from("=Q", scene.source.buf) == (i,)
    for mr in regions:
        mr.close()
    assert not sealed_files()


def test_a_message_from_sealed_memory_arrives() -> None:
    with by_lane(PATIENT) as scene:
        mr = scene.a.memory(SIZE, AccessFlags.REMOTE_READ)
        mr.buf[:] = os.urandom(SIZE)
        scene.b.qp.post_recv(RecvWR(1, [SGE(scene.target)]))
        assert send(scene.a, [SGE(mr)]).ok
        scene.b.wait_ok()
        assert bytes(scene.target.buf) == bytes(mr.buf)
        assert scene.counted("timeouts") == 0


def test_another_process_imports_no_sealed_region(scene: Scene) -> None:
    """It would have to map it to write."""
    mr = scene.a.memory(64, AccessFlags.REMOTE_READ)
    script = f"""
import rnic
with rnic.import_device({scene.a.ctx.cmd_fd}) as ctx, ctx.import_pd({scene.a.pd.handle}) as pd:
    try:
        pd.import_mr({mr.handle})
    except rnic.VerbsError as error:
        print(error)
"""
    fds = [scene.a.ctx.cmd_fd]
    done = subprocess.run(
        [sys.executable, "-c", script], pass_fds=fds, capture_output=True, text=True, check=True
    )
    assert "others may only read" in done.stdout


OWNER = """
import socket, struct, sys
from rnic import AccessFlags
from rnic.testing import End, connect_through
with socket.socket(fileno=int(sys.argv[1])) as way, End(local=True) as end:
    mr = end.memory(4096, AccessFlags.REMOTE_READ)
    mr.buf[:] = bytes(range(256)) * 16
    connect_through(end.qp, way)
    way.sendall(struct.pack("=QI", mr.addr, mr.rkey))
    way.recv(1)
"""


def test_the_sealed_memory_of_another_process_is_read_without_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, End(local=True) as end:
        with theirs:
            fds = [theirs.fileno()]
            owner = subprocess.Popen([sys.executable, "-c", OWNER, str(fds[0])], pass_fds=fds)
        into = end.memory(4096)
        connect_through(end.qp, ours)
        there = struct.unpack("=QI", ours.recv(12, socket.MSG_WAITALL))
        for _ in range(2):
            into.buf[:] = bytes(4096)
            assert perform(end, WROpcode.RDMA_READ, [SGE(into)], there).ok
            assert bytes(into.buf) == bytes(range(256)) * 16
        assert end.ctx.counters().local_direct == 1
    assert owner.wait(180) == 0
