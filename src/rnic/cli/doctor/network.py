# SPDX-License-Identifier: Apache-2.0
"""Devices, UDP 4791, segmentation, buffers, frames."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import rnic
from rnic.cli.doctor.finding import Finding, degraded, good, missing
from rnic.cli.network import ADDRESS_CURE, LOOPBACK, LOOPBACK_CURE, here, loopback_is_up
from rnic.cli.params import Failure, show_size
from rnic.errors import VerbsError

PORT = 4791
RXE = "/sys/module/rdma_rxe"
UDP_SEGMENT, UDP_GRO = 103, 104
PIECE, PIECES = 1000, 3
CURES = {
    errno.EADDRINUSE: "end what holds the port, or use a network namespace (unshare -rn)",
    errno.EMFILE: "ulimit -n",
    errno.EUSERS: "end some of them, or use a network namespace (unshare -rn)",
}
ROOMY = 1 << 20  # bytes of a socket buffer from which on it is the peer that limits, not the buffer


def look() -> Iterator[Finding]:
    """All checks of the network."""
    yield loopback()
    devices = rnic.get_device_list()
    if not devices:
        yield missing("devices", "no network interface has an address", ADDRESS_CURE, needed=True)
        return
    yield good("devices", ", ".join(device.name for device in devices))
    found = [port(device) for device in devices if device.provider == "soft" and _is_roce(device)]
    serving = any(finding.state is not finding.state.MISSING for finding in found)
    for finding in found:
        yield finding if serving else missing(finding.what, finding.found, finding.cure, needed=True)
    yield kernels_own()
    yield from (streams(device) for device in devices if device.provider == "soft" and not _is_roce(device))
    yield from offload()
    yield buffers()
    yield frames()


def loopback() -> Finding:
    """By it processes of this host reach each other, at whichever address."""
    what = "loopback interface"
    if loopback_is_up():
        return good(what, f"{LOOPBACK} is up")
    found = f"{LOOPBACK} is down: processes of this host do not reach each other"
    return missing(what, found, LOOPBACK_CURE)


# ---------------------------------------------------------------- the port


def port(device: rnic.Device) -> Finding:
    """Open the device, as a program would."""
    what = f"UDP {PORT} of {device.netdev}"
    try:
        with device.open() as ctx:
            counters, bound = ctx.counters(), _bound_here()
            addresses = [str(entry.gid.ip) for entry in ctx.query_gid_table()]
    except VerbsError as error:
        return missing(what, str(error), CURES.get(error.errno or 0, "as the error says"))
    if counters.unfit_ip_ids:
        return degraded(
            what,
            "this kernel numbers packets in a way that breaks the ICRC: peers on other hosts drop them",
            "please report the kernel's version; RNIC_LOCAL=on serves peers on this host",
        )
    if not bound:
        return degraded(
            what,
            "another user's rnic has it, and hands on packets, ten at a time",
            "end that process, or use a network namespace (unshare -rn)",
        )
    return good(what, f"shared with this user's processes, at {', '.join(addresses)}")


def _is_roce(device: rnic.Device) -> bool:
    return device.transport is rnic.Transport.IB


def streams(device: rnic.Device) -> Finding:
    """Open an iWARP device, which needs no port of its own."""
    what = f"iWARP on {device.netdev}"
    try:
        device.open().close()
    except VerbsError as error:
        return missing(what, str(error), CURES.get(error.errno or 0, "as the error says"))
    return good(what, f"{device.name}: connections by TCP, at any port")


def _bound_here() -> bool:
    """Whether a socket of this process has the port."""
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            own.add(str(entry.readlink()))
    for table in ("/proc/self/net/udp", "/proc/self/net/udp6"):
        for fields in rows(table):
            if fields[1].endswith(f":{PORT:04X}") and f"socket:[{fields[9]}]" in own:
                return True
    return False


def rows(table: str) -> Iterator[list[str]]:
    with suppress(OSError), Path(table).open(encoding="ascii") as file:
        next(file, None)
        yield from (line.split() for line in file)


def kernels_own() -> Finding:
    """Check whether rdma_rxe holds the port of all addresses, which it does while it has a link."""
    what = "rdma_rxe"
    if not Path(RXE).exists():
        return good(what, "not loaded, so the port is free of it")
    links = [entry.name for entry in _entries("/sys/class/infiniband") if entry.name.startswith("rxe")]
    held = any(
        set(address) == {"0"} and number == f"{PORT:04X}" and fields[7] == "0"
        for table in ("/proc/self/net/udp", "/proc/self/net/udp6")
        for fields in rows(table)
        for address, _, number in [fields[1].partition(":")]
    )
    if not held:
        return good(
            what, f"loaded, and not in this network namespace{' (' + ', '.join(links) + ')' if links else ''}"
        )
    return degraded(
        what,
        f"the kernel holds UDP {PORT} of every address ({', '.join(links) or 'a link'})",
        "rdma link delete, or open rnic's device first, or use a network namespace",
    )


def _entries(folder: str) -> list[Path]:
    try:
        return sorted(Path(folder).iterdir())
    except OSError:
        return []


# ---------------------------------------------------------------- speed


def offload() -> Iterator[Finding]:
    """Try several packets in one system call, over the loopback interface."""
    try:
        host = here()
    except Failure:
        yield degraded("UDP segmentation", f"not tried: {LOOPBACK} is down", LOOPBACK_CURE)
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.socket(family, socket.SOCK_DGRAM) as out,
        socket.socket(family, socket.SOCK_DGRAM) as into,
    ):
        into.bind((host, 0))
        into.settimeout(2.0)
        joined = _set(into, UDP_GRO, 1)
        cut = _set(out, UDP_SEGMENT, PIECE)
        count = _send_pieces(out, into) if cut else 0
    cure = "Linux 4.18 or newer; without it each packet needs a system call"
    yield (
        good("UDP segmentation", f"{PIECES} packets in one call")
        if count
        else degraded("UDP segmentation", "UDP_SEGMENT is refused", cure)
    )
    cure = "Linux 5.0 or newer; without it each received packet needs a system call"
    yield (
        good("UDP receive offload", "packets come joined" if count == 1 else "UDP_GRO is there")
        if joined
        else degraded("UDP receive offload", "UDP_GRO is refused", cure)
    )


def _set(sock: socket.socket, option: int, value: int) -> bool:
    try:
        sock.setsockopt(socket.IPPROTO_UDP, option, value)
    except OSError:
        return False
    return True


def _send_pieces(out: socket.socket, into: socket.socket) -> int:
    """The number of datagrams in which the pieces came; 0: not all came."""
    left, count = PIECE * PIECES, 0
    try:
        out.sendto(bytes(left), into.getsockname())
        while left > 0:
            left -= len(into.recv(65536))
            count += 1
    except OSError:
        return 0
    return count


def buffers() -> Finding:
    """Check the socket buffer that is granted, which limits the bytes in flight."""
    what = "socket buffers"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        granted = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    found = f"{show_size(granted)} for what arrives"
    if granted >= ROOMY:
        return good(what, found)
    return degraded(
        what, f"{found}, which limits the bytes in flight over UDP", "sysctl net.core.rmem_max=4194304"
    )


def frames() -> Finding:
    what = "Ethernet frames"
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except OSError as error:
        name = error.strerror or os.strerror(error.errno or 0)
        return missing(
            what,
            f"a packet socket: {name}; RAW_PACKET queue pairs only reach those of the same context",
            "CAP_NET_RAW (root)",
        )
    return good(what, "packet sockets are allowed")
