# SPDX-License-Identifier: Apache-2.0
"""What parsing and emitting raise."""


class WireError(ValueError):
    """Bytes that are not what they should be, or a value that its field cannot hold; the text says which."""


class NotRoCEError(WireError):
    """The bytes are sound as far as was read, but no RoCEv2 packet: another protocol, another port."""
