# SPDX-License-Identifier: Apache-2.0
"""A peer that is no rnic and knows what the protocol expects, so that it can say something else."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address
from time import monotonic
from typing import Any, Protocol, TypeVar

import pytest

from rdmacm.ends import WAIT, ib_of
from rnic import GID
from rnic.rdmacm import CmId
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.ibcm.gsi import Peer
from rnic.rdmacm.registry import registry
from rnic.wire import (
    GSI_QKEY,
    MAD,
    Answered,
    CmMessage,
    CmPath,
    Dreq,
    IpCmHeader,
    PortSpace,
    Rej,
    RejReason,
    Rep,
    Req,
    Rtu,
    SidrReq,
    parse_cm,
    service_id,
)
from transport.plain import datagram, sealed

US, THEM, THIRD = "127.0.0.1", "127.0.0.9", "127.0.0.8"  # rnic, the stranger, and somebody else
FLOODER = "127.0.0.7"  # nobody else: a device that was flooded hears an address no more for a second
_ECHO = 0xEC0EC000  # the first id of those that only echoes have
_AGAIN = 1.0  # seconds until an echo is asked for again: a datagram may be lost
_IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 10, 2
_M = TypeVar("_M", bound=CmMessage)


def gid(ip: str) -> IPv6Address:
    return IPv6Address(GID(ip).raw)


def packed(data: bytes, source: str = THEM) -> bytes:
    """The packet of a datagram to queue pair 1."""
    return sealed(datagram(data, 1, GSI_QKEY), source)


class Wire(Protocol):
    """The way to queue pair 1 of 127.0.0.1."""

    tries: int  # how often a message is said that nobody answers

    def send(self, data: bytes, source: str = THEM) -> None: ...

    def take(self) -> bytes | None:
        """A datagram that came back to the stranger."""


class Sockets:
    """Real packets: what the device's C code lets through reaches the agent. A busy machine loses some."""

    tries = 5

    def __init__(self) -> None:
        self._sockets = {source: self._open(source) for source in (THEM, THIRD, FLOODER)}
        self._came: deque[bytes] = deque()
        self._echoes = 0

    def _open(self, source: str) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        sock.bind((source, 4791))
        sock.settimeout(_AGAIN)
        return sock

    def send(self, data: bytes, source: str = THEM) -> None:
        self.send_packet(packed(data, source), source)

    def send_packet(self, packet: bytes, source: str = THEM) -> None:
        self._sockets[source].sendto(packet, (US, 4791))

    def take(self) -> bytes | None:
        """What has come until now, or comes in answer to what was sent; it waits no longer than for that."""
        if not self._came:
            self._echoes += 1
            self._hear_the_echo(_ECHO + self._echoes)
        return self._came.popleft() if self._came else None

    def _hear_the_echo(self, number: int) -> None:
        """What comes before it is kept."""
        limit = monotonic() + WAIT
        self._ask_for_an_echo(number)
        while True:
            try:
                data = self._recv()
            except TimeoutError:
                assert monotonic() < limit, "the agent does not answer"
                self._ask_for_an_echo(number)
                continue
            if (heard := _echo(data)) == number:
                return
            if heard < _ECHO:  # else one that was asked for twice
                self._came.append(data)

    def _recv(self) -> bytes:
        """A datagram without bytes is no packet: it asks why nobody answers (rnic.rdmacm.reach)."""
        while not (packet := self._sockets[THEM].recv(8192)):
            pass
        return packet[20:-4]  # BTH and DETH before, ICRC after

    def _ask_for_an_echo(self, number: int) -> None:
        """A REQ of a version that nobody speaks is refused at once, after all that came before it."""
        req = Req(local_comm_id=number)
        self.send(replace(req.to_mad(number), class_version=1).emit())

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


def _echo(data: bytes) -> int:
    """Whose answer it is; 0: no echo's."""
    message = parse_cm(MAD.parse(data))
    return message.remote_comm_id if isinstance(message, Rej) and message.remote_comm_id > _ECHO else 0


class Calls:
    """Datagrams go straight into the agent, and what it sends to the stranger is kept: nothing waits."""

    tries = 1

    def __init__(self, agent: Agent, patch: pytest.MonkeyPatch) -> None:
        self.agent = agent
        self._came: deque[bytes] = deque()
        self._send = ib_of(agent).gsi.send
        patch.setattr(ib_of(agent).gsi, "send", self._divert)
        index = ib_of(agent).gsi.index_of(GID(US))
        assert index is not None
        self._peers = {source: Peer(GID(source), index) for source in (THEM, THIRD)}

    def _divert(self, peer: Peer, data: bytes) -> None:
        if peer == self._peers[THEM]:
            self._came.append(data)
        elif peer.gid == GID(US):
            self._send(peer, data)

    def send(self, data: bytes, source: str = THEM) -> None:
        with registry.lock:
            ib_of(self.agent).hear(data, self._peers[source])

    def take(self) -> bytes | None:
        return self._came.popleft() if self._came else None


