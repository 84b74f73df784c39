# SPDX-License-Identifier: Apache-2.0
"""`rnic demo`: a file by RDMA WRITE from this process to one that it starts, then what the link can do."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

import rnic
from rnic.cli import completion, endpoint, exchange, measure, network, params, screen
from rnic.cli.child import end, last_words, scratch, start
from rnic.cli.command import command
from rnic.cli.params import Failure, show_rate, show_size, show_time
from rnic.cli.transfer import (
    CHUNK,
    QUIET,
    WINDOW,
    WRITE_WRID,
    Link,
    available_memory,
    describe,
    receiver,
)

ROOMY = 78  # columns that a progress bar with units needs
RANDOM = "random bytes"  # what a file without a name is called
Advance = Callable[[int], None]  # told how many bytes are done
Gone = Callable[[], str | None]  # why the other process will never answer, or None

on_device = click.option(
    "-d",
    "--ib-dev",
    "device",
    metavar="NAME",
    shell_complete=completion.devices,
    help="Device  [the one with the TCP connection's address]",
)


@command()
@click.argument("path", required=False, type=params.RegularFile())
@click.option(
    "--size",
    type=params.size(),
    default="256M",
    show_default=True,
    help="Size of the file made without PATH.",
)
@click.option(
    "-p",
    "--port",
    type=params.number(0, 65535),
    default=0,
    help="TCP port where the two processes meet; 0: a free one.",
)
@on_device
def demo(path: Path | None, size: int, port: int, device: str | None) -> None:
    """Send a file from one process to another by RDMA, and measure the connection.

    This process starts a second one, announces the file by SEND, and writes the bytes by RDMA WRITE into its
    memory.  The second process verifies the SHA-256.  Then a table shows the speed of each operation.

    \b
    rnic demo                        a generated file of 256 MiB
    rnic demo --size 1G
    rnic demo /usr/bin/python3
    rnic demo -d iwarp_lo            over iWARP
    """
    console = Console(highlight=False)
    host = network.here(None if device is None else endpoint.look(device, 1, None))
    with words_of_the_receiver() as words, ExitStack() as stack:
        file = make_file(stack, size, console) if path is None else stack.enter_context(path.open("rb"))
        link = start_receiver(stack, host, port, device, words)
        send_file(link, file, path or Path(RANDOM), console)
        with console.status("measuring latency and bandwidth"):
            rows = measure.measure(link, stack)
        link.control.send("bye")
        show(rows, console)
        say(console, "latency: half a round trip (SEND), posting to completion (others); seen from Python")
        say(
            console,
            "bandwidth: the same memory is moved again and again, and stays in the processor's caches; "
            "a file comes from memory or disk, and is moved once",
        )


@command()
@click.argument("host")
@click.argument("port", type=params.number(1, 65535))
@on_device
def demo_receiver(host: str, port: int, device: str | None) -> None:
    """The second process of `rnic demo`, which starts it."""
    try:
        with exchange.connect(host, port, QUIET) as sock:
            receiver(sock, device)
    except Failure as failure:
        raise Failure(f"receiver: {failure.message}") from None


def say(console: Console, text: str) -> None:
    """Text as it is: a file's name may look like markup."""
    lines = screen.folded(text, console.width) if console.is_terminal else [text]
    console.print("\n".join(lines), soft_wrap=True, markup=False)


def make_file(stack: ExitStack, size: int, console: Console) -> IO[bytes]:
    """A file of random bytes, without a name, so that not even SIGKILL leaves it behind."""
    file, where = nameless(stack)
    try:
        room = available(file)
        if room is not None and size > room:
            room = room >> 20 << 20  # whole MiB
            raise Failure(f"--size {show_size(size)}: {where} has room for {show_size(room)}; choose less")
        with progress(console, "making a file", size) as advance:
            for offset in range(0, size, CHUNK):
                part = min(CHUNK, size - offset)
                file.write(os.urandom(part))
                advance(part)
        file.seek(0)
    except OSError as error:
        raise Failure(f"could not make a file of {size} bytes in {where}: {error.strerror}") from None
    return file


def nameless(stack: ExitStack) -> tuple[IO[bytes], str]:
    """A file that is gone when the stack unwinds, and where it lies: in memory if nowhere can be written."""
    try:
        where = tempfile.gettempdir()
        return stack.enter_context(tempfile.TemporaryFile(dir=where, prefix="rnic-demo-")), where
    except OSError:
        return stack.enter_context(scratch()), "memory"


def available(file: IO[bytes]) -> int | None:
    """Bytes that the file system of a file has room for; None: it has no limit of its own."""
    found = os.fstatvfs(file.fileno())
    return found.f_bavail * found.f_frsize if found.f_blocks else available_memory()


def bars(console: Console) -> Progress:
    """Where progress bars are shown, with units where there is room; disabled where there is no terminal."""
    units = (DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(None if console.width < ROOMY else 40),
        TaskProgressColumn(),
        *(units if console.width >= ROOMY else ()),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Advance]:
    """A progress bar with units on a terminal, nothing elsewhere; yields what to tell of bytes just done."""
    bar = bars(console)
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def words_of_the_receiver() -> Iterator[IO[bytes]]:
    """Its stderr: the reason of a failure stands there, if it has seen one."""
    with scratch() as stderr:
        try:
            yield stderr
        except Failure as failure:
            raise Failure(failure.message + last_words(stderr)) from None


