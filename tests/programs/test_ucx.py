# SPDX-License-Identifier: Apache-2.0
"""UCX, unchanged: its tests between two processes, and its client and server by RDMA-CM."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, free_port
from packages import need, need_package
from programs.ends import OTHER, both
from ucma.under import HOST, Program, call, needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

UTILS = "ucx-utils"
EXAMPLES = Path("/usr/share/doc/libucx-dev/examples")
FEW = "-n 200 -w 10"


@pytest.fixture(autouse=True)
def verbs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other transport: shared memory of UCX's own and TCP would be faster, or would do as well."""
    monkeypatch.setenv("UCX_NET_DEVICES", f"{DEVICE}:1")
    monkeypatch.setenv("UCX_WARN_UNUSED_ENV_VARS", "n")


def perftest(options: str, within: Path) -> None:
    """Two processes of ucx_perftest."""
    need("ucx_perftest", UTILS)
    words = f"ucx_perftest -p PORT {FEW} {options}"
    _, said = both(words, f"{words} HOST", within)
    assert "Final:" in said


def test_transports_are_found(folder: Path) -> None:
    need("ucx_info", UTILS)
    with Program("ucx_info", "-d", within=folder) as info:
        said = info.good()
    for transport in "rc_verbs", "ud_verbs":
        assert f"Transport: {transport}\n#         Device: {DEVICE}:1" in said
    assert "Connection manager: rdmacm" in said


LOW = {
    "rc, active messages": "-x rc_verbs -t am_lat",
    "rc, put": "-x rc_verbs -t put_bw",
    "rc, put without copies": "-x rc_verbs -t put_lat -D zcopy -s 10000",
    "rc, get": "-x rc_verbs -t get -D bcopy",
    "ud, active messages": "-x ud_verbs -t am_lat",
    "ud, many active messages": "-x ud_verbs -t am_bw -D bcopy -s 1000",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", LOW.values(), ids=LOW)
def test_transports(options: str, folder: Path) -> None:
    perftest(f"-d {DEVICE}:1 {options}", folder)


HIGH = (
    "tag_lat",
    "tag_bw -s 100000",
    "ucp_put_lat",
    "ucp_get -s 100000",
    "ucp_add",
    "ucp_fadd",
    "ucp_cswap",
    "stream_lat",
    "stream_bw",
    "ucp_am_lat",
    "ucp_am_bw -s 5000",
)


@pytest.mark.one_in(11)
@pytest.mark.parametrize("test", HIGH)
@pytest.mark.parametrize("local", ["on", "off"])
@pytest.mark.parametrize("transport", ["rc_v", "ud_v"])
def test_protocols(
    transport: str, local: str, test: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", transport)
    monkeypatch.setenv("RNIC_LOCAL", local)
    perftest(f"-t {test}", folder)


def test_another_netdev(wider: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "rc_v")
    monkeypatch.setenv("UCX_NET_DEVICES", f"{OTHER}:1")
    perftest("-t tag_lat", wider)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["am", "tag", "stream"])
def test_connections_by_rdma_cm(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, port = tmp_path / "client_server", free_port()
    compile_it: list[str | Path] = [
        "cc",
        "-w",
        EXAMPLES / "ucp_client_server.c",
        "-o",
        program,
        "-lucp",
        "-lucs",
        "-luct",
    ]
    if not shutil.which("cc") or subprocess.run(compile_it, capture_output=True, check=False).returncode:
        need_package("gcc", "libucx-dev")  # which has ucp_client_server.c
    monkeypatch.setenv("UCX_TLS", "rc_v")
    monkeypatch.setenv("UCX_SOCKADDR_TLS_PRIORITY", "rdmacm")
    words = [program, "-p", port, "-c", kind]
    with Program(*words, "-l", HOST, within=folder) as server:  # for ever
        server.listens(port)
        assert "ABCDEFGHIJKLMNO." in call(*words, "-a", HOST, within=folder)
