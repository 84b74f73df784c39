# SPDX-License-Identifier: Apache-2.0
"""One of two programs that hold a conversation by a script; the calls are rnic's or the C library's.

It runs here with `rnic.rdmacm`, and in a guest of tests/interop with librdmacm, so it imports neither.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

WAIT = 180.0  # seconds that only a hang takes
COMM_EST, QP_FATAL, PATH_MIG = 4, 1, 5  # asynchronous events, as notify() is told of them
NOBODY = 1  # a port that is never served
INVALID_SERVICE_ID = 8

ASKS = {
    "private_data": b"asks",
    "responder_resources": 4,
    "initiator_depth": 3,
    "flow_control": True,
    "retry_count": 5,
    "rnr_retry_count": 6,
}
AGREES = ASKS | {"private_data": b"agrees", "responder_resources": 2, "initiator_depth": 1, "retry_count": 2}
LONG = {"private_data": bytes(200)}  # more than any message carries
DEEP = {"responder_resources": 200}  # more than the devices can do
LIMITS = {"responder_resources": 255, "initiator_depth": 255}  # what does not need a device to be understood

Told = list[Any]
"""An event: whose, what, its status, its private data without the zeros, how long that is, its fields."""


def foreign() -> int:
    """The number of a queue pair that nobody has, and that no other connection names."""
    return random.randrange(0x200000, 0xF00000)


def field(one: Any, name: str) -> int:
    return int(getattr(one, name, 0))


class Seat:
    """Ids and their event channel.

    `cm` is rnic.rdmacm or c_rdmacm, `enums` has QPState and EventType for it; `ip` is where the seat is, `to`
    the peer's seat: its address and port.
    """

    def __init__(self, cm: Any, enums: Any, ip: str) -> None:
        self.cm, self.enums, self.ip, self.to = cm, enums, ip, (ip, 0)
        self.channel = cm.EventChannel()
        self.ids: dict[str, Any] = {}
        self.names: dict[Any, str] = {}  # by id, those that were destroyed too: an event may come late
        self.asked = 0
        self.parked: list[Any] = []  # channels that an id has migrated to
        self.exits: list[str] = []  # whose TIMEWAIT is over: that comes in its own time
        self.anchor = cm.create_id(self.channel)  # so that the seat answers, whatever becomes of its ids
        self.anchor.bind_addr((ip, 0))

    def call(self, to: tuple[str, int]) -> None:
        """Begin as the end that connects: an id that is named one."""
        self.to = (to[0], to[1])
        self._name("one", self.cm.create_id(self.channel))

    def listen(self) -> int:
        """Begin as the end that is called: an id that is named listener; its port."""
        listener = self.cm.create_id(self.channel)
        self._name("listener", listener)
        listener.bind_addr((self.ip, 0))
        listener.listen(8)
        return int(listener.get_src_port())

    def _name(self, name: str, one: Any) -> None:
        self.ids[name] = one
        self.names[one] = name

    # ------------------------------------------------------------------ steps

    def do(self, name: str, call: str) -> str:
        """Make a call; "ok", or the name of its errno."""
        one = self.ids.get(name)
        if one is None:
            return "gone"
        try:
            CALLS[call](self, one)
        except OSError as error:
            return errno.errorcode[error.errno or errno.EIO]
        if call == "destroy":
            del self.ids[name]
        return "ok"

    def expect(self, kind: str) -> Told:
        """The next event, which has to be of this kind."""
        told = self._take(WAIT)
        assert told is not None, f"no {kind}"
        assert told[1] == kind, f"{told}, not {kind}"
        return told

    def events(self) -> list[Told]:
        """Those that are there."""
        found = []
        while (told := self._take(0)) is not None:
            found.append(told)
        return found

    def states(self) -> dict[str, str]:
        """The states of the ids' queue pairs."""
        return {name: one.qp.state.name for name, one in self.ids.items() if one.qp is not None}

    def ask(self, ip: str, serial: int) -> None:
        """Ask for a service that nobody has, and wait until that is refused.

        What was sent before, and what the peer sent in answer, has arrived then: messages keep their order.
        """
        with self.cm.EventChannel() as channel, self.cm.create_id(channel) as one:
            one.resolve_addr(None, (ip, NOBODY))
            self._wait_for(channel, "ADDR_RESOLVED")
            one.resolve_route()
            self._wait_for(channel, "ROUTE_RESOLVED")
            one.connect(self.cm.ConnParam(qp_num=0x100000 + serial))
            self._wait_for(channel, "REJECTED", INVALID_SERVICE_ID)

    def _wait_for(self, channel: Any, kind: str, status: int = 0) -> None:
        with channel.get_cm_event(WAIT) as event:
            assert (event.event.name, event.status) == (kind, status), event

    def close(self) -> None:
        for one in (*self.ids.values(), self.anchor):
            one.destroy()
        for channel in (self.channel, *self.parked):
            channel.close()

    # ------------------------------------------------------------------ events

    def _take(self, timeout: float) -> Told | None:
        for channel in (self.channel, *self.parked):
            try:
                with channel.get_cm_event(0 if self.parked else timeout) as event:
                    if event.event.name != "TIMEWAIT_EXIT":
                        return self._told(event)
                    self.exits.append(self.names[event.id])
            except TimeoutError:
                continue
            return self._take(timeout)
        return None

    def _told(self, event: Any) -> Told:
        kind = event.event.name
        if kind == "CONNECT_REQUEST":
            self.asked += 1
            self._name("child" if self.asked == 1 else f"child{self.asked}", event.id)
        param = event.param
        data = bytes(getattr(param, "private_data", b""))
        fields = [field(param, name) for name in FIELDS] + [int(field(param, "qp_num") != 0)]
        return [self.names[event.id], kind, event.status, data.rstrip(b"\0").decode(), len(data), fields]

    # ------------------------------------------------------------------ calls that need more than the id

    def migrate(self, one: Any) -> None:
        channel = self.cm.EventChannel()
        self.parked.append(channel)
        one.migrate_id(channel)


