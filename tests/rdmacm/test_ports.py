# SPDX-License-Identifier: Apache-2.0
"""Ports that ids call from, of several processes: here contexts, which see each other as processes do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from types import FrameType

import pytest

import rnic
from rnic.rdmacm.ibcm.ports import BLOCK, Ports
from rnic.rdmacm.sockaddr import parse
from rnic.wire import PortSpace

LOOKS = 500
FIRST = 7040  # of a block
HERE = parse(("127.0.0.1", FIRST), "test").ip


@pytest.fixture
def two() -> Iterator[tuple[Ports, Ports]]:
    with ExitStack() as stack:
        one, other = (Ports(stack.enter_context(rnic.open_device("roce_lo"))) for _ in range(2))
        yield one, other


def test_processes_that_bind_neighbouring_ports_at_once_do_not_meet(two: tuple[Ports, Ports]) -> None:
    """Whoever binds looks at the block of its port; what it sees is not another that looks."""
    assert FIRST % BLOCK == 0
    refused: list[int] = []

    def look(ports: Ports, port: int) -> None:
        refused.extend(port for _ in range(LOOKS) if not ports.may_bind(PortSpace.TCP, HERE, port))

    threads = [threading.Thread(target=look, args=(ports, FIRST + i)) for i, ports in enumerate(two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not refused


def test_a_port_of_a_block_that_another_process_calls_from_cannot_be_bound(two: tuple[Ports, Ports]) -> None:
    one, other = two
    port = one.take(PortSpace.TCP, HERE, "test")
    assert not other.may_bind(PortSpace.TCP, HERE, port)
    one.give(PortSpace.TCP, HERE, port)
    assert other.may_bind(PortSpace.TCP, HERE, port)


class InterruptError(Exception):
    """As if the handler of a signal had raised it."""


def test_a_take_that_is_interrupted_at_any_place_keeps_no_port(two: tuple[Ports, Ports]) -> None:
    ports, _ = two
    for place in count(1):
        left = place

        def profile(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            code = frame.f_code  # a generator that is finalised is interrupted in vain
            if code.co_filename.endswith("ports.py") and code.co_name != "_candidates":
                left -= event in ("call", "c_return")
            if left == 0:
                raise InterruptError

        sys.setprofile(profile)
        try:
            port = ports.take(PortSpace.TCP, HERE, "test")
        except InterruptError:
            assert not ports._blocks, place
        else:
            sys.setprofile(None)
            ports.give(PortSpace.TCP, HERE, port)
            assert place > 5
            return
        finally:
            sys.setprofile(None)
