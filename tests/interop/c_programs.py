# SPDX-License-Identifier: Apache-2.0
"""C programs at both ends of the link: under `rnic run` here, over the kernel's device in the guest."""

from __future__ import annotations

import pytest
from cm_programs import listens_there
from lab.guest import Job
from link import Link

from ucma.under import Program, call, need

PINGED = "ping data: rdma-ping-"


def in_guest(link: Link, words: str) -> Job:
    """The program there."""
    return link.guest.spawn(f"stdbuf -oL {words} 2>&1")


def good(job: Job) -> str:
    """What a program there has said that ends well."""
    status, said = job.wait(60)
    assert status == 0, said
    return said


def connected(link: Link, family: str, role: str, server: str, client: str) -> tuple[str, str]:
    """Run a server and its client, which RDMA-CM connects; the role is that of the program here.

    SERVER and PORT in their words are the server's address and port. What the program here and the one there
    have said; both end well.
    """
    name = server.split()[0]
    if family == "ipv6" and name.startswith("ib_"):
        pytest.skip("this version of perftest makes connections over IPv4 alone")
    need(name, "perftest" if name.startswith("ib_") else "rdmacm-utils")
    port = link.port()
    address = (link.host_ip if role == "server" else link.guest_ip)[family]
    server, client = (text.replace("PORT", str(port)).replace("SERVER", address) for text in (server, client))
    if role == "server":
        with Program(*server.split()) as process:
            link.program_listens(process, port)
            job = in_guest(link, client)
            there = judged(job, name)
            here = process.good()
    else:
        job = in_guest(link, server)
        listens_there(link, port)
        here = call(*client.split())
        there = judged(job, name)
    if name == "rping":
        assert here.count(PINGED) == there.count(PINGED) > 0, (here, there)
    return here, there


def judged(job: Job, name: str) -> str:
    """What a program there has said. Of rping that counts: its exit status after a good run may be 255."""
    return job.wait(60).out if name == "rping" else good(job)
