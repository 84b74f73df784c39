# SPDX-License-Identifier: Apache-2.0
"""Ports of ids: names on this host, by which a request finds its process.

A port that an id binds has the name that its listener would have, the service id.

Ports for outgoing connections: no two ids of a host have the same one at an address. A process takes them
from blocks of its own. Each block has a name on the host, so 32 ids need one descriptor instead of 32. A
process that binds a port checks whether the port is in a block of another process. A process that takes a
port of its block checks whether another process has bound it. If two do so at once, at least one sees the
other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import EADDRINUSE, EADDRNOTAVAIL, EAGAIN, ECONNREFUSED
from typing import TYPE_CHECKING

from rnic._nic import nic
from rnic.errors import VerbsError
from rnic.rdmacm.names import Option
from rnic.rdmacm.routes import TRIES, ephemeral
from rnic.rdmacm.sockaddr import IP, Inet
from rnic.records import MutableRecord, field
from rnic.verbs.ah import GID
from rnic.verbs.context import Context
from rnic.wire import PortSpace, service_id
from rnic.wording import port_taken

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId

BLOCK = 32
BLOCK_MARK = 1 << 63  # makes the service id of a block: no port has it


def first_of(port: int) -> int:
    """The first port of the block that a port is in."""
    return port - port % BLOCK


class _Block(MutableRecord):
    claim: nic.Listener
    used: set[int] = field(default_factory=set)


class Ports:
    """The ports of this process at the addresses of a device; under the registry's lock."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._blocks: dict[tuple[PortSpace, IP, int], _Block] = {}

    def claim(self, one: CmId, local: Inet, port: int) -> nic.Listener:
        """Bind a port. Raises VerbsError: EADDRINUSE if another id of this host has it."""
        reuse = bool(one.options.get(Option.REUSEADDR))
        claim = self._claim(one, local, port, reuse)
        try:
            if not reuse and not all(self.may_bind(one.ps, ip, port) for ip in self._ips_of(local)):
                raise VerbsError(EADDRINUSE, port_taken(str(local.ip), port), "bind_addr")
        except BaseException:
            claim.close()
            raise
        return claim

    def claim_beside(self, one: CmId, local: Inet, port: int) -> nic.Listener:
        """The same for an id that has the port already, at all addresses of the host."""
        return self._claim(one, local, port, reuse=True)

    def _claim(self, one: CmId, local: Inet, port: int, reuse: bool) -> nic.Listener:
        afonly = bool(one.options.get(Option.AFONLY))
        try:
            return self._context.cm_listen(
                service_id(one.ps, port), GID(local.ip), afonly=afonly, reuse=reuse
            )
        except VerbsError as error:
            if error.errno != EADDRINUSE:
                raise
            raise VerbsError(EADDRINUSE, port_taken(str(local.ip), port), "bind_addr") from None

    def _ips_of(self, local: Inet) -> list[IP]:
        """The addresses of this device to which ids are bound."""
        if not local.ip.is_unspecified:
            return [local.ip]
        own = [entry.gid.ip for entry in self._context.query_gid_table()]
        return [ip for ip in own if local.ip.version == 6 or ip.version == 4]

    def take(self, ps: PortSpace, ip: IP, verb: str) -> int:
        """Take a port for outgoing connections; requests to it are refused until give()."""
        for port in self._candidates(ps, ip):
            block = self._block(ps, ip, first_of(port))
            if block is None or port in block.used:
                continue
            try:
                if self._is_free(service_id(ps, port), ip):
                    block.used.add(port)
                    return port
            except BaseException:  # from the handler of a signal, for instance
                block.used.discard(port)
                self._drop_if_empty(ps, ip, first_of(port))
                raise
            self._drop_if_empty(ps, ip, first_of(port))
        raise VerbsError(EADDRNOTAVAIL, f"{TRIES} ports of {ip} are all in use", verb)

    def _candidates(self, ps: PortSpace, ip: IP) -> Iterator[int]:
        """Ports that are left in our blocks, at random, and then others."""
        ours = [
            port
            for (space, address, first), block in self._blocks.items()
            if (space, address) == (ps, ip) and len(block.used) < BLOCK
            for port in range(max(first, 1), first + BLOCK)
            if port not in block.used
        ]
        for left in range(len(ours), max(len(ours) - BLOCK, 0), -1):
            yield ours.pop(int.from_bytes(os.urandom(4)) % left)
        yield from ephemeral()

    def _block(self, ps: PortSpace, ip: IP, first: int) -> _Block | None:
        block = self._blocks.get((ps, ip, first))
        if block is None:
            try:
                claim = self._context.cm_listen(BLOCK_MARK | service_id(ps, first), GID(ip), hold=True)
            except VerbsError as error:
                if error.errno != EADDRINUSE:
                    raise
                return None
            block = self._blocks[ps, ip, first] = _Block(claim)
        return block

    def _is_free(self, service: int, ip: IP) -> bool:
        """Whether no process has the name. It only looks: taking the name for a moment would disturb
        others.
        """
        try:
            os.close(self._context.cm_watch_service(service, GID(ip)))
        except VerbsError as error:
            if error.errno == ECONNREFUSED:
                return True
            if error.errno != EAGAIN:  # so many look that its queue is full
                raise
        return False

    def give(self, ps: PortSpace, ip: IP, port: int) -> None:
        """Return a port that take() gave out."""
        if (block := self._blocks.get((ps, ip, first_of(port)))) is not None:
            block.used.discard(port)
            self._drop_if_empty(ps, ip, first_of(port))

    def _drop_if_empty(self, ps: PortSpace, ip: IP, first: int) -> None:
        block = self._blocks[ps, ip, first]
        if not block.used:
            block.claim.close()
            self._blocks.pop((ps, ip, first), None)

    def has_block(self, ps: PortSpace, ip: IP, port: int) -> bool:
        """Whether the port's block is this process', at an address of the device."""
        return (ps, ip, first_of(port)) in self._blocks

    def may_bind(self, ps: PortSpace, ip: IP, port: int) -> bool:
        """Whether no process uses the port for outgoing connections. All ports of another's block count as
        used.
        """
        block = self._blocks.get((ps, ip, first_of(port)))
        if block is not None:
            return port not in block.used
        return self._is_free(BLOCK_MARK | service_id(ps, first_of(port)), ip)
