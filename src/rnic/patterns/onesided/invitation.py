# SPDX-License-Identifier: Apache-2.0
"""What a server tells a client: which memory this is, and the client's number. 32 bytes:

at  0  "rnic1sid"
at  8  kind: 1 a store, 2 words, 3 a group     2 bytes
at 10  the client's number, from 1 on          2 bytes
at 12  three sizes, which the kind explains    4 bytes each
at 24  the bytes of the memory                 8 bytes
"""

from __future__ import annotations

import struct

from rnic.records import Record

__all__ = ["Invitation"]

_FORM = struct.Struct("<8sHHIIIQ")
_MAGIC = b"rnic1sid"
KINDS = {1: "a store", 2: "words", 3: "a group"}


class Invitation(Record):
    """What a server tells a client."""

    kind: int
    number: int
    sizes: tuple[int, int, int]
    length: int

    def pack(self) -> bytes:
        """As bytes."""
        return _FORM.pack(_MAGIC, self.kind, self.number, *self.sizes, self.length)

    @classmethod
    def parse(cls, data: bytes, kind: int) -> Invitation:
        """From bytes of a server that should have this kind; ValueError says what it has instead."""
        if len(data) != _FORM.size or not data.startswith(_MAGIC):
            raise ValueError("the server is none of rnic.patterns.onesided: it sent no invitation")
        _, found, number, a, b, c, length = _FORM.unpack(data)
        if found != kind:
            raise ValueError(
                f"the server has {KINDS.get(found, f'memory of kind {found}')}, not {KINDS[kind]}"
            )
        if not number:
            raise ValueError("the server has given this client the number 0, which none can have")
        return cls(found, number, (a, b, c), length)
