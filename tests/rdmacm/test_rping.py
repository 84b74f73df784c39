# SPDX-License-Identifier: Apache-2.0
"""rping between two processes: SEND, READ and WRITE over a connection of RDMA-CM, both roles rnic's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = str(Path(__file__).resolve().parents[1])


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rdmacm.rping", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": TESTS}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


@pytest.mark.parametrize("size", [16, 100, 65535])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_rping(address: str, size: int) -> None:
    with start("server", address, 0) as server:
        try:
            assert server.stdout
            port = int(server.stdout.readline())
            with start("client", address, port, 20, size) as client:
                assert client.wait(60) == 0
            assert server.wait(60) == 0
            assert server.stdout.read() == "20\n"
        finally:
            server.kill()
