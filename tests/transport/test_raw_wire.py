# SPDX-License-Identifier: Apache-2.0
"""RAW_PACKET queue pairs at the two ends of a virtual cable, and with the kernel at one of them."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

import namespaces
from rnic import Faults, FlowAttrType, Lose, SendFlags, SpecEth, SpecIPv4, SpecUDP, WCFlags
from transport.frames import GROUP, MAC_A, MAC_B, UDP, Frames, ethernet, ip

pytestmark = pytest.mark.roce

PR_SET_DUMPABLE = 4  # linux/prctl.h; a change of user takes it away
STRANGER = "10.98.0.9"


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@pytest.fixture
def cable() -> Iterator[None]:
    """This thread in a network namespace of its own, with a cable from raw0 to raw1."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        namespaces.unshare()
    except OSError as error:
        os.close(home)
        pytest.skip(f"no network namespace: {error}")
    try:
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "raw0", "type", "veth", "peer", "name", "raw1")
        for i in range(2):
            run("ip", "link", "set", f"raw{i}", "addrgenmode", "none")
            run("ip", "addr", "add", f"10.98.{i}.1/24", "dev", f"raw{i}")
            run("ip", "link", "set", f"raw{i}", "up")
        until_up("raw0", "raw1")
        yield
    finally:
        namespaces.enter(home)
        os.close(home)


def until_up(*names: str) -> None:
    """A cable carries nothing until the kernel has seen that it is there, which takes it a moment."""
    deadline = monotonic() + 60
    for name in names:
        while state_of(name)[1] != "UP":
            assert monotonic() < deadline


@pytest.fixture
def ends(cable: None) -> Iterator[tuple[Frames, Frames]]:  # noqa: ARG001 - it makes the devices
    with Frames("roce_raw0") as a, Frames("roce_raw1") as b:
        yield a, b


Ends = tuple[Frames, Frames]


def test_frames_cross_the_cable_byte_for_byte(ends: Ends) -> None:
    a, b = (end.queue() for end in ends)
    assert ends[0].ctx.query_raw_packet().wire
    b.flow(SpecEth(dst_mac=MAC_B))
    a.flow(SpecEth(dst_mac=MAC_A))
    for frame in (
        ethernet(b"short"),
        ethernet(bytes(range(256)) * 5),
        ethernet(b"tagged", vlan=0x6005),
        ip(vlan=9),
    ):
        a.send(frame)
        assert b.take() == [frame]
        back = frame[6:12] + frame[:6] + frame[12:]
        b.send(back)
        assert a.take() == [back]
    sent, received = (end.ctx.counters() for end in ends)
    assert (sent.tx_packets, received.rx_packets, sent.tx_errors) == (4, 4, 0)


def test_a_frame_of_the_mtu_crosses_and_a_longer_one_does_not_leave(ends: Ends) -> None:
    a, b = (end.queue() for end in ends)
    b.flow(SpecEth(dst_mac=MAC_B))
    longest = ends[0].ctx.query_raw_packet().max_frame
    assert longest == 1514
    frame = ethernet(bytes(longest - 14))
    a.send(frame)
    assert b.take() == [frame]
    assert not a.send(frame + b"x").ok


def test_the_cable_and_the_other_queue_pairs_both_get_a_frame(ends: Ends) -> None:
    a, near, far = ends[0].queue(), ends[0].queue(), ends[1].queue()
    for queue in (near, far):
        queue.flow(SpecEth(dst_mac=GROUP))
    frame = ethernet(b"to all", dst=GROUP)
    a.send(frame)
    assert (near.take(), far.take()) == ([frame], [frame])
    assert near.nothing()


def test_other_contexts_of_the_device_get_a_frame_and_not_what_the_kernel_sends(ends: Ends) -> None:
    with Frames("roce_raw0") as beside:
        a, near, far = ends[0].queue(), beside.queue(), ends[1].queue()
        for queue in (near, far):
            queue.flow(SpecEth(dst_mac=MAC_B))
        kernel_sends(b"from the kernel")
        far.take()
        frame = ethernet(b"from a queue pair")
        a.send(frame)
        assert (near.take(), far.take()) == ([frame], [frame])


def test_a_sniffer_sees_what_the_kernel_sends(ends: Ends) -> None:
    b = ends[1].queue(64)
    b.flow(type=FlowAttrType.SNIFFER)
    kernel_sends(b"seen by all")
    assert any(b"seen by all" in frame for frame in b.take())


