# SPDX-License-Identifier: Apache-2.0
"""An example program of RDMA-CM at each end of the link: the original in the guest, rnic's command here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from link import Link

from rnic.vm import Job, MachineError

SECONDS = 60


@contextmanager
def rnic(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command `rnic`."""
    with python("-m", "rnic", *arguments) as process:
        yield process


@contextmanager
def python(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A program of rnic's; it is killed at the end."""
    command = [sys.executable, "-u", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def original(link: Link, *words: object) -> Job:
    """The original; each line is seen when it is printed."""
    return link.guest.spawn(f"stdbuf -oL {' '.join(map(str, words))} 2>&1")


def listens_here(process: subprocess.Popen[str]) -> int:
    """The port of a command that was started with port 0."""
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.fullmatch(r"listening on port (\d+) of .*\n", line)
    assert match, line + process.stdout.read()
    assert process.stdout.readline().startswith("client: ")
    return int(match[1])


def listens_there(link: Link, port: int) -> None:
    """Return when an id in the guest listens on the port."""
    listing = f"rdma resource show cm_id | grep -E 'state LISTEN .*:{port}( |$)'"
    link.guest.check(f"until {listing}; do sleep 0.1; done", timeout=60)


def finish(process: subprocess.Popen[str], job: Job, *, judge: bool = True) -> tuple[str, str]:
    """What both ends printed; both must succeed. judge=False: the original's exit status says nothing."""
    try:
        ours, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        ours = f"{process.communicate()[0]}killed after {SECONDS} s\n"
    if process.returncode:
        job.kill()
    try:
        rc, theirs = job.wait(30)
    except MachineError as error:
        rc, theirs = -1, str(error)
    told = f"rnic, exit {process.returncode}:\n{ours}\noriginal, exit {rc}:\n{theirs}"
    assert process.returncode == 0, told
    assert rc == 0 or not judge, told
    return ours, theirs


def ucmatose(link: Link, family: str, role: str, load: str) -> None:
    """Run it at both ends; the role is rnic's."""
    here, there = link.host_ip[family], link.guest_ip[family]
    if role == "server":
        with rnic("ucmatose", *load.split(), "-b", here, "-p", 0) as process:
            port = listens_here(process)
            ours, theirs = finish(process, original(link, "ucmatose", load, "-p", port, "-s", here))
    else:
        port = link.port()
        job = original(link, "ucmatose", load, "-p", port, "-b", there)
        listens_there(link, port)
        with rnic("ucmatose", *load.split(), "-p", port, "-s", there) as process:
            ours, theirs = finish(process, job)
    assert "disconnected" in ours
    assert "return status 0" in theirs


def server_and_client(link: Link, family: str, role: str) -> None:
    """Run rdma_server and rdma_client; the role is rnic's."""
    here, there = link.host_ip[family], link.guest_ip[family]
    if role == "server":
        with rnic("rdma-server", "-s", here, "-p", 0) as process:
            port = listens_here(process)
            ours, theirs = finish(process, original(link, f"rdma_client -s {here} -p {port}"))
    else:
        port = link.port()
        job = original(link, f"rdma_server -s {there} -p {port}")
        listens_there(link, port)
        with rnic("rdma-client", "-s", there, "-p", port) as process:
            ours, theirs = finish(process, job)
    assert "received 16 bytes" in ours
    assert "end 0" in theirs


def ping(link: Link, family: str, role: str, count: int, options: str, ours_alone: str = "") -> None:
    """rping, of which both ends print and compare; both have seen the same. The role is rnic's."""
    load = f"-C {count} {options} -v -V"
    here = [*load.split(), *ours_alone.split()]
    if role == "server":
        address = link.host_ip[family]
        with rnic("rping", "-s", "-a", address, "-p", 0, *here) as process:
            port = listens_here(process)
            job = original(link, f"rping -c -a {address} -p {port} {load}")
            # Its exit status after a good run may be 255: what it says counts.
            ours, theirs = finish(process, job, judge=False)
        server, client = ours, theirs
    else:
        address, port = link.guest_ip[family], link.port()
        job = original(link, f"rping -s -a {address} -p {port} {load}")
        listens_there(link, port)
        with rnic("rping", "-c", "-a", address, "-p", port, *here) as process:
            ours, theirs = finish(process, job, judge=False)
        server, client = theirs, ours
    assert pings(client, "ping data: ") == pings(server, "server ping data: ")
    assert len(pings(client, "ping data: ")) == count, client


def pings(output: str, head: str) -> list[str]:
    """What an end says that it has pinged."""
    return [line.removeprefix(head) for line in output.splitlines() if line.startswith(head)]
