# SPDX-License-Identifier: Apache-2.0
"""One side of RDMA-CM for a queue pair of a test's own, here (`rnic.rdmacm`) and in the guest (`c_rdmacm`).

Runs in the guest, too: it imports nothing of rnic. Private data goes as hexadecimal digits.
"""

from __future__ import annotations

from typing import Any

WAIT = 60  # seconds for an event that comes


class CmSide:
    """Calls of one id, in the order of a connection: listen() and take(), or call() and ask()."""

    qp_num = 0

    def __init__(self, cm: Any, **options: Any) -> None:
        """cm has the names of `rnic.rdmacm`; options are create_id's."""
        self._cm, self._options = cm, options
        self._channel = cm.EventChannel()
        self._ids: list[Any] = []
        self._early: list[tuple[Any, dict[str, Any]]] = []  # requests that came too early
        self.id: Any = None

    def listen(self, ip: str) -> int:
        """Take connections at an address from now on; the port."""
        self._new_id()
        self.id.bind_addr((ip, 0))
        self.id.listen(8)
        return int(self.id.get_src_port())

    def call(self, ip: str, port: int) -> None:
        """Find the way to a listener."""
        self._new_id()
        self.id.resolve_addr(None, (ip, port))
        self._expect("ADDR_RESOLVED")
        self.id.resolve_route()
        self._expect("ROUTE_RESOLVED")

    def ask(self, data: str = "", ird: int = 4, ord: int = 4) -> None:  # noqa: A002 - the RFCs' name
        """Ask for the connection; event() has what comes of it."""
        self.id.connect(self._param(data, ird, ord))

    def take(self) -> dict[str, Any]:
        """The request that comes; it is accepted or rejected next."""
        self.id, told = self._early.pop(0) if self._early else self._next()
        self._ids.append(self.id)
        return told

    def accept(self, data: str = "", ird: int = 4, ord: int = 4) -> None:  # noqa: A002
        self.id.accept(self._param(data, ird, ord))

    def reject(self, data: str = "") -> None:
        self.id.reject(bytes.fromhex(data))

    def disconnect(self) -> None:
        self.id.disconnect()

    def event(self, timeout: float = WAIT) -> dict[str, Any]:
        """The next event: its name, status, private data and depths."""
        with self._channel.get_cm_event(timeout) as event:
            return _told(event)

    def ask_each(self, ip: str, port: int, data: list[str], *, leaves: bool) -> list[list[Any]]:
        """Ask for one connection after the other, with this private data; what came of each.

        leaves: this end ends those that are made; else the peer does.
        """
        found = []
        for one in data:
            self.call(ip, port)
            self.id.create_qp()
            self.ask(one)
            told = self.event()
            found.append([told["event"], told["status"], told.get("data")])
            if told["event"] == "ESTABLISHED":
                self._part(leaves)
            self._drop()
        return found

    def answer_each(self, data: list[str], *, rejects: bool, leaves: bool) -> list[str]:
        """Accept so many requests, or reject them, with this private data; that of the requests."""
        found = []
        for one in data:
            found.append(self.take()["data"])
            if rejects:
                self.reject(one)
            else:
                self.id.create_qp()
                self.accept(one)
                self._expect("ESTABLISHED")
                self._part(leaves)
            self._drop()
        return found

    def close_ids(self) -> None:
        for one in reversed(self._ids):
            one.destroy()
        self._ids = []
        self._channel.close()

    def _next(self) -> tuple[Any, dict[str, Any]]:
        with self._channel.get_cm_event(WAIT) as event:
            return event.id, _told(event)

    def _new_id(self) -> None:
        self.id = self._cm.create_id(self._channel, **self._options)
        self._ids.append(self.id)

    def _part(self, leaves: bool) -> None:
        if leaves:
            self.disconnect()
        one, told = self._next()
        while told["event"] == "CONNECT_REQUEST":
            self._early.append((one, told))
            one, told = self._next()
        assert told["event"] == "DISCONNECTED", told

    def _drop(self) -> None:
        self._ids.remove(self.id)
        self.id.destroy()

    def _expect(self, name: str) -> None:
        told = self.event()
        assert told["event"] == name, told

    def _param(self, data: str, ird: int, ord: int) -> Any:  # noqa: A002
        return self._cm.ConnParam(
            private_data=bytes.fromhex(data),
            responder_resources=ird,
            initiator_depth=ord,
            qp_num=self.qp_num,
        )


def _told(event: Any) -> dict[str, Any]:
    told = {"event": event.event.name, "status": event.status}
    if event.param is not None:
        param = event.param
        told |= {
            "data": param.private_data.hex(),
            "ird": param.responder_resources,
            "ord": param.initiator_depth,
        }
    return told
