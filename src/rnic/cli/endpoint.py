# SPDX-License-Identifier: Apache-2.0
"""Common parts of the commands: the device and GID of an address, and the three state changes of a
connection.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from typing import cast

import rnic
import rnic.testing
from rnic.cli.exchange import PeerAddress
from rnic.cli.params import Failure
from rnic.rdmacm.routes import interfaces_of
from rnic.records import MutableRecord, field, replace

MTUS = {
    256: rnic.MTU.MTU_256,
    512: rnic.MTU.MTU_512,
    1024: rnic.MTU.MTU_1024,
    2048: rnic.MTU.MTU_2048,
    4096: rnic.MTU.MTU_4096,
}
"""By their bytes."""
_SUMMED = 1  # of an iWARP queue pair's PSN, which is a time: whether it wants CRCs
YIELD_POLLS = 32  # empty polls until others may have the processor: some 20 us
EMPTY_POLLS = 1024  # polls that find nothing before a waiting loop looks at the clock


class LocalPort(MutableRecord):
    """An open device, and the entry of its GID table that a connection uses."""

    ctx: rnic.Context
    port_num: int
    gid_index: int
    gid: bytes
    lid: int
    waiting: dict[int, rnic.testing.Address] = field(default_factory=dict)
    """iWARP: what the queue pairs that wait for their peers have told of themselves, by their numbers."""

    @property
    def is_iwarp(self) -> bool:
        """Whether its queue pairs go by TCP connections."""
        return is_iwarp(self.ctx.device)

    def address(self, qp: rnic.QP) -> PeerAddress:
        """The address of a queue pair for the peer, with a random first PSN.

        Of an iWARP one the GID is its IP address, and the TCP port stands where InfiniBand has the LID.
        """
        if not self.is_iwarp:
            return PeerAddress(self.lid, qp.qp_num, secrets.randbits(24), self.gid)
        options = rnic.testing.Options(address=str(rnic.GID(self.gid).ip))
        own = rnic.testing.meet(qp, self.ctx, options)
        own = replace(own, psn=own.psn & ~_SUMMED | own.crc, mtu=rnic.MTU.MTU_4096)
        self.waiting[qp.qp_num] = own
        return PeerAddress(own.port, own.qp_num, own.psn, self.gid)


def is_iwarp(device: rnic.Device) -> bool:
    """Whether the device's queue pairs go by TCP connections."""
    return device.transport is rnic.Transport.IWARP


