# SPDX-License-Identifier: Apache-2.0
"""Programs of libibverbs and librdmacm: under `rnic run` here, over the kernel's device in the guest."""

from __future__ import annotations

import pytest
from c_programs import connected, good, in_guest
from link import Link, Wire, path_mtus

from packages import need
from ucma.under import Program, needs_libraries

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire"), needs_libraries]

FAMILIES, ROLES = ["ipv4", "ipv6"], ["server", "client"]  # the role is that of the program here
TRIES = 3  # the pingpongs give up after half a second, in which a guest may not have been running
VERBS = {
    "rc": "ibv_rc_pingpong -n 200 -s 10000",
    "uc": "ibv_uc_pingpong -n 50",
    "ud": "ibv_ud_pingpong -n 50 -s 1000",
    "srq": "ibv_srq_pingpong -n 200",
    "write": "ib_write_bw -F -u 18 -n 50 -s 65536",
    "read": "ib_read_bw -F -u 18 -n 50 -s 65536",
    "send": "ib_send_bw -F -u 18 -n 50 -s 65536",
    "atomic": "ib_atomic_bw -F -u 18 -n 50",
    "latency": "ib_send_lat -F -u 18 -n 50 -s 100",
    "datagrams": "ib_send_lat -c UD -F -u 18 -n 50 -s 100",
}
BY_CM = {
    "rping": (
        "rping -s -a SERVER -p PORT -C 20 -S 1000 -v -V",
        "rping -c -a SERVER -p PORT -C 20 -S 1000 -v -V",
    ),
    "ucmatose": ("ucmatose -b SERVER -p PORT -c 10 -C 20", "ucmatose -s SERVER -p PORT -c 10 -C 20"),
    "rdma_server": ("rdma_server -s SERVER -p PORT", "rdma_client -s SERVER -p PORT"),
    "ib_send_bw": ("ib_send_bw -R -F -u 18 -n 50 -p PORT", "ib_send_bw -R -F -u 18 -n 50 -p PORT SERVER"),
    "ib_write_lat": (
        "ib_write_lat -R -F -u 18 -n 50 -p PORT",
        "ib_write_lat -R -F -u 18 -n 50 -p PORT SERVER",
    ),
}


def run_both(link: Link, role: str, here: list[str], there: str, port: int) -> None:
    """The program here in its role, and the other one; both end well."""
    if role == "server":
        with Program(*here) as server:
            link.host_listens(port)
            good(in_guest(link, f"{there} {link.guest.host_ip}"))
            server.good()
    else:
        job = in_guest(link, there)
        link.guest_listens(port)
        try:
            with Program(*here, link.guest.ip) as client:
                client.good()
        except AssertionError:
            job.kill()
            raise
        good(job)


@pytest.mark.combinations(
    4, family=FAMILIES, role=ROLES, verb=list(VERBS), path_mtu=lambda mtu: path_mtus(mtu)[-2:]
)
def test_programs_of_verbs(link: Link, family: str, role: str, verb: str, path_mtu: int) -> None:
    """They tell each other by TCP what to connect to."""
    program, *options = VERBS[verb].split()
    need(program, "perftest" if program.startswith("ib_") else "ibverbs-utils")
    port = link.port()
    of_gid, of_mtu = ("-g", "-m") if program.startswith("ibv_") else ("-x", "-m")
    common = [*options, "-p", str(port)]
    if "ud" not in program and "UD" not in options:
        common += [of_mtu, str(path_mtu)]
    here = [program, "-d", link.device, of_gid, str(link.rnic_gid_index(family)), *common]
    there = " ".join([program, "-d", "rxe0", of_gid, str(link.kernel_gid_index(family)), *common])
    for left in reversed(range(TRIES)):
        try:
            run_both(link, role, here, there, port)
            break
        except AssertionError as error:
            if not left or "retry counter exceeded" not in str(error):
                raise


@pytest.mark.combinations(4, family=FAMILIES, role=ROLES, name=list(BY_CM))
def test_programs_of_connections(link: Link, family: str, role: str, name: str) -> None:
    connected(link, family, role, *BY_CM[name])


def test_tshark_reads_what_rnic_sent(wire: Wire) -> None:
    wire.check()
