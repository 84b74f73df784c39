# SPDX-License-Identifier: Apache-2.0
"""Programs of librdmacm: under `rnic run` on iWARP here, over the kernel's siw in the guest."""

from __future__ import annotations

from pathlib import Path

import pytest
from c_programs import connected
from link import SIW, Link, Wire

from ucma.under import needs_libraries

pytestmark = [
    pytest.mark.interop,
    pytest.mark.siw,
    pytest.mark.usefixtures("wire", "over_iwarp"),
    needs_libraries,
]

FAMILIES, ROLES = ["ipv4", "ipv6"], ["server", "client"]  # the role is that of the program here
RPING = "-p PORT -C 20 -v -V -a SERVER"
SIZES = [23, 64, 4096, 65535]
PROGRAMS = {
    "ucmatose": ("ucmatose -b SERVER -p PORT -c 10 -C 20", "ucmatose -s SERVER -p PORT -c 10 -C 20"),
    "rdma_server": ("rdma_server -s SERVER -p PORT", "rdma_client -s SERVER -p PORT"),
}
PYTHON = "/usr/bin/python3"  # which has Debian's pyverbs
PYVERBS = Path(__file__).with_name("pyverbs_cm.py").resolve()
PERFTEST = [f"ib_{verb}_{figure}" for figure in ("bw", "lat") for verb in ("send", "write", "read")]


@pytest.mark.combinations(4, family=FAMILIES, role=ROLES, size=SIZES, siw=list(SIW))
def test_rping(link: Link, family: str, role: str, size: int, siw: str) -> None:
    link.set_siw(SIW[siw])
    connected(link, family, role, f"rping -s -S {size} {RPING}", f"rping -c -S {size} {RPING}")


@pytest.mark.combinations(2, family=FAMILIES, role=ROLES, name=list(PROGRAMS), siw=list(SIW))
def test_others(link: Link, family: str, role: str, name: str, siw: str) -> None:
    link.set_siw(SIW[siw])
    connected(link, family, role, *PROGRAMS[name])


@pytest.mark.combinations(6, role=ROLES, name=PERFTEST, size=[2, 65536], siw=list(SIW), crc=["on", "off"])
def test_perftest(
    link: Link, role: str, name: str, size: int, siw: str, crc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.set_siw(SIW[siw])
    monkeypatch.setenv("RNIC_MPA_CRC", crc)
    words = f"{name} -R -F -n 50 -s {size} -p PORT"
    connected(link, "ipv4", role, words, f"{words} SERVER")


@pytest.mark.combinations(2, role=ROLES, siw=list(SIW), crc=["on", "off"])
def test_pyverbs(link: Link, role: str, siw: str, crc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    link.set_siw(SIW[siw])
    monkeypatch.setenv("RNIC_MPA_CRC", crc)
    words = f"{PYTHON} {PYVERBS}"
    said = connected(link, "ipv4", role, f"{words} server SERVER PORT", f"{words} client SERVER PORT")
    assert "the same bytes came back" in "".join(said)


def test_tshark_reads_what_was_sent(wire: Wire) -> None:
    wire.check_iwarp()
