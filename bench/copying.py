# SPDX-License-Identifier: Apache-2.0
"""`rnic cp` beside cp, rsync and scp: one large file, and many small ones, within memory (tmpfs)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from procs import AbsentError, BrokenError, Values, process
from tables import FILES, GBYTES, Measurements, Row, Setting, Table, Target, at_least

LARGE = 1 << 30
SMALL, COUNT = 4096, 10_000
FOLDERS = 100
WHAT = {"large": "one file of 1 GiB", "small": "10,000 files of 4 KiB"}
TOOLS = ("rnic", "rsync", "scp")
WAYS = {"same host": "127.0.0.1", "two hosts": "10.83.0.2"}
OURS = "10.83.0.1"  # this end of the cable between two hosts
PATIENCE = 120.0
RNIC = str(Path(sys.executable).with_name("rnic"))


class Bench:
    """A directory with what is copied and the servers' files; the other host, when it is asked for."""

    def __init__(self, setting: Setting) -> None:
        self._closing = setting.closing
        self._root: Path | None = None
        self._other: int | None = None

    @property
    def root(self) -> Path:
        if self._root is None:
            where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            found = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="rnic-copy-", dir=where))
            self._root = Path(found)
            make_files(self._root)
        return self._root

    def at(self, way: str) -> list[str]:
        """What stands ahead of a command of the host to which is copied."""
        if way == "same host":
            return []
        if self._other is None:
            self._other = self._closing.enter_context(other_host())
        return ["nsenter", f"--net=/proc/{self._other}/ns/net"]


def make_files(root: Path) -> None:
    for name in WHAT:
        (root / name).mkdir()
    block = os.urandom(1 << 20)
    with (root / "large/file").open("wb") as file:
        for n in range(LARGE >> 20):
            file.write(n.to_bytes(8, "little") + block[8:])
    for n in range(COUNT):
        folder = root / f"small/{n % FOLDERS}"
        folder.mkdir(exist_ok=True)
        (folder / f"{n}").write_bytes(n.to_bytes(8, "little") + block[8:SMALL])


