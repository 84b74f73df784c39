# SPDX-License-Identifier: Apache-2.0
"""The server, and programs that write its commands themselves."""

from __future__ import annotations

import array
import errno
import os
import random
import socket
from functools import partial
from pathlib import Path

import pytest

from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, create_id
from rnic.rdmacm.registry import registry
from rnic.rdmacm.service import Phase
from rnic.ucma import Server, layouts
from rnic.ucma.layouts import HEADER, MISSING, RETURNED, SOCKADDR_IB, SOCKADDR_IN6, Cmd
from rnic.ucma.sockaddrs import AF_IB
from rnic.wire import RejReason
from scarce import no_descriptors
from ucma.client import HOST, OTHER_QP_NUM, QP_NUM, Device, event_kind, listening, param, resolved, sockaddr
from waiting import until

UDP = 0x111


def connected(device: Device) -> tuple[int, int, int]:
    """The numbers of a listener, of the id of a request to it, and of the id that called."""
    listener, port = listening(device)
    caller = resolved(device, port)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param(b"hello"))
    request = device.event()
    assert (request["event"], request["uid"]) == (EventType.CONNECT_REQUEST, 7)
    assert request["conn"]["private_data"].startswith(b"hello")
    assert request["conn"]["qp_num"] == QP_NUM
    device.good(
        Cmd.ACCEPT, layouts.ACCEPT, id=request["id"], uid=8, conn_param=param(b"welcome", OTHER_QP_NUM)
    )
    response = device.event()
    assert (response["event"], response["id"], response["uid"]) == (EventType.CONNECT_RESPONSE, caller, 9)
    assert response["conn"]["private_data"].startswith(b"welcome")
    device.good(Cmd.ACCEPT, layouts.ACCEPT, id=caller)
    established = device.event()
    assert (established["event"], established["uid"]) == (EventType.ESTABLISHED, 8)
    return listener, request["id"], caller


# ---------------------------------------------------------------------- connections


def test_connection_from_request_to_disconnect(device: Device) -> None:
    listener, accepted, caller = connected(device)
    device.good(Cmd.DISCONNECT, layouts.DISCONNECT, id=caller)
    assert event_kind(device) == (EventType.DISCONNECTED, accepted)
    device.good(Cmd.DISCONNECT, layouts.DISCONNECT, id=accepted)
    assert event_kind(device) == (EventType.DISCONNECTED, caller)
    assert device.destroy_id(caller) == 4
    assert device.destroy_id(accepted) == 2
    assert device.destroy_id(listener) == 1


def test_accept_that_fails_rejects(device: Device) -> None:
    _, port = listening(device)
    caller = resolved(device, port)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
    request = device.event()["id"]
    for _ in range(2):  # the second time nothing is left to accept
        fields = {"id": request, "conn_param": param(bytes(197))}
        assert device.command(Cmd.ACCEPT, layouts.ACCEPT, **fields)[0] == -errno.EINVAL
    event = device.event()
    assert (event["event"], event["id"]) == (EventType.REJECTED, caller)
    assert event["status"] == RejReason.CONSUMER_DEFINED
    assert not device.bytes_waiting()


def id_of_request() -> CmId | None:
    """An id that a request has made."""
    with registry.lock:
        return next((one for agent in registry.agents() for one in agent.ids if one.let_in_by), None)


@pytest.mark.parametrize("end", ["refused", "silent"])
@pytest.mark.parametrize("when", ["fetched", "waiting"])
def test_nothing_is_told_of_a_request_whose_peer_goes_before_it_is_accepted(
    device: Device, end: str, when: str
) -> None:
    """As with a kernel: the program has not said yet what it calls the id. To accept it fails."""
    listener, port = listening(device)
    caller = resolved(device, port)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
    number = device.event()["id"] if when == "fetched" else None
    child = until(id_of_request, "a request comes")
    if end == "refused":
        device.destroy_id(caller)
    else:
        with registry.lock:
            child.need_connection("give_up").give_up()
            child.need_agent("give_up").flush()
    until(lambda: child.conversation is None or child.conversation.phase is Phase.OVER, "its end is known")
    if number is None:
        event = device.event()
        assert event["event"] == EventType.CONNECT_REQUEST
        number = event["id"]
    assert (
        device.command(Cmd.ACCEPT, layouts.ACCEPT, id=number, uid=8, conn_param=param())[0] == -errno.EINVAL
    )
    if end == "silent":  # which is refused
        assert event_kind(device) == (EventType.REJECTED, caller)
    assert not device.bytes_waiting()
    assert device.destroy_id(number) == 0
    assert device.destroy_id(listener) == 1


