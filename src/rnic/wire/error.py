# SPDX-License-Identifier: Apache-2.0
"""Errors of parsing and emitting."""


class WireError(ValueError):
    """Malformed bytes, or a value that does not fit its field; the text says which."""


class NotRoCEError(WireError):
    """The bytes are not a RoCEv2 packet: another protocol, or another port."""
