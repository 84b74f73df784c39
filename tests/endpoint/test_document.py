# SPDX-License-Identifier: Apache-2.0
"""docs/endpoint-protocol.md says what the code does: numbers, layouts, the diagram, the example's bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import Structure, c_uint16
from pathlib import Path
from threading import Event
from time import monotonic

import pytest

import rnic
from conn.peers import HOST, WAIT
from conn.test_hostile import RECEIVES, ROOM, Dialled, dialled
from rnic import QPCap
from rnic.endpoint import Capability, Config, Hello, Reason, State, Statistics
from rnic.endpoint.hello import REFUSAL_SIZE
from rnic.enums import AccessFlags
from rnic.rdmacm import ConnParam, EventChannel, create_id
from waiting import until

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "endpoint-protocol.md").read_text()
MSG_ROOM = ROOT / "src" / "msg"
FRAME, MACHINE, MSG = ((MSG_ROOM / f"{name}.h").read_text() for name in ("frame", "machine", "msg"))
INPUTS = {
    "GREETED": "hello accepted",
    "NO_HELLO": "no hello, raw allowed",
    "GOODBYE_DELIVERED": "goodbye delivered",
    "GOODBYE_RECEIVED": "goodbye received",
    "FAULT": "fault",
    "LOST": "lost",
    "ABORT_DELIVERED": "abort delivered",
    "RAW_DONE": "closed",
}
"""What the page calls each input of the table of states."""
A = Config(receive_size=64, receives=4, max_message=1024, max_regions=2)
B = Config(receive_size=4096, receives=16, access=AccessFlags.REMOTE_WRITE)


def found(pattern: str, text: str) -> str:
    """What the group of a pattern matches, which is there."""
    one = re.search(pattern, text, re.DOTALL)
    assert one, pattern
    return one[1]


def number(name: str) -> int:
    """A number that frame.h defines."""
    return int(found(rf"#define {name} (\d+)", FRAME))


def section(title: str) -> str:
    """The text under a heading, to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The first table of a section, without its head, cell by cell, as text."""
    table = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table[2:]]


def example() -> Iterator[tuple[str, str, bytes]]:
    """(from, by what, bytes) for each line of the example."""
    for line in section("An example").splitlines():
        found = re.match(r"([AB]) (REQ|REP|SEND) +((?:[0-9a-f]{2} ?)+)", line)
        if found:
            yield found[1], found[2], bytes.fromhex(found[3])


def said(who: str, how: str) -> list[bytes]:
    """What one end says in the example in one way."""
    return [data for one, by, data in example() if (one, by) == (who, how)]


def named(title: str) -> dict[str, int]:
    """The numbers of a table of names."""
    return {name: int(number) for number, name, *_ in rows(title) if number.isdigit() and name.isupper()}


def test_numbers_are_those_of_the_code() -> None:
    types = re.findall(r"^    FRAME_(\w+)", found(r"enum frame_type \{\n(.*?)\n    FRAME_TYPES", FRAME), re.M)
    assert named("The header") == {name: number for number, name in enumerate(types, 1)}
    assert named("Reasons") == {member.name: member.value for member in Reason}
    reasons = re.findall(r"^ +MSG_(\w+)", found(r"enum msg_reason \{.*?\n(.*?)\};", MSG), re.M)
    assert [name.removeprefix("NO_") for name in reasons] == [member.name for member in Reason]
    bits = re.findall(r"FRAME_(\w+) = (\d)", found(r"enum frame_flag \{(.*?)\}", FRAME))
    assert f"| flags | {', in MESSAGE and MORE; '.join(f'{bit} {name}' for name, bit in bits[:2])}" in TEXT
    assert f"{bits[2][1]} {bits[2][0]}, in SHARE" in TEXT
    assert named("Version 2 in the hello") | {name: int(bit) for bit, name, *_ in capability_rows()} == {
        member.name: member.value for member in Capability
    }


def capability_rows() -> list[list[str]]:
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in section("Version 2 in the hello").splitlines()
        if re.match(r"\| \d+ \| [A-Z]+ \|", line)
    ]


@pytest.mark.parametrize(
    ("title", "size"),
    [
        ("The hello", Hello.SIZE),
        ("Every SEND", number("FRAME_HEADER")),
        ("MESSAGE and MORE", number("FRAME_TOTAL")),
        ("ANNOUNCE, TAKEN", number("FRAME_OFFER")),
        ("SHARE, WITHDRAW, RELEASE", number("FRAME_REGION")),
        ("Arrays", number("FRAME_ARRAY")),
        ("The refusal", 8),
    ],
)
def test_layouts_have_no_gaps(title: str, size: int) -> None:
    fields = [(int(at), int(length)) for at, length, *_ in rows(title) if length.isdigit()]
    at = fields[0][0]
    for start, length in fields:
        assert start == at
        at += length
    assert at - fields[0][0] == size


def test_limits_are_those_of_the_code() -> None:
    assert f"at most {number('FRAME_MAX_TEXT')} bytes" in section("GOODBYE and ABORT")
    assert f"{REFUSAL_SIZE} bytes" in section("The refusal")


def transitions() -> Iterator[tuple[str, str, str]]:
    """(state, next state, what happens) for each entry of the table in ends.c that is not STAYS."""
    inputs = found(r"enum input \{ ?(.*?), INPUTS ?\}", MACHINE).split(", ")
    assert set(inputs) == INPUTS.keys()
    in_c = re.findall(r"^    (MSG_\w+),", found(r"enum msg_state \{\n(.*?)MSG_STATES", MSG), re.MULTILINE)
    names = dict(zip(in_c, State, strict=True))
    table = found(r"next_state\[MSG_STATES\]\[INPUTS\] = \{\n(.*?)\n\};", (MSG_ROOM / "ends.c").read_text())
    rows = re.findall(r"\[(MSG_\w+)\] = \{(.*?)\}", table)
    assert [state for state, _ in rows] == list(names)
    for state, entries in rows:
        for what, then in zip(inputs, entries.split(", "), strict=True):
            if then != "STAYS":
                yield names[state].name, names[then].name, INPUTS[what]


def test_diagram_is_the_table_of_the_code() -> None:
    drawn = re.findall(r"^ +(\w+) --> (\w+) : (.*)$", section("States"), re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == set(transitions())
    assert re.search(rf"\[\*\] --> {State.HELLO.name}", section("States"))


def test_the_hellos_of_the_example_are_those_of_the_code() -> None:
    assert said("A", "REQ") == [A.hello().emit()]
    assert said("B", "REP") == [B.hello().emit()]


def test_the_example_is_what_the_acceptor_says() -> None:
    """A is the example's lines, B is rnic; where the region lies and its key are as B has them."""
    heard: list[bytes] = []
    with rnic.listen(HOST, 0, config=B) as server, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(talk_as_b, server)
        with dialled(server, *said("A", "REQ")) as one:
            for who, how, data in example():
                if (who, how) == ("A", "SEND"):
                    one.post(data)
                elif (who, how) == ("B", "SEND"):
                    heard.append(one.hear())
        accepting.result(WAIT)
    expected = said("B", "SEND")
    assert heard[0][:8] + heard[0][16:24] + heard[0][28:] == b"".join(
        (expected[0][:8], expected[0][16:24], expected[0][28:])
    )
    assert heard[1:] == expected[1:]


