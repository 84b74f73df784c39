# SPDX-License-Identifier: Apache-2.0
"""Programs over iWARP: connections that the server makes, and the queue pairs of programs take over."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from errno import ECONNRESET
from itertools import count
from pathlib import Path

import pytest

from packages import need
from rnic.enums import QPState, StreamEnd
from rnic.programs.surroundings import serve
from rnic.rdmacm import EventType
from rnic.ucma import Server, layouts
from rnic.ucma.layouts import Cmd
from rnic.ucma.structs import QUERY_PATH
from ucma.client import HOST, OTHER_QP_NUM, QP_NUM, Device, event_kind, listening, param, resolved
from ucma.under import SECONDS, Program, call, needs_libraries, patient
from waiting import until

BEGIN, CLOSE, END = 1, 2, 3
STATE, ACCESS, PORT = 1, 8, 32  # bits of qp_attr_mask
RDMACM, PERFTEST = "rdmacm-utils", "perftest"
LISTEN = "0A"  # a state in /proc/net/tcp
_ports = count(17600 + os.getpid() % 1000 * 8)


@pytest.fixture(autouse=True)
def _first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_TRANSPORT", "iwarp")


# ---------------------------------------------------------------------- commands


class End:
    """An end of a connection: what its program was told to do, and was given."""

    def __init__(self, device: Device, number: int) -> None:
        (self.order,), (tcp, line) = device.orders, device.fds
        device.orders, device.fds = [], []
        self.number = number
        self.tcp, self.line = socket.socket(fileno=tcp), socket.socket(fileno=line)
        self.tcp.settimeout(SECONDS)

    def close(self) -> None:
        self.tcp.close()
        self.line.close()


@pytest.fixture
def ends(device: Device) -> Iterator[tuple[End, End]]:
    """The end that has accepted, and the one that has called."""
    _, port = listening(device)
    caller = resolved(device, port)
    depths = {"responder_resources": 3, "initiator_depth": 2}
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param(b"hello", **depths))
    request = device.event()
    assert request["event"] == EventType.CONNECT_REQUEST
    assert request["conn"]["private_data"].startswith(b"hello")
    accepted = request["id"]
    told = param(b"welcome", OTHER_QP_NUM, responder_resources=2, initiator_depth=3)
    device.good(Cmd.ACCEPT, layouts.ACCEPT, id=accepted, uid=8, conn_param=told)
    here = End(device, accepted)
    events = [device.event()]
    if device.orders:
        there = End(device, caller)
    events.append(device.event())
    if device.orders:
        there = End(device, caller)
    assert {(one["event"], one["id"]) for one in events} == {
        (EventType.ESTABLISHED, accepted),
        (EventType.ESTABLISHED, caller),
    }
    assert any(one["conn"]["private_data"].startswith(b"welcome") for one in events)
    yield here, there
    here.close()
    there.close()


def test_both_ends_are_given_the_connection(ends: tuple[End, End]) -> None:
    here, there = ends
    assert (here.order["qp_num"], there.order["qp_num"]) == (OTHER_QP_NUM, QP_NUM)
    for end in ends:
        assert end.order["kind"] == BEGIN
        assert end.order["crc"]
    assert (here.order["initiator"], there.order["initiator"]) == (0, 1)
    assert (there.order["max_dest_rd_atomic"], there.order["max_rd_atomic"]) == (3, 2)
    there.tcp.sendall(b"first")
    assert here.tcp.recv(16) == b"first"


@pytest.mark.parametrize(
    ("end", "error", "status"), [(StreamEnd.FIN, 0, 0), (StreamEnd.LOST, ECONNRESET, -ECONNRESET)]
)
def test_the_end_of_a_stream_is_an_event(
    device: Device, ends: tuple[End, End], end: StreamEnd, error: int, status: int
) -> None:
    ends[0].line.send(struct.pack("=IBBBBi", OTHER_QP_NUM, end, 0, 0, 0, error))
    event = device.event()
    assert (event["event"], event["id"]) == (EventType.DISCONNECTED, ends[0].number)
    assert struct.unpack("=i", struct.pack("=I", event["status"])) == (status,)


def test_a_line_that_hangs_up_ends_the_connection(device: Device, ends: tuple[End, End]) -> None:
    ends[1].line.close()
    assert event_kind(device) == (EventType.DISCONNECTED, ends[1].number)


def test_disconnect_and_destroy_are_orders(device: Device, ends: tuple[End, End]) -> None:
    device.good(Cmd.DISCONNECT, layouts.DISCONNECT, id=ends[0].number)
    assert [one["kind"] for one in device.orders] == [CLOSE]
    device.orders = []
    device.destroy_id(ends[1].number)
    assert [(one["kind"], one["qp_num"]) for one in device.orders] == [(END, QP_NUM)]
    assert ends[1].line.recv(16) == b""


def test_what_nobody_has_fetched_ends_with_the_id(device: Device) -> None:
    _, port = listening(device)
    caller = resolved(device, port)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
    request = device.event()
    device.good(Cmd.ACCEPT, layouts.ACCEPT, id=request["id"], uid=8, conn_param=param(qp_num=OTHER_QP_NUM))
    here = End(device, request["id"])
    device.destroy_id(caller)  # whose ESTABLISHED, with its socket, has come or is on its way
    assert [one["kind"] for one in device.orders] in ([], [END])
    with suppress(ConnectionResetError):  # if the reply has not been read yet
        assert here.tcp.recv(16) == b""
    here.close()


def test_attributes_are_those_of_the_kernel(device: Device, ends: tuple[End, End]) -> None:
    def mask(state: QPState) -> int:
        number = ends[0].number
        data = device.good(Cmd.INIT_QP_ATTR, layouts.INIT_QP_ATTR, id=number, qp_state=int(state))
        return int(layouts.QP_ATTR.read(data)["qp_attr_mask"])

    found = [mask(state) for state in (QPState.INIT, QPState.RTR, QPState.RTS)]
    assert found == [STATE | ACCESS | PORT, STATE | ACCESS | PORT, PORT]


def test_there_is_no_path(device: Device, ends: tuple[End, End]) -> None:
    for end in ends:
        route = layouts.ROUTE_RESP.read(device.good(Cmd.QUERY_ROUTE, layouts.QUERY, id=end.number))
        assert (route["num_paths"], route["port_num"]) == (0, 1)
        data = device.good(Cmd.QUERY, layouts.QUERY, id=end.number, option=QUERY_PATH)
        assert layouts.PATH_RESP.read(data)["num_paths"] == 0


def test_nothing_is_left_of_connections(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with Server(str(tmp_path / "ucma")), Device(str(tmp_path / "ucma")) as first:
        listening(first)  # the device stays open
        before = descriptors()
        for _ in range(5):
            with Device(str(tmp_path / "ucma")) as device:
                _, port = listening(device)
                caller = resolved(device, port)
                device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
                request = device.event()
                told = param(qp_num=OTHER_QP_NUM)
                device.good(Cmd.ACCEPT, layouts.ACCEPT, id=request["id"], uid=8, conn_param=told)
                End(device, request["id"]).close()
        until(lambda: descriptors() <= before, "all is closed")


# ---------------------------------------------------------------------- programs


def pair(server: str, client: str, package: str, under: tuple[bool, bool] = (True, True)) -> tuple[str, str]:
    """A server and a client: what they have said.  PORT in the words is a port."""
    port = next(_ports)
    words = [text.replace("PORT", str(port)).split() for text in (server, client)]
    for side, installed in zip(words, under, strict=True):
        if installed:
            need(side[0], package)
        else:
            side[0] = side[0].replace("_", "-")
    with Program(*words[0], under=under[0]) as first:
        listens(first, port)
        said = call(*words[1], under=under[1], again=package != PERFTEST)
        return first.good(), said


def listens(server: Program, port: int) -> None:
    def found() -> bool:
        assert server.process.poll() is None, server.text
        rows = [line.split() for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]]
        return any(row[1].endswith(f":{port:04X}") and row[3] == LISTEN for row in rows)

    until(found, f"TCP port {port} listens")


RPING = ("rping -s -a 127.0.0.1 -p PORT -C 10 -v -V", "rping -c -a 127.0.0.1 -p PORT -C 10 -v -V")
UCMATOSE = ("ucmatose -b 127.0.0.1 -p PORT -c 10", "ucmatose -s 127.0.0.1 -p PORT -c 10")
SERVER = ("rdma_server -p PORT", "rdma_client -s 127.0.0.1 -p PORT")
STREAM = ("rstream -b 127.0.0.1 -p PORT -S 4096 -C 20", "rstream -s 127.0.0.1 -p PORT -S 4096 -C 20")


@needs_libraries
@pytest.mark.parametrize(
    ("server", "client"),
    [RPING, UCMATOSE, SERVER, STREAM],
    ids=["rping", "ucmatose", "rdma_server", "rstream"],
)
def test_programs(server: str, client: str) -> None:
    pair(server, client, RDMACM)


@needs_libraries
@pytest.mark.parametrize("under", [(True, False), (False, True)], ids=["C serves", "rnic serves"])
@pytest.mark.parametrize(
    ("server", "client"), [RPING, UCMATOSE, SERVER], ids=["rping", "ucmatose", "rdma_server"]
)
def test_programs_of_both_kinds(server: str, client: str, under: tuple[bool, bool]) -> None:
    pair(server, client, RDMACM, under)


@needs_libraries
@pytest.mark.parametrize("tool", ["ib_send_lat", "ib_write_bw", "ib_read_bw"])
def test_perftest(tool: str) -> None:
    words = f"{tool} -R -d iwarp_lo -n 50 -s 1024 -p PORT"
    for text in patient(lambda: pair(words, f"{words} {HOST}", PERFTEST)):
        assert "Failed" not in text


@needs_libraries
@pytest.mark.parametrize("victim", ["server", "client"])
def test_who_is_killed_is_missed(victim: str) -> None:
    need("rping", RDMACM)
    port = next(_ports)
    with serve() as (folder, _):
        words = ("stdbuf", "-oL", "rping", "-v", "-a", HOST, "-p", port, "-C", 10**7)
        with Program(*words, "-s", within=folder) as server:
            listens(server, port)
            with Program(*words, "-c", within=folder) as client:
                until(lambda: "ping data" in client.text, "they ping")
                killed, other = (server, client) if victim == "server" else (client, server)
                killed.process.send_signal(signal.SIGKILL)
                killed.wait()
                other.wait()
                # A READ under way ends first, at times, and with it the program.
                assert "DISCONNECT EVENT" in other.text or "cq completion failed status 12" in other.text