@pytest.mark.parametrize("state", [1, 2, 3])
def test_attributes_of_queue_pairs_have_a_mask(device: Device, state: int) -> None:
    _, accepted, caller = connected(device)
    for number in (accepted, caller):
        data = device.good(Cmd.INIT_QP_ATTR, layouts.INIT_QP_ATTR, id=number, qp_state=state)
        attr = layouts.QP_ATTR.read(data)
        assert (attr["qp_state"], attr["qp_attr_mask"] & 1) == (state, 1)
        assert state != 2 or attr["dest_qp_num"] == (QP_NUM if number == accepted else OTHER_QP_NUM)


def test_rejected_request(device: Device) -> None:
    _, port = listening(device)
    caller = resolved(device, port)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
    request = device.event()
    device.good(Cmd.REJECT, layouts.REJECT, id=request["id"], private_data=b"no", private_data_len=2)
    refused = device.event()
    assert (refused["event"], refused["id"], refused["status"]) == (EventType.REJECTED, caller, 28)
    assert refused["conn"]["private_data"].startswith(b"no")


def test_datagram_service(device: Device) -> None:
    _, port = listening(device, UDP)
    caller = resolved(device, port, UDP)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param(b"who"))
    request = device.event()
    device.good(Cmd.ACCEPT, layouts.ACCEPT, id=request["id"], conn_param=param(b"I", qkey=5))
    found = device.event()
    assert (found["event"], found["id"]) == (EventType.ESTABLISHED, caller)
    assert (found["ud"]["qp_num"], found["ud"]["qkey"]) == (QP_NUM, 5)
    assert layouts.AH_ATTR.read(found["ud"]["ah_attr"])["is_global"] == 1


def node_guid(device: Device, number: int) -> bytes:
    answer = layouts.ADDR_RESP.read(device.good(Cmd.QUERY, layouts.QUERY, id=number, option=0))
    route = layouts.ROUTE_RESP.read(device.good(Cmd.QUERY_ROUTE, layouts.QUERY, id=number))
    assert answer["node_guid"] == route["node_guid"]
    return bytes(answer["node_guid"])


def test_id_of_the_loopback_has_a_device_when_it_listens(device: Device) -> None:
    """Bound alone it has none, as from a kernel: else libfabric finds no device of another interface."""
    number = device.create_id(0x106, 7)
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=number, addr=sockaddr(0))
    assert not any(node_guid(device, number))
    device.good(Cmd.LISTEN, layouts.LISTEN, id=number, backlog=5)
    assert any(node_guid(device, number))


def test_queries_agree(device: Device) -> None:
    _, _, caller = connected(device)
    route = layouts.ROUTE_RESP.read(device.good(Cmd.QUERY_ROUTE, layouts.QUERY, id=caller))
    addr = layouts.ADDR_RESP.read(device.good(Cmd.QUERY, layouts.QUERY, id=caller, option=0))
    gids = layouts.ADDR_RESP.read(device.good(Cmd.QUERY, layouts.QUERY, id=caller, option=2))
    paths = device.good(Cmd.QUERY, layouts.QUERY, id=caller, option=1)
    for name in ("node_guid", "port_num"):
        assert route[name] == addr[name] == gids[name] != 0
    for name in ("src_addr", "dst_addr"):
        assert route[name][:8] == addr[name][:8]
        assert SOCKADDR_IB.read(gids[name])["family"] == AF_IB
    assert route["num_paths"] == layouts.PATH_RESP.read(paths)["num_paths"] == 1
    path = layouts.PATH_REC.read(route["route0"])
    record = layouts.PATH_DATA.read(paths[layouts.PATH_RESP.size :])["path_rec"]
    assert (record[8:24], record[24:40]) == (path["dgid"], path["sgid"])


def test_addresses_of_both_kinds_of_commands(device: Device) -> None:
    one = device.create_id()
    device.good(Cmd.BIND, layouts.BIND, id=one, addr=sockaddr(0), addr_size=16)
    other = device.create_id()
    six = SOCKADDR_IN6.write(
        family=socket.AF_INET6, addr=socket.inet_pton(socket.AF_INET6, "::1"), port=b"\0\t"
    )
    device.good(
        Cmd.RESOLVE_ADDR, layouts.RESOLVE_ADDR, id=other, dst_addr=six, dst_size=28, timeout_ms=60_000
    )
    assert event_kind(device) == (EventType.ADDR_RESOLVED, other)