def gid_of(address: str) -> bytes:
    """The GID of an IP address (RoCEv2): IPv4 mapped into IPv6; a scope (%eth0) is left out."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.packed if ip.version == 6 else b"\0" * 10 + b"\xff\xff" + ip.packed


def netdev_of(sockaddr: tuple[object, ...]) -> str | None:
    """The interface that an IPv6 socket address is bound to by its scope; None when it has none."""
    scope = sockaddr[3] if len(sockaddr) == 4 else 0
    return socket.if_indextoname(scope) if isinstance(scope, int) and scope else None


def open_port(
    name: str | None, port_num: int, gid_index: int | None, local: tuple[object, ...] | None
) -> LocalPort:
    """Open the device and find the GID.

    Without a name, the device is the one with the local address of the TCP connection. Without an index, the
    GID is that address. Raises Failure with the existing GIDs if none fits.
    """
    if name is not None:
        ctx = rnic.open_device(name)
        return _described(ctx, port_num, _choose(ctx, name, gid_index, local), local)
    if local is None:
        raise ValueError("neither a device nor an address")
    for device in _devices_at(local):
        ctx = device.open()
        index = _index_of(ctx, gid_of(str(local[0])))
        if index is not None:
            return _described(ctx, port_num, index if gid_index is None else gid_index, local)
        ctx.close()
    raise _none_at(local)


def device_of(name: str | None, local: tuple[object, ...]) -> rnic.Device:
    """The device that open_port() opens."""
    if name is not None:
        with rnic.open_device(name) as ctx:
            return ctx.device
    for device in _devices_at(local):
        return device
    raise _none_at(local)


def _devices_at(local: tuple[object, ...]) -> Iterator[rnic.Device]:
    """The devices whose network interfaces have the local address of a TCP connection."""
    netdev = netdev_of(local)
    interfaces = interfaces_of(rnic.GID(gid_of(str(local[0]))).ip)
    for device in rnic.get_device_list():
        if device.index in interfaces and netdev in (None, device.netdev):
            yield device


def _none_at(local: tuple[object, ...]) -> Failure:
    return Failure(
        f"no device has the address {local[0]}: choose a device and a GID (`rnic info -v` shows them)"
    )


def look(name: str | None, port_num: int, gid_index: int | None) -> rnic.Device:
    """Before an end waits for the other: raises when device, port or GID index do not exist.

    Without a name the TCP connection tells the device: then any that has them will do. Returns the device.
    """
    names: list[str | None] = [name] if name is not None else [one.name for one in rnic.get_device_list()]
    failed: rnic.VerbsError | None = None
    for one in names or [None]:  # None says that there is no device
        try:
            with rnic.open_device(one) as ctx:
                ctx.query_port(port_num)
                if gid_index is not None:
                    ctx.query_gid(port_num, gid_index)
                return ctx.device
        except rnic.VerbsError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _choose(ctx: rnic.Context, name: str, gid_index: int | None, local: tuple[object, ...] | None) -> int:
    """The GID index given, or that of the local address."""
    if gid_index is not None:
        return gid_index
    index = None if local is None else _index_of(ctx, gid_of(str(local[0])))
    if index is None:
        table = ", ".join(f"{entry.gid_index}: {entry.gid}" for entry in ctx.query_gid_table())
        address = local[0] if local else "an address"
        ctx.close()
        if is_iwarp(ctx.device):
            raise Failure(f"{name} does not have {address}")
        raise Failure(f"{name} does not have {address}: choose a GID by its index ({table})")
    return index


def _index_of(ctx: rnic.Context, gid: bytes) -> int | None:
    """Where the GID stands in the device's table; of an iWARP device 0 if it has that address."""
    if is_iwarp(ctx.device):
        return 0 if rnic.GID(gid).ip in rnic.testing.addresses(ctx.device.netdev) else None
    return next((entry.gid_index for entry in ctx.query_gid_table() if bytes(entry.gid.raw) == gid), None)


def _described(
    ctx: rnic.Context, port_num: int, gid_index: int, local: tuple[object, ...] | None
) -> LocalPort:
    """Adds what the device says of the port; closes it when it refuses."""
    try:
        attr = ctx.query_port(port_num)
        gid = ctx.query_gid(port_num, gid_index)
    except BaseException:
        ctx.close()
        raise
    raw = bytes(gid.raw)
    if is_iwarp(ctx.device):
        raw = gid_of(str(local[0] if local else rnic.testing.addresses(ctx.device.netdev)[0]))
    return LocalPort(ctx, port_num, gid_index, raw, attr.lid)


def usual_mtu(port: LocalPort) -> rnic.MTU:
    """What ibv_xsrq_pingpong takes, which is more than Ethernet has as a rule."""
    return min(rnic.MTU.MTU_2048, rnic.MTU(port.ctx.query_port(port.port_num).active_mtu))


def to_init(qp: rnic.QP, port_num: int, access: rnic.AccessFlags) -> None:
    """RESET to INIT: from now on receives can be posted."""
    pkey_index = None if is_iwarp(cast("rnic.Context", qp.context).device) else 0
    qp.modify(
        rnic.QPAttr(
            qp_state=rnic.QPState.INIT, pkey_index=pkey_index, port_num=port_num, qp_access_flags=access
        )
    )


