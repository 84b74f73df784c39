# SPDX-License-Identifier: Apache-2.0
"""The programs of ibverbs-utils and perftest, unchanged, over rnic's libibverbs.so.1."""

from __future__ import annotations

import pytest

import rnic
from ibverbs.programs import DEVICE, both_ends, run
from packages import need

pytestmark = pytest.mark.own_way


@pytest.fixture(params=["on", "off"], ids=["shared-memory", "wire"])
def local(request: pytest.FixtureRequest) -> str:
    """By which way peers of this host are reached."""
    way: str = request.param
    return way


def test_devices_are_listed() -> None:
    need("ibv_devices", "ibverbs-utils")
    text = run("ibv_devices").text
    assert all(device.name in text for device in rnic.get_device_list())


def test_a_device_is_described() -> None:
    need("ibv_devinfo", "ibverbs-utils")
    text = run("ibv_devinfo", "-v", "-d", DEVICE).text
    assert "PORT_ACTIVE" in text
    assert "::ffff:127.0.0.1, RoCE v2" in text


PINGPONGS = {
    "rc": "rc",
    "rc, events": "rc -e",
    "rc, extended work requests": "rc -N",
    "rc, timestamps": "rc -t",
    "rc, on demand": "rc -o",
    "rc, device memory": "rc -c -j",
    "rc, content": "rc -c -s 100000 -n 50",
    "uc": "uc",
    "uc, events": "uc -e",
    "ud": "ud",
    "ud, events": "ud -e",
    "srq": "srq",
    "srq, events": "srq -e",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", PINGPONGS.values(), ids=PINGPONGS)
def test_pingpong(options: str, local: str) -> None:
    kind, *more = options.split()
    program = f"ibv_{kind}_pingpong"
    need(program, "ibverbs-utils")
    server, client = both_ends(program, "-d", DEVICE, "-g", "0", *more, RNIC_LOCAL=local)
    iterations = "50" if "-n" in more else "1000"
    assert f"{iterations} iters" in client
    assert f"{iterations} iters" in server


@pytest.mark.one_in(3)
@pytest.mark.parametrize("events", [(), ("-e",)], ids=["polls", "events"])
def test_xrc_pingpong(events: tuple[str, ...], local: str) -> None:
    need("ibv_xsrq_pingpong", "ibverbs-utils")
    for text in both_ends("ibv_xsrq_pingpong", "-d", DEVICE, "-g", "0", *events, RNIC_LOCAL=local):
        assert "success" in text


FEW = "-n 100 -F"
PERFTEST = {
    "write latency": f"ib_write_lat {FEW}",
    "read latency": f"ib_read_lat {FEW}",
    "send latency": f"ib_send_lat {FEW}",
    "send latency, events": "ib_send_lat -e -n 1000 -F",
    "atomic latency": f"ib_atomic_lat {FEW}",
    "write": f"ib_write_bw {FEW}",
    "read": f"ib_read_bw {FEW}",
    "send": f"ib_send_bw {FEW}",
    "atomic": f"ib_atomic_bw {FEW}",
    "compare and swap": f"ib_atomic_bw -A CMP_AND_SWAP {FEW}",
    "write, all sizes": "ib_write_bw -a -n 5 -F",
    "write, both directions": f"ib_write_bw -b {FEW}",
    "write, eight queue pairs": f"ib_write_bw -q 8 {FEW}",
    "write, inline": f"ib_write_lat -I 64 -s 64 {FEW}",
    "write, duration": "ib_write_bw -D 1 -F",
    "write, UC": f"ib_write_bw -c UC {FEW}",
    "send, UC": f"ib_send_lat -c UC {FEW}",
    "send, UD": f"ib_send_lat -c UD {FEW}",
    "send, XRC": f"ib_send_bw -c XRC {FEW}",
    "send, shared receive queue": f"ib_send_bw -r 64 --use-srq -q 4 {FEW}",
}


@pytest.mark.one_in(10)
@pytest.mark.parametrize("command", PERFTEST.values(), ids=PERFTEST)
def test_perftest(command: str, local: str) -> None:
    program, *options = command.split()
    need(program, "perftest")
    _, client = both_ends(program, "-d", DEVICE, "-x", "0", *options, RNIC_LOCAL=local)
    assert "#bytes" in client
