# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ARG002 - arguments are the interface's
"""A connection service without a wire: the ids of one device and process call each other.

It is the second implementation of rnic/rdmacm/service.py, and an example for the third. A message is a call
that the agent makes when it settles. The queue pairs are real; queue pair 1 does not exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from errno import EADDRINUSE, EINVAL, EISCONN, ETIMEDOUT
from itertools import count

from rnic import GID, MTU, AHAttr, QPAttr, QPState, VerbsError
from rnic.rdmacm import ECE, CmId, ConnParam, EventType, Path, PortSpace, UDParam, outcomes
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.qp_states import to_error
from rnic.rdmacm.service import Connection, ConnectionService, Limits, Phase, Reason, Refusal, Request
from rnic.rdmacm.sockaddr import IP, Inet

NOBODY, PROGRAM, SHORTAGE, ECE_ = 1, 2, 3, 4  # statuses of REJECTED
_WORDS = {NOBODY: "nobody", PROGRAM: "the program", SHORTAGE: "a shortage", ECE_: "vendor options"}
_REASONS = {Reason.PROGRAM: PROGRAM, Reason.SHORTAGE: SHORTAGE, Reason.ECE: ECE_}


class Memory(ConnectionService):
    """The service of one device."""

    name = "the service in memory"

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.listeners: dict[tuple[PortSpace, int], CmId] = {}
        self._ports: set[tuple[PortSpace, int]] = set()
        self._free = count(50_000)
        self._messages: deque[Callable[[], None]] = deque()
        self.said = 0

    def say(self, message: Callable[[], None]) -> None:
        self._messages.append(message)
        self.said += 1

    # ------------------------------------------------------------------ ports

    def claim(self, one: CmId, local: Inet, port: int) -> Bound:
        if (one.ps, port) in self._ports:
            raise VerbsError(EADDRINUSE, f"port {port} of {local.ip} is in use", "bind_addr")
        self._ports.add((one.ps, port))
        return Bound(self._ports, (one.ps, port))

    def take_port(self, ps: PortSpace, ip: IP, verb: str) -> int:
        port = next(port for port in self._free if (ps, port) not in self._ports)
        self._ports.add((ps, port))
        return port

    def give_port(self, ps: PortSpace, ip: IP, port: int) -> None:
        self._ports.discard((ps, port))

    # ------------------------------------------------------------------ peers

    def connection(self, one: CmId, source: IP) -> Conversation:
        return Conversation(one, self)

    def listen(self, one: CmId) -> None:
        if one.is_datagram:
            raise self.lacks("datagram services", "listen")
        self.listeners[one.ps, one.local.port] = one

    def unlisten(self, one: CmId) -> None:
        if self.listeners.get((one.ps, one.local.port)) is one:
            del self.listeners[one.ps, one.local.port]

    def refusal(self, kind: EventType, status: int) -> Refusal:
        return Refusal(_WORDS[status], status == NOBODY)

    # ------------------------------------------------------------------ for the agent

    def settle(self) -> None:
        while self._messages:
            self._messages.popleft()()


@dataclass
class Bound:
    """A port that an id has."""

    ports: set[tuple[PortSpace, int]]
    key: tuple[PortSpace, int]

    def close(self) -> None:
        self.ports.discard(self.key)


class Conversation:
    """One end of a connection; `peer` is the other end."""

    limits = Limits(connect=64, accept=64, reject=64, disconnect=64)

    def __init__(self, one: CmId, service: Memory, phase: Phase = Phase.NEW) -> None:
        self.one, self.service, self.phase = one, service, phase
        self.peer: Conversation | None = None
        self.theirs = ConnParam()  # what the peer has said, as this end sees it
        self.closed = False

    @property
    def state_name(self) -> str:
        return self.phase.name

    def route(self, path: Path) -> None:
        assert path == Path()

    def _tell(self, phase: Phase, report: Callable[[Conversation], None]) -> None:
        """The peer gets to a phase, and reports that, unless it is closed."""
        peer = self.peer

        def arrive() -> None:
            if peer is not None and peer.phase is not Phase.OVER:
                peer.phase = phase
                if not peer.closed:
                    report(peer)

        self.service.say(arrive)

    # ------------------------------------------------------------------ the handshake

    def connect(self, param: ConnParam | UDParam) -> None:
        assert isinstance(param, ConnParam)
        self.phase = Phase.CALLING
        self.service.say(lambda: self._ask(param))

    def _ask(self, param: ConnParam) -> None:
        one, remote, service = self.one, self.one.remote, self.service
        if self.closed or remote is None:
            return
        listener = service.listeners.get((one.ps, remote.port))
        if listener is None:
            self._refused(NOBODY)
        elif listener.is_full or listener.admission.is_full(0):
            self._refused(SHORTAGE)
        else:
            child = listener.spawn()
            child.use(service.agent)
            there = Conversation(child, service, Phase.ASKED)
            there.peer, self.peer = self, there
            there.theirs = _seen(param)
            outcomes.requested(listener, child, Request(there, remote, one.local, there.theirs, ECE()))

    def _refused(self, status: int, private_data: bytes = b"") -> None:
        self.phase = Phase.OVER
        outcomes.refused(self.one, status, private_data)

    def accept(self, param: ConnParam | UDParam) -> None:
        assert isinstance(param, ConnParam)
        self._move()
        self.phase = Phase.ACCEPTED

        def answer(peer: Conversation) -> None:
            peer.theirs = _seen(param)
            outcomes.answered(peer.one, peer.theirs, ECE())

        self._tell(Phase.ANSWERED, answer)

    def reject(self, private_data: bytes, reason: Reason) -> None:
        if self.phase not in (Phase.ASKED, Phase.ANSWERED):
            raise VerbsError(EINVAL, f"nothing to refuse in {self.phase.name}", "reject")
        self.phase = Phase.OVER
        self._tell(Phase.OVER, lambda peer: outcomes.refused(peer.one, _REASONS[reason], private_data))

    def complete(self) -> None:
        if self.phase is not Phase.UP:
            self._move()
            self.establish()

    def establish(self) -> None:
        if self.phase is not Phase.ANSWERED:
            raise VerbsError(EINVAL, f"no answer waits in {self.phase.name}", "establish")
        self.phase = Phase.UP
        self._tell(Phase.UP, lambda peer: outcomes.established(peer.one))

    def data_came(self) -> None:
        if self.phase is Phase.UP:
            raise VerbsError(EISCONN, "it is connected already", "notify")

    def give_up(self) -> None:
        self.phase = Phase.OVER
        self._tell(Phase.OVER, lambda peer: outcomes.refused(peer.one, SHORTAGE, b""))
        outcomes.unreachable(self.one, -ETIMEDOUT)

    def expire_at(self, until: int) -> None:
        def expire(_now: int) -> None:
            if not self.closed and self.phase in (Phase.ASKED, Phase.ACCEPTED):
                self.give_up()

        self.service.agent.at(until, expire)

    def watch(self, now: int) -> None:
        """Nobody is silent here."""

    # ------------------------------------------------------------------ the end

    def disconnect(self, private_data: bytes) -> None:
        to_error(self.one.qp)
        if self.phase is Phase.UP:
            self.phase = Phase.LEAVING
            self._tell(Phase.LEFT, lambda peer: outcomes.disconnected(peer.one, 0, private_data))
        elif self.phase is Phase.LEFT:
            self.phase = Phase.OVER
            self._tell(Phase.OVER, _over)
            self.service.say(lambda: None if self.closed else outcomes.timewait_over(self.one))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self.phase in (Phase.ASKED, Phase.ANSWERED):
            self.reject(b"", Reason.PROGRAM)
        elif self.phase is Phase.ACCEPTED:
            self._tell(Phase.OVER, lambda peer: outcomes.refused(peer.one, PROGRAM, b""))
        elif self.phase in (Phase.UP, Phase.LEFT):
            self.disconnect(b"")

    # ------------------------------------------------------------------ the queue pair

    def _move(self) -> None:
        if self.one.qp is not None:
            for state in (QPState.RTR, QPState.RTS):
                attr = self.qp_attr(state)
                assert attr
                self.one.qp.modify(attr)

    def qp_attr(self, state: QPState) -> QPAttr | None:
        if not self.theirs.qp_num:
            return None
        if state is QPState.RTS:
            return QPAttr(qp_state=state, sq_psn=0, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=1)
        context, remote = self.service.agent.context, self.one.remote
        assert remote is not None
        (index,) = (one.gid_index for one in context.query_gid_table() if one.gid == GID(self.one.local.ip))
        return QPAttr(
            qp_state=state,
            path_mtu=MTU.MTU_1024,
            dest_qp_num=self.theirs.qp_num,
            rq_psn=0,
            max_dest_rd_atomic=1,
            min_rnr_timer=12,
            ah_attr=AHAttr(GID(remote.ip), index, port_num=1, hop_limit=1),
        )


def _over(peer: Conversation) -> None:
    outcomes.disconnected(peer.one)
    outcomes.timewait_over(peer.one)


def _seen(said: ConnParam) -> ConnParam:
    """What one end has said, as the other end sees it."""
    return replace(said, responder_resources=said.initiator_depth, initiator_depth=said.responder_resources)


def _is_a_connection(one: Conversation) -> Connection:
    return one