def path_to(port: LocalPort, remote: PeerAddress, sl: int = 0) -> rnic.AHAttr:
    """The path to the peer; Failure if the peer has sent no GID."""
    if not any(remote.gid[8:]):
        raise Failure(
            "the peer sent no GID, which Ethernet needs: start it with -g (ibv_devinfo -v shows the indices)"
        )
    return rnic.AHAttr(
        dgid=rnic.GID(remote.gid),
        dlid=remote.lid,
        sl=sl,
        sgid_index=port.gid_index,
        port_num=port.port_num,
        hop_limit=64,
    )


def connect(
    qp: rnic.QP,
    port: LocalPort,
    local: PeerAddress,
    remote: PeerAddress,
    *,
    mtu: rnic.MTU,
    sl: int = 0,
    rd_atomic: int = 1,
    min_rnr_timer: int = 12,
) -> None:
    """INIT to RTR to RTS, with 7 retries as ibv_rc_pingpong, but with a timeout of 4.096 us * 2**16 = 268 ms.

    With the original's 67 ms an end gives up after 0.54 s. A virtual machine on a busy host may stand still
    for longer, and a peer that is the kernel's then waits for ever.

    iWARP: both ends do this at once, for their queue pairs in one order.
    """
    if port.is_iwarp:
        options = rnic.testing.Options(max_rd_atomic=rd_atomic, max_dest_rd_atomic=rd_atomic)
        peer = rnic.testing.Address(
            rnic.GID(remote.gid),
            remote.qp_num,
            remote.psn,
            rnic.MTU.MTU_4096,
            remote.lid,
            bool(remote.psn & _SUMMED),
        )
        rnic.testing.complete(qp, port.waiting.pop(qp.qp_num), peer, options)
        return
    path = path_to(port, remote, sl)
    qp.modify(
        rnic.QPAttr(
            qp_state=rnic.QPState.RTR,
            path_mtu=mtu,
            dest_qp_num=remote.qp_num,
            rq_psn=remote.psn,
            max_dest_rd_atomic=rd_atomic,
            min_rnr_timer=min_rnr_timer,
            ah_attr=path,
        )
    )
    qp.modify(
        rnic.QPAttr(
            qp_state=rnic.QPState.RTS,
            timeout=16,
            retry_cnt=7,
            rnr_retry=7,
            sq_psn=local.psn,
            max_rd_atomic=rd_atomic,
        )
    )


def check(wc: rnic.WC) -> rnic.WC:
    """Return the completion if it succeeded; else raise Failure with its explanation."""
    if not wc.ok:
        raise Failure(wc.explain())
    return wc


class Patience:
    """Limits a busy wait in which nothing happens: call begin(), then wait() after every poll that found
    nothing.
    """

    def __init__(self, seconds: float, gone: Callable[[], str | None] | None = None) -> None:
        self.seconds = seconds  # that may pass without a completion; 0: any number
        self.gone = gone  # why the peer will never answer, or None: asked now and then
        self.empty = 0
        self.since = 0.0
        # Who spins while others want the processor, the peer among them, makes them wait for the
        # scheduler's tick unless he yields.
        self.yield_every = 1 if len(os.sched_getaffinity(0)) == 1 else YIELD_POLLS

    def begin(self) -> None:
        """Begin a new wait."""
        self.empty = 0

    def wait(self, doing: str) -> None:
        """Count an empty poll. Raises Failure if the wait was too long."""
        self.empty += 1
        if self.empty % self.yield_every == 0:
            os.sched_yield()
        if self.empty % EMPTY_POLLS:
            return
        now = time.monotonic()
        if self.empty == EMPTY_POLLS:
            self.since = now
        self.look(now - self.since, doing)

    def look(self, waited: float, doing: str) -> None:
        """Raise Failure if the peer is gone or the wait was too long."""
        why = self.gone() if self.gone else None
        if why:
            raise Failure(f"{doing}: {why}")
        if self.seconds and waited >= self.seconds:
            raise Failure(f"{doing}: nothing happened for {self.seconds:g} s: does the peer answer?")
