# SPDX-License-Identifier: Apache-2.0
"""`rnic pingpong` against the originals, ibv_{rc,uc,ud}_pingpong over the kernel's device in the guest."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from link import Link, Wire, path_mtus

from rnic.vm import Job, MachineError

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]

# What rnic says of itself when it waits for a message, and all that it has sent is acknowledged.
GAVE_UP = re.compile(
    r"after (\d+) of .*: nothing happened.* RTS; 0 sends .*requests_executed (\d+)", flags=re.DOTALL
)


@contextmanager
def rnic_pingpong(service: str, *options: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rnic", "pingpong", service, *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def stall(link: Link, ours: str, packets: int) -> str:
    """How the guest's kernel stands still though it has to send; "" if it does not.

    rnic waits for a message of so many packets that has not come whole, and all that rnic has sent is
    acknowledged. The kernel's device sends no packet, not even a repeated one (tests/interop/README.md).
    """
    seen = GAVE_UP.search(ours)
    if not packets or not seen or int(seen[2]) >= (int(seen[1]) + 1) * packets:
        return ""
    sent = [link.kernel_sent()]
    time.sleep(2)  # far more than its timeout
    sent.append(link.kernel_sent())
    return f"its queue pair stood still at {sent[0]} packets\n{ours}" if sent[0] == sent[1] else ""


def finish(link: Link, process: subprocess.Popen[str], job: Job, packets: int) -> tuple[str, str]:
    """Wait for both ends; what they printed.  One whose peer has failed waits for ever, and is ended."""
    try:
        our_out, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        our_out = f"{process.communicate()[0]}killed after 60 s\n"
    if process.returncode:
        link.stalled = stall(link, our_out, packets)
        job.kill()
    try:
        rc, out = job.wait(30)
    except MachineError as error:
        rc, out = -1, str(error)
    told = f"rnic, exit {process.returncode}:\n{our_out}\nthe original, exit {rc}:\n{out}"
    assert (process.returncode, rc) == (0, 0), told
    return our_out, out


def pingpong(
    link: Link, rnic: str, ours: list[object], theirs: list[object], *, service: str = "rc", packets: int = 0
) -> tuple[str, str]:
    """Run both ends; what they printed.  Each must succeed; rnic gives up first and says why.

    packets: of each message, where a kernel that stands still is to be told from rnic's failures (stall()).
    """
    port = link.port()
    # It sleeps (-e): one that polls on the guest's one processor was seen to keep the kernel from all packets
    # until it ended, two seconds later.
    events = [] if "-e" in theirs else ["-e"]
    original = " ".join(map(str, [f"ibv_{service}_pingpong", "-d", "rxe0", "-p", port, *events, *theirs]))
    ours = ["-p", port, "--timeout", 30, *ours]
    if rnic == "server":
        with rnic_pingpong(service, *ours) as process:
            link.host_listens(port)
            return finish(link, process, link.guest.spawn(f"{original} {link.guest.host_ip}"), packets)
    job = link.guest.spawn(original)
    link.guest_listens(port)
    with rnic_pingpong(service, *ours, link.guest.ip) as process:
        return finish(link, process, job, packets)


@pytest.mark.combinations(
    8,
    family=["ipv4", "ipv6"],
    rnic=["server", "client"],
    size=[1, 7, 255, 1024, 4097, 65536, 1 << 20],
    events=[False, True],
    path_mtu=path_mtus,
)
def test_rc_pingpong(link: Link, family: str, rnic: str, size: int, events: bool, path_mtu: int) -> None:
    iters = max(3, min(200, (1 << 20) // size))
    common: list[object] = ["-s", size, "-m", path_mtu, "-n", iters, "-i", 1, "-l", 0, "-c", *["-e"] * events]
    ours = ["-d", link.device, "-g", link.rnic_gid_index(family), "-r", 100, *common]
    theirs = ["-g", link.kernel_gid_index(family), "-r", 100, *common]
    for out in pingpong(link, rnic, ours, theirs, packets=-(-size // path_mtu)):
        assert f"{iters} iters in" in out
        assert "invalid data" not in out


@pytest.mark.combinations(
    4,
    family=["ipv4", "ipv6"],
    rnic=["server", "client"],
    size=[1, 1024, 4097, 30000],  # nothing is sent again, so it has to fit a socket's buffer
    events=[False, True],
    path_mtu=path_mtus,
)
def test_uc_pingpong(link: Link, family: str, rnic: str, size: int, events: bool, path_mtu: int) -> None:
    common: list[object] = ["-s", size, "-m", path_mtu, "-n", 100, "-r", 100, "-c", *["-e"] * events]
    ours = ["-g", link.rnic_gid_index(family), "-d", link.device, *common]
    theirs = ["-g", link.kernel_gid_index(family), *common]
    for out in pingpong(link, rnic, ours, theirs, service="uc"):
        assert "100 iters in" in out
        assert "invalid data" not in out


@pytest.mark.combinations(
    4, family=["ipv4", "ipv6"], rnic=["server", "client"], size=[1, 500, 1024], events=[False, True]
)
def test_ud_pingpong(link: Link, family: str, rnic: str, size: int, events: bool) -> None:
    common: list[object] = ["-s", size, "-n", 100, "-r", 100, *["-e"] * events]
    ours = ["-g", link.rnic_gid_index(family), "-d", link.device, *common]
    theirs = ["-g", link.kernel_gid_index(family), *common]
    for out in pingpong(link, rnic, ours, theirs, service="ud"):
        assert "100 iters in" in out


@pytest.mark.combinations(
    3, family=["ipv4", "ipv6"], rnic=["server", "client"], qps=[1, 16], size=[1, 4097], events=[False, True]
)
def test_srq_pingpong(link: Link, family: str, rnic: str, qps: int, size: int, events: bool) -> None:
    common: list[object] = ["-q", qps, "-s", size, "-n", 300, "-r", 100, "-c", *["-e"] * events]
    ours = ["-g", link.rnic_gid_index(family), "-d", link.device, *common]
    theirs = ["-g", link.kernel_gid_index(family), *common]
    for out in pingpong(link, rnic, ours, theirs, service="srq"):
        assert "300 iters in" in out
        assert "invalid data" not in out


@pytest.mark.parametrize("rnic", ["server", "client"])
def test_device_and_gid_are_those_of_the_tcp_connection(link: Link, rnic: str) -> None:
    ours, _ = pingpong(link, rnic, ["-n", 10], ["-n", 10, "-g", link.kernel_gid_index("ipv4")])
    assert f"GID ::ffff:{link.guest.host_ip}" in ours


def test_tshark_reads_what_rnic_sent(wire: Wire) -> None:
    wire.check()
