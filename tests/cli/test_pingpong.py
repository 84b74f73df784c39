# SPDX-License-Identifier: Apache-2.0
"""`rnic pingpong` between two processes over the loopback device, and with peers that misbehave."""

from __future__ import annotations

import re
import signal
import socket

import pytest

from cli.commands import Result, Start
from rnic.cli.exchange import DONE, MESSAGE_BYTES, PeerAddress
from rnic.cli.pingpong import report
from rnic.cli.pingpong_end import bad_pages
from rnic.cli.pingpong_xrc import Address

LOOPBACK = bytes(10) + b"\xff\xff\x7f\x00\x00\x01"
OUTPUT = re.compile(
    r"  local address:  (LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID \S+)\n"
    r"  remote address: (LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID \S+)\n"
    r"(\d+) bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec\n"
    r"(\d+) iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter\n"
)


def both(
    rnic: Start, *options: object, host: str = "127.0.0.1", service: str = "rc"
) -> tuple[Result, Result]:
    """A server and its client, with the same options."""
    server = rnic("pingpong", service, "-p", 0, *options)
    client = rnic("pingpong", service, "-p", server.listening(), *options, host)
    return server.wait(), client.wait()


def assert_good(server: Result, client: Result, size: int, iters: int) -> None:
    assert (server.status, server.err) == (0, "")
    assert (client.status, client.err) == (0, "")
    ends = [OUTPUT.fullmatch(result.out) for result in (server, client)]
    assert all(ends), server.out + client.out
    local, remote = ([end[i] for end in ends if end] for i in (1, 2))
    assert local == remote[::-1]
    assert all((int(end[3]), int(end[4])) == (2 * size * iters, iters) for end in ends if end)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
@pytest.mark.parametrize(
    ("size", "mtu", "iters"),
    [(1, 1024, 1000), (4096, 256, 200), (4096, 4096, 1000), (65537, 1024, 50), (1 << 20, 2048, 20)],
)
def test_messages_bounce(rnic: Start, size: int, mtu: int, iters: int, events: list[str]) -> None:
    options = ["-s", size, "-m", mtu, "-n", iters, *events]
    assert_good(*both(rnic, *options), size, iters)


KINDS = [["-o"], ["-o", "-P"], ["-O"], ["-j"], ["-N"], ["-t"], ["-t", "-e"], ["-N", "-j", "-t", "-e"]]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("size", [0, 100, 30001])
@pytest.mark.parametrize("kind", KINDS, ids="".join)
def test_messages_bounce_with_other_kinds_of_memory_and_calls(
    rnic: Start, kind: list[str], size: int
) -> None:
    server, client = both(rnic, "-s", size, "-n", 100, "-c", *kind)
    for result in (server, client):
        assert (result.status, result.err) == (0, "")
        assert f"{2 * size * 100} bytes in" in result.out
        assert ("clock cycles apart" in result.out) == ("-t" in kind)


def test_a_shared_queue_on_demand(rnic: Start) -> None:
    for result in both(rnic, "-o", "-c", "-n", 100, service="srq"):
        assert (result.status, result.err) == (0, "")


def test_messages_bounce_over_ipv6(rnic: Start) -> None:
    server, client = both(rnic, "-n", 100, host="::1")
    assert_good(server, client, 4096, 100)
    assert client.out.count("GID ::1\n") == 2


def test_few_receives_are_posted_again_and_again(rnic: Start) -> None:
    for depth in (1, 2, 3):
        assert_good(*both(rnic, "-r", depth, "-n", 100), 4096, 100)


def test_empty_messages_bounce(rnic: Start) -> None:
    assert_good(*both(rnic, "-s", 0, "-n", 10), 0, 10)


def test_validated_run_finds_nothing_wrong(rnic: Start) -> None:
    assert_good(*both(rnic, "-c", "-s", 20000, "-n", 10), 20000, 10)


def test_device_and_gid_can_be_chosen(rnic: Start) -> None:
    server, client = both(rnic, "-d", "roce_lo", "-g", 1, "-n", 10)
    assert_good(server, client, 4096, 10)
    assert client.out.count("GID ::1\n") == 2
    assert_good(*both(rnic, "-d", "roce_lo", "-n", 10), 4096, 10)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
@pytest.mark.parametrize("size", [0, 1, 2048, 4096])
def test_datagrams_bounce(rnic: Start, size: int, events: list[str]) -> None:
    assert_good(*both(rnic, "-s", size, "-n", 200, *events, service="ud"), size, 200)