class Plain(Structure):
    """Four bytes."""

    _fields_ = (("one", c_uint16), ("other", c_uint16))


def talk_as_b(server: rnic.Listener) -> None:
    with server.accept(WAIT) as conn:
        assert conn.recv(WAIT) == b"hello"
        region = conn.share((Plain * 16384)())  # no array that NumPy knows
        conn.send(bytes(range(0x41, 0x41 + 60)), WAIT)
        until(lambda: pumped(conn).receives == 2, "the credits")
        conn.withdraw(region, WAIT)
        with pytest.raises(EOFError):
            conn.recv(WAIT)
        conn.send(b"", WAIT)


def pumped(conn: rnic.Connection) -> Statistics:
    conn._core.pump(monotonic())
    return conn.statistics()


def test_the_example_is_what_the_initiator_says() -> None:
    """B is the example's lines, A is rnic."""
    heard: list[bytes] = []
    three_are_there = Event()
    with EventChannel() as channel, create_id(channel) as listener:
        listener.bind_addr((HOST, 0))
        listener.listen()
        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(talk_as_a, listener.get_src_port(), three_are_there)
            with channel.get_cm_event(WAIT) as event:
                one, param = event.id, event.param
            assert isinstance(param, ConnParam)
            assert param.private_data[: len(said("A", "REQ")[0])] == said("A", "REQ")[0]
            one.create_qp(cap=QPCap(max_send_wr=4, max_recv_wr=RECEIVES))
            with one.reg_msgs(bytearray(ROOM * (RECEIVES + 1))) as mr:
                peer = Dialled(one, mr)
                one.accept(ConnParam(said("B", "REP")[0]))
                for who, how, data in example():
                    if (who, how) == ("B", "SEND"):
                        peer.post(data)
                    elif (who, how) == ("A", "SEND"):
                        if heard:
                            three_are_there.set()
                        heard.append(peer.hear())
                calling.result(WAIT)
                one.destroy_qp()
            one.destroy()
    assert heard == said("A", "SEND")


def talk_as_a(port: int, three_are_there: Event) -> None:
    with rnic.connect(HOST, port, config=A) as conn:
        conn.send(b"hello", WAIT)
        three_are_there.wait(WAIT)
        region = conn.next_region(WAIT)
        assert (region.addr, region.length, region.rkey) == (0x7F0000001000, 65536, 0x1234ABCD)
        assert conn.recv(WAIT) == bytes(range(0x41, 0x41 + 60))
        assert conn.next_withdrawn(WAIT) is region
        until(lambda: pumped(conn).sends == 3, "the RELEASE")
        conn.close(WAIT)


def test_nothing_is_needed_but_the_standard_library() -> None:
    """typing_extensions is for type checkers alone; where it is not installed, it is not missed."""
    program = "import sys; sys.modules['typing_extensions'] = None; import rnic.endpoint"
    subprocess.run([sys.executable, "-c", program], check=True)