FIELDS = ("responder_resources", "initiator_depth", "flow_control", "retry_count", "rnr_retry_count", "srq")

CALLS: dict[str, Callable[[Seat, Any], Any]] = {
    "bind_addr": lambda seat, one: one.bind_addr((seat.ip, 0)),
    "resolve_addr": lambda seat, one: one.resolve_addr(None, seat.to),
    "resolve_route": lambda _, one: one.resolve_route(),
    "listen": lambda _, one: one.listen(8),
    "create_qp": lambda _, one: one.create_qp(),
    "destroy_qp": lambda _, one: one.destroy_qp(),
    "connect": lambda seat, one: one.connect(seat.cm.ConnParam(**ASKS)),
    "connect_foreign": lambda seat, one: one.connect(seat.cm.ConnParam(**ASKS, qp_num=foreign())),
    "connect_most": lambda seat, one: one.connect(seat.cm.ConnParam(**(ASKS | LIMITS))),
    "connect_long": lambda seat, one: one.connect(seat.cm.ConnParam(**(ASKS | LONG))),
    "connect_deep": lambda seat, one: one.connect(seat.cm.ConnParam(**(ASKS | DEEP))),
    "accept": lambda seat, one: one.accept(seat.cm.ConnParam(**AGREES)),
    "accept_foreign": lambda seat, one: one.accept(seat.cm.ConnParam(**AGREES, qp_num=foreign())),
    "accept_most": lambda seat, one: one.accept(seat.cm.ConnParam(**(AGREES | LIMITS))),
    "accept_long": lambda seat, one: one.accept(seat.cm.ConnParam(**(AGREES | LONG))),
    "accept_deep": lambda seat, one: one.accept(seat.cm.ConnParam(**(AGREES | DEEP))),
    "accept_none": lambda _, one: one.accept(None),
    "reject": lambda _, one: one.reject(b"refuses"),
    "reject_long": lambda _, one: one.reject(bytes(200)),
    "disconnect": lambda _, one: one.disconnect(),
    "establish": lambda _, one: one.establish(),
    "notify_established": lambda seat, one: one.notify(seat.enums.EventType(COMM_EST)),
    "notify_fatal": lambda seat, one: one.notify(seat.enums.EventType(QP_FATAL)),
    "notify_migrated": lambda seat, one: one.notify(seat.enums.EventType(PATH_MIG)),
    "set_tos": lambda _, one: one.set_option(0, 8),
    "set_reuseaddr": lambda _, one: one.set_option(1, 1),
    "set_afonly": lambda _, one: one.set_option(2, 1),
    "set_ack_timeout": lambda _, one: one.set_option(3, 14),
    "migrate": Seat.migrate,
    "init_attr": lambda seat, one: one.init_qp_attr(seat.enums.QPState(1)),
    "rtr_attr": lambda seat, one: one.init_qp_attr(seat.enums.QPState(2)),
    "rts_attr": lambda seat, one: one.init_qp_attr(seat.enums.QPState(3)),
    "destroy": lambda _, one: one.destroy(),
}