def test_datagrams_bounce_over_ipv6_and_are_validated(rnic: Start) -> None:
    assert_good(*both(rnic, "-n", 50, "-r", 2, "-c", host="::1", service="ud"), 2048, 50)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
@pytest.mark.parametrize(("size", "mtu"), [(0, 256), (1, 1024), (4096, 256), (30000, 4096)])
def test_messages_bounce_over_an_unreliable_connection(
    rnic: Start, size: int, mtu: int, events: list[str]
) -> None:
    assert_good(*both(rnic, "-s", size, "-m", mtu, "-n", 200, *events, service="uc"), size, 200)


def test_an_unreliable_connection_over_ipv6_is_validated(rnic: Start) -> None:
    assert_good(*both(rnic, "-n", 50, "-r", 2, "-c", host="::1", service="uc"), 4096, 50)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
@pytest.mark.parametrize(("qps", "depth", "size"), [(1, 1, 0), (16, 500, 4096), (40, 40, 100), (3, 4, 20000)])
def test_messages_bounce_over_many_connections(
    rnic: Start, qps: int, depth: int, size: int, events: list[str]
) -> None:
    options = ["-q", qps, "-r", depth, "-s", size, "-n", 300, "-c", *events]
    server, client = both(rnic, *options, service="srq")
    for result in (server, client):
        assert (result.status, result.err) == (0, "")
        assert result.out.count("  local address: ") == result.out.count("  remote address: ") == qps
        assert f"{2 * size * 300} bytes in" in result.out
        assert "300 iters in" in result.out


def test_the_shared_queue_has_a_receive_for_each_connection(rnic: Start) -> None:
    assert_failed(
        rnic("pingpong", "srq", "-q", 5, "-r", 4).wait(), "--rx-depth 4 is too few for 5 queue pairs"
    )


@pytest.mark.one_in(5)
@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
@pytest.mark.parametrize(("clients", "size", "mtu"), [(1, 4096, 2048), (3, 20000, 1024), (2, 0, 256)])
def test_messages_bounce_over_extended_reliable_connections(
    rnic: Start, clients: int, size: int, mtu: int, events: list[str]
) -> None:
    options = ["-s", size, "-m", mtu, "-n", 50, *events]
    server = rnic("pingpong", "xrc", "-p", 0, "-c", clients, *options)
    port = server.listening()
    peers = [rnic("pingpong", "xrc", "-p", port, *options, "127.0.0.1") for _ in range(clients)]
    results = [one.wait() for one in (server, *peers)]
    for result in results:
        assert (result.status, result.err) == (0, "")
        assert result.out.endswith("success\n")
    assert [result.out.count(" local: LID 0000, QPN RECV ") for result in results] == [clients] + [
        1
    ] * clients
    told = set(re.findall(r" local: (.*)", results[0].out))
    heard = {line for result in results[1:] for line in re.findall(r"remote: (.*)", result.out)}
    assert told == heard


def test_the_address_of_an_extended_connection_is_the_originals() -> None:
    address = Address(0, 0x12, 0xABCDEF, 0x345, 7, LOOPBACK)
    text = b"0000:000012:abcdef:000345:000007:" + LOOPBACK.hex().encode() + b"\0"
    assert (address.encode(), len(text), Address.parse(text)) == (text, 66, address)
    with pytest.raises(ValueError, match="is not the address"):
        Address.parse(text[:-1] + b"!")


