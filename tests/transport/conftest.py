# SPDX-License-Identifier: Apache-2.0
"""Fixtures: processes, a network namespace of their own, two ends, and a place for figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rnic import WROpcode
from transport.node import Node, Setting
from transport.scene import Scene, by_lane

Start = Callable[..., Node]
Record = Callable[..., None]


@pytest.fixture
def soak() -> bool:
    """Take all of it, not a sample."""
    return bool(os.environ.get("RNIC_SOAK"))


@pytest.fixture(scope="session")
def namespace() -> Iterator[str | None]:
    """A network namespace with a loopback interface and nothing else; None, the machine's, without root."""
    if os.geteuid() != 0:
        yield None
        return
    with Node(Setting(netns="new")) as keeper:
        yield f"/proc/{keeper.pid}/ns/net"


@pytest.fixture
def private_namespace() -> Iterator[str]:
    """As `namespace`, but nobody else has ever been there; needs root."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    with Node(Setting(netns="new")) as keeper:
        yield f"/proc/{keeper.pid}/ns/net"


@pytest.fixture
def start(namespace: str | None) -> Iterator[Start]:
    """Starts a node in the namespace; all are gone when the test ends."""
    with ExitStack() as stack:

        def start_node(**setting: Any) -> Node:
            return stack.enter_context(Node(Setting(**{"netns": namespace, **setting})))

        yield start_node


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Two ends that reach each other by shared memory."""
    with by_lane() as made:
        assert made.do(WROpcode.RDMA_WRITE, 0).ok  # the first of all goes as a packet, to see who is there
        yield made


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Prints figures, and keeps them in $RNIC_RESULTS/<test module>.json when that is set."""

    def keep(**figures: Any) -> None:
        test = request.node.name
        print(test, json.dumps(figures))
        if folder := os.environ.get("RNIC_RESULTS"):
            path = Path(folder) / f"{request.path.stem.removeprefix('test_')}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            known = json.loads(path.read_text()) if path.exists() else {}
            known.setdefault(test, {}).update(figures)
            path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")

    return keep
