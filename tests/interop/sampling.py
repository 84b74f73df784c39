# SPDX-License-Identifier: Apache-2.0
"""All combinations of several choices, or a small seeded sample of them in which every choice occurs."""

from __future__ import annotations

import itertools
import os
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Item = TypeVar("Item")


def soak(config: pytest.Config) -> bool:
    """Whether every combination was asked for."""
    return bool(config.getoption("--all", default=False)) or os.environ.get("RNIC_SOAK", "0") not in ("", "0")


def combinations(kinds: Iterable[Sequence[Any]], sample: int | None, seed: int) -> list[tuple[Any, ...]]:
    """One choice of each kind, in every combination or in `sample` of them.

    In a sample a choice occurs as often as any other of its kind, or once more or less.
    """
    if sample is None:
        return list(itertools.product(*kinds))
    rng = random.Random(seed)
    columns = []
    for choices in kinds:
        start = rng.randrange(len(choices))
        column = list(itertools.islice(itertools.cycle(choices), start, start + sample))
        rng.shuffle(column)
        columns.append(column)
    return list(zip(*columns, strict=True))


def one_in(n: int, items: Iterable[Item], kind: Callable[[Item], Hashable]) -> list[Item]:
    """One in `n` of the items of each kind, at least one, and the same ones each time."""
    groups = defaultdict(list)
    for item in items:
        groups[kind(item)].append(item)
    rng = random.Random(1)
    return [item for group in groups.values() for item in rng.sample(group, -(-len(group) // n))]
