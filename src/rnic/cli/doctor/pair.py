# SPDX-License-Identifier: Apache-2.0
"""The local transport, tried between this process and a second one."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO

import rnic
from rnic.cli import endpoint, environment, exchange
from rnic.cli.child import end, last_words, scratch, start
from rnic.cli.doctor.finding import Finding, degraded, good, missing
from rnic.cli.doctor.machine import text_of
from rnic.cli.params import Failure

SHARED = "shared memory"
BYTES = 64
WRITTEN = rnic.AccessFlags.LOCAL_WRITE | rnic.AccessFlags.REMOTE_WRITE
PATIENCE = 20.0  # seconds for the other process to answer
TOLD = struct.Struct("=QIi")  # memory, and how process_vm_readv went: 0 or errno
HELLO = struct.Struct("=iQ")  # the asker's process, and an address in it

PTRACE_CURES = {
    "1": "sysctl kernel.yama.ptrace_scope=0, or memory of alloc_mr",
    "2": "sysctl kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE, or memory of alloc_mr",
    "3": "memory of alloc_mr (kernel.yama.ptrace_scope is 3 until the next boot)",
}


def look(name: str) -> Iterator[Finding]:
    """All checks with a second process; `name` is its command."""
    try:
        local = environment.is_local()
        if not local:
            yield degraded(
                SHARED, "switched off: peers on this host are reached over UDP", "unset RNIC_LOCAL"
            )
        moved, traced = attempt(name)
    except (OSError, Failure) as error:
        why = error.message if isinstance(error, Failure) else str(error)
        yield missing(SHARED, f"two processes did not reach each other: {why}", "see the lines above")
        return
    if local:
        yield shared(moved)
    yield copies(traced)


def shared(moved: tuple[int, int]) -> Finding:
    """moved: packets by it, operations without packets."""
    what, (packets, direct) = SHARED, moved
    if not packets:
        return degraded(
            what,
            "two processes of this user reach each other only over UDP",
            "RNIC_LOCAL=on for both; a sandbox may forbid abstract unix sockets, or passing descriptors",
        )
    if not direct:
        return degraded(
            what,
            "packets use it; WRITE, READ and atomics take two copies",
            "a set-user-id program shares no memory: run it as the user itself",
        )
    return good(what, "packets; WRITE, READ and atomics go straight to the other's memory")


def copies(refused: int) -> Finding:
    """refused: 0, or the errno of process_vm_readv(2)."""
    what = "process_vm_readv"
    if not refused:
        return good(
            what, "between two processes of this user: long messages of ordinary memory are copied once"
        )
    scope = text_of("/proc/sys/kernel/yama/ptrace_scope")
    why = os.strerror(refused) + (f" (kernel.yama.ptrace_scope is {scope})" if scope else "")
    cure = PTRACE_CURES.get(scope, "a sandbox (seccomp) forbids it: allow it, or use memory of alloc_mr")
    return degraded(what, f"{why}: ordinary memory goes through the ring, in staged copies", cure)


# ---------------------------------------------------------------- two processes


class End:
    """A queue pair of this process, and memory for its peer."""

    def __init__(self, stack: ExitStack) -> None:
        self.port = endpoint.open_port(device(), 1, 0, None)
        ctx = stack.enter_context(self.port.ctx)
        self.pd = stack.enter_context(ctx.alloc_pd())
        self.cq = stack.enter_context(ctx.create_cq(16))
        init = rnic.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=rnic.QPType.RC)
        self.qp = stack.enter_context(self.pd.create_qp(init))
        self.mr = stack.enter_context(self.pd.alloc_mr(BYTES, WRITTEN))

    def connect(self, way: socket.socket) -> None:
        """Connect; both ends do this at once."""
        endpoint.to_init(self.qp, self.port.port_num, WRITTEN & ~rnic.AccessFlags.LOCAL_WRITE)
        local = self.port.address(self.qp)
        exchange.send_address(way, local)
        remote = exchange.receive_address(way)
        endpoint.connect(self.qp, self.port, local, remote, mtu=rnic.MTU.MTU_1024)
        exchange.send_done(way)
        exchange.receive_done(way)

    def write(self, addr: int, rkey: int) -> None:
        """WRITE, and wait for the completion."""
        sge = rnic.SGE(self.mr, offset=0, length=BYTES)
        wr = rnic.SendWR(opcode=rnic.WROpcode.RDMA_WRITE, sg_list=[sge], remote_addr=addr, rkey=rkey)
        wr.send_flags = rnic.SendFlags.SIGNALED
        self.qp.post_send(wr)
        patience = endpoint.Patience(PATIENCE)
        while not (found := self.cq.poll(1)):
            patience.wait("a WRITE to the other process")
        endpoint.check(found[0])


def device() -> str:
    """The RoCE device for both processes: the loopback interface's, if there is one."""
    names = [one.name for one in rnic.get_device_list() if one.transport is rnic.Transport.IB]
    if not names:
        raise Failure("this host has no RoCE device")
    return "roce_lo" if "roce_lo" in names else names[0]


def attempt(name: str) -> tuple[tuple[int, int], int]:
    """Two WRITEs to the other process: (packets by shared memory, operations without packets), and whether it
    could read this process' memory: 0 or errno."""
    with scratch() as stderr:
        try:
            return write_twice(name, stderr)
        except Failure as failure:
            raise Failure(failure.message + last_words(stderr)) from None


def write_twice(name: str, stderr: IO[bytes]) -> tuple[tuple[int, int], int]:
    """The same; stderr: the other process'."""
    ours, theirs = socket.socketpair()
    with ExitStack() as stack:
        stack.enter_context(ours)
        with theirs:
            child = start(name, str(theirs.fileno()), pass_fds=[theirs.fileno()], stderr=stderr)
        stack.callback(end, child, 0.5)
        stack.callback(ours.close)  # which ends it
        ours.settimeout(PATIENCE)
        here = End(stack)
        seen = ctypes.create_string_buffer(b"rnic", 8)
        exchange.tell(ours, HELLO.pack(os.getpid(), ctypes.addressof(seen)), "greeting")
        here.connect(ours)
        told = exchange.hear(ours, TOLD.size, "waiting for the other process")
        addr, rkey, traced = TOLD.unpack(told)
        for _ in range(2):  # the first of a connection is a packet always
            here.write(addr, rkey)
        counters = here.port.ctx.counters()
        return (counters.local_sent, counters.local_direct), traced


def serve(fd: int) -> None:
    """The second process: it ends when the first one has gone."""
    with ExitStack() as stack:
        way = stack.enter_context(socket.socket(fileno=fd))
        way.settimeout(PATIENCE)
        here = End(stack)
        pid, address = HELLO.unpack(exchange.hear(way, HELLO.size, "waiting for a greeting"))
        here.connect(way)
        told = TOLD.pack(here.mr.addr, here.mr.rkey, read_process(pid, address))
        exchange.tell(way, told, "answering")
        way.recv(1)


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_process(pid: int, address: int) -> int:
    """process_vm_readv(2) of four bytes of a process that is not a child: 0 or errno."""
    libc, into = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(4)
    here = _Iovec(ctypes.addressof(into), 4)
    there = _Iovec(address, 4)
    zero, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
    got = libc.process_vm_readv(ctypes.c_int(pid), ctypes.byref(here), one, ctypes.byref(there), one, zero)
    if got < 0:
        return ctypes.get_errno()
    return 0 if got == 4 and into.raw == b"rnic" else errno.EIO
