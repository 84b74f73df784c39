# SPDX-License-Identifier: Apache-2.0
"""qperf, unchanged: by RDMA-CM, as on every RoCE device; without it qperf has no GID for its peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibverbs.programs import free_port, listens
from packages import need
from ucma.under import HOST, Program, needs_libraries
from waiting import until

pytestmark = [needs_libraries, pytest.mark.own_way]

TESTS = (
    "ver_rc_fetch_add",
    "ver_rc_compare_swap",
    "rc_lat",
    "rc_bw",
    "rc_bi_bw",
    "rc_rdma_read_lat",
    "rc_rdma_read_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
)


@pytest.mark.one_in(12)  # its shortest test takes a second
@pytest.mark.parametrize("test", TESTS)
def test_qperf(test: str, folder: Path) -> None:
    need("qperf", "qperf")
    port = free_port()
    with Program("qperf", "-lp", port, within=folder) as server:
        until(lambda: listens(port) or server.process.poll() is not None, "qperf listens")
        with Program(*f"qperf {HOST} -lp {port} -cm 1 -t 1 {test} quit".split(), within=folder) as client:
            said = client.good()
        server.good()
    assert f"{test}:" in said
