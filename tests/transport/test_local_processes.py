# SPDX-License-Identifier: Apache-2.0
"""Processes of this host that reach each other by shared memory: stopped, killed, another user's, idle."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rnic import WROpcode
from transport.conftest import Start
from transport.joining import join
from transport.node import Node
from transport.scene import HASTY, NOBODY, SIZE
from waiting import until

pytestmark = pytest.mark.own_way

LOCAL = {"env": {"RNIC_LOCAL": "on"}}


def pair_of(start: Start, **setting: Any) -> tuple[Node, Node, Any]:
    a, b = start(**LOCAL), start(**{**LOCAL, **setting})
    _, at_b = join(a, b, SIZE, HASTY)
    return a, b, at_b


def test_a_stopped_process_is_still_read_and_written(start: Start) -> None:
    """As by a network card: one-sided operations are no matter of the process."""
    a, b, at_b = pair_of(start)
    assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    b.signal(signal.SIGSTOP)
    before = a.call("counters", "main")["local_direct"]
    assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    assert a.call("one", "main", WROpcode.RDMA_READ, at_b)[0] == "SUCCESS"
    assert a.call("counters", "main")["local_direct"] == before + 2
    b.signal(signal.SIGCONT)
    assert b.call("state", "main") == "RTS"


def test_a_killed_process_is_not_written_any_more(start: Start) -> None:
    a, b, at_b = pair_of(start)
    assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    b.kill()

    def failure() -> str:
        status = str(a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0])
        return "" if status == "SUCCESS" else status

    assert until(failure, "a WRITE fails") == "RETRY_EXC_ERR"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_has_the_ring_but_no_memory(start: Start) -> None:
    a, _b, at_b = pair_of(start, uid=NOBODY)

    def sent() -> int:
        assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
        return int(a.call("counters", "main")["local_sent"])

    assert until(sent, "a WRITE goes through the ring")
    assert a.call("counters", "main")["local_direct"] == 0


def test_who_may_not_be_looked_into_gives_no_memory(start: Start) -> None:
    """As ptrace(2) has it; it is reached by packets."""
    a, b = start(**LOCAL), start(**LOCAL)
    b.call("hide")
    at_a, at_b = join(a, b, SIZE, HASTY)
    for _ in range(3):
        assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
        assert b.call("one", "main", WROpcode.RDMA_WRITE, at_a)[0] == "SUCCESS"
    counters = a.call("counters", "main")
    assert counters["local_sent"] > 0
    assert counters["local_direct"] == 0
    assert b.call("counters", "main")["local_direct"] > 0  # the other one's is not hidden


def test_who_is_idle_needs_no_processor(start: Start) -> None:
    a, b, at_b = pair_of(start)
    for _ in range(10):
        assert a.call("one", "main", WROpcode.RDMA_WRITE, at_b)[0] == "SUCCESS"
    before = [cpu_seconds(node) for node in (a, b)]
    time.sleep(1.0)
    used = [cpu_seconds(node) - was for node, was in zip((a, b), before, strict=True)]
    assert max(used) < 0.2, used


def cpu_seconds(node: Node) -> float:
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
