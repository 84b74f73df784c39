# SPDX-License-Identifier: Apache-2.0
"""Both ends prove that they know the shared secret, and never send it: HMAC-SHA256 over both nonces.

    client's proof: HMAC(secret, "rnic files client" + server's nonce + client's nonce + op, flags, paths)
    server's proof: HMAC(secret, "rnic files server" + server's nonce + client's nonce)

What is asked for is in the client's proof, so it cannot be changed on its way. What is copied is not
encrypted.
"""

from __future__ import annotations

from struct import pack

from rnic.files.records import NO_PROOF, Ask

__all__ = ["client_proof", "equal", "server_proof"]

# hmac takes 5 ms to import: it is imported where there is a secret.


def equal(one: bytes, other: bytes) -> bool:
    """Whether two proofs are the same, in a time that does not tell where they differ."""
    if one == other == NO_PROOF:
        return True
    from hmac import compare_digest

    return compare_digest(one, other)


def _mac(secret: bytes, text: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, text, "sha256")


def client_proof(secret: bytes | None, server_nonce: bytes, ask: Ask) -> bytes:
    """What goes into an Ask; zeros without a secret."""
    if secret is None:
        return NO_PROOF
    asked = pack("<BB", ask.op, ask.flags) + ask.paths
    return _mac(secret, b"rnic files client" + server_nonce + ask.nonce + asked)


def server_proof(secret: bytes | None, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What goes into a Go; zeros without a secret."""
    if secret is None:
        return NO_PROOF
    return _mac(secret, b"rnic files server" + server_nonce + client_nonce)
