# SPDX-License-Identifier: Apache-2.0
"""RoCE's door: requests to ids at any address of the host, until the device of an interface is open.

A device takes UDP port 4791 of each of its addresses, and descriptors and threads besides. Nobody needs them
before the first request comes to such an address. So the door has one socket of all addresses for each
version of IP: the kernel prefers the sockets of devices, which have the address. A request opens the device
and is handed to it, as one process hands packets to another (src/nic/names/slotmsg.h). From then on the
device hears requests itself.

Other processes have devices at some addresses, too. They find the ids by names, as those that listen at one
address or on one interface (src/nic/names/listen.h), and hand requests to the door.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from errno import EADDRINUSE, EMFILE, ENFILE, ENOBUFS, ENOMEM
from time import monotonic_ns
from typing import TYPE_CHECKING
from weakref import WeakSet

from rnic.enums import Transport
from rnic.errors import VerbsError, exhausted
from rnic.log import INFO, WARNING, Log
from rnic.rdmacm import routes
from rnic.rdmacm.ibcm.ear import Ear, Mailbox, News
from rnic.rdmacm.ibcm.handing import (
    FORWARD,
    HEADER,
    MAGIC,
    OWNER_QUERY,
    ROCE_PORT,
    VERSION,
    Owners,
    address_of,
    answer,
    forwarded,
    is_taken,
    name_at,
    name_of_any,
    sockaddr,
)
from rnic.rdmacm.ibcm.manager import IbService
from rnic.rdmacm.ibcm.outbox import Outbox
from rnic.rdmacm.ibcm.ports import BLOCK_MARK, first_of
from rnic.rdmacm.names import Option
from rnic.rdmacm.sockaddr import IP, Inet
from rnic.wire import MAD, CmMessage, Req, SidrReq, WireError, parse_cm, service_id
from rnic.wording import port_taken

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.reactor import Reactor
    from rnic.rdmacm.service import OpenAt

_log = Log("rnic.rdmacm")

_PAUSE_NS = 250 * 10**6  # until the next try, where descriptors or memory were missing
_EXHAUSTED = EMFILE, ENFILE, ENOMEM, ENOBUFS
_KNOWN_NS = 10**9  # how long it is believed which device an address has
_KNOWN_MOST = 1024  # addresses
_LOOKS, _LOOK_NS = 128, 10**7  # at addresses that are not known: so many at once, and one more in this time
_STAY_NS = 2 * 10**9  # how long a device at which nobody listens refuses requests


class _Known:
    """What was found out about an address: whether it is this host's; believed until a time (ns)."""

    def __init__(self, until: int, *, ours: bool) -> None:
        self.until, self.ours = until, ours
        self.agent: Agent | None = None  # its device, which is not opened again
        self.again = 0  # before, ns