def test_multicast_group(device: Device) -> None:
    one = device.create_id(UDP)
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=one, addr=sockaddr(0))
    group = sockaddr(0, "239.1.2.3")
    data = device.good(Cmd.JOIN_MCAST, layouts.JOIN_MCAST, id=one, uid=55, addr=group, addr_size=16)
    number = layouts.ID_RESP.read(data)["id"]
    joined = device.event()
    assert (joined["event"], joined["uid"], joined["id"]) == (EventType.MULTICAST_JOIN, 55, number)
    assert joined["ud"]["qp_num"] == 0xFFFFFF
    left = device.good(Cmd.LEAVE_MCAST, layouts.OF_ID, id=number)
    assert layouts.EVENTS_RESP.read(left)["events_reported"] == 1
    assert device.command(Cmd.LEAVE_MCAST, layouts.OF_ID, id=number)[0] == -errno.ENOENT


@pytest.mark.parametrize(("name", "value"), [(0, b"\x20"), (1, b"\1\0\0\0"), (2, b"\1\0\0\0"), (3, b"\x0e")])
def test_options(device: Device, name: int, value: bytes) -> None:
    one = device.create_id()
    fields = {"id": one, "optname": name, "optlen": len(value)}
    device.good(Cmd.SET_OPTION, layouts.SET_OPTION, rest=value, **fields)
    short = {**fields, "optlen": len(value) + 1}
    assert device.command(Cmd.SET_OPTION, layouts.SET_OPTION, rest=value, **short)[0] == -errno.EINVAL


# ---------------------------------------------------------------------- events


def test_each_event_has_a_byte(device: Device) -> None:
    _, port = listening(device)
    for qp_num in range(3):
        caller = resolved(device, port)
        device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param(b"", 100 + qp_num))
        device.event()
    assert device.bytes_waiting() == 0


def test_bytes_of_a_destroyed_id_are_taken_back(device: Device) -> None:
    one = device.create_id()
    device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=one, dst_addr=sockaddr(9), timeout_ms=60_000)
    assert device.destroy_id(one) == 0
    assert device.undone == 1
    assert device.bytes_waiting() == 1


def test_bytes_that_threads_have_taken_are_made_up_for(device: Device) -> None:
    one = device.create_id()
    device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=one, dst_addr=sockaddr(9), timeout_ms=60_000)
    assert device.sock.recv(1)  # by a thread that is about to fetch
    device.destroy_id(one)
    assert device.undone == 1
    device.sock.send(HEADER.write(cmd=MISSING, **{"in": 1}))
    assert device.command(Cmd.GET_EVENT, layouts.GET_EVENT)[0] == -errno.EAGAIN
    resolved(device, 9)
    assert device.bytes_waiting() == 0


def test_events_that_are_not_fetched_are_announced_again(device: Device) -> None:
    number = device.create_id()
    device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=number, dst_addr=sockaddr(9), timeout_ms=60_000)
    assert device.sock.recv(1) == b"\0"
    assert device.command(Cmd.GET_EVENT, layouts.GET_EVENT, room=8)[0] == -errno.ENOSPC
    assert device.sock.recv(1) == b"\0"
    device.sock.send(HEADER.write(cmd=RETURNED, out=0, **{"in": 1}))
    assert device.sock.recv(1) == b"\0"
    device.sock.send(HEADER.write(cmd=Cmd.GET_EVENT, out=4096, **{"in": 8}) + bytes(8))  # without a pipe
    assert event_kind(device) == (EventType.ADDR_RESOLVED, number)
    assert device.bytes_waiting() == 0


def test_events_move_with_their_id(path: str, device: Device) -> None:
    one = device.create_id(uid=3)
    device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=one, dst_addr=sockaddr(9), timeout_ms=60_000)
    with Device(path) as other:
        other.good(Cmd.MIGRATE_ID, layouts.MIGRATE_ID, id=one, fd=99)
        assert other.undone == 1  # in the first file
        assert device.bytes_waiting() == 1
        assert other.event()["uid"] == 3
        assert device.command(Cmd.QUERY_ROUTE, layouts.QUERY, id=one)[0] == -errno.EINVAL
        assert other.destroy_id(one) == 1


def test_more_events_than_bytes(device: Device) -> None:
    ids = [device.create_id() for _ in range(100)]
    for one in ids:
        device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=one, dst_addr=sockaddr(9), timeout_ms=60_000)
    assert {event_kind(device) for _ in ids} == {(EventType.ADDR_RESOLVED, one) for one in ids}


