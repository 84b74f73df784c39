# SPDX-License-Identifier: Apache-2.0
"""The TCP exchange of ibv_rc_pingpong: its bytes, and what a peer can do wrong."""

import socket
import threading
from collections.abc import Iterator

import pytest

from rnic.cli import exchange
from rnic.cli.exchange import PeerAddress
from rnic.cli.params import Failure

IPV4 = PeerAddress(0, 0x12, 0xABCDEF, bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 2]))
GOLDEN = b"0000:000012:abcdef:00000000000000000000ffff0a4d0002\0"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        yield ours, theirs


def test_address_is_52_bytes_of_text_with_its_nul() -> None:
    assert IPV4.encode() == GOLDEN
    assert len(GOLDEN) == exchange.MESSAGE_BYTES == 52


def test_address_is_parsed_and_printed_as_the_original_does() -> None:
    assert PeerAddress.parse(GOLDEN) == IPV4
    assert PeerAddress.parse(GOLDEN.upper()) == IPV4
    assert str(IPV4) == "LID 0x0000, QPN 0x000012, PSN 0xabcdef, GID ::ffff:10.77.0.2"


@pytest.mark.parametrize(
    "message",
    [
        GOLDEN[:-1],
        GOLDEN + b"\0",
        GOLDEN.replace(b":", b" "),
        GOLDEN.replace(b"f", b"g"),
        b"",
        bytes(52),
        b"-001" + GOLDEN[4:],
        b"GET / HTTP/1.1\r\n".ljust(52),
    ],
)
def test_what_is_no_address_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="not the address of a queue pair"):
        PeerAddress.parse(message)


def test_address_arrives_in_pieces(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair

    def dribble() -> None:
        for i in range(len(GOLDEN)):
            theirs.send(GOLDEN[i : i + 1])

    thread = threading.Thread(target=dribble)
    thread.start()
    assert exchange.receive_address(ours) == IPV4
    thread.join()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", "closed the TCP connection without a word"),
        (GOLDEN[:20], "closed the TCP connection after 20 of 52 bytes"),
        (b"x" * 52, "does not speak the exchange of ibv_rc_pingpong"),
    ],
)
def test_bad_peers_are_named(pair: tuple[socket.socket, socket.socket], said: bytes, complaint: str) -> None:
    ours, theirs = pair
    theirs.sendall(said)
    theirs.close()
    with pytest.raises(Failure, match=complaint):
        exchange.receive_address(ours)


def test_silent_peer_is_left_in_time(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    ours.settimeout(0.01)
    with pytest.raises(Failure, match="said nothing in time"):
        exchange.receive_address(ours)


def test_done_ends_the_exchange(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    exchange.send_done(theirs)
    assert ours.recv(100, socket.MSG_PEEK) == b"done\0"
    exchange.receive_done(ours)
    theirs.sendall(b"gone\0")
    with pytest.raises(Failure, match="instead of"):
        exchange.receive_done(ours)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_server_listens_on_both_families(host: str) -> None:
    with exchange.listen(0) as listener:
        port = listener.getsockname()[1]
        with exchange.connect(host, port, 60) as client, exchange.accept(listener, 60) as server:
            exchange.send_address(client, IPV4)
            assert exchange.receive_address(server) == IPV4


def test_nobody_there_is_said_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            Failure, match=f"127.0.0.1 port {port} is in use on this host: choose another port"
        ):
            exchange.listen(port, "127.0.0.1")
    with pytest.raises(Failure, match=f"127.0.0.1 port {port}: nobody listens there"):
        exchange.connect("127.0.0.1", port, 60)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("", "could not connect: the host's name is empty"),
        ("a..b", r"a\.\.b port 1: the host's name cannot be looked up: it cannot be the name of a host"),
        ("x" * 64, "x port 1: the host's name cannot be looked up"),
        ("nobody.invalid", "nobody.invalid port 1: the host's name cannot be looked up: .*: check it"),
    ],
)
def test_what_is_no_host_is_said_in_words(host: str, why: str) -> None:
    with pytest.raises(Failure, match=why):
        exchange.connect(host, 1, 60)
