# SPDX-License-Identifier: Apache-2.0
"""RDMA-CM against the Linux kernel's: rping in the guest, tests/rdmacm/rping.py here, each in both roles."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from link import Link

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]
TESTS = str(Path(__file__).resolve().parents[1])
COUNT = 20


@contextmanager
def ours(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rdmacm.rping", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": TESTS}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.combinations(4, family=["ipv4", "ipv6"], size=[23, 100, 4096, 65535])
def test_the_kernels_rping_calls(link: Link, family: str, size: int) -> None:
    address = link.host_ip[family]
    with ours("server", address, 0) as server:
        assert server.stdout
        port = int(server.stdout.readline())
        # Its exit status after a good run may be 255: what it says counts.
        told = link.guest.run(f"rping -c -a {address} -p {port} -C {COUNT} -S {size} -V -v 2>&1", timeout=60)
        assert told.out.count("ping data: ") == COUNT, told.out
        assert server.wait(30) == 0, server.stdout.read()
        assert server.stdout.read() == f"{COUNT}\n"


@pytest.mark.combinations(4, family=["ipv4", "ipv6"], size=[23, 100, 4096, 65535])
def test_the_kernels_rping_is_called(link: Link, family: str, size: int) -> None:
    port = link.port()
    job = link.guest.spawn(f"rping -s -a {link.guest_ip[family]} -p {port} -C {COUNT} -S {size} -V -v 2>&1")
    end = time.monotonic() + 30
    while True:
        with ours("client", link.guest_ip[family], port, COUNT, size) as client:
            out, _ = client.communicate(timeout=60)
        if client.returncode == 0:
            break
        assert "refused by the peer, reason 8" in out, out  # it does not listen yet
        assert time.monotonic() < end, out
    told = job.wait(30)
    assert told.out.count("server ping data: ") == COUNT, told.out