# ---------------------------------------------------------------------- listeners that are made again


def test_request_meets_the_next_listener(device: Device) -> None:
    listener, port = listening(device)
    caller = resolved(device, port)
    device.destroy_id(listener)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
    again = device.create_id(uid=70)
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=again, addr=sockaddr(port))
    device.good(Cmd.LISTEN, layouts.LISTEN, id=again, backlog=1)
    request = device.event()
    assert (request["event"], request["uid"]) == (EventType.CONNECT_REQUEST, 70)


def test_request_without_a_next_listener_is_refused(device: Device) -> None:
    listener, port = listening(device)
    caller = resolved(device, port)
    device.destroy_id(listener)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
    assert event_kind(device) == (EventType.REJECTED, caller)


# ---------------------------------------------------------------------- the end of a program


def test_peer_is_told_when_a_program_ends(path: str) -> None:
    with EventChannel() as channel, create_id(channel) as listener:
        listener.bind_addr((HOST, 0))
        listener.listen()
        with Device(path) as device:
            caller = resolved(device, listener.get_src_port())
            device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
            with channel.get_cm_event(60) as event:
                accepted = event.id
            accepted.accept(ConnParam(qp_num=OTHER_QP_NUM))
            assert event_kind(device) == (EventType.CONNECT_RESPONSE, caller)
            device.good(Cmd.ACCEPT, layouts.ACCEPT, id=caller)
            with channel.get_cm_event(60) as event:
                assert event.event is EventType.ESTABLISHED
        with channel.get_cm_event(60) as event:
            assert event.event is EventType.DISCONNECTED
        accepted.destroy()


def test_ids_of_a_closed_file_are_gone(path: str) -> None:
    with Device(path) as device:
        _, port = listening(device)
    with Device(path) as other:

        def bound() -> bool:
            one = other.create_id()
            result, _ = other.command(Cmd.BIND_IP, layouts.BIND_IP, id=one, addr=sockaddr(port))
            other.destroy_id(one)
            return result == 0

        until(bound, "the port is free")


def test_nothing_is_left_of_a_server(tmp_path: Path) -> None:
    with Server(str(tmp_path / "ucma")), Device(str(tmp_path / "ucma")) as device:
        connected(device)
    until(lambda: not registry.agents(), "the devices are closed")


# ---------------------------------------------------------------------- nonsense


def test_numbers_of_nobody(path: str, device: Device) -> None:
    one = device.create_id()
    assert device.command(Cmd.DESTROY_ID, layouts.OF_ID, id=one + 1)[0] == -errno.ENOENT
    with Device(path) as other:
        assert other.command(Cmd.DESTROY_ID, layouts.OF_ID, id=one)[0] == -errno.EINVAL
    assert device.destroy_id(one) == 0


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"\0", errno.EINVAL),
        (HEADER.write(cmd=Cmd.GET_OPTION), errno.ENOSYS),
        (HEADER.write(cmd=25), errno.EINVAL),
        (HEADER.write(cmd=Cmd.CREATE_ID, out=4, **{"in": 24}), errno.EINVAL),
        (HEADER.write(cmd=Cmd.CREATE_ID, out=4, **{"in": 8}) + bytes(8), errno.EINVAL),
        (HEADER.write(cmd=Cmd.CREATE_ID, out=3, **{"in": 24}) + bytes(24), errno.ENOSPC),
        (HEADER.write(cmd=Cmd.CREATE_ID, out=4, **{"in": 24}) + bytes(24), errno.EINVAL),
    ],
)
def test_malformed_commands(device: Device, message: bytes, expected: int) -> None:
    assert device.write(message) == (-expected, b"")


def test_wrong_calls_for_a_state(device: Device) -> None:
    one = device.create_id()
    for cmd, layout in (
        (Cmd.CONNECT, layouts.CONNECT),
        (Cmd.ACCEPT, layouts.ACCEPT),
        (Cmd.REJECT, layouts.REJECT),
        (Cmd.DISCONNECT, layouts.DISCONNECT),
        (Cmd.RESOLVE_ROUTE, layouts.RESOLVE_ROUTE),
        (Cmd.INIT_QP_ATTR, layouts.INIT_QP_ATTR),
        (Cmd.BIND_IP, layouts.BIND_IP),
        (Cmd.JOIN_IP_MCAST, layouts.JOIN_IP_MCAST),
    ):
        assert device.command(cmd, layout, id=one)[0] == -errno.EINVAL, cmd


