# SPDX-License-Identifier: Apache-2.0
"""JSON objects over a stream socket, one a line, without ever waiting."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

Message = dict[str, Any]
LONGEST = 1 << 20  # bytes of a line; whoever sends a longer one is broken


class BrokenLineError(ValueError):
    """What came is no message."""


def encode(message: Message) -> bytes:
    """A line."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    """What a line says, or BrokenLineError."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise BrokenLineError(str(error)) from None
    if not isinstance(message, dict):
        raise BrokenLineError("not an object")
    return message


class Lines:
    """Both directions of a socket, for a loop that polls it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._in, self._out = bytearray(), bytearray()

    def fileno(self) -> int:
        """For poll(); -1 when it is closed."""
        return self._socket.fileno()

    @property
    def waits(self) -> bool:
        """Whether something has to be sent when the socket has room."""
        return bool(self._out)

    def send(self, message: Message) -> None:
        """Now, or when flush() is called."""
        self._out += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes. Of a peer that has gone, receive() tells."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()

    def receive(self) -> list[Message]:
        """The messages that have come; EOFError at the end."""
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self._in += data
        *lines, rest = self._in.split(b"\n")
        if len(rest) > LONGEST:
            raise BrokenLineError(f"a line of more than {LONGEST} bytes")
        self._in = rest
        return [decode(bytes(line)) for line in lines]

    def end(self) -> None:
        """Tell the other side that no more comes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Both directions."""
        self._socket.close()
