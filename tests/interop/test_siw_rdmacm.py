# SPDX-License-Identifier: Apache-2.0
"""The example programs of RDMA-CM on iWARP against the originals over siw, each in both roles."""

from __future__ import annotations

import pytest
from cm_programs import finish, listens_here, original, ping, rnic, server_and_client, ucmatose
from link import SIW, Link, Wire

pytestmark = [pytest.mark.interop, pytest.mark.siw, pytest.mark.usefixtures("wire", "over_iwarp")]
FAMILIES, ROLES = ["ipv4", "ipv6"], ["server", "client"]
LOADS = ["-c 16 -C 10 -S 4096", "-c 1 -C 1000 -S 100", "-C 0"]


@pytest.mark.combinations(5, family=FAMILIES, role=ROLES, load=LOADS, siw=list(SIW))
def test_ucmatose(link: Link, family: str, role: str, load: str, siw: str) -> None:
    link.set_siw(SIW[siw])
    ucmatose(link, family, role, load)


@pytest.mark.combinations(
    10, family=FAMILIES, role=ROLES, size=[23, 64, 1400, 4096, 65535], own_qp=["", "-q"], siw=list(SIW)
)
def test_rping(link: Link, family: str, role: str, size: int, own_qp: str, siw: str) -> None:
    """Of -q over iWARP the original is not capable: its client confirms what is established already."""
    link.set_siw(SIW[siw])
    ping(link, family, role, 50, f"-S {size}", own_qp)


@pytest.mark.combinations(1, role=ROLES)
def test_a_thousand_pings(link: Link, role: str) -> None:
    link.set_siw()
    ping(link, "ipv4", role, 1000, "-S 64")


@pytest.mark.combinations(5, family=FAMILIES, role=ROLES, siw=list(SIW))
def test_rdma_server_and_client(link: Link, family: str, role: str, siw: str) -> None:
    link.set_siw(SIW[siw])
    server_and_client(link, family, role)


def test_cmtime_calls(link: Link) -> None:
    """Connections that are made all at once, and ended at once, by both ends."""
    link.set_siw()
    here = link.host_ip["ipv4"]
    with rnic("ucmatose", "-c", 50, "-C", 0, "-b", here, "-p", 0) as process:
        port = listens_here(process)
        finish(process, original(link, f"cmtime -c 50 -s {here} -p {port}"))


def test_tshark_reads_what_was_sent(wire: Wire) -> None:
    wire.check_iwarp()
