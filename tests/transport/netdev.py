# SPDX-License-Identifier: Apache-2.0
"""Network devices of a test's own: a pair of virtual Ethernet devices, and what a test does to them."""

from __future__ import annotations

import os
import subprocess
import time
from types import TracebackType
from typing import Self

import pytest

import namespaces
import rnic
from packages import need
from rnic import EventType

PATIENCE = 180.0  # seconds for the kernel to tell, on a machine that has other things to do


def ip(*arguments: str) -> None:
    """iproute2's command."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Netdevs:
    """A network namespace for this thread, with two devices joined by a cable: both up, without addresses.

    Whoever cannot have that (it takes root, and iproute2) skips the test.
    """

    def __init__(self) -> None:
        self.a, self.b = "rnica", "rnicb"
        if os.geteuid() != 0:
            pytest.skip("not root, which making network devices needs")
        need("ip", "iproute2")
        self._before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            namespaces.unshare()
        except OSError as error:
            os.close(self._before)
            pytest.skip(f"no network namespace: {error}")
        try:
            self._make()
        except BaseException:
            self._leave()
            raise

    def _make(self) -> None:
        ip("link", "set", "lo", "up")
        ip("link", "add", self.a, "type", "veth", "peer", "name", self.b)
        for name in (self.a, self.b):
            ip("link", "set", name, "addrgenmode", "none")
            ip("link", "set", name, "up")

    def _leave(self) -> None:
        namespaces.enter(self._before)
        os.close(self._before)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    def address(self, name: str, *addresses: str) -> None:
        """Gives a device addresses, usable at once."""
        for one in addresses:
            ip("addr", "add", one, "dev", name, *(["nodad"] if ":" in one else []))

    def remove(self, name: str, address: str) -> None:
        """Takes an address away."""
        ip("addr", "del", address, "dev", name)

    def link(self, name: str, *what: str) -> None:
        """ip link set."""
        ip("link", "set", name, *what)

    def delete(self, name: str) -> None:
        """The device goes, and its other end with it."""
        ip("link", "del", name)


def wait_event(ctx: rnic.Context, kind: EventType) -> rnic.AsyncEvent:
    """The next event of that kind; others are taken and let go."""
    until = time.monotonic() + PATIENCE
    while True:
        event = ctx.get_async_event(max(0.0, until - time.monotonic()))
        if event.event_type is kind:
            return event


def no_event(ctx: rnic.Context) -> bool:
    """Is none waiting?"""
    try:
        ctx.get_async_event(0)
    except TimeoutError:
        return True
    return False


__all__ = ["PATIENCE", "Netdevs", "ip", "no_event", "wait_event"]
