# SPDX-License-Identifier: Apache-2.0
"""Ports that ids call from, of several processes: here contexts, which see each other as processes do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

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
