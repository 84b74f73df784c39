# SPDX-License-Identifier: Apache-2.0
"""Questions to the kernel, and forks beside them."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading

import pytest

from rnic.rdmacm import reach


def test_fork_while_socket_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child has no socket of a question, also when another thread is just closing it."""
    closing, forked = threading.Event(), threading.Event()

    class Slow(socket.socket):
        def close(self) -> None:
            if os.getpid() == parent:
                closing.set()
                forked.wait(0.5)  # a fork that comes in between is what must not be
            super().close()

    parent = os.getpid()
    monkeypatch.setattr(socket, "socket", Slow)
    reach.forget()
    question = reach.Question(ipaddress.ip_address("127.0.0.77"))
    descriptor = question.fileno()
    thread = threading.Thread(target=question.close)
    thread.start()
    assert closing.wait(60)
    child = os.fork()
    if child == 0:
        try:
            os.fstat(descriptor)
        except OSError:
            os._exit(0)
        os._exit(1)
    forked.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
