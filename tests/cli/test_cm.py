# SPDX-License-Identifier: Apache-2.0
"""The example programs of RDMA-CM between two processes over the loopback device."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable

import pytest

from cli.commands import Result, Start
from rnic.cli.cm.rping import LETTERS, MAX_SIZE, MIN_SIZE, text_of
from rnic.cli.main import run
from rnic.rdmacm import ConnParam, create_id

Here = Callable[..., Result]
LOOPBACKS = ["127.0.0.1", "::1"]
soak = pytest.mark.skipif(os.environ.get("RNIC_SOAK", "0") in ("", "0"), reason="five seconds: RNIC_SOAK=1")
ENDED = "disconnected|REJECTED: refused"  # the latter when the server has not seen the RTU yet
FREE = 9  # a port that nobody listens on
NOBODY = "1 port 9: nobody listens there .REJECTED, reason 8: invalid service id"


def good(*ends: Result) -> None:
    for end in ends:
        assert end.status == 0, end
        assert not re.sub(r"listening on port .*\nclient: .*\n", "", end.err)


def failed(end: Result, words: str, status: int = 1) -> None:
    assert (end.status, "Traceback" in end.err) == (status, False), end
    assert re.search(words, end.err), end.err


# ---------------------------------------------------------------------- rping


def pinged(rnic: Start, address: str, *common: object) -> tuple[Result, Result]:
    """A server and its client, with the same options."""
    server = rnic("rping", "-s", "-a", address, "-p", 0, *common)
    client = rnic("rping", "-c", "-a", address, "-p", server.listening(), *common)
    return server.wait(), client.wait()


@pytest.mark.parametrize(("address", "own_qp"), [("127.0.0.1", []), ("::1", []), ("127.0.0.1", ["-q"])])
def test_rping(rnic: Start, address: str, own_qp: list[str]) -> None:
    server, client = pinged(rnic, address, "-C", 70, "-v", "-V", *own_qp)
    good(server, client)
    texts = [text_of(number, 64)[:-1].decode() for number in range(70)]
    assert client.out.splitlines() == [f"ping data: {text}" for text in texts]
    assert server.out.splitlines() == [f"server ping data: {text}" for text in texts]


@pytest.mark.parametrize("size", [MIN_SIZE, MAX_SIZE])
def test_rping_of_any_size(rnic: Start, size: int) -> None:
    good(*pinged(rnic, "127.0.0.1", "-C", 10, "-V", "-S", size))


def test_the_text_of_a_ping_is_that_of_the_original() -> None:
    assert text_of(0, 64) == b"rdma-ping-0: " + bytes(range(65, 65 + 50)) + b"\0"
    assert text_of(57, 30) == b"rdma-ping-57: zABCDEFGHIJKLMN\0"
    assert text_of(LETTERS, 30)[15:] == text_of(0, 29)[14:]
    assert len(text_of(1, MAX_SIZE)) == MAX_SIZE


def test_a_persistent_server_serves_clients_at_once_until_interrupted(rnic: Start) -> None:
    server = rnic("rping", "-s", "-P", "-a", "127.0.0.1", "-p", 0, "-V")
    port = server.listening()
    clients = [rnic("rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", 50, "-V") for _ in range(3)]
    good(*(client.wait() for client in clients))
    failed(rnic("rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", 1, "-S", 4096).wait(), ENDED)
    good(rnic("rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", 2).wait())
    server.process.send_signal(signal.SIGINT)
    failed(server.wait(), "ping 0 has 4096 bytes: start the server with -S 4096", 130)


def test_a_server_says_how_many_pings_are_missing(rnic: Start) -> None:
    server = rnic("rping", "-s", "-a", "127.0.0.1", "-p", 0, "-C", 5)
    good(rnic("rping", "-c", "-a", "127.0.0.1", "-p", server.listening(), "-C", 3).wait())
    failed(server.wait(), "disconnected after 3 pings, not 5")


def test_a_client_that_is_interrupted_says_good_bye(rnic: Start) -> None:
    server = rnic("rping", "-s", "-v", "-a", "127.0.0.1", "-p", 0)
    client = rnic("rping", "-c", "-a", "127.0.0.1", "-p", server.listening())
    assert server.process.stdout is not None
    assert server.process.stdout.readline().startswith("server ping data: rdma-ping-0: ")
    client.process.send_signal(signal.SIGINT)
    failed(client.wait(), "interrupted", 130)
    assert server.wait().status in (0, 1)  # between two pings, or in the middle of one


@soak
def test_a_server_that_is_killed_is_noticed(rnic: Start) -> None:
    server = rnic("rping", "-s", "-v", "-a", "127.0.0.1", "-p", 0)
    client = rnic("rping", "-c", "-a", "127.0.0.1", "-p", server.listening(), "--timeout", 20)
    assert server.process.stdout is not None
    server.process.stdout.readline()
    server.process.kill()
    failed(client.wait(), "rnic: ")


def test_a_client_that_is_not_rping_is_told_from_one(rnic: Start) -> None:
    server = rnic("rping", "-s", "-a", "127.0.0.1", "-p", 0)
    port = server.listening()
    with create_id() as one:
        one.resolve_addr(None, ("127.0.0.1", port))
        one.resolve_route()
        one.create_qp()
        one.connect(ConnParam(responder_resources=1, initiator_depth=1))
        with one.reg_msgs(bytearray(5)) as mr:
            one.post_send(mr)
            failed(server.wait(), "5 bytes where 16 belong: is it rping")


# ---------------------------------------------------------------------- ucmatose, udaddy


@pytest.mark.parametrize(
    ("address", "load", "more"),
    [
        ("127.0.0.1", ["-c", 8, "-C", 100, "-S", 4096], ["-f", "ip"]),
        ("::1", ["-c", 2, "-C", 3, "-S", 1], ["-m"]),
        ("127.0.0.1", ["-C", 0, "-c", 3], ["-P", "ib"]),
        ("::1", ["-S", 0], []),
    ],
)
def test_ucmatose(rnic: Start, address: str, load: list[object], more: list[object]) -> None:
    server = rnic("ucmatose", *load, *more, "-b", address, "-p", 0)
    client = rnic("ucmatose", *load, *more, "-s", address, "-p", server.listening(), "-b", address)
    ends = server.wait(), client.wait()
    good(*ends)
    assert all(end.out.endswith("disconnected\n") for end in ends)


def test_what_ucmatose_asks_of_the_path(rnic: Start) -> None:
    with create_id() as listener:
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen()
        port = listener.get_src_port()
        client = rnic("ucmatose", "-s", "127.0.0.1", "-p", port, "-t", "0x20", "-a", 19, "-C", 0)
        with listener.get_request() as child:
            child.create_qp()
            child.accept()
            assert child.qp is not None
            attr, _ = child.qp.query()
            assert attr.ah_attr is not None
            assert (attr.ah_attr.traffic_class, attr.timeout) == (0x20, 19)
            assert (attr.max_rd_atomic, attr.retry_cnt) == (1, 5)
            child.disconnect()
    good(client.wait())


def test_a_client_too_many_is_refused(rnic: Start) -> None:
    server = rnic("ucmatose", "-c", 1, "-C", 1, "-S", 1, "-b", "127.0.0.1", "-p", 0, "--timeout", 20)
    client = rnic("ucmatose", "-c", 2, "-C", 1, "-S", 1, "-s", "127.0.0.1", "-p", server.listening())
    failed(client.wait(), "REJECTED: refused by the peer, reason 28 .consumer defined.")
    failed(server.wait(), "refused .*: 1 have called")


@pytest.mark.parametrize(
    ("address", "load"), [("127.0.0.1", ["-c", 8, "-C", 10]), ("::1", ["-S", 4096]), ("::1", ["-C", 0])]
)
def test_udaddy(rnic: Start, address: str, load: list[object]) -> None:
    server = rnic("udaddy", *load, "-b", address, "--port", 0)
    client = rnic("udaddy", *load, "-s", address, "--port", server.listening(), "-p", "0x111")
    ends = server.wait(), client.wait()
    good(*ends)
    assert all(end.out.endswith("bytes each way\n") for end in ends)


# ---------------------------------------------------------------------- mckey


@pytest.fixture
def multicast_route() -> None:
    if os.geteuid() != 0:
        pytest.skip("the loopback interface needs a route for groups")
    subprocess.run(["ip", "route", "replace", "multicast", "239.0.0.0/8", "dev", "lo"], check=True)


@pytest.mark.usefixtures("multicast_route")
@pytest.mark.parametrize("more", [[], ["-o"]], ids=["member", "send-only"])
def test_mckey(rnic: Start, more: list[str]) -> None:
    load = ["-m", "239.77.5.6", "-b", "127.0.0.1", "-c", 2, "-C", 3, "-S", 300]
    receiver = rnic("mckey", *load[:-4], "-C", 6, "-S", 300)  # of each group all that two ids send
    assert receiver.process.stdout is not None
    assert [receiver.process.stdout.readline() for _ in range(2)]
    sender = rnic("mckey", *load, "-s", "--pause", 0, *more)
    ends = receiver.wait(), sender.wait()
    good(*ends)
    assert "6 messages of 300 bytes received" in ends[0].out
    assert "3 messages of 300 bytes sent" in ends[1].out


# ---------------------------------------------------------------------- rdma-server, rdma-client


@pytest.mark.parametrize("address", LOOPBACKS)
def test_rdma_server_and_client(rnic: Start, address: str) -> None:
    server = rnic("rdma-server", "-s", "::" if ":" in address else "0.0.0.0", "-p", 0)
    client = rnic("rdma-client", "-s", address, "-p", server.listening())
    ends = server.wait(), client.wait()
    good(*ends)
    assert [end.out for end in ends] == 2 * ["received 16 bytes\n"]


def test_a_client_that_says_nothing_is_not_waited_for(rnic: Start) -> None:
    server = rnic("rdma-server", "-s", "127.0.0.1", "-p", 0, "--timeout", 0.5)
    with create_id() as one:
        one.resolve_addr(None, ("127.0.0.1", server.listening()))
        one.resolve_route()
        one.create_qp()
        one.connect()
        failed(server.wait(), "no message within 0.5 s")


# ---------------------------------------------------------------------- what goes wrong


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str]) -> Here:
    """Runs a command that ends soon in this process."""

    def call(*args: object) -> Result:
        status = run([str(arg) for arg in args])
        return Result(status, *capfd.readouterr())

    return call


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["rping", "-c", "-a", "127.0.0.1", "-p", FREE], NOBODY),
        (["ucmatose", "-s", "::1", "-p", FREE], NOBODY),
        (["rdma-client", "-p", FREE], NOBODY),
        (
            ["udaddy", "-s", "127.0.0.1", "--port", FREE],
            "127.0.0.1 port 9: nobody listens there .UNREACHABLE, reason 1: unsupported",
        ),
        (["rping", "-c", "-a", "no.such.host.invalid"], "no.such.host.invalid"),
        (["ucmatose", "-s", "localhost", "-f", "ip"], "localhost"),
        (["rping", "-s", "-a", "192.0.2.1"], "192.0.2.1"),
        (
            ["udaddy", "-S", 4097, "-s", "127.0.0.1", "--port", FREE],
            "-S 4097: a datagram is one packet.* 4096",
        ),
        (["ucmatose", "-f", "gid"], "EOPNOTSUPP"),
        (["udaddy", "-P", "ipoib"], "EOPNOTSUPP"),
        (["mckey", "-p", "2", "-m", "239.1.2.3"], "EOPNOTSUPP"),
        (["mckey", "-M", "ff15::1"], "EOPNOTSUPP"),
        (["mckey", "-l", "-m", "239.1.2.3"], "EOPNOTSUPP"),
        (["mckey", "-m", "127.0.0.1"], "not a multicast address"),
    ],
)
def test_failures_are_told_in_a_line(here: Here, command: list[object], words: str) -> None:
    failed(here(*command), words)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["rping"], "give one of the two: -s .server. or -c .client."),
        (["rping", "-s", "-c"], "give one of the two: -s .server. or -c .client."),
        (["rping", "-c"], "-a ADDRESS"),
        (["rping", "-c", "-P", "-a", "::1"], "-P is the server's"),
        (["rping", "-s", "-I", "::1"], "-I is for the client"),
        (["rping", "-s", "-S", MIN_SIZE - 1], f"22 is not from {MIN_SIZE} to {MAX_SIZE}"),
        (["rping", "-s", "-S", MAX_SIZE + 1], f"65536 is not from {MIN_SIZE} to {MAX_SIZE}"),
        (["rping", "-c", "-a", "::1", "-p", 0], "cannot be 0"),
        (["ucmatose", "-P", "udp"], "'udp' is not one of"),
        (["ucmatose", "-c", 0], "0 is not 1 or more"),
        (["udaddy", "-p", "0x106"], "for connections"),
        (["udaddy", "-p", "77"], "not a port space"),
        (["mckey"], "a group is needed"),
        (["mckey", "-o", "-m", "239.1.2.3"], "goes with -s"),
        (["rdma-client", "-p", 0], "cannot be 0"),
    ],
)
def test_wrong_options_are_told(here: Here, command: list[object], words: str) -> None:
    failed(here(*command), words, 2)


def test_a_port_that_is_taken(here: Here) -> None:
    with create_id() as listener:
        listener.bind_addr(("127.0.0.1", 0))
        failed(here("ucmatose", "-b", "127.0.0.1", "-p", listener.get_src_port()), "EADDRINUSE")