def test_a_datagram_of_two_packets_is_refused(rnic: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = rnic("pingpong", "ud", "-p", listener.getsockname()[1], "-s", 4097, "127.0.0.1")
        assert_failed(client.wait(), "--size 4097: a datagram is one packet, and the port's MTU is 4096")


def test_pages_are_judged_by_their_first_byte() -> None:
    page = 4096
    buffer = bytearray(b"\x7b" * (3 * page))
    buffer[0] = buffer[2 * page] = 0
    assert bad_pages(memoryview(buffer), 3 * page) == [1]
    assert bad_pages(memoryview(buffer), 1) == []


def test_report_is_worded_as_the_originals() -> None:
    assert report(4096, 1000, 0.01).splitlines() == [
        "8192000 bytes in 0.01 seconds = 6553.60 Mbit/sec",
        "1000 iters in 0.01 seconds = 10.00 usec/iter",
    ]


# Peers that misbehave


def peer(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def assert_failed(result: Result, complaint: str) -> None:
    assert result.status == 1
    assert re.fullmatch(f"rnic: .*{complaint}.*\n(  (queue pair|device): .*\n)*", result.err), result.err


def test_peer_that_leaves_at_once_is_reported(rnic: Start) -> None:
    server = rnic("pingpong", "rc", "-p", 0)
    peer(server.listening()).close()
    assert_failed(server.wait(), "closed the TCP connection without a word")


def test_peer_that_leaves_before_done_is_reported(rnic: Start) -> None:
    server = rnic("pingpong", "rc", "-p", 0)
    with peer(server.listening()) as sock:
        sock.sendall(PeerAddress(0, 5, 6, LOOPBACK).encode())
        sock.recv(MESSAGE_BYTES, socket.MSG_WAITALL)
    assert_failed(server.wait(), "waiting for the peer to end the exchange: the peer closed")


def test_peer_that_speaks_another_protocol_is_reported(rnic: Start) -> None:
    server = rnic("pingpong", "rc", "-p", 0)
    with peer(server.listening()) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n".ljust(MESSAGE_BYTES))
        assert_failed(server.wait(), "does not speak the exchange of ibv_rc_pingpong")


def test_peer_without_a_gid_is_told_about_g(rnic: Start) -> None:
    server = rnic("pingpong", "rc", "-p", 0)
    with peer(server.listening()) as sock:
        sock.sendall(PeerAddress(0, 5, 6, bytes(16)).encode())
        assert_failed(server.wait(), "the peer sent no GID.*-g")


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
def test_server_does_not_wait_for_ever(rnic: Start, events: list[str]) -> None:
    server = rnic("pingpong", "rc", "-p", 0, "--timeout", 0.5, *events)
    with peer(server.listening()) as sock:
        sock.sendall(PeerAddress(0, 5, 6, LOOPBACK).encode())
        sock.recv(MESSAGE_BYTES, socket.MSG_WAITALL)
        sock.sendall(DONE)
        assert_failed(server.wait(), "after 0 of 1000 exchanges: nothing happened for 0.5 s")


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
def test_client_of_a_queue_pair_that_is_not_there_explains_itself(rnic: Start, events: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = rnic("pingpong", "rc", "-p", listener.getsockname()[1], *events, "127.0.0.1")
        sock, _ = listener.accept()
        with sock:
            address = PeerAddress.parse(sock.recv(MESSAGE_BYTES, socket.MSG_WAITALL))
            sock.sendall(PeerAddress(0, address.qp_num ^ 1, 6, LOOPBACK).encode())
            assert sock.recv(5, socket.MSG_WAITALL) == DONE
        assert_failed(client.wait(), "after 0 of 1000 exchanges: .*RETRY_EXC_ERR")


def test_interrupt_ends_a_waiting_server(rnic: Start) -> None:
    server = rnic("pingpong", "rc", "-p", 0)
    server.listening()
    server.process.send_signal(signal.SIGINT)
    result = server.wait()
    assert (result.status, result.err.strip()) == (130, "rnic: interrupted")


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["poll", "events"])
def test_interrupt_ends_a_run(rnic: Start, events: list[str]) -> None:
    server = rnic("pingpong", "rc", "-p", 0, *events)
    with peer(server.listening()) as sock:
        sock.sendall(PeerAddress(0, 5, 6, LOOPBACK).encode())
        sock.recv(MESSAGE_BYTES, socket.MSG_WAITALL)
        sock.sendall(DONE)
        assert server.process.stdout is not None
        for _ in range(2):
            assert "address:" in server.process.stdout.readline()
        server.process.send_signal(signal.SIGINT)
        result = server.wait()
    assert (result.status, result.err.strip()) == (130, "rnic: interrupted")


def errors_after_a_kill(rnic: Start) -> list[str]:
    """Lines of the client's error, whose server is killed."""
    server = rnic("pingpong", "rc", "-p", 0, "-n", 1 << 30)
    client = rnic("pingpong", "rc", "127.0.0.1", "-p", server.listening(), "-n", 1 << 30, "--timeout", 15)
    for end in (server, client):  # each has the other's queue pair
        assert end.process.stdout is not None
        for _ in range(2):
            assert "address:" in end.process.stdout.readline()
    server.process.kill()
    result = client.wait()
    assert (result.status, result.out) == (1, "")
    return result.err.splitlines()


def test_a_killed_peer_is_named_first_and_counters_once(rnic: Start) -> None:
    for _ in range(20):  # a server that has acknowledged a message and not answered leaves nothing to fail
        cause, queue_pair, device = errors_after_a_kill(rnic)
        if "nothing happened" not in cause:
            break
    assert re.match(r"rnic: after \d+ of \d+ exchanges: .*_ERR, ", cause), cause
    assert queue_pair.startswith("  queue pair:     ERR; "), queue_pair
    assert device.startswith("  device:         ")
    names = re.findall(r"(\w+) \d+(?:;|$)", f"{queue_pair}; {device}")
    assert "requests_sent" in names
    assert len(names) == len(set(names)), names


# Choices that cannot be


def test_nobody_listening_is_reported(rnic: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert_failed(
        rnic("pingpong", "rc", "-p", port, "127.0.0.1").wait(), f"127.0.0.1 port {port}: nobody listens there"
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["-d", "mlx5_0"], "no device mlx5_0; there are: roce_"),
        (["-d", "roce_lo", "-g", 99], r"query_gid: .* \[EINVAL\]"),
        (["-d", "roce_lo", "-i", 2], r"query_port: .* \[EINVAL\]"),
    ],
)
def test_what_is_not_there_is_named(rnic: Start, options: list[object], complaint: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = rnic("pingpong", "rc", "-p", listener.getsockname()[1], *options, "127.0.0.1")
        assert_failed(client.wait(), complaint)


@pytest.mark.parametrize("command", [["pingpong", "rc"], ["pingpong", "xrc"], ["perf", "write", "lat"]])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["-d", "mlx5_0"], "no device mlx5_0; there are: roce_"),
        (["-d", "roce_lo", "INDEX", 99], r"query_gid: .* \[EINVAL\]"),
    ],
)
def test_a_server_names_what_is_not_there_before_a_client_comes(
    rnic: Start, command: list[object], options: list[object], complaint: str
) -> None:
    index = "-x" if command[0] == "perf" else "-g"
    given = [index if option == "INDEX" else option for option in options]
    assert_failed(rnic(*command, "-p", 0, *given).wait(), complaint)