class IbDoor:
    """The ids of RoCE at any address of the host; under the registry's lock."""

    transport = Transport.IB

    def __init__(self, reactor: Reactor, open_at: OpenAt, agents: Callable[[], list[Agent]]) -> None:
        self._reactor, self._open_at, self._agents = reactor, open_at, agents
        self._ears: dict[int, Ear] = {}
        self._mailboxes: dict[tuple[int, int], Mailbox] = {}  # by service and version
        self._ids: dict[CmId, list[tuple[int, int]]] = {}
        self._sharers: set[CmId] = set()  # bound with REUSEADDR
        self._paused_until = 0  # ns: a device could not be opened
        self._without_ear: set[CmId] = set()  # those that hear by devices alone
        self._news: News | None = None
        self._kept_out: set[tuple[CmId, str]] = set()  # of which devices that was said
        self._refusing: WeakSet[Agent] = WeakSet()
        self._owners = Owners()
        self._outbox = Outbox(reactor)
        self._known: dict[tuple[IP, int], _Known] = {}
        self._looks_at = {False: 0, True: 0}  # ns: when all looks will be there again; of loopback

    # ------------------------------------------------------------------ for ids

    def claim(self, one: CmId, local: Inet, port: int) -> IbClaim:
        """Bind a port at every address. Raises VerbsError: EADDRINUSE if another id of this host has it."""
        service = service_id(one.ps, port)
        keys = [(service, version) for version in (4, 6) if one.is_among(routes.LOOPBACK[version], local)]
        claim, reuse = IbClaim(self, one), bool(one.options.get(Option.REUSEADDR))
        shared = {key for key in keys if reuse and self._is_shared(key)}
        self._ids[one] = []  # what another id has is not this one's to give back
        if reuse:
            self._sharers.add(one)
        try:
            for key in keys:
                if key not in shared:
                    self._open(key, local, port)
                self._ids[one].append(key)
            if not reuse and not self._is_free(one, local, port):
                raise VerbsError(EADDRINUSE, port_taken(str(local.ip), port), "bind_addr")
        except BaseException:
            claim.close()
            raise
        return claim

    def _with(self, key: tuple[int, int]) -> list[CmId]:
        return [one for one, keys in self._ids.items() if key in keys]

    def _is_shared(self, key: tuple[int, int]) -> bool:
        """Whether ids of this process have a name, all of which share it."""
        users = self._with(key)
        return bool(users) and self._sharers.issuperset(users)

    def _open(self, key: tuple[int, int], local: Inet, port: int) -> None:
        try:
            mailbox = Mailbox(self, *key)
        except OSError as error:
            taken = error.errno == EADDRINUSE
            text = port_taken(str(local.ip), port) if taken else exhausted(error.errno or 0)
            raise VerbsError(error.errno or EADDRINUSE, text, "bind_addr") from None
        self._mailboxes[key] = mailbox
        self._reactor.watch(mailbox, select.EPOLLIN)

    def _services(self) -> list[IbService]:
        return [agent.service for agent in self._agents() if isinstance(agent.service, IbService)]

    def _is_free(self, one: CmId, local: Inet, port: int) -> bool:
        """Whether nobody has the port. Names that this process keeps for requests to an id before go."""
        if not self._is_used(one, local, port):
            return True
        given_up = [each.unsettled.give_up(service_id(one.ps, port)) for each in self._services()]
        return any(given_up) and not self._is_used(one, local, port)

    def _is_used(self, one: CmId, local: Inet, port: int) -> bool:
        """Whether somebody has the port at an address, on an interface, or to call from."""
        service = service_id(one.ps, port)
        block = BLOCK_MARK | service_id(one.ps, first_of(port))
        own = [each.ports for each in self._services()]
        for index, ip in routes.addresses():
            if not one.is_among(ip, local):
                continue
            if is_taken(name_at(service, ip, index)) or is_taken(name_of_any(service, ip.version, index)):
                return True
            ours = next((ports for ports in own if ports.has_block(one.ps, ip, port)), None)
            calls = not ours.may_bind(one.ps, ip, port) if ours else is_taken(name_at(block, ip, index))
            if calls:
                return True
        return False

    def listen(self, one: CmId) -> None:
        """Hear requests at every address from now on.

        Where another user's process has UDP port 4791 of some address, nobody can have it at all of them:
        then all devices are opened, and that of each address that comes.
        """
        others = [each for key in self._ids[one] for each in self._with(key) if each is not one]
        self._known.clear()  # it is to be let in where others are
        if any(each.is_listening for each in others):
            raise VerbsError(EADDRINUSE, port_taken(str(one.local.ip), one.local.port), "listen")
        try:
            self._listen_with_ears(one)
        except OSError as error:
            _log.info("%r opens all devices, as UDP port %d of all addresses: %s", one, ROCE_PORT, error)
            self._watch_addresses(one)
            self._open_all(one)

    def _listen_with_ears(self, one: CmId) -> None:
        for _, version in self._ids[one]:
            self._listen_by(version)

    def _watch_addresses(self, one: CmId) -> None:
        """Before one looks which there are."""
        if self._news is None:
            self._news = News(self._addresses_came)
            self._reactor.watch(self._news, select.EPOLLIN)
        self._without_ear.add(one)

    def _addresses_came(self) -> None:
        """Some have changed. The port may be free meanwhile, too."""
        for one in list(self._without_ear):
            try:
                self._listen_with_ears(one)
            except OSError:
                self._open_more(one)
            else:
                self._hears(one)

    def _open_more(self, one: CmId) -> None:
        try:
            self._open_all(one)
        except OSError as error:
            _log.info("%r opens no device: %s", one, error)

    def _hears(self, one: CmId) -> None:
        """It does without the news of addresses, or has gone."""
        self._without_ear.discard(one)
        if self._news is not None and not self._without_ear:
            self._reactor.unwatch(self._news)
            self._news.close()
            self._news = None

    def _listen_by(self, version: int) -> None:
        if version not in self._ears:
            ear = self._ears[version] = Ear(self, version)
            self._reactor.watch(ear, select.EPOLLIN)

    def _open_all(self, one: CmId) -> None:
        last: OSError | None = None
        opened = 0
        for index, ip in routes.addresses():
            if not one.is_among(ip, one.local):
                continue
            try:
                self._let_in(one, self._open_at(self.transport, ip, index))
                opened += 1
            except OSError as error:
                last = error
        if last is not None and not opened:
            raise last

    def _let_in(self, one: CmId, agent: Agent) -> None:
        """Let an id listen on a device, as if it had been bound there."""
        if one.uses(agent):
            return
        one.let_in_on[agent] = agent.service.claim_beside(one)
        one.use_too(agent)
        if one.is_listening:
            agent.service.listen(one)

    def unlisten(self, one: CmId) -> None:
        """The devices refuse requests then."""
        self._hears(one)

    def share_port(self, one: CmId, *, shared: bool) -> None:
        """Nothing: its port is a name, which it has everywhere."""

    def forget(self, one: CmId) -> None:
        """An id gives its port back."""
        self._hears(one)
        self._kept_out = {each for each in self._kept_out if each[0] is not one}
        self._sharers.discard(one)
        for key in self._ids.pop(one, ()):
            if not self._with(key) and (mailbox := self._mailboxes.pop(key, None)) is not None:
                self._reactor.unwatch(mailbox)
                mailbox.close()
        used = {version for keys in self._ids.values() for _, version in keys}
        for version in self._ears.keys() - used:
            ear = self._ears.pop(version)
            self._reactor.unwatch(ear)
            ear.close()

    # ------------------------------------------------------------------ what has come

    def heard(self, data: bytes, src: bytes, dst: IP, scope: int) -> None:
        """A datagram has come to an address whose device nobody has opened."""
        asked = _message_of(data)
        if asked is None:
            return
        message = forwarded(data, src, self._here(dst, scope))
        if isinstance(asked, Req | SidrReq):
            key = asked.service_id, dst.version
            if key not in self._mailboxes and self._outbox.send(message, name_of_any(*key)):
                return
        self._hand_in(message, dst, scope)

    def handed(self, said: bytes, uid: int, sock: socket.socket, sender: str | bytes) -> None:
        """Another process has said something: it hands on a request, or asks whose UDP port 4791 is."""
        if len(said) < HEADER.size:
            return
        fields = HEADER.unpack_from(said)
        dst, scope = address_of(fields[-1])
        if fields[:2] != (MAGIC, VERSION):
            return
        if fields[2] == OWNER_QUERY and dst.version in self._ears:
            if self._look_at(dst, scope).ours:
                answer(said, sock, sender)
            self._agent_at(dst, scope)
        elif fields[2] == FORWARD and (uid in (0, os.getuid()) or self._owners.have(uid, dst)):
            self._hand_in(said, dst, scope)

    def _hand_in(self, message: bytes, dst: IP, scope: int) -> None:
        if (agent := self._agent_at(dst, scope)) is not None:
            self._outbox.send(message, f"\0rnic/1/slot/{agent.context.cm_slot()}")

    def _look_at(self, ip: IP, scope: int) -> _Known:
        """Whether an address is this host's.

        Strangers ask at any rate, and a look has its price: an address is looked at once in a while, and of
        those that were not known as this host's only so many in a time.
        """
        now, key = monotonic_ns(), (ip, scope if ip.version == 6 and ip.is_link_local else 0)
        known = self._known.get(key)
        if known is not None and now < known.until:
            return known
        if (known is None or not known.ours) and not self._may_look(ip.is_loopback, now):
            return _Known(0, ours=False)
        if len(self._known) >= _KNOWN_MOST:
            self._known = {
                each: of for each, of in self._known.items() if of.ours and not each[0].is_loopback
            }
        known = self._known[key] = _Known(now + _KNOWN_NS, ours=_is_ours(ip))
        return known

    def _may_look(self, loopback: bool, now: int) -> bool:
        """What this host sends itself, to any of 2**24 addresses, has looks of its own."""
        due = max(self._looks_at[loopback], now) + _LOOK_NS
        if due > now + _LOOKS * _LOOK_NS:
            return False
        self._looks_at[loopback] = due
        return True

    def _agent_at(self, ip: IP, scope: int) -> Agent | None:
        """The device of an address of this host, open for all ids; None: there is none now."""
        known, now = self._look_at(ip, scope), monotonic_ns()
        if known.agent is not None and known.agent in self._agents():
            return known.agent
        if not known.ours or now < known.again:
            return None
        known.again = now + _PAUSE_NS
        known.agent = self._open_for_all(ip, scope)
        return known.agent

    def _open_for_all(self, ip: IP, scope: int) -> Agent | None:
        """Open the device of an address of this host for all ids. None: it cannot be opened now."""
        if monotonic_ns() < self._paused_until:
            return None
        try:
            agent = self._open_at(self.transport, routes.held_as(ip), scope)
        except OSError as error:
            _log.info("a request to %s is lost: %s", ip, error)
            if error.errno in _EXHAUSTED:  # nothing else: strangers choose what fails
                self._paused_until = monotonic_ns() + _PAUSE_NS
            return None
        for one in self._ids:
            self._try_to_let_in(one, agent)
        if not agent.ids:
            self._refuse_for_a_while(agent)
        return agent

    def _refuse_for_a_while(self, agent: Agent) -> None:
        """Nobody listens on the device; strangers may send requests for ever."""

        def enough(_now: int) -> None:
            self._refusing.discard(agent)
            agent.end_unused()

        if agent not in self._refusing:
            self._refusing.add(agent)
            agent.at(monotonic_ns() + _STAY_NS, enough)
            agent.flush()

    def _try_to_let_in(self, one: CmId, agent: Agent) -> None:
        what = one, agent.context.name
        try:
            self._let_in(one, agent)
        except OSError as error:  # the others are not to blame
            level = INFO if what in self._kept_out else WARNING  # not for each request
            self._kept_out.add(what)
            _log.log(level, "%r hears nothing on %s: %s", *what, error)
        else:
            self._kept_out.discard(what)

    def _here(self, ip: IP, scope: int) -> bytes:
        return sockaddr(ip, ROCE_PORT, scope if ip.version == 6 and ip.is_link_local else 0)

    def close(self) -> None:
        """Close everything; also in a forked child, whose descriptors are copies."""
        for mailbox in self._mailboxes.values():
            mailbox.close()
        for ear in self._ears.values():
            ear.close()
        if self._news is not None:
            self._news.close()
        self._mailboxes.clear()
        self._ears.clear()


class IbClaim:
    """A port that an id has at every address."""

    def __init__(self, door: IbDoor, one: CmId) -> None:
        self._door, self._one = door, one

    def close(self) -> None:
        """Give it back; a second call does nothing."""
        self._door.forget(self._one)


def _is_ours(ip: IP) -> bool:
    """Whether a network interface of this host has an address. Strangers name any, a broadcast one, too."""
    try:
        return bool(routes.interfaces_of(routes.held_as(ip)))
    except OSError as error:  # no descriptor is left to ask with
        _log.info("a request to %s is lost: %s", ip, error)
        return False


def _message_of(data: bytes) -> CmMessage | None:
    """The message in a datagram; None: it has none."""
    from rnic.wire.packet import Transport as Packet  # when the first has come: an import has its price

    try:
        return parse_cm(MAD.parse(Packet.parse(data).payload))
    except WireError:
        return None