@contextmanager
def other_host() -> Iterator[int]:
    """A process in a network namespace of its own, and a cable to it."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise AbsentError("two network namespaces: they need root")
    with process(["unshare", "--net", "sleep", "infinity"]) as anchor:
        until = time.monotonic() + 10
        ours = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{anchor.pid}/ns/net").readlink() == ours:
            if time.monotonic() > until:
                raise BrokenError("no second network namespace")
            time.sleep(0.01)
        inside = ["nsenter", f"--net=/proc/{anchor.pid}/ns/net"]
        name = f"rb{os.getpid()}"
        for command in (
            ["ip", "link", "add", name, "type", "veth", "peer", "name", "rb0", "netns", str(anchor.pid)],
            ["ip", "addr", "add", f"{OURS}/24", "dev", name],
            ["ip", "link", "set", name, "up"],
            [*inside, "ip", "addr", "add", f"{WAYS['two hosts']}/24", "dev", "rb0"],
            [*inside, "ip", "link", "set", "rb0", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
        ):
            subprocess.run(command, check=True)
        try:
            yield anchor.pid
        finally:
            subprocess.run(["ip", "link", "del", name], check=False)


# ------------------------------------------------------------------ servers, and what a client calls


def wait_open(host: str, port: int, child: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until and child.poll() is None:
        try:
            socket.create_connection((host, port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise BrokenError(f"nobody listens on port {port}")


@contextmanager
def rnic_server(at: list[str], host: str, port: int, target: Path) -> Iterator[list[str]]:
    command = [*at, RNIC, "serve", str(target), "--host", host, "--port", str(port)]
    with process(command) as child:
        if child.stderr is None or not child.stderr.readline():
            raise BrokenError("rnic serve has ended")
        yield [RNIC, "cp", "-r", "--port", str(port), "{}", f"{host}:"]


@contextmanager
def rsync_server(at: list[str], host: str, port: int, target: Path) -> Iterator[list[str]]:
    config = target.parent / "rsyncd.conf"
    config.write_text(f"use chroot = no\nuid = root\ngid = root\n[all]\npath = {target}\nread only = no\n")
    command = ["rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={port}"]
    with process([*at, *command, f"--address={host}"]) as child:
        wait_open(host, port, child)
        yield ["rsync", "-r", "-t", "-p", "{}", f"rsync://{host}:{port}/all/"]


@contextmanager
def scp_server(at: list[str], host: str, port: int, target: Path) -> Iterator[list[str]]:
    keys = target.parent / "keys"
    if not keys.exists():
        keys.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True
            )
    options = {
        "HostKey": keys / "host",
        "AuthorizedKeysFile": keys / "user.pub",
        "StrictModes": "no",
        "PermitRootLogin": "yes",
        "PidFile": "none",
        "UsePAM": "no",
        "Subsystem": "sftp internal-sftp",
        "ListenAddress": host,
    }
    Path("/run/sshd").mkdir(exist_ok=True)
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    with process([*at, "/usr/sbin/sshd", "-D", "-f", "/dev/null", "-p", str(port), *given]) as child:
        wait_open(host, port, child)
        ask = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        yield [
            "scp",
            "-q",
            "-r",
            "-P",
            str(port),
            "-i",
            str(keys / "user"),
            *ask,
            "{}",
            f"root@{host}:{target}",
        ]


SERVERS = {"rnic": rnic_server, "rsync": rsync_server, "scp": scp_server}
NEEDS = {"rnic": RNIC, "rsync": "rsync", "scp": "/usr/sbin/sshd"}


def warm(root: Path) -> None:
    """Take the memory of a copy, and give it back: a virtual machine may have to ask its host for it, and who
    does that takes longer.
    """
    path, block = root / "warm", bytes(1 << 20)
    with path.open("wb") as file:
        for _ in range(LARGE >> 20):
            file.write(block)
    path.unlink()


def figures(root: Path, what: str, run: Callable[[], None]) -> Values:
    """Time what copies a directory into root/target; all of it has to be there."""
    target = root / "target"
    warm(root)
    began = time.perf_counter()
    run()
    took = time.perf_counter() - began
    came = [one for one in target.rglob("*") if one.is_file()]
    nbytes = sum(one.stat().st_size for one in came)
    if (len(came), nbytes) != {"large": (1, LARGE), "small": (COUNT, COUNT * SMALL)}[what]:
        raise BrokenError(f"{len(came)} files with {nbytes} bytes came")
    return {"seconds": took, "gbytes_per_s": nbytes / took / 1e9, "files_per_s": len(came) / took}


def call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise BrokenError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-200:]}")


def fresh(root: Path) -> Path:
    target = root / "target"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    return target


def copy(bench: Bench, what: str, tool: str, way: str) -> Values:
    if shutil.which(NEEDS[tool]) is None:
        raise AbsentError(f"{tool}: sh bench/peers.sh")
    root, host = bench.root, WAYS[way]
    target = fresh(root)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with SERVERS[tool](bench.at(way), host, port, target) as command:
        words = [word.replace("{}", str(root / what)) for word in command]
        return figures(root, what, partial(call, words))


def plain(bench: Bench, what: str) -> Values:
    target = fresh(bench.root)
    command = [
        "cp",
        "-r",
        "--reflink=never",
        "--preserve=mode,timestamps",
        str(bench.root / what),
        str(target),
    ]
    return figures(bench.root, what, partial(call, command))


# ------------------------------------------------------------------ tables


def measurements(s: Setting) -> Measurements:
    bench, found = Bench(s), Measurements()
    for what in WHAT:
        found[f"cp {what}"] = partial(plain, bench, what)
        for way in WAYS:
            for tool in TOOLS:
                found[f"{way} {tool} {what}"] = partial(copy, bench, what, tool, way)
    return found


def tables() -> list[Table]:
    def row(way: str, what: str) -> Row:
        peers = {tool: f"{way} {tool} {what}" for tool in TOOLS[1:]}
        if way == "same host":
            peers["cp"] = f"cp {what}"
        return Row(f"{way}: {WHAT[what]}", GBYTES if what == "large" else FILES, f"{way} rnic {what}", peers)

    return [
        Table(
            "Tools: rnic cp",
            "The server is on this host, or in another network namespace behind a virtual cable. Files go "
            "from tmpfs to tmpfs, into memory that was used just before. The time is the client's, from its "
            "start to its end. rsync: its daemon, no encryption. scp encrypts.",
            ("rsync", "scp", "cp"),
            [row(way, what) for way in WAYS for what in WHAT],
        )
    ]


def targets() -> list[Target]:
    return [
        at_least(
            1.0,
            f"rnic cp, {way}, {WHAT[what]}, {tool}",
            GBYTES if what == "large" else FILES,
            f"{way} rnic {what}",
            f"{way} {tool} {what}",
        )
        for way in WAYS
        for what in WHAT
        for tool in TOOLS[1:]
    ]
