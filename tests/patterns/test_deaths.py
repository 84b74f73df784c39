# SPDX-License-Identifier: Apache-2.0
"""The process at the other end of a pattern is killed at a random moment.

What came until then was right. This end hears of the death by a ConnectionError; who shares a memory with the
dead one goes on. RNIC_SOAK=1 kills each many times.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from threading import Timer

import pytest

import rnic
from patterns import lives
from patterns.ends import HOST
from rdmacm.ends import Other, other

SEEDS = range(30 if os.environ.get("RNIC_SOAK") else 1)
seeds = pytest.mark.parametrize("seed", SEEDS)

ON_QUEUE_PAIRS = {  # this end, and the one that dies
    "ring writes": "ring reads",
    "ring reads": "ring writes",
    "channel sends": "channel receives",
    "channel receives": "channel sends",
    "rendezvous sends, to READ": "rendezvous receives, by READ",
    "rendezvous receives, by READ": "rendezvous sends, to READ",
    "rendezvous sends, by WRITE": "rendezvous receives, as told",
    "rendezvous receives, as told": "rendezvous sends, by WRITE",
}
ON_CONNECTIONS = {
    "ring writes": "ring reads",
    "ring reads": "ring writes",
    "calls": "answers",
    "answers": "calls",
}


class Fate:
    """Kills the other process a moment after this end has told of so many pieces."""

    def __init__(self, peer: Other, name: str, seed: int) -> None:
        dice = random.Random(f"{name} {seed}")
        self._left, moment = dice.randint(1, 60), dice.uniform(0, 0.01)
        self.timer = Timer(moment, peer.process.kill)

    def told(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.timer.start()

    def end(self) -> None:
        assert self._left <= 0, "the other end was not killed"
        self.timer.join()


def lives_on(life: Callable[[Callable[[], None]], object], peer: Other, name: str, seed: int) -> None:
    fate = Fate(peer, name, seed)
    with pytest.raises(ConnectionError):
        life(fate.told)
    fate.end()


@seeds
@pytest.mark.parametrize("name", ON_QUEUE_PAIRS)
def test_an_end_of_a_queue_pair_dies(name: str, seed: int) -> None:
    life = lives.ON_QUEUE_PAIRS[name]
    with other(lives.live_on_queue_pair, ON_QUEUE_PAIRS[name]) as peer:
        lives_on(lambda told: lives.on_queue_pair(life, peer.way, told), peer, name, seed)


@seeds
@pytest.mark.parametrize("name", ON_CONNECTIONS)
def test_an_end_of_a_connection_dies(name: str, seed: int) -> None:
    with other(lives.accept_and_live, ON_CONNECTIONS[name]) as peer:
        conn = rnic.connect(HOST, peer.hear())
        with conn:
            lives_on(lambda told: lives.ON_CONNECTIONS[name](conn, told), peer, name, seed)


@seeds
@pytest.mark.parametrize("name", lives.SERVERS)
def test_a_server_dies(name: str, seed: int) -> None:
    with other(lives.serve_until_killed, name) as peer:
        conn = rnic.connect(HOST, peer.hear())
        with conn:
            lives_on(lambda told: lives.ON_CONNECTIONS[name](conn, told), peer, name, seed)


@seeds
@pytest.mark.parametrize("name", ["store", "locks", "news"])
def test_others_go_on_when_a_client_dies(name: str, seed: int) -> None:
    class Enough(Exception):  # noqa: N818 - it is none
        pass

    left = random.Random(f"{name} {seed}").randint(50, 100)

    def told() -> None:
        nonlocal left
        left -= 1
        if left == 25:
            peer.process.kill()
        if left == 0:
            raise Enough

    with lives.SERVERS[name]() as port, other(lives.connect_and_live, name, port) as peer:
        assert peer.hear() == "alive"
        with rnic.connect(HOST, port) as conn, pytest.raises(Enough):
            lives.ON_CONNECTIONS[name](conn, told)