def start_receiver(stack: ExitStack, host: str, port: int, device: str | None, stderr: IO[bytes]) -> Link:
    """Start the second process and connect to it; the stack ends it."""
    listener = stack.enter_context(exchange.listen(port, host))
    port = listener.getsockname()[1]
    chosen = [] if device is None else ["-d", device]
    child = start(demo_receiver.name or "", host, str(port), *chosen, stderr=stderr)
    stack.push(lambda kind, _error, _traceback: end(child, 3 if kind is None else 0.5))

    def gone() -> str | None:
        status = child.poll()
        return None if status is None else f"the receiver ended with exit code {status}"

    sock = stack.enter_context(accept(listener, gone))
    return Link(sock, stack, gone, device)


def accept(listener: socket.socket, gone: Gone) -> socket.socket:
    """The receiver's TCP connection; Failure when it ends before it connects."""
    listener.settimeout(0.1)
    until = time.monotonic() + QUIET
    while True:
        try:
            return exchange.accept(listener, QUIET)
        except TimeoutError:
            if why := gone():
                raise Failure(why) from None
            if time.monotonic() > until:
                raise Failure(f"the receiver did not connect within {QUIET:g} s") from None


def send_file(link: Link, file: IO[bytes], path: Path, console: Console) -> None:
    """Announce the file, write it into the receiver's memory, and wait for the verdict."""
    length = os.fstat(file.fileno()).st_size
    say(console, f"{path}: {show_size(length)} over {link.port.ctx.name}")
    with progress(console, "SHA-256", length) as advance:
        digest = sha256(file, advance)
    if file.tell() != length:  # as in /proc
        raise Failure(
            f"{path}: the system says that it has {length} bytes, and gives {file.tell()}: copy it first"
        )
    link.control.send("offer", name=path.name, length=length, sha256=digest)
    region = link.control.receive("region")
    began = time.perf_counter()
    with progress(console, "RDMA WRITE", length) as advance:
        reading = write_chunks(link, file, length, region["addr"], region["rkey"], advance)
    seconds = max(time.perf_counter() - began, 1e-9)
    rate = show_rate(length / seconds)
    how = f"{describe(length)} {way(link.port.ctx)}"
    how += f"; reading the file took {show_time(reading)} of it"
    say(console, f"sent in {show_time(seconds)}: {rate}, {how}")
    link.control.send("written")
    verdict = link.control.receive("verdict", quiet=QUIET + length / 50e6)
    if not verdict["good"]:
        raise Failure(f"the receiver has other bytes: SHA-256 {verdict['sha256']} instead of {digest}")
    say(console, f"verified by the receiver: SHA-256 {digest}")


def way(ctx: rnic.Context) -> str:
    """How packets went so far: a queue pair takes one way, and the file's is the first to send."""
    counters = ctx.counters()
    if endpoint.is_iwarp(ctx.device):
        return "over TCP"
    return "by shared memory" if counters.local_sent or counters.local_direct else "over UDP"


def sha256(file: IO[bytes], advance: Advance) -> str:
    """The digest of the whole file."""
    hasher = hashlib.sha256()
    while part := file.read(CHUNK):
        hasher.update(part)
        advance(len(part))
    return hasher.hexdigest()


def write_chunks(link: Link, file: IO[bytes], length: int, addr: int, rkey: int, advance: Advance) -> float:
    """RDMA WRITE the file to `addr`; while up to WINDOW chunks are on their way, read the next ones.

    Returns the seconds that reading took.
    """
    file.seek(0)
    control = link.control
    with (
        link.pd.reg_mr(bytearray(CHUNK * WINDOW), rnic.AccessFlags(0)) as staging,
        memoryview(staging.buf) as view,
    ):
        free, lengths = list(range(WINDOW)), [0] * WINDOW
        posted = written = 0
        reading = 0.0
        while written < length:
            while free and posted < length:
                slot = free.pop()
                start, size = slot * CHUNK, min(CHUNK, length - posted)
                began = time.perf_counter()
                read_exactly(file, view[start : start + size])
                reading += time.perf_counter() - began
                control.qp.post_send(
                    rnic.SendWR(
                        wr_id=WRITE_WRID | slot,
                        opcode=rnic.WROpcode.RDMA_WRITE,
                        send_flags=rnic.SendFlags.SIGNALED,
                        sg_list=[rnic.SGE(staging, offset=start, length=size)],
                        remote_addr=addr + posted,
                        rkey=rkey,
                    )
                )
                lengths[slot] = size
                posted += size
            control.progress("writing the file")
            while control.written:
                slot = control.written.popleft()
                free.append(slot)
                written += lengths[slot]
                advance(lengths[slot])
    return reading


def read_exactly(file: IO[bytes], into: memoryview) -> None:
    """Fills the view; Failure when the file has become shorter."""
    filled = 0
    while filled < len(into):
        count = file.readinto(into[filled:])  # type: ignore[attr-defined]
        if not count:
            raise Failure(f"{file.name} became shorter while it was sent")
        filled += count


def show(rows: list[measure.Row], console: Console) -> None:
    """The figures, one operation a row."""
    headings = ["operation", "8 B latency", *(show_size(size) for size in measure.SIZES)]
    table = [
        (
            row.operation,
            show_time(row.latency),
            *(show_rate(row.bandwidth[size]) if size in row.bandwidth else "-" for size in measure.SIZES),
        )
        for row in rows
    ]
    screen.table(console, headings, table, right=True)
