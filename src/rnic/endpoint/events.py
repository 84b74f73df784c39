# SPDX-License-Identifier: Apache-2.0
"""Memory that two ends share."""

from rnic.enums import AccessFlags
from rnic.records import Record

__all__ = ["Region"]


class Region(Record, weakref_slot=True):
    """Memory of one end that the peer may read, write or add to."""

    id: int
    """Its number in this connection, unique among the regions of the end that shares it."""
    addr: int
    """The address of its first byte, as the owner's device knows it."""
    length: int
    """Its length in bytes."""
    rkey: int
    """The key for requests."""
    access: AccessFlags
    """What the peer may do: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC."""
    shape: tuple[int, ...] = ()
    """The lengths of the array that it holds; with `dtype`."""
    dtype: str = ""
    """The type of an element, as NumPy writes it ("<f4").  Empty: nobody said that it holds an array."""
