# SPDX-License-Identifier: Apache-2.0
"""perftest in the guest against rnic: ib_write_bw, ib_read_bw, ib_atomic_bw and ib_send_bw."""

from __future__ import annotations

import socket
import struct

import pytest
from ends import End
from link import Link, Wire, path_mtus
from perftest_peer import ADD, PAGE, Peer, run_client, run_server

from rnic.vm import Job

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]

SIZES = [2, 100, 1025, 4096, 65536, 1 << 20]
choices = pytest.mark.combinations(
    6, family=["ipv4", "ipv6"], verb=["write", "read", "send"], size=SIZES, path_mtu=path_mtus
)
GUARD = b"\xee"


def count(size: int) -> int:
    """How many operations to run; perftest wants 5 or more."""
    return max(5, min(100, (1 << 20) // size))


def perftest(link: Link, family: str, verb: str, size: int, path_mtu: int, port: int, host: str = "") -> Job:
    options = f"-d rxe0 -x {link.kernel_gid_index(family)} -F -m {path_mtu} -n {count(size)} -p {port}"
    size_option = "" if verb == "atomic" else f"-s {size}"  # an atomic has 8 bytes
    return link.guest.spawn(f"ib_{verb}_bw {options} {size_option} {host}")


def serve(link: Link, family: str, verb: str, size: int, path_mtu: int) -> End:
    """rnic is the server; the end after the run, its memory was all GUARD before."""
    end = link.rnic_end(family, length=2 * max(size, PAGE))
    end.store(0, GUARD * 2 * max(size, PAGE))
    if verb == "atomic":
        end.store(0, bytes(PAGE))
    with socket.create_server((link.guest.host_ip, 0)) as listener:
        job = perftest(link, family, verb, size, path_mtu, listener.getsockname()[1], link.guest.host_ip)
        listener.settimeout(60)
        sock, _ = listener.accept()
    with sock:
        run_server(Peer(sock, end, verb=verb, server=True, path_mtu=path_mtu), size=size, n=count(size))
        rc, out = job.wait(60)
    assert rc == 0, out
    return end


def ask(link: Link, family: str, verb: str, size: int, path_mtu: int) -> End:
    """rnic is the client; the end after the run."""
    end = link.rnic_end(family, length=max(size, PAGE))
    port = link.port()
    job = perftest(link, family, verb, size, path_mtu, port)
    link.guest_listens(port)
    with socket.create_connection((link.guest.ip, port)) as sock:
        run_client(Peer(sock, end, verb=verb, server=False, path_mtu=path_mtu), size=size, n=count(size))
        rc, out = job.wait(60)
    assert rc == 0, out
    return end


@choices
def test_perftest_is_the_client(link: Link, family: str, verb: str, size: int, path_mtu: int) -> None:
    end = serve(link, family, verb, size, path_mtu)
    used, page = max(size, PAGE), max(size, PAGE)
    after = end.load(0, 2 * used)
    if verb == "read":
        assert after == GUARD * 2 * used, "a READ changed what it read"
    else:
        assert after[:size] != GUARD * size, "nothing arrived"
        assert after[page:] == GUARD * used, "bytes beyond the message were written"
    end.close()


@choices
def test_perftest_is_the_server(link: Link, family: str, verb: str, size: int, path_mtu: int) -> None:
    end = ask(link, family, verb, size, path_mtu)
    end.close()


def test_atomics_of_perftest_run_once_each(link: Link, family: str) -> None:
    end = serve(link, family, "atomic", 8, link.path_mtus[-1])
    memory = end.load(0, 2 * PAGE)
    assert sum(struct.unpack(f"={PAGE // 8}Q", memory[:PAGE])) == count(8) * ADD
    assert memory[PAGE:] == GUARD * PAGE
    end.close()


def test_atomics_on_perftest_run_once_each(link: Link, family: str) -> None:
    end = ask(link, family, "atomic", 8, link.path_mtus[-1])
    n = count(8)
    old = struct.unpack(f"={n}Q", end.load(0, 8 * n))
    assert list(old) == [(old[0] + i * ADD) % 2**64 for i in range(n)]
    end.close()


def test_tshark_reads_what_rnic_sent(wire: Wire) -> None:
    wire.check()
