# SPDX-License-Identifier: Apache-2.0
"""Publishers with subscribers in threads; and datagrams of strangers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import rnic
from patterns.ends import HOST, WAIT
from rnic import SGE, AccessFlags, AHAttr, SendFlags, SendWR, WROpcode
from rnic.patterns.pubsub import MissedError, Publisher, Subscriber
from rnic.patterns.pubsub.datagrams import queue_pair


@contextmanager
def published(group: str | None = None, host: str = HOST, **options: Any) -> Iterator[tuple[Publisher, int]]:
    """A publisher whose subscribers are served, and the port for them."""
    with rnic.listen(host, 0) as listener, Publisher(listener, group, **options) as publisher:
        serving = threading.Thread(target=listener.serve, args=(publisher.serve,))
        serving.start()
        try:
            yield publisher, listener.port
        finally:
            publisher.context.set_faults(None)
            listener.close()
            serving.join(WAIT)
        assert not serving.is_alive()
        assert publisher.statistics().subscribers == 0


@contextmanager
def subscribed(port: int, host: str = HOST, **options: Any) -> Iterator[Subscriber]:
    with rnic.connect(host, port) as conn, Subscriber.over(conn, timeout=WAIT, **options) as subscriber:
        yield subscriber


def all_of(subscriber: Subscriber) -> tuple[list[bytes], int]:
    """To the end: the messages, and how many were missed."""
    heard: list[bytes] = []
    missed = 0
    while True:
        try:
            heard.append(subscriber.get(WAIT))
        except MissedError as error:
            missed += error.count
        except EOFError:
            return heard, missed


class Stranger:
    """Anybody who sends to a group."""

    def __init__(self, stack: ExitStack, group: rnic.GID, qkey: int) -> None:
        context = stack.enter_context(rnic.open_device("roce_lo"))
        pd = stack.enter_context(context.alloc_pd())
        self._qp = queue_pair(stack, context, pd, 0)
        self._mr = stack.enter_context(pd.alloc_mr(4096, AccessFlags.LOCAL_WRITE))
        self._to = stack.enter_context(pd.create_ah(AHAttr(group, 0, port_num=1, hop_limit=1)))
        self._qkey = qkey

    def send(self, data: bytes) -> None:
        """One datagram."""
        self._mr.buf[: len(data)] = data
        wr = SendWR(opcode=WROpcode.SEND, sg_list=[SGE(self._mr, 0, len(data))])
        wr.send_flags, wr.ah = SendFlags.SIGNALED, self._to
        wr.remote_qpn, wr.remote_qkey = 0xFFFFFF, self._qkey
        self._qp.post_send(wr)
        assert self._qp.send_cq is not None
        while not (found := self._qp.send_cq.poll(1)):
            pass
        assert found[0].ok
