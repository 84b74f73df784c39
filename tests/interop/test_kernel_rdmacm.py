# SPDX-License-Identifier: Apache-2.0
"""The example programs of RDMA-CM against the originals over the kernel's device, each in both roles."""

from __future__ import annotations

import pytest
from cm_programs import finish, listens_here, listens_there, original, rnic
from link import Link, Wire

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]
ROLES = ["server", "client"]


@pytest.mark.combinations(
    3, family=["ipv4", "ipv6"], role=ROLES, load=["-c 16 -C 100 -S 4096", "-c 1 -C 1000 -S 100", "-C 0"]
)
def test_ucmatose(link: Link, family: str, role: str, load: str) -> None:
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


def test_tshark_reads_what_rnic_sent(wire: Wire) -> None:
    wire.check()
