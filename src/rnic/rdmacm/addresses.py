# SPDX-License-Identifier: Apache-2.0
"""Addresses and ports of an id: the local one, and the path to the peer's."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from errno import EADDRINUSE, EADDRNOTAVAIL, EINVAL, ENODEV, EOPNOTSUPP, ETIMEDOUT
from time import monotonic_ns
from typing import TYPE_CHECKING

from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm import routes
from rnic.rdmacm.names import EventType, IdState, Option, Path
from rnic.rdmacm.registry import registry
from rnic.rdmacm.service import Claim
from rnic.rdmacm.sockaddr import Inet
from rnic.records import replace

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent, Loop
    from rnic.rdmacm.cm_id import CmId

_log = Log("rnic.rdmacm")

_POLL_NS = 2 * 10**6  # how often the neighbour table is looked into, at first
_POLL_MAX_NS = 64 * 10**6
_PROVOKE_NS = 10**9


def bind(one: CmId, local: Inet, verb: str) -> None:
    """Bind an id to an address and port of this host, or of every device that serves it."""
    local = replace(local, ip=routes.held_as(local.ip))
    if local.ip.is_unspecified:
        _bind_to(one, local, registry.every_agent(one, verb), verb)
    else:
        agent = registry.agent_of_address(one, local.ip, local.scope, verb)
        _bind_to(one, local, [agent], verb)
        one.use(agent)
    one.state = IdState.ADDR_BOUND


def _bind_to(one: CmId, local: Inet, agents: Sequence[Loop], verb: str) -> None:
    for agent in agents:
        agent.check(verb)
    for agent in _claim(one, local, agents, verb):
        one.use_too(agent)
    _tidy(one, agents)


def _claim(one: CmId, local: Inet, agents: Sequence[Loop], verb: str) -> list[Loop]:
    """Claim the port, or a free one; returns the agents that have it."""
    ports = [local.port] if local.port else routes.ephemeral()
    for port in ports:
        try:
            one.claims, bound = _claim_port(one, local, port, agents)
        except VerbsError as error:
            _tidy(one, agents)
            if error.errno != EADDRINUSE or port == ports[-1]:
                raise VerbsError(error.errno or EINVAL, error.strerror or "", verb) from None
        else:
            one.local = Inet(local.ip, port, local.scope)
            return bound
    raise AssertionError("there is no port to try")


def _claim_port(one: CmId, local: Inet, port: int, agents: Sequence[Loop]) -> tuple[list[Claim], list[Loop]]:
    """Claim a port on each device. For an id that chose the port, and no device, those of the transport that
    comes first have to have it: another one's may be in use by programs that know nothing of RDMA.
    """
    claims: list[Claim] = []
    bound: list[Loop] = []
    with contextlib.ExitStack() as undo:
        for agent in agents:
            try:
                claim = agent.service.claim(one, local, port)
            except VerbsError as error:
                if not local.port or agent.transport is agents[0].transport:
                    raise
                _log.info("%r is not bound on %s: %s", one, agent.name, error)
                continue
            undo.callback(claim.close)
            claims.append(claim)
            bound.append(agent)
        undo.pop_all()
    return claims, bound


def set_afonly(one: CmId, value: int, agents: Sequence[Loop]) -> None:
    """Set the option AFONLY. An id that is bound to any address of IPv6, by `agents`, gives up its port of
    IPv4, or takes it.
    """
    before = one.options.copy()
    one.options[Option.AFONLY] = value
    has_both = one.local.ip.version == 6 and one.local.ip.is_unspecified
    if one.claims and has_both and value != before.get(Option.AFONLY, 0):
        try:
            _claim_again(one, agents)
        except BaseException:
            one.options = before
            _claim_again(one, agents)
            raise


def _claim_again(one: CmId, agents: Sequence[Loop]) -> None:
    for claim in (*one.claims, *one.let_in_on.values()):
        claim.close()
    one.claims, one.let_in_on = [], {}
    beside = [each for each in agents if not one.device and each.service.lets_in]
    others = [each for each in agents if each not in beside]
    one.claims, _ = _claim_port(one, one.local, one.local.port, others)
    for each in beside:  # the door has let it in
        one.let_in_on[each] = each.service.claim_beside(one)


def _tidy(one: CmId, agents: Sequence[Loop]) -> None:
    """End an agent that was started for this id and has no other use."""
    for agent in agents:
        if not agent.ids:
            agent.leave(one)


def peer_of(one: CmId, remote: Inet) -> Inet:
    """Where a destination is. As with the kernel, no address at all is this host: at the address that the id
    is bound to, or else at that of the loopback interface.
    """
    if not remote.ip.is_unspecified:
        return replace(remote, ip=routes.held_as(remote.ip))
    if one.local.ip.is_unspecified:
        return replace(remote, ip=routes.LOOPBACK[remote.ip.version])
    return replace(remote, ip=one.local.ip, scope=one.local.scope)


def resolve(one: CmId, remote: Inet, timeout_ms: int) -> None:
    """Find the device, the local address and the next hop; an event tells the result.

    Raises VerbsError: EOPNOTSUPP if the device's connection service lacks what the id is for.
    """
    try:
        _find_way(one, remote, timeout_ms)
    except OSError as error:
        if error.errno == EOPNOTSUPP:
            one.state = _unqueried(one)
            raise
        _unresolved(one, -(error.errno or ENODEV))


def _unresolved(one: CmId, status: int) -> None:
    one.state = _unqueried(one)
    one.put(EventType.ADDR_ERROR, status)


def _unqueried(one: CmId) -> IdState:
    return IdState.ADDR_BOUND if one.claims else IdState.IDLE


def _find_way(one: CmId, remote: Inet, timeout_ms: int) -> None:
    bound = None if one.local.ip.is_unspecified else one.local
    way = routes.way_to(remote.ip, bound.ip if bound else None, remote.scope)
    if way.source is None:
        raise VerbsError(EADDRNOTAVAIL, "the route has no source address", "resolve_addr")
    scope = way.ifindex if way.source.is_link_local else 0
    if bound is None:
        agent = registry.agent_of_address(one, way.source, scope, "resolve_addr")
        one.use(agent)
        if one.local.port:
            one.local = Inet(way.source, one.local.port, scope)
        else:
            _take_port(one, agent, way.source, scope)
    agent = one.need_agent("resolve_addr")
    begin = agent.service.lookup if one.is_datagram else agent.service.connection
    one.conversation = begin(one, way.source)
    if way.direct or routes.is_neighbour_known(way.next_hop, way.ifindex):
        _resolved(one)
    else:
        routes.provoke(remote.ip, way.source, way.ifindex)
        _wait_for_neighbour(one, agent, way, timeout_ms)


def _take_port(one: CmId, agent: Agent, ip: routes.IP, scope: int) -> None:
    """Choose a port for outgoing connections that no other id of this host has."""
    port = agent.service.take_port(one.ps, ip, "resolve_addr")
    try:
        one.calls_from, one.local = agent, Inet(ip, port, scope)
    except BaseException:  # from the handler of a signal, for instance
        agent.service.give_port(one.ps, ip, port)
        raise


def _resolved(one: CmId) -> None:
    one.state = IdState.ADDR_RESOLVED
    one.put(EventType.ADDR_RESOLVED)


def _wait_for_neighbour(one: CmId, agent: Agent, way: routes.Way, timeout_ms: int) -> None:
    """Poll the neighbour table until the next hop is there, at growing intervals."""
    start = monotonic_ns()
    until, step, said = start + timeout_ms * 10**6, _POLL_NS, start

    def look(now: int) -> int | None:
        nonlocal step, said
        if one.state is not IdState.ADDR_QUERY:
            return None
        try:
            return look_once(now)
        except OSError as error:  # no descriptor is left to ask with
            _unresolved(one, -(error.errno or ENODEV))
            return None

    def look_once(now: int) -> int | None:
        nonlocal step, said
        if routes.is_neighbour_known(way.next_hop, way.ifindex):
            _resolved(one)
        elif now >= until:
            _unresolved(one, -ETIMEDOUT)
        else:
            if now - said >= _PROVOKE_NS and one.remote and way.source:
                routes.provoke(one.remote.ip, way.source, way.ifindex)
                said = now
            step = min(2 * step, _POLL_MAX_NS)
            return min(now + step, until)
        return None

    agent.at(start + step, look)
    agent.flush()


def resolve_route(one: CmId) -> None:
    """Check that route and address still exist; an event tells the result."""
    agent = one.need_agent("resolve_route")
    assert one.remote is not None
    try:
        routes.way_to(one.remote.ip, one.local.ip, one.remote.scope)
        if agent.ifindex not in routes.interfaces_of(one.local.ip):
            raise VerbsError(ENODEV, f"{one.local.ip} has gone", "resolve_route")
    except OSError as error:
        one.put(EventType.ROUTE_ERROR, -(error.errno or ENODEV))
    else:
        take_path(one, Path(traffic_class=one.options.get(Option.TOS, 0)))


def take_path(one: CmId, path: Path) -> None:
    """The peer is reached by this path; an event tells so."""
    assert one.conversation is not None
    one.conversation.route(path)
    one.path, one.state = path, IdState.ROUTE_RESOLVED
    one.put(EventType.ROUTE_RESOLVED)
