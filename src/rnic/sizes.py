# SPDX-License-Identifier: Apache-2.0
"""Check numbers that a program gives: a number that no field of a device can hold is refused, with the
device's limit.

The device itself refuses smaller numbers that are still too large.
"""

from __future__ import annotations

from errno import EINVAL
from operator import index
from typing import Any, Protocol, SupportsIndex

from rnic.errors import VerbsError


class HasLimits(Protocol):
    """A context."""

    def raw_query_device_ex(self) -> dict[str, Any]:
        """The fields of struct rnic_device_attr_ex."""


def whole(verb: str, name: str, value: SupportsIndex, bits: int = 32) -> int:
    """The value, if it is a number of this many bits; else it raises TypeError, or VerbsError with EINVAL."""
    number = _number(verb, name, value)
    if not 0 <= number < 1 << bits:
        raise VerbsError(EINVAL, f"{name} is {number}; allowed is a number of {bits} bits, 0 or more", verb)
    return number


def limited(
    verb: str,
    name: str,
    value: SupportsIndex,
    context: HasLimits,
    limit: str,
    *,
    least: int = 0,
    bits: int = 31,
) -> int:
    """As whole(), with the device's `limit` in the error: "max_cqe", or "tm_caps.max_ops" of a record
    in it.
    """
    number = _number(verb, name, value)
    if not 0 <= number < 1 << bits:
        most, record = _limit(context, limit)
        allowed = f"allowed are {least} to {most} ({record}.{limit})"
        raise VerbsError(EINVAL, f"{name} is {number}; {allowed}", verb)
    return number


def _number(verb: str, name: str, value: SupportsIndex) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{verb}: {name} is {value!r}; it is a whole number") from None


def _limit(context: HasLimits, limit: str) -> tuple[int, str]:
    found: Any = context.raw_query_device_ex()
    if limit in found["orig_attr"]:
        return found["orig_attr"][limit], "DeviceAttr"
    for name in limit.split("."):
        found = found[name]
    return found, "DeviceAttrEx"
