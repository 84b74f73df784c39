# SPDX-License-Identifier: Apache-2.0
"""Both ends prove that they know the shared secret, and never send it: HMAC-SHA256 over both nonces.

    client's proof: HMAC(secret, "rnic files client" + server's nonce + client's nonce + op, flags, paths)
    server's proof: HMAC(secret, "rnic files server" + server's nonce + client's nonce)

What is asked for is in the client's proof, so it cannot be changed on its way. What is copied is not
encrypted.
"""

from __future__ import annotations

import hmac
from struct import pack

from rnic.files.records import NO_PROOF, Ask

__all__ = ["client_proof", "equal", "server_proof"]

equal = hmac.compare_digest


def client_proof(secret: bytes | None, server_nonce: bytes, ask: Ask) -> bytes:
    """What goes into an Ask; zeros without a secret."""
    if secret is None:
        return NO_PROOF
    asked = pack("<BB", ask.op, ask.flags) + ask.paths
    return hmac.digest(secret, b"rnic files client" + server_nonce + ask.nonce + asked, "sha256")


def server_proof(secret: bytes | None, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What goes into a Go; zeros without a secret."""
    if secret is None:
        return NO_PROOF
    return hmac.digest(secret, b"rnic files server" + server_nonce + client_nonce, "sha256")
