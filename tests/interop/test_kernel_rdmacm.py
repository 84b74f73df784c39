# SPDX-License-Identifier: Apache-2.0
"""The example programs of RDMA-CM against the originals over the kernel's device, each in both roles."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from cm_programs import (
    finish,
    listens_here,
    listens_there,
    original,
    ping,
    python,
    rnic,
    server_and_client,
    ucmatose,
)
from link import Link, Wire

from rnic.rdmacm import create_id

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]
ROLES = ["server", "client"]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "multicast_example.py"
UDADDY_PORT = 7174  # the original knows no other


@pytest.mark.combinations(
    3, family=["ipv4", "ipv6"], role=ROLES, load=["-c 16 -C 100 -S 4096", "-c 1 -C 1000 -S 100", "-C 0"]
)
def test_ucmatose(link: Link, family: str, role: str, load: str) -> None:
    ucmatose(link, family, role, load)


@pytest.mark.combinations(
    4, family=["ipv4", "ipv6"], role=ROLES, size=[23, 64, 4096, 65535], own_qp=["", "-q"]
)
def test_rping(link: Link, family: str, role: str, size: int, own_qp: str) -> None:
    ping(link, family, role, 50, f"-S {size} {own_qp}")


@pytest.mark.parametrize("role", ROLES)
def test_a_thousand_pings(link: Link, role: str) -> None:
    ping(link, "ipv4", role, 1000, "-S 64")


@pytest.mark.combinations(3, family=["ipv4", "ipv6"], role=ROLES, load=["-C 10 -S 1024", "-c 8 -C 5", "-C 0"])
def test_udaddy(link: Link, family: str, role: str, load: str) -> None:
    udaddy(link, family, role, load)


def udaddy(link: Link, family: str, role: str, load: str) -> None:
    here, there = link.host_ip[family], link.guest_ip[family]
    if role == "server":
        with rnic("udaddy", *load.split(), "-b", here) as process:
            listens_here(process)
            ours, theirs = finish(process, original(link, f"udaddy {load} -s {here}"))
    else:
        job = original(link, f"udaddy {load} -b {there}")
        listens_there(link, UDADDY_PORT)
        with rnic("udaddy", *load.split(), "-s", there) as process:
            ours, theirs = finish(process, job)
    assert "bytes each way" in ours
    assert "return status 0" in theirs


@pytest.mark.combinations(2, role=["sender", "receiver"], load=["-C 10", "-c 3 -C 4 -S 1024"])
def test_mckey(link: Link, role: str, load: str) -> None:
    """IPv4 alone: the kernel (6.1) joins no IPv6 group by RDMA-CM over RoCEv2, it answers ENOTSUPP."""
    here, there = link.host_ip["ipv4"], link.guest_ip["ipv4"]
    common = f"-m 239.77.3.4 {load}"
    if role == "sender":
        job = original(link, f"mckey {common} -b {there}")
        job.expect("joined dgid", timeout=60)
        with rnic("mckey", *common.split(), "-b", here, "-s", "--pause", 0.5) as process:
            ours, theirs = finish(process, job)
    else:
        with rnic("mckey", *common.split(), "-b", here) as process:
            assert process.stdout is not None
            process.stdout.readline()
            ours, theirs = finish(process, original(link, f"mckey {common} -b {there} -s"))
    assert "bytes sent" in ours or "bytes received" in ours
    assert "return status 0" in theirs


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_the_multicast_example(link: Link, role: str) -> None:
    here, there = link.host_ip["ipv4"], link.guest_ip["ipv4"]
    if role == "sender":
        job = original(link, f"mckey -m 239.77.3.5 -b {there}")
        job.expect("joined dgid", timeout=60)
        with python(EXAMPLE, "-m", "239.77.3.5", "-b", here, "-s", "--pause", 0.5) as process:
            ours, theirs = finish(process, job)
    else:
        with python(EXAMPLE, "-m", "239.77.3.5", "-b", here) as process:
            assert process.stdout is not None
            process.stdout.readline()
            ours, theirs = finish(process, original(link, f"mckey -m 239.77.3.5 -b {there} -s"))
    assert "10 messages sent" in ours or ours.count("100 bytes from queue pair") == 10
    assert "return status 0" in theirs


@pytest.mark.parametrize("role", ROLES)
def test_rdma_server_and_client(link: Link, family: str, role: str) -> None:
    server_and_client(link, family, role)


def test_cmtime_calls(link: Link) -> None:
    """Connections that are made all at once, and ended at once, by both ends."""
    here = link.host_ip["ipv4"]
    with rnic("ucmatose", "-c", 50, "-C", 0, "-b", here, "-p", 0) as process:
        port = listens_here(process)
        finish(process, original(link, f"cmtime -c 50 -s {here} -p {port}"))


def test_cmtime_is_called(link: Link) -> None:
    """It serves for ever; a call that returns was answered."""
    there, port = link.guest_ip["ipv4"], link.port()
    job = original(link, f"cmtime -c 50 -b {there} -p {port}")
    listens_there(link, port)
    with ExitStack() as stack:
        ids = [stack.enter_context(create_id()) for _ in range(50)]
        for one in ids:
            one.resolve_addr(None, (there, port))
            one.resolve_route()
            one.create_qp()
            one.connect()
        for one in ids:
            one.disconnect()
    assert job.rc is None, job.out
    job.kill()


def test_tshark_reads_what_rnic_sent(link: Link, wire: Wire) -> None:
    for role in ROLES:  # every kind of message from either end, whichever other tests ran
        ucmatose(link, "ipv4", role, "-c 1 -C 1")
        udaddy(link, "ipv4", role, "-C 1")
    kinds = {"req", "rep", "rtu", "dreq", "drep", "sidr req", "sidr rep"}
    for report in wire.check():
        assert set(report.mads) >= kinds, report.mads