@dataclass
class Stranger:
    """Right messages for a conversation, made one after the other; whoever uses it changes them."""

    wire: Wire
    guid: int = 0x5712A26E12
    comm_id: int = 0x1234
    qpn: int = 0x100
    theirs: int = 0  # rnic's communication id, when it has told
    their_qpn: int = 0
    tid: int = 1
    sent: list[bytes] = field(default_factory=list)
    last: tuple[bytes, str] | None = None  # what was sent last, and from where

    def fresh(self) -> None:
        """Another conversation."""
        self.comm_id += 1
        self.qpn += 1
        self.tid += 1
        self.theirs = self.their_qpn = 0

    def say(self, message: CmMessage, source: str = THEM) -> None:
        self.send(message.to_mad(self.tid).emit(), source)

    def send(self, data: bytes, source: str = THEM) -> None:
        self.sent.append(data)
        self.last = (data, source)
        self.wire.send(data, source)

    def hear(self) -> CmMessage | None:
        """The next message that came back, None when there is none; its ids are noted."""
        data = self.wire.take()
        if data is None:
            return None
        mad = MAD.parse(data)
        message = parse_cm(mad)
        if isinstance(message, Req):
            self.tid = mad.tid
        if isinstance(message, Req | Rep):
            self.theirs, self.their_qpn = message.local_comm_id, message.local_qpn
        return message

    def expect(self, kind: type[_M]) -> _M:
        """The next message of a kind, others are passed over. Until it comes, the last one is said again.

        What was said again in an earlier conversation may be refused in this one.
        """
        for _ in range(self.wire.tries):
            while (message := self.hear()) is not None:
                earlier = isinstance(message, Rej) and 0 < message.remote_comm_id < self.comm_id
                if isinstance(message, kind) and not earlier:
                    return message
            if self.last:
                self.wire.send(*self.last)
        raise AssertionError(f"no {kind.__name__} came back")

    def req(self, port: int, **fields: Any) -> Req:
        header = IpCmHeader.build(IPv4Address(THEM), IPv4Address(US), 40000)
        values: dict[str, Any] = {
            "local_comm_id": self.comm_id,
            "service_id": service_id(PortSpace.TCP, port),
            "local_ca_guid": self.guid,
            "local_qpn": self.qpn,
            "responder_resources": 4,
            "initiator_depth": 4,
            "remote_cm_timeout": 12,
            "local_cm_timeout": 12,
            "starting_psn": 0x123456,
            "retry_count": 7,
            "rnr_retry_count": 7,
            "path_mtu": 3,
            "max_cm_retries": 3,
            "primary": CmPath(
                local_lid=0xFFFF,
                remote_lid=0xFFFF,
                local_gid=gid(THEM),
                remote_gid=gid(US),
                hop_limit=64,
                ack_timeout=8,
            ),
            "private_data": header.emit(),
        }
        return Req(**(values | fields))

    def sidr_req(self, port: int, **fields: Any) -> SidrReq:
        header = IpCmHeader.build(IPv4Address(THEM), IPv4Address(US), 40000)
        values: dict[str, Any] = {
            "request_id": self.comm_id,
            "service_id": service_id(PortSpace.UDP, port),
            "private_data": header.emit(),
        }
        return SidrReq(**(values | fields))

    def reply(self, kind: type[_M], **fields: Any) -> _M:
        """Any message that names both ids."""
        ids = {"local_comm_id": self.comm_id, "remote_comm_id": self.theirs}
        return kind(**(ids | fields))

    def rep(self, **fields: Any) -> Rep:
        values: dict[str, Any] = {
            "local_qpn": self.qpn,
            "starting_psn": 0x654321,
            "responder_resources": 4,
            "initiator_depth": 4,
            "rnr_retry_count": 7,
            "local_ca_guid": self.guid,
        }
        return self.reply(Rep, **(values | fields))

    def rtu(self, **fields: Any) -> Rtu:
        return self.reply(Rtu, **fields)

    def dreq(self, **fields: Any) -> Dreq:
        return self.reply(Dreq, **({"remote_qpn": self.their_qpn} | fields))

    def gives_up(self, **fields: Any) -> Rej:
        """The REJ of a peer that waits no longer: it need not know our id."""
        info = self.guid.to_bytes(8, "big")
        told = {"message": Answered.REQ, "reason": RejReason.TIMEOUT, "ari": info, "ari_length": len(info)}
        return self.reply(Rej, **(told | fields))


def agent_of(one: CmId) -> Agent:
    """The agent that serves an id."""
    (found,) = (agent for agent in registry.agents() if one in agent.ids)
    return found


@contextmanager
def over_sockets() -> Iterator[Stranger]:
    wire = Sockets()
    try:
        yield Stranger(wire)
    finally:
        wire.close()


def run_out(agent: Agent) -> None:
    """All the time that anything waits for passes: retries, then TIMEWAIT."""
    with registry.lock:
        while (due := ib_of(agent).cm.deadline()) is not None:
            ib_of(agent).cm.timer(due)
            agent.flush()
