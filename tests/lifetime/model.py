# SPDX-License-Identifier: Apache-2.0
"""What must come of closing and dropping objects that need each other, in any order."""

from __future__ import annotations

import errno
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from rnic import VerbsError

UsersOf = Callable[[str, set[str]], set[str]]  # those of the living that need an object


def users_by(needs: Mapping[str, Sequence[str]]) -> UsersOf:
    return lambda name, living: {user for user in living if name in needs[user]}


def close_all(objects: Mapping[str, Any], order: Sequence[str], users_of: UsersOf) -> None:
    """In that order, over and over: each is refused, with a name, exactly while something needs it."""
    living = set(objects)
    while living:
        for name in [name for name in order if name in living]:
            users = users_of(name, living)
            if not users:
                objects[name].close()
                living.remove(name)
                continue
            with pytest.raises(VerbsError, match="is in use by") as caught:
                objects[name].close()
            assert caught.value.errno == errno.EBUSY
            assert any(type(objects[user]).__name__ in str(caught.value) for user in users)
            assert not objects[name].closed


def leave(objects: Mapping[str, Any], names: Sequence[str]) -> None:
    """Nested with blocks, left by an exception: the order is not the one in which they can close."""
    if not names:
        raise ZeroDivisionError
    with objects[names[0]]:
        leave(objects, names[1:])


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def warnings_of(objects: dict[str, Any], order: Sequence[str]) -> list[str]:
    """Drops the objects in that order; the texts of the warnings that this makes."""
    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        # A recorded warning would hold its object, and with it all that the object needs.
        warnings.showwarning = lambda message, *_, **__: texts.append(str(message))
        for name in order:
            del objects[name]
        gc.collect()
    return texts