@pytest.mark.parametrize("service", ["rc", "srq"])
def test_an_iwarp_device_is_refused_with_the_command_that_bounces_messages_there(
    rnic: Start, service: str
) -> None:
    needs = "iwarp_lo is an iWARP device, whose queue pairs need a TCP connection each: RDMA-CM makes it, "
    result = rnic("pingpong", service, "-p", 0, "-d", "iwarp_lo").wait()
    assert_failed(result, needs + "and an exchange of numbers like this one does not")
    cure = re.search(r"`rnic (perf .*?)` or `rnic rping`\n", result.err)
    assert cure, result.err
    assert rnic(*cure[1].split(), "--local", "-n", 10).wait().status == 0


@pytest.mark.parametrize(("service", "kind"), [("uc", "UC"), ("ud", "UD"), ("xrc", "XRC")])
def test_an_iwarp_device_has_no_such_queue_pairs(rnic: Start, service: str, kind: str) -> None:
    complaint = f"iwarp_lo is an iWARP device and has RC queue pairs alone, no {kind}: choose a RoCE device"
    assert_failed(rnic("pingpong", service, "-p", 0, "-d", "iwarp_lo").wait(), complaint)


def test_an_iwarp_device_that_the_address_chooses_is_refused(
    rnic: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNIC_TRANSPORT", "iwarp")
    server = rnic("pingpong", "uc", "-p", 0)
    with peer(server.listening()):
        assert_failed(server.wait(), "iwarp_lo is an iWARP device and has RC queue pairs alone")


def test_a_port_that_is_taken_is_named_with_the_cure(rnic: Start) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        complaint = f":: port {port} is in use on this host: choose another port"
        assert_failed(rnic("pingpong", "rc", "-p", port).wait(), complaint)


def test_address_that_is_no_gid_is_named(rnic: Start) -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        # Linux connects to 127.0.0.2 from 127.0.0.1, so the server is the one without a GID.
        server = rnic("pingpong", "rc", "-p", 0)
        with socket.create_connection(("127.0.0.2", server.listening())):
            assert_failed(server.wait(), "no device has the address .*127.0.0.2: choose a device and a GID")
        assert port