def test_services_of_infiniband(device: Device) -> None:
    one = device.create_id()
    resolve = (Cmd.RESOLVE_IB_SERVICE, layouts.RESOLVE_IB_SERVICE)
    assert device.command(*resolve, id=one)[0] == -errno.EINVAL
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=one, addr=sockaddr(0))
    assert device.command(*resolve, id=one)[0] == -errno.EOPNOTSUPP
    assert device.command(Cmd.QUERY, layouts.QUERY, id=one, option=3)[0] == -errno.ENODATA


def test_a_query_needs_room_for_its_answer(device: Device) -> None:
    one = device.create_id()
    least = (
        layouts.ADDR_RESP.offset("ibdev_index"),
        layouts.PATH_RESP.size,
        layouts.ADDR_RESP.offset("ibdev_index"),
    )
    for option, room in enumerate(least):
        small, _ = device.command(Cmd.QUERY, layouts.QUERY, room - 1, id=one, option=option)
        enough, data = device.command(Cmd.QUERY, layouts.QUERY, room, id=one, option=option)
        assert (small, enough, len(data)) == (-errno.ENOSPC, 0, room)


def test_events_of_the_program(device: Device) -> None:
    one = device.create_id(uid=5)
    for kind in (18, 19):
        device.good(
            Cmd.WRITE_CM_EVENT, layouts.WRITE_CM_EVENT, id=one, event=kind, status=7, param=b"12345678"
        )
        event = device.event()
        assert (event["event"], event["id"], event["uid"], event["status"]) == (kind, one, 5, 7)
        assert event["param"][:9] == b"12345678\0"
    wrong, _ = device.command(Cmd.WRITE_CM_EVENT, layouts.WRITE_CM_EVENT, id=one, event=EventType.ESTABLISHED)
    assert wrong == -errno.EINVAL
    assert device.destroy_id(one) == 2


@pytest.mark.parametrize("seed", range(4))
def test_random_commands_never_end_the_server(path: str, device: Device, seed: int) -> None:
    chance = random.Random(seed)
    shapes = [value for value in vars(layouts).values() if isinstance(value, layouts.Layout)]
    ids = [device.create_id(ps) for ps in (0x106, UDP)]
    for _ in range(300):
        layout = chance.choice(shapes)
        body = bytearray(chance.choice([bytes(layout.size), chance.randbytes(layout.size)]))
        if "id" in layout.names and len(body) >= layout.offset("id") + 4:
            at = layout.offset("id")
            body[at : at + 4] = chance.choice([*ids, 99]).to_bytes(4, "little")
        cmd = chance.randrange(26)
        head = HEADER.write(cmd=cmd, out=chance.choice([0, 4, 4096]), **{"in": len(body)})
        device.write(head + bytes(body) + chance.choice([b"", b"\1", b"\1\0\0\0"]))
        device.bytes_waiting()
    with Device(path) as other:
        assert other.destroy_id(other.create_id()) == 0


def test_messages_of_no_command(path: str, device: Device) -> None:
    device.sock.send(b"no descriptor for an answer")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.connect(path)
        other.send(b"")
    assert device.destroy_id(device.create_id()) == 0


def test_nobody_waits_with_programs_that_cannot_be_let_in(
    path: str, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr("rnic.ucma.server.sleep", sleeps.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other, no_descriptors():
        other.connect(path)
        until(lambda: "no program is let in" in caplog.text or bool(sleeps), "the server has none left")
    assert not sleeps
    with Device(path) as third:
        assert third.destroy_id(third.create_id()) == 0
    assert device.destroy_id(device.create_id()) == 0


def test_what_cannot_carry_an_answer_is_closed(path: str) -> None:
    """A program may pass anything: a pipe, a file, the end of a socket whose other end has gone."""
    count = partial(os.listdir, "/proc/self/fd")
    with Device(path) as device:
        device.create_id()  # all that a first command opens is open
        before = len(count())
        for _ in range(20):
            reading, writing = os.pipe()
            first, second = socket.socketpair()
            first.close()
            for fd in (reading, writing, second.fileno()):
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                device.sock.sendmsg([HEADER.write(cmd=Cmd.CREATE_ID, out=0, **{"in": 0})], rights)
            os.close(reading)
            os.close(writing)
            second.close()
        until(lambda: len(count()) <= before, "the server has closed them all")
