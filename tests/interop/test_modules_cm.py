# SPDX-License-Identifier: Apache-2.0
"""The modules client, and listener with agent, against rnic and against each other, over rxe and over siw."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from cm_programs import python
from link import OURS
from modules import SOURCE, Box, built

from rnic import SGE, VerbsError, WCStatus
from rnic.rdmacm import CmId, ConnParam, EventType, create_id

sys.path.insert(0, str(SOURCE))  # where the peers find it, too
import peer_listener
import peer_memory
from message import MESSAGE_MAX, TEXT_MAX, Kind, Message, Offer, Request, Service

pytestmark = pytest.mark.interop

PORT = 7471
LIMIT = 60.0  # seconds, for what takes one or two
CLIENT, LISTENER = "/proc/rnic_client", "/proc/rnic_listener"
WAYS = [("ipv4", "softirq"), ("ipv6", "workqueue")]  # family, and where completions are handled
ORDERS = ("client listener agent", "listener client agent") * 2 + ("client listener agent",)
SERVED = re.compile(r"(\d+) texts answered, (\d+) messages wrong")


class Side:
    """The box with one RDMA device of the kernel, and the device of rnic that it can talk with."""

    def __init__(self, box: Box, kind: str) -> None:
        self.box, self.machine, self.kind = box, box.machine, kind
        self.device = f"{OURS[kind]}_{self.machine.netdev}"
        self.here = {"ipv4": self.machine.host_ip, "ipv6": self.machine.host_ip6}
        self.there = {"ipv4": self.machine.ip, "ipv6": self.machine.ip6}

    def tell(self, file: str, line: str, timeout: float = LIMIT) -> str:
        """Write a command; "" or why that failed."""
        # dd writes all at once; stdio writes 1024 bytes at a time to such a file
        rc, out = self.machine.run(
            f"echo '{line}' | dd bs=64K iflag=fullblock status=none of={file}", timeout
        )
        return out.strip().rpartition(": ")[2] if rc else ""

    def ask(self, line: str) -> None:
        """Write a command to the client that must succeed."""
        assert self.tell(CLIENT, line) == "", self.box.log()

    def read(self, file: str) -> dict[str, str]:
        """What a file says: the rest of the line by its first word, or two of an agent."""
        words = (line.partition(" ") for line in self.machine.check(f"cat {file}").splitlines())
        found = {}
        for key, _, rest in words:
            number, _, more = rest.partition(" ")
            found.update({f"agent {number}": more} if key == "agent" else {key: rest})
        return found

    def wait(self, file: str, is_so: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Read a file until this is so."""
        limit = time.monotonic() + LIMIT
        while not is_so(found := self.read(file)):
            assert time.monotonic() < limit, (found, self.box.log())
            time.sleep(0.1)
        return found

    def wait_idle(self) -> dict[str, str]:
        """Until the client has no connection any more."""
        return self.wait(CLIENT, lambda found: found["state"] == "idle")

    def wait_agents(self, number: int) -> dict[str, str]:
        """Until there are so many agents, all connected."""
        return self.wait(
            LISTENER,
            lambda found: (
                found["agents"] == str(number)
                and sum(" connected " in text for key, text in found.items() if key.startswith("agent "))
                == number
            ),
        )

    def wait_established(self) -> None:
        """Until each agent has seen its connection begin.

        Of one that ends before, siw tells the end first; at that iw_cm stops the kernel (BUG in iwcm.c).
        """
        self.wait(LISTENER, lambda found: not any(" connecting " in f"{text} " for text in found.values()))

    @contextmanager
    def client(self, **parameters: object) -> Iterator[None]:
        """The module client is loaded."""
        with self.box.loaded("client", **parameters):
            yield

    @contextmanager
    def listener(self, max_agents: int = 8, **parameters: object) -> Iterator[None]:
        """The modules agent, with these parameters, and listener are loaded."""
        with self.box.nothing_left():
            self.box.load("agent", **parameters)
            self.box.load("listener", port=PORT, max_agents=max_agents)
            try:
                yield
            finally:
                self.box.unload("listener", "agent")

    @contextmanager
    def server(self, family: str = "ipv4", *options: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """peer_listener.py, and its port."""
        words = ("--bind", self.here[family], "--port", 0, "--device", self.device, *options)
        with python(SOURCE / "peer_listener.py", *words) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.match(r"listening on port (\d+)", line)
            assert match, line + process.stdout.read()
            yield process, int(match[1])

    @contextmanager
    def caller(self, *options: object, family: str = "ipv4") -> Iterator[subprocess.Popen[str]]:
        """peer_client.py."""
        words = (self.there[family], "--port", PORT, "--device", self.device, *options)
        with python(SOURCE / "peer_client.py", *words) as process:
            yield process

    @contextmanager
    def lossy(self, percent: int) -> Iterator[None]:
        """Meanwhile so much of what the box sends is lost."""
        self.machine.check(f"tc qdisc replace dev eth0 root netem limit 100000 loss {percent}%")
        try:
            yield
        finally:
            self.machine.check("tc qdisc del dev eth0 root")


@pytest.fixture(scope="module", params=["rxe", "siw"])
def side(request: pytest.FixtureRequest, box: Box) -> Iterator[Side]:
    """The box with this device alone: RDMA-CM in the kernel takes the first that has an address."""
    other = {"rxe": "siw", "siw": "rxe"}[request.param]
    box.machine.check(f"modprobe rdma_cm; rdma link del {other}0")
    yield Side(box, request.param)
    links = (f"rdma link add {kind}0 type {kind} netdev eth0" for kind in ("rxe", "siw"))
    box.machine.check(f"rdma link del {request.param}0; {'; '.join(links)}")


class Stranger:
    """An end of rnic in this process, which may say anything; `depth` receives are posted."""

    def __init__(self, cm_id: CmId, depth: int = 16) -> None:
        self.cm_id = cm_id
        cm_id.create_qp()
        self.incoming, self.outgoing = bytearray(depth * MESSAGE_MAX), bytearray(2 * MESSAGE_MAX)
        self.into, self.out = cm_id.reg_msgs(self.incoming), cm_id.reg_msgs(self.outgoing)
        for slot in range(depth):
            cm_id.post_recv(SGE(self.into, slot * MESSAGE_MAX, MESSAGE_MAX), wr_id=slot)

    def send(self, data: bytes) -> None:
        """Send these bytes, one SEND at a time."""
        self.outgoing[: len(data)] = data
        self.cm_id.post_send(SGE(self.out, 0, len(data)))

    def receive(self) -> Message | None:
        """The next message, None at the end of the connection."""
        wc = self.cm_id.get_recv_comp(LIMIT)
        if wc.status != WCStatus.SUCCESS:
            return None
        start = wc.wr_id * MESSAGE_MAX
        return Message.unpack(bytes(self.incoming[start : start + wc.byte_len]))

    def exchange(self, data: bytes) -> Message | None:
        """Send, and receive what is answered."""
        self.send(data)
        assert self.cm_id.get_send_comp(LIMIT).status == WCStatus.SUCCESS
        return self.receive()

    def wait_disconnected(self) -> None:
        """Until the other end has disconnected."""
        with self.cm_id.channel.get_cm_event(LIMIT) as event:
            assert event.event is EventType.DISCONNECTED

    def close(self) -> None:
        """End the connection, from this end."""
        self.cm_id.destroy_qp()
        self.cm_id.destroy()
        self.into.close()
        self.out.close()


@contextmanager
def stranger(side: Side, data: bytes = Request(Service.ECHO).pack(), depth: int = 16) -> Iterator[Stranger]:
    """A client of the listener in this process; VerbsError if it is refused."""
    cm_id = create_id(device=side.device)
    cm_id.resolve_addr(None, (side.there["ipv4"], PORT))
    cm_id.resolve_route()
    end = Stranger(cm_id, depth)
    try:
        cm_id.connect(ConnParam(private_data=data, retry_count=6, rnr_retry_count=6))
        side.wait_established()
        yield end
    finally:
        end.close()


def refused(side: Side, data: bytes) -> Request:
    """Ask the listener for a connection with this private data; what its refusal says."""
    with create_id(device=side.device) as cm_id:
        cm_id.resolve_addr(None, (side.there["ipv4"], PORT))
        cm_id.resolve_route()
        cm_id.create_qp()
        with pytest.raises(VerbsError):
            cm_id.connect(ConnParam(private_data=data))
        assert cm_id.event is not None
        assert cm_id.event.event is EventType.REJECTED
        assert isinstance(cm_id.event.param, ConnParam)
        return Request.unpack(cm_id.event.param.private_data)


@contextmanager
def serving(side: Side, serve: Callable[[CmId], None]) -> Iterator[int]:
    """A server in this process, and its port: it gets one request, in a thread."""
    with create_id(device=side.device) as listener:
        listener.bind_addr((side.here["ipv4"], 0))
        listener.listen()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                serve(listener.get_request())
            except BaseException as error:  # for the test, which fails with it
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        yield listener.get_src_port()
        thread.join(LIMIT)
        assert not thread.is_alive()
        assert not failures, failures


def report(process: subprocess.Popen[str]) -> str:
    """What a program printed that ends by itself, and well."""
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out
    return out


# ------------------------------------------------------------ both roles


@pytest.mark.parametrize(("family", "poll"), WAYS)
def test_client_asks_and_checks_what_rnic_answers(side: Side, family: str, poll: str) -> None:
    with side.client(poll=poll), side.server(family, "--clients", 1) as (server, port):
        side.ask(f"connect {side.here[family]} {port}")
        side.ask("texts 200")
        side.ask("send Hello, you")
        found = side.read(CLIENT)
        assert (found["state"], found["poll"], found["depth"]) == ("connected", poll, "16")
        assert (found["sent"], found["received"], found["answer"]) == ("201", "201", "HELLO, YOU")
        side.ask("disconnect")
        assert (found := side.read(CLIENT))["state"] == "idle"
        assert (found["wrong"], found["errors"], found["error"]) == ("0", "0", "0")
        assert SERVED.findall(report(server)) == [("201", "0")]


@pytest.mark.parametrize(("family", "poll"), WAYS)
def test_listener_answers_what_rnic_asks(side: Side, family: str, poll: str) -> None:
    with side.listener(poll=poll, probe=0):  # a probe that meets the client's end fails, and is counted
        with side.caller("--count", 200, family=family) as client:
            assert report(client) == "200 texts answered\n"
        found = side.wait_agents(0)
        assert (found["asks"], found["wrong"], found["errors"]) == ("200", "0", "0")


def test_client_and_listener_of_the_kernel(side: Side) -> None:
    """Ten times over, with both devices: they exchange texts, and are unloaded in either order meanwhile."""
    turn = f"""
        insmod agent.ko; insmod listener.ko; insmod client.ko addr={side.there["ipv6"]} texts=40
        grep -qx 'received 40' {CLIENT}; grep -qx 'asks 40' {LISTENER}
        rmmod {{}}
        test "$(rdma resource)" = "$before"
    """
    turns = "".join(turn.format(order) for order in ORDERS)
    side.machine.check("dmesg -C")
    side.machine.check(f"set -e; cd {built()}; before=$(rdma resource); {turns}", LIMIT * 5)
    assert not side.box.splat()


# ------------------------------------------------------------ refusals


def test_client_that_finds_nobody_is_not_loaded(side: Side) -> None:
    with side.server():  # at another port; without it no RoCE device is there to refuse
        rc, out = side.machine.run(f"insmod {built()}/client.ko addr={side.here['ipv4']} port=9")
    assert rc
    assert "Connection refused" in out
    assert side.machine.run(f"test -e {CLIENT}")[0]


@pytest.mark.one_in(2)  # the device makes no difference
def test_commands_that_make_no_sense(side: Side) -> None:
    with side.client():
        for line in ("dance", "connect", "connect here 7", f"connect {side.here['ipv4']} x", "texts many"):
            assert side.tell(CLIENT, line) == "Invalid argument"
        assert side.tell(CLIENT, "send a") == "Transport endpoint is not connected"
        side.ask("disconnect")
        with side.server() as (_, port):
            side.ask(f"connect {side.here['ipv4']} {port}")
            again = side.tell(CLIENT, f"connect {side.here['ipv4']} {port}")
            assert again == "Transport endpoint is already connected"
            assert side.tell(CLIENT, f"send {'a' * (TEXT_MAX + 1)}") == "Message too long"
            side.ask(f"send {'a' * TEXT_MAX}")
            assert side.read(CLIENT)["answer"] == "A" * TEXT_MAX


@pytest.mark.one_in(2)  # the device makes no difference
def test_one_write_is_one_command(side: Side) -> None:
    """What stands behind a newline or a NUL is not lost without a word, and a number is the whole number."""
    with side.listener(), side.client():
        side.ask(f"connect {side.there['ipv4']} {PORT}")
        number = next(key for key in side.wait_agents(1) if key.startswith("agent ")).split()[1]
        for file, text in (
            (CLIENT, "send a\\nsend b\\n"),
            (CLIENT, "send a\\0b"),
            (LISTENER, f"disconnect {number}\\ndisconnect {number}\\n"),
            (LISTENER, f"disconnect {number}x"),
            (LISTENER, f"disconnect {number}\\0"),
        ):
            assert "Invalid argument" in side.machine.run(f"/usr/bin/printf '{text}' >{file}")[1], text
        assert "out of range" in side.tell(LISTENER, f"disconnect {2**32 + int(number)}")
        side.ask("send c")
        assert side.read(CLIENT)["sent"] == "1"
        side.wait_agents(1)


@pytest.mark.one_in(2)  # the device makes no difference
def test_largest_seconds_between_probes(side: Side) -> None:
    """They do not become none: times the clock's rate this is a multiple of 2**32."""
    with side.listener(probe=2**31), side.client(probe=2**31):
        side.ask(f"connect {side.there['ipv4']} {PORT}")
        time.sleep(1)
        side.ask("texts 10")
        side.wait_agents(1)


@pytest.mark.one_in(2)  # the device makes no difference
def test_a_command_that_is_interrupted(side: Side) -> None:
    nobody = side.machine.ip.rpartition(".")[0] + ".99"
    with side.client():
        command = side.machine.spawn(f"exec /bin/echo connect {nobody} {PORT} >{CLIENT}")
        side.wait(CLIENT, lambda found: found["state"] == "connecting")
        side.machine.check("kill $(pgrep -f '^/bin/echo connect')")
        command.wait(LIMIT)
        assert side.wait_idle()["error"] == "-4"  # EINTR, and no number of the kernel's own


@pytest.mark.one_in(2)  # the device makes no difference
def test_listener_without_a_port(side: Side) -> None:
    side.box.load("agent")
    rc, out = side.machine.run(f"insmod {built()}/listener.ko port=0")
    side.box.unload("agent")
    assert rc
    assert "Invalid parameters" in out


def test_peer_client_says_that_nobody_listens(side: Side) -> None:
    with side.caller() as client:
        out, _ = client.communicate(timeout=LIMIT)
        assert client.returncode == 1
    assert out.count("\n") == 1, out
    assert f"{side.machine.ip} port {PORT}: " in out


@pytest.mark.parametrize("answer", [peer_listener.answer, lambda data: peer_memory.answer(None, data)])
def test_peers_name_the_number_of_a_wrong_message(answer: Callable[[bytes], Message]) -> None:
    """As the module agent does: the module client takes no other answer (client_find_ask())."""
    right = Message(99, 7, b"text").pack()
    for data, number in ((right, 7), (right[:-1], 7), (right + b"x", 7), (right[:11], 0), (b"", 0)):
        assert answer(data)[:2] == (Kind.WRONG, number)


@pytest.mark.parametrize("depth", [0, 1025])
def test_peer_listener_refuses_a_depth(depth: int) -> None:
    with python(SOURCE / "peer_listener.py", "--depth", depth) as server:
        out, _ = server.communicate(timeout=LIMIT)
        assert server.returncode == 1
    assert f"--depth {depth}: a client has 1 to 1024 receives" in out


def test_client_is_refused(side: Side) -> None:
    def refuse(request: CmId) -> None:
        assert request.event is not None
        assert isinstance(request.event.param, ConnParam)
        assert Request.unpack(request.event.param.private_data).service == Service.ECHO
        request.reject(Request(Service.MEMORY, version=2).pack())
        request.destroy()

    with side.client(), serving(side, refuse) as port:
        assert side.tell(CLIENT, f"connect {side.here['ipv4']} {port}") == "Connection refused"
        assert side.read(CLIENT)["refusal"] == "version 2 service 2"
    assert "client: the server has version 2, service 2" in side.box.log()


def offering(offer: bytes) -> Callable[[CmId], None]:
    """A server that accepts with this private data, and sees its client leave."""

    def serve(request: CmId) -> None:
        end = Stranger(request)
        request.accept(ConnParam(private_data=offer))
        end.wait_disconnected()
        end.close()

    return serve


@pytest.mark.one_in(2)  # the device makes no difference
def test_client_leaves_a_server_that_offers_nothing(side: Side) -> None:
    with side.client():
        for offer in (b"", Offer(0).pack(), Offer(16).pack()[:7], bytes(32)):
            with serving(side, offering(offer)) as port:
                assert side.tell(CLIENT, f"connect {side.here['ipv4']} {port}") == "Protocol error"


def test_listener_refuses_what_it_does_not_serve(side: Side) -> None:
    good = Request(Service.ECHO)
    with side.listener(max_agents=1):
        for data in (
            b"",
            good.pack()[:4],
            bytes(8),
            Request(Service.ECHO, version=2).pack(),
            Request(Service.MEMORY).pack(),
        ):
            assert refused(side, data) == good
        assert side.read(LISTENER)["refused"] == "5"
        with stranger(side) as client:
            assert refused(side, good.pack()) == good  # there is one client
            assert client.exchange(Message(Kind.ASK, 7, b"still there").pack()) == Message(
                Kind.ANSWER, 7, b"STILL THERE"
            )
        side.wait_agents(0)
        with stranger(side):
            side.wait_agents(1)
    log = side.box.log()
    for why in ("wrong magic", "wrong version", "wrong service", "there are max_agents"):
        assert why in log


# ------------------------------------------------------------ peers that go wrong


def test_listener_survives_wrong_messages(side: Side) -> None:
    ask = Message(Kind.ASK, 3, b"a text")
    with side.listener(), stranger(side) as client:
        for data, number in (
            (b"abc", 0),
            (ask.pack()[:-1], 3),
            (ask.pack() + b"x", 3),
            (Message(Kind.ANSWER, 4, b"?").pack(), 4),
            (Message(99, 5, b"?").pack(), 5),
        ):
            found = client.exchange(data)
            assert found is not None
            assert (found.kind, found.number) == (Kind.WRONG, number), found
        assert client.exchange(ask.pack()) == Message(Kind.ANSWER, 3, b"A TEXT")
        found_now = side.read(LISTENER)
        assert (found_now["asks"], found_now["wrong"]) == ("1", "5")
        with stranger(side) as other:  # a message that no receive has room for ends the connection
            other.send(bytes(MESSAGE_MAX + 1))
            assert other.receive() is None
        side.wait_agents(1)
        assert client.exchange(ask.pack()) == Message(Kind.ANSWER, 3, b"A TEXT")


def test_listener_survives_a_flood(side: Side) -> None:
    """More asks than were offered, and no receives for their answers."""
    with side.listener(), stranger(side, depth=1) as client:
        data = Message(Kind.ASK, 0, bytes(1000)).pack()
        client.outgoing[: len(data)] = data
        for _ in range(100):
            client.cm_id.post_send(SGE(client.out, 0, len(data)))
        for _ in range(100):  # some are taken, at least; the connection may end
            if client.cm_id.get_send_comp(LIMIT).status != WCStatus.SUCCESS:
                break
        with stranger(side) as other:
            assert other.exchange(Message(Kind.ASK, 0, b"a").pack()) == Message(Kind.ANSWER, 0, b"A")


def answering(answer: bytes) -> Callable[[CmId], None]:
    """A server that answers the text "a" with these bytes, and sees its client leave."""

    def serve(request: CmId) -> None:
        end = Stranger(request)
        request.accept(ConnParam(private_data=Offer(16).pack()))
        assert end.receive() == Message(Kind.ASK, 0, b"a")
        end.send(answer)
        end.wait_disconnected()
        end.close()

    return serve


@pytest.mark.one_in(2)  # the device makes no difference
def test_client_leaves_a_server_that_answers_wrong(side: Side) -> None:
    answers = [
        Message(*words).pack()
        for words in ((Kind.ANSWER, 0, b"B"), (Kind.ANSWER, 1, b"A"), (Kind.ASK, 0, b"A"))
    ]
    with side.client():
        for answer in (*answers, b"abc"):
            with serving(side, answering(answer)) as port:
                side.ask(f"connect {side.here['ipv4']} {port}")
                assert side.tell(CLIENT, "send a") == "Protocol error"
                found = side.wait_idle()
                assert (found["errors"], found["error"]) == ("1", "-71")


@pytest.mark.one_in(2)  # the device makes no difference
def test_client_is_told_what_was_wrong(side: Side) -> None:
    def serve(request: CmId) -> None:
        end = Stranger(request)
        request.accept(ConnParam(private_data=Offer(1).pack()))
        assert end.receive() == Message(Kind.ASK, 0, b"a")
        end.send(Message(Kind.WRONG, 0, b"no \xe4!").pack())
        assert request.get_send_comp(LIMIT).status == WCStatus.SUCCESS
        request.disconnect()  # from this end
        end.close()

    with side.client(), serving(side, serve) as port:
        side.ask(f"connect {side.here['ipv4']} {port}")
        side.ask("send a")
        found = side.wait_idle()
        assert (found["wrong"], found["received"], found["depth"]) == ("1", "0", "1")
        assert (found["answer"], found["error"]) == ("no \\344!", "-104")


# ------------------------------------------------------------ peers that are gone


@pytest.mark.parametrize("work", ["idle", "busy"])
def test_client_notices_that_its_server_was_killed(side: Side, work: str) -> None:
    with side.client(probe=1), side.server() as (server, port):
        side.ask(f"connect {side.here['ipv4']} {port}")
        with ExitStack() as stack:
            if work == "busy":
                texts = side.machine.spawn(f"/bin/echo texts 100000000 >{CLIENT}")
                stack.callback(texts.wait, LIMIT)
                side.wait(CLIENT, lambda found: int(found["received"]) > 50)
            server.kill()
            server.wait()
            assert int(side.wait_idle()["error"]) < 0


def test_client_notices_that_its_server_is_gone_while_it_waits_for_an_answer(side: Side) -> None:
    """The ask was acknowledged, so that nothing but a probe can show it."""
    over = threading.Event()

    def serve(request: CmId) -> None:
        end = Stranger(request)
        request.accept(ConnParam(private_data=Offer(1).pack()))
        assert end.receive() is not None
        request.destroy_qp()
        over.wait(LIMIT)
        end.close()

    with side.client(probe=1), serving(side, serve) as port:
        side.ask(f"connect {side.here['ipv4']} {port}")
        assert side.tell(CLIENT, "texts 2") in {"Connection timed out", "Connection reset by peer"}
        assert int(side.wait_idle()["error"]) < 0
        over.set()


@pytest.mark.one_in(2)  # the device makes no difference
def test_client_is_unloaded_in_the_middle(side: Side) -> None:
    with side.server() as (_, port):
        with side.client():
            side.ask(f"connect {side.here['ipv4']} {port}")
            texts = side.machine.spawn(f"/bin/echo texts 100000000 >{CLIENT}")
            side.wait(CLIENT, lambda found: int(found["received"]) > 50)
        rc, out = texts.wait(LIMIT)
        assert (rc, out) == (1, "/bin/echo: write error: Transport endpoint is not connected\n")


@pytest.mark.parametrize("work", ["idle", "busy"])
def test_listener_notices_that_a_client_was_killed(side: Side, work: str) -> None:
    with side.listener(probe=1):
        hold = ["--count", 1, "--hold"] if work == "idle" else ["--count", 100_000, "--size", 10]
        with side.caller(*hold) as client:
            side.wait(LISTENER, lambda found: int(found["asks"]) >= (1 if work == "idle" else 50))
            side.wait_agents(1)
            client.kill()
            client.wait()
            side.wait_agents(0)


def test_many_agents(side: Side) -> None:
    """Twenty clients are served side by side; one is disconnected, and the others by unloading."""
    with ExitStack() as clients:
        with side.listener(max_agents=20):
            ends = [clients.enter_context(stranger(side)) for _ in range(20)]
            for number, end in enumerate(ends):
                end.send(Message(Kind.ASK, number, b"number %d" % number).pack())
            for number, end in enumerate(ends):
                assert end.receive() == Message(Kind.ANSWER, number, b"NUMBER %d" % number)
            side.wait_agents(20)
            assert side.tell(LISTENER, "disconnect 99999") == "No such file or directory"
            assert side.tell(LISTENER, "dance") == "Invalid argument"
            number = next(key for key in side.read(LISTENER) if key.startswith("agent ")).split()[1]
            assert side.tell(LISTENER, f"disconnect {number}") == ""
            ends[0].wait_disconnected()
            assert side.wait_agents(19)["asks"] == "20"
        for end in ends[1:]:
            end.wait_disconnected()


def test_device_goes_away(side: Side) -> None:
    """Both ends let it go, and find it again when it is back."""
    again = f"rdma link add {side.kind}0 type {side.kind} netdev eth0"
    with side.listener(), side.client():
        side.ask(f"connect {side.there['ipv4']} {PORT}")
        side.machine.check(f"rdma link del {side.kind}0; {again}")
        assert side.wait_idle()["error"] == "-19"
        side.wait_agents(0)
        side.ask(f"connect {side.there['ipv4']} {PORT}")
        side.ask("texts 10")
        assert side.read(LISTENER)["asks"] == "10"


# ------------------------------------------------------------ loss


@pytest.mark.parametrize("percent", [1, 5])
def test_texts_arrive_on_a_link_that_loses_packets(side: Side, percent: int) -> None:
    with side.listener(probe=0), side.client(probe=0), side.server() as (_, port):
        side.ask(f"connect {side.here['ipv4']} {port}")
        with side.lossy(percent):
            side.ask("texts 25")
            with side.caller("--count", 25) as client:
                assert report(client) == "25 texts answered\n"
        side.ask("disconnect")
        assert (found := side.read(CLIENT))["received"] == "25"
        assert found["errors"] == "0"
        assert side.read(LISTENER)["asks"] == "25"
