# SPDX-License-Identifier: Apache-2.0
"""C programs at both ends of the link: under `rnic run` here, over the kernel's device in the guest."""

from __future__ import annotations

import pytest
from cm_programs import listens_there
from link import Link

from packages import need
from rnic.vm import Job
from ucma.under import PINGED, Program, call, patient


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
    is_perftest = name.startswith("ib_")
    if family == "ipv6" and is_perftest:
        pytest.skip("this version of perftest makes connections over IPv4 alone")
    need(name, "perftest" if is_perftest else "rdmacm-utils")
    address = (link.host_ip if role == "server" else link.guest_ip)[family]

    def run() -> tuple[str, str]:
        port = link.port()
        here, there = (
            text.replace("PORT", str(port)).replace("SERVER", address) for text in (server, client)
        )
        return serve(link, here, there, port) if role == "server" else ask(link, here, there, port)

    said = patient(run) if is_perftest and role == "client" else run()
    if name == "rping":
        here, there = (text.count(PINGED) for text in said)
        assert here == there > 0, said
    return said


def serve(link: Link, server: str, client: str, port: int) -> tuple[str, str]:
    """The server here."""
    with Program(*server.split()) as process:
        link.program_listens(process, port)
        job = in_guest(link, client)
        there = judged(job, client)
        return process.good(), there


def ask(link: Link, server: str, client: str, port: int) -> tuple[str, str]:
    """The client here."""
    job = in_guest(link, server)
    try:
        listens_there(link, port)
        here = call(*client.split(), again=not client.startswith("ib_"))
    except BaseException:
        job.kill()
        raise
    return here, judged(job, server)


def judged(job: Job, program: str) -> str:
    """What a program there has said that has done its work, whatever its exit status says of the end.

    rping's after a good run may be 255. perftest's server closes when it has answered the last message but
    one. With that the client may come too late; then it fails.
    """
    if program.startswith("rping"):
        return job.wait(60).out
    status, said = job.wait(60)
    assert not status or "Failed to close connection between server and client" in said, said
    return said
