# SPDX-License-Identifier: Apache-2.0
"""docs/endpoint-protocol.md says what the code does: numbers, layouts, the diagram, the example's bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import pytest

from endpoint.queues import Pair
from rnic.endpoint import Config, Hello, Reason
from rnic.endpoint.frame import HEADER_SIZE, MAX_TEXT, MESSAGE_SIZE, FrameType
from rnic.endpoint.hello import REFUSAL_SIZE
from rnic.endpoint.state import TRANSITIONS, State
from rnic.enums import AccessFlags

TEXT = (Path(__file__).parents[2] / "docs" / "endpoint-protocol.md").read_text()


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


@pytest.mark.parametrize(("title", "enum"), [("The header", FrameType), ("Reasons", Reason)])
def test_numbers_are_those_of_the_code(title: str, enum: type[IntEnum]) -> None:
    named = {name: int(number) for number, name, *_ in rows(title) if number.isdigit() and name.isupper()}
    assert named == {member.name: member.value for member in enum}


@pytest.mark.parametrize(
    ("title", "size"),
    [
        ("The hello", Hello.SIZE),
        ("Every SEND", HEADER_SIZE),
        ("MESSAGE and MORE", MESSAGE_SIZE - HEADER_SIZE),
        ("SHARE, WITHDRAW, RELEASE", 24),
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
    assert f"at most {MAX_TEXT} bytes" in section("GOODBYE and ABORT")
    assert f"{REFUSAL_SIZE} bytes" in section("The refusal")


def test_diagram_is_the_table_of_the_code() -> None:
    drawn = re.findall(r"^ +(\w+) --> (\w+) : (.*)$", section("States"), re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {(old.name, new.name, what.value) for (old, what), new in TRANSITIONS.items()}
    assert re.search(rf"\[\*\] --> {State.HELLO.name}", section("States"))


def test_example_is_what_two_ends_say() -> None:
    a = Config(receive_size=64, receives=4, max_message=1024, max_regions=2)
    b = Config(receive_size=4096, receives=16, access=AccessFlags.REMOTE_WRITE)
    pair = Pair(a, b, hello=False)
    said = [("A", "REQ", pair.a.protocol.hello())]
    pair.b.protocol.accept_hello(said[0][2], 0.0)
    said.append(("B", "REP", pair.b.protocol.hello()))
    pair.a.protocol.accept_hello(said[1][2], 0.0)

    def talk() -> None:
        """A speaks, then B, until both are silent."""
        before = len(said)
        for name, end in (("A", pair.a), ("B", pair.b)):
            while end.post_send():
                pair.arrive(end)
                end.complete(0.0)
                said.append((name, "SEND", end.log[-1]))
            pair.a.post_receives()
            pair.b.post_receives()
        if len(said) > before:
            talk()

    pair.a.protocol.send(b"hello")
    talk()
    region = pair.b.protocol.share(0x7F0000001000, 65536, 0x1234ABCD, AccessFlags.REMOTE_WRITE)
    pair.b.protocol.send(bytes(range(0x41, 0x41 + 60)))
    talk()
    pair.b.protocol.withdraw(region.id)
    talk()
    pair.a.protocol.close(0.0)
    talk()
    pair.b.protocol.send(b"")
    pair.b.protocol.close(0.0)
    talk()
    assert pair.a.protocol.state is pair.b.protocol.state is State.CLOSED
    assert list(example()) == said, "\n".join(f"{who} {how:4} {data.hex(' ')}" for who, how, data in said)


def test_nothing_is_needed_but_the_standard_library() -> None:
    """typing_extensions is for type checkers alone; where it is not installed, it is not missed."""
    program = "import sys; sys.modules['typing_extensions'] = None; import rnic.endpoint"
    subprocess.run([sys.executable, "-c", program], check=True)
