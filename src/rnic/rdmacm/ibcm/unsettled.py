# SPDX-License-Identifier: Apache-2.0
"""Ports that are closed while requests to them are open.

A peer repeats its request until it has the answer. A request finds its process by the name of its port. So
the name stays until each request that has come is settled: repeated ones find their exchange, and new ones
are refused. Meanwhile other processes cannot bind the port; this one can. A name stays no longer than a peer
repeats a request, whether the program answers or not.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.cm as cm
from rnic.cm.ib_cm import ANSWER_KEPT_NS
from rnic.rdmacm.names import Option
from rnic.records import Record
from rnic.wire import service_id

if TYPE_CHECKING:
    from rnic._nic import nic
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.service import Claim
    from rnic.rdmacm.sockaddr import IP, Inet

_OPEN = (*cm.HALF_OPEN, cm.State.SIDR_REQ_RCVD)


class _Kept(Record):
    name: nic.Listener
    asked: list[cm.Exchange]  # those that were open when the port was closed
    until: int  # ns


class Unsettled:
    """The names of such ports; under the registry's lock."""

    def __init__(self, table: cm.ConnTable) -> None:
        self._table = table
        self._kept: list[_Kept] = []
        self._served: set[int] = set()  # services that have had a listener: requests to others are refused

    def serve(self, service_id: int) -> None:
        """A service has a listener from now on."""
        self._served.add(service_id)

    def keep(self, name: nic.Listener, now: int) -> None:
        """Close a name when the requests to its service are settled; the call can be repeated."""
        if all(kept.name is not name for kept in self._kept):
            self._kept.append(_Kept(name, self._asked(name.service_id), now + ANSWER_KEPT_NS))
        self.release(now)

    def _asked(self, service_id: int) -> list[cm.Exchange]:
        """The open requests to a service. Ids that only call close ports nobody asked for."""
        if service_id not in self._served:
            return []
        return [one for one in self._table.exchanges() if _service(one) == service_id]

    def release(self, now: int) -> None:
        """Close the names whose requests are settled, or whose time is over."""
        for kept in list(self._kept):
            while kept.asked and _service(kept.asked[-1]) is None:
                kept.asked.pop()
            if not kept.asked or now >= kept.until:
                self._close(kept)

    @property
    def deadline(self) -> int | None:
        """When to call release()."""
        return min((kept.until for kept in self._kept), default=None)

    def give_up(self, service_id: int) -> bool:
        """Close the names of a service: an id of this process binds its port again. Returns whether there
        were any.
        """
        those = [kept for kept in self._kept if kept.name.service_id == service_id]
        for kept in those:
            self._close(kept)
        return bool(those)

    def close(self) -> None:
        """Close all."""
        for kept in list(self._kept):
            self._close(kept)

    def _close(self, kept: _Kept) -> None:
        kept.name.close()
        self._kept.remove(kept)


class Port:
    """A port that an id has bound."""

    def __init__(self, name: nic.Listener, unsettled: Unsettled) -> None:
        self._name: nic.Listener | None = name
        self._unsettled = unsettled

    def close(self) -> None:
        """Give the port back; a second call does nothing."""
        if self._name is not None:
            self._unsettled.keep(self._name, monotonic_ns())
            self._name = None


class Shared:
    """Ports that several ids of this process have at the same address, with REUSEADDR all of them."""

    def __init__(self) -> None:
        self._ports: dict[tuple[int, IP, bool], tuple[Port, int]] = {}  # and how many have it

    def take(self, one: CmId, local: Inet, port: int, claim: Callable[[], Port]) -> Claim:
        """The port of an id: with REUSEADDR another id's, if that one shares it; else a new one."""
        if not one.options.get(Option.REUSEADDR):
            return claim()
        key = service_id(one.ps, port), local.ip, bool(one.options.get(Option.AFONLY))
        there, count = self._ports.get(key) or (claim(), 0)
        self._ports[key] = there, count + 1
        return _Share(self, key)

    def give(self, key: tuple[int, IP, bool]) -> None:
        """An id has it no more; the last one gives it back."""
        port, count = self._ports.pop(key)
        if count > 1:
            self._ports[key] = port, count - 1
        else:
            port.close()


class _Share:
    """What an id has of such a port."""

    def __init__(self, shared: Shared, key: tuple[int, IP, bool]) -> None:
        self._shared: Shared | None = shared
        self._key = key

    def close(self) -> None:
        """Give it back; a second call does nothing."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.give(self._key)


def _service(one: cm.Exchange) -> int | None:
    """The service that a peer has asked for, while its request is open."""
    if one.state not in _OPEN or not isinstance(one, cm.Connection | cm.Resolution) or one.req is None:
        return None
    return one.req.service_id
