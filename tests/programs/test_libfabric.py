# SPDX-License-Identifier: Apache-2.0
"""libfabric, unchanged.  It leaves out devices of the loopback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from busy import busy_processors
from packages import need
from programs.ends import ADDRESS, OTHER, both
from ucma.under import Program, needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

PACKAGE = "libfabric-bin"
ROUNDS = 150 if os.environ.get("RNIC_SOAK") else 2  # of a server and its client


def test_endpoints_are_found(wider: Path) -> None:
    need("fi_info", PACKAGE)
    with Program("fi_info", "-p", "verbs", "-t", "FI_EP_MSG", within=wider) as info:
        said = info.good()
    assert f"domain: {OTHER}\n" in said
    assert "FI_PROTO_RDMA_CM_IB_RC" in said


ENDPOINTS = {
    "messages": "-p verbs -e msg -d DEVICE",
    "reliable datagrams over messages": "-p verbs;ofi_rxm -e rdm -d DEVICE",
    "the same, with tags": "-p verbs;ofi_rxm -e rdm -m tagged -d DEVICE",
    "reliable datagrams over datagrams": "-p verbs;ofi_rxd -e rdm -d DEVICE-dgram",
    "datagrams": "-p verbs -e dgram -d DEVICE-dgram",
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("local", ["on", "off"])
@pytest.mark.parametrize("options", ENDPOINTS.values(), ids=ENDPOINTS)
def test_pingpong(options: str, local: str, wider: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("fi_pingpong", PACKAGE)
    monkeypatch.setenv("RNIC_LOCAL", local)
    words = f"fi_pingpong -I 20 -S 1024 {options.replace('DEVICE', OTHER)} "
    checked = "" if "dgram -d" in options else "-c "
    _, said = both(f"{words}{checked}-B PORT", f"{words}{checked}-P PORT {ADDRESS}", wider)
    assert "1k      20      =20" in said


@pytest.mark.parametrize("kind", ["msg", "tagged"])
def test_the_last_message_arrives_on_a_busy_machine(
    kind: str, wider: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that hears of the other's end gives up what it has not polled."""
    need("fi_pingpong", PACKAGE)
    monkeypatch.setenv("RNIC_LOCAL", "on")
    words = f"fi_pingpong -I 20 -S 1024 -p verbs;ofi_rxm -e rdm -m {kind} -d {OTHER} -c "
    with busy_processors():
        for _ in range(ROUNDS):
            _, said = both(f"{words}-B PORT", f"{words}-P PORT {ADDRESS}", wider)
            assert "1k      20      =20" in said