def kernel_sends(data: bytes) -> None:
    """The kernel sends a datagram by raw0 to an address that nobody has."""
    run("ip", "neigh", "replace", STRANGER, "lladdr", MAC_B, "dev", "raw0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("10.98.0.1", 700))
        sock.sendto(data, (STRANGER, 800))


def test_the_kernel_is_a_peer(ends: Ends) -> None:
    b = ends[1].queue()
    b.flow(SpecEth(dst_mac=MAC_B), SpecIPv4("10.98.0.1", STRANGER), SpecUDP(800, 700))
    kernel_sends(b"from the kernel")
    (wc,) = b.wait()
    assert b.frame(wc)[42:] == b"from the kernel"
    assert wc.wc_flags == WCFlags.IP_CSUM_OK  # though it left its checksum to the hardware
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("10.98.0.1", 701))
        sock.settimeout(60)
        theirs = state_of("raw0")[2]
        frame = ip(b"to the kernel", STRANGER, "10.98.0.1", UDP, 800, 701, csum=False)
        b.send(bytes.fromhex(theirs.replace(":", "")) + frame[6:], SendFlags.IP_CSUM)
        assert sock.recvfrom(100) == (b"to the kernel", (STRANGER, 800))


def state_of(name: str) -> list[str]:
    """A network device of this thread's namespace: name, state, address."""
    command = ["ip", "-br", "link", "show", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_what_no_rule_wants_is_counted(ends: Ends) -> None:
    a, b = (end.queue() for end in ends)
    b.flow(SpecEth(dst_mac=MAC_A), SpecUDP())
    a.send(ethernet(b"", dst=MAC_B))
    a.send(ip(dst="10.9.9.9", csum=False)[:30])
    a.send(bytes.fromhex(MAC_A.replace(":", "")) + ip()[6:])
    b.take()
    assert ends[1].ctx.counters().drop_no_flow == 2


def test_the_injector_loses_frames_on_their_way_to_the_cable(ends: Ends) -> None:
    a, b = (end.queue() for end in ends)
    b.flow(SpecEth(dst_mac=MAC_B))
    ends[0].ctx.set_faults(Faults(lose=[Lose(nth=1)]))
    a.send(ethernet(b"1"))
    a.send(ethernet(b"2"))
    assert b.take() == [ethernet(b"2")]


def test_a_cable_that_is_down_costs_the_frame_alone(ends: Ends) -> None:
    a, b = (end.queue() for end in ends)
    b.flow(SpecEth(dst_mac=MAC_B))
    run("ip", "link", "set", "raw0", "down")
    assert a.send(ethernet(b"lost")).ok
    assert ends[0].ctx.counters().tx_errors == 1
    run("ip", "link", "set", "raw0", "up")
    until_up("raw0", "raw1")
    a.send(ethernet(b"again"))
    assert b.take() == [ethernet(b"again")]


def packet_sockets() -> set[str]:
    """Inodes of this network namespace's packet sockets."""
    rows = Path("/proc/thread-self/net/packet").read_text().splitlines()[1:]
    return {row.split()[-1] for row in rows}


def held() -> set[str]:
    """Inodes of the sockets that this process has open."""
    found = set()
    for number in range(1024):
        try:
            target = str(Path(f"/proc/self/fd/{number}").readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def test_a_forked_child_keeps_no_packet_socket(ends: Ends) -> None:
    before = packet_sockets()
    a = ends[0].queue()
    (mine,) = packet_sockets() - before
    assert mine in held()
    child = os.fork()
    if child == 0:
        os._exit(mine in held())
    assert os.waitpid(child, 0)[1] == 0
    a.qp.close()
    assert packet_sockets() == before


@pytest.mark.usefixtures("cable")
def test_without_the_right_to_a_packet_socket_frames_stay_in_the_context() -> None:
    with Frames("roce_raw0") as inside, Frames("roce_raw1") as outside:
        far = outside.queue()
        far.flow(type=FlowAttrType.SNIFFER)
        os.seteuid(65534)
        try:
            attr = inside.ctx.query_raw_packet()
            a, b = inside.queue(), inside.queue()
            b.flow(SpecEth(dst_mac=MAC_B))
        finally:
            os.seteuid(0)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)  # else other tests here have no memory that is shared
        assert not attr.wire
        assert "CAP_NET_RAW" in attr.why
        assert os.strerror(errno.EPERM) in attr.why
        a.send(ethernet(b"near"))
        assert b.take() == [ethernet(b"near")]
        assert far.nothing()
