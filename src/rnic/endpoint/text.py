# SPDX-License-Identifier: Apache-2.0
"""Texts that one end gives the other to read: clipped when they leave, made harmless when they arrive."""


def clip(text: str, size: int) -> bytes:
    """`text` in UTF-8, cut between characters to at most `size` bytes."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode()


def printable(data: bytes) -> str:
    """Bytes of a peer as one line that a terminal can bear; the zeros that a MAD pads with are left out."""
    text = data.rstrip(b"\0").decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text) or "(no text)"
