# SPDX-License-Identifier: Apache-2.0
"""What programs find: what `rnic run` makes, here for all tests of a module."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import namespaces
from programs.ends import ADDRESS, NETDEV, PEER
from rnic.programs.surroundings import serve
from waiting import until


def _ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def netdev() -> Iterator[None]:
    """An end of a veth pair with ADDRESS, whose other end is up and has none."""
    if not namespaces.OURS or not shutil.which("ip"):
        pytest.skip(
            "needs a network namespace of our own, the right to make interfaces, and Debian's iproute2"
        )
    if _ip("link", "add", NETDEV, "type", "veth", "peer", "name", PEER).returncode:
        pytest.skip("this kernel makes no veth interfaces")
    try:
        for words in (
            f"link set {NETDEV} addrgenmode none",  # no address that comes later
            f"addr add {ADDRESS}/24 dev {NETDEV}",
            f"link set {NETDEV} up",
            f"link set {PEER} up",
        ):
            assert not _ip(*words.split()).returncode, words
        until(lambda: '"operstate":"UP"' in _ip("-j", "link", "show", NETDEV).stdout, "the interface is up")
        yield
    finally:
        _ip("link", "del", NETDEV)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With the devices of a network namespace that has the loopback, or also more."""
    with serve() as (made, _):
        yield made


@pytest.fixture(scope="module")
def wider(netdev: None) -> Iterator[Path]:  # noqa: ARG001 - it is there meanwhile
    """With the device OTHER too."""
    with serve() as (made, _):
        yield made
