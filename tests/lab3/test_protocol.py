# SPDX-License-Identifier: Apache-2.0
"""Both ends of lab 3 as machines: no connection, no file, no clock."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic import StreamEnd, StreamEvent
from rnic.cli.lab3 import messages, stream
from rnic.cli.lab3.faults import Code, Fault
from rnic.cli.lab3.messages import (
    MESSAGE_BYTES,
    Announce,
    Done,
    Error,
    Id,
    Key,
    Message,
    Region,
    Verdict,
    padded,
)
from rnic.cli.lab3.protocol import (
    RECEIVER,
    SENDER,
    Action,
    Finish,
    Input,
    Receiver,
    ReceiverState,
    Send,
    Sender,
    SenderState,
    Store,
    Write,
    check_id,
    key_of,
    markdown,
)

REGION = Region(0x1234, 0x7000, 10)
DATA = b"the bytes of a file"


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def sender(data: bytes = DATA) -> Sender:
    return Sender(len(data), sha256(data), "alice")


def receiver(room: int = 1 << 20) -> Receiver:
    return Receiver(REGION, lambda who: key_of(b"secret", who), room)


def converse(data: bytes, arrives: bytes) -> tuple[Sender, Receiver, Action]:
    """Both ends until one has nothing to say; `arrives` is what the receiver finds in its region."""
    one, other = sender(data), receiver()
    action = one.connected()
    while not isinstance(action, Finish):
        if isinstance(action, Write):
            assert (action.region, action.offset) == (REGION, other.stored_bytes)
            action = one.written()
        assert isinstance(action, Send)
        reply = other.receive(action.message.emit())
        if isinstance(reply, Store):
            reply = other.stored(sha256(arrives[: other.stored_bytes + reply.length]))
        assert isinstance(reply, Send)
        action = one.receive(reply.message.emit())
    return one, other, action


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 19, 20, 21])
def test_file_of_any_length_is_paid(length: int) -> None:
    data = bytes(range(length))
    one, other, end = converse(data, data)
    assert (one.state, other.state) == (SenderState.FINISHED, ReceiverState.PAID)
    assert (one.sent, other.stored_bytes, other.id) == (length, length, "alice")
    assert end == Finish(hmac.new(b"secret", b"alice", "sha256").hexdigest()[:32])


def test_other_bytes_are_not_paid() -> None:
    with pytest.raises(Fault, match="other bytes") as caught:
        converse(DATA, DATA[:-1] + b"!")
    assert caught.value.code is Code.HASH


# ------------------------------------------------------------------ every pair of state and message


def send_state(state: SenderState) -> Sender:
    """A sender of 20 bytes that stands there."""
    one = sender(bytes(20))
    steps = {
        SenderState.ANNOUNCED: one.connected,
        SenderState.WRITING: lambda: one.receive(REGION.emit()),
        SenderState.TOLD: one.written,
    }
    for reached, step in steps.items():
        if one.state is not state:
            step()
            assert one.state is reached
    if one.state is not state:
        one.receive(REGION.emit())
        one.written()
        one.receive(Verdict(1).emit())
    if one.state is not state:
        one.receive(Key(padded("k", 64)).emit())
    assert one.state is state
    return one


def receive_state(state: ReceiverState) -> Receiver:
    """A receiver of 10 bytes that stands there."""
    one = receiver()
    steps = [
        lambda: one.receive(Announce(1, 10, sha256(DATA[:10])).emit()),
        lambda: one.receive(Done(10).emit()),
        lambda: one.stored(sha256(DATA[:10])),
        lambda: one.receive(Id(padded("alice", 64)).emit()),
    ]
    while one.state is not state:
        steps.pop(0)()
    return one


ONE_OF_EACH: dict[Input, Message] = {
    Input.ANNOUNCE: Announce(1, 10, sha256(DATA[:10])),
    Input.REGION: REGION,
    Input.DONE: Done(10),
    Input.GOOD: Verdict(1),
    Input.BAD: Verdict(0),
    Input.ID: Id(padded("alice", 64)),
    Input.KEY: Key(padded("k", 64)),
    Input.ERROR: Error(padded("no", 120)),
}


@pytest.mark.parametrize("what", ONE_OF_EACH, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "state",
    [state for state in SenderState if state not in (SenderState.NEW, SenderState.FAILED)],
    ids=lambda s: s.name,
)
def test_sender_takes_what_its_table_has_and_refuses_the_rest(state: SenderState, what: Input) -> None:
    one = send_state(state)
    if (state, what) not in SENDER:
        with pytest.raises(Fault, match=f"{what.value} came while {state.value}") as caught:
            one.receive(ONE_OF_EACH[what].emit())
        assert caught.value.code is Code.PROTOCOL
        assert one.state is state


@pytest.mark.parametrize("what", ONE_OF_EACH, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "state", [state for state in ReceiverState if state is not ReceiverState.FAILED], ids=lambda s: s.name
)
def test_receiver_takes_what_its_table_has_and_refuses_the_rest(state: ReceiverState, what: Input) -> None:
    one = receive_state(state)
    if (state, what) in RECEIVER:
        one.receive(ONE_OF_EACH[what].emit())
        assert one.state is RECEIVER[state, what][1]
    else:
        with pytest.raises(Fault, match=f"{what.value} came while {state.value}"):
            one.receive(ONE_OF_EACH[what].emit())
        assert one.state is state


def test_driver_that_tells_of_what_it_was_not_asked_is_a_mistake() -> None:
    with pytest.raises(RuntimeError, match="written"):
        sender().written()
    with pytest.raises(RuntimeError, match="stored"):
        receiver().stored(b"")


# ------------------------------------------------------------------ what a message may say


@pytest.mark.parametrize(
    ("state", "message", "says"),
    [
        (SenderState.ANNOUNCED, Region(1, 2, 0), "region has no bytes"),
        (SenderState.TOLD, Verdict(1), "judges 10 of 20 bytes"),
        (SenderState.ANNOUNCED, Error(padded("no room", 120)), "the receiver refuses: no room"),
        (SenderState.IDENTIFIED, Key(b"\x1b[2J".ljust(64, b"\0")), "the key is no printable"),
    ],
)
def test_sender_refuses(state: SenderState, message: Message, says: str) -> None:
    with pytest.raises(Fault, match=says):
        send_state(state).receive(message.emit())


def test_sender_does_not_write_more_than_the_file_has() -> None:
    one = send_state(SenderState.TOLD)
    assert one.receive(REGION.emit()) == Write(REGION, 10, 10)
    one.written()
    with pytest.raises(Fault, match="asks for more than the file has"):
        one.receive(REGION.emit())


@pytest.mark.parametrize(
    ("state", "message", "says"),
    [
        (ReceiverState.CONNECTED, Announce(2, 1, bytes(32)), "ANNOUNCE has version 2, only 1 is supported"),
        (ReceiverState.CONNECTED, Announce(1, (1 << 20) + 1, bytes(32)), "there is room for 1048576"),
        (ReceiverState.CONNECTED, Announce(1, (1 << 64) - 1, bytes(32)), "there is room for 1048576"),
        (ReceiverState.OFFERED, Done(9), "DONE has a length of 9, this chunk has 10 bytes"),
        (ReceiverState.OFFERED, Done(1 << 60), "this chunk has 10"),
        (ReceiverState.VERIFIED, Id(bytes(64)), "the id is empty"),
        (ReceiverState.VERIFIED, Id(b"a\0b".ljust(64, b"\0")), "no printable UTF-8"),
        (ReceiverState.VERIFIED, Id(b"\xff".ljust(64, b"\0")), "no printable UTF-8"),
    ],
)
def test_receiver_refuses(state: ReceiverState, message: Message, says: str) -> None:
    with pytest.raises(Fault, match=says):
        receive_state(state).receive(message.emit())


@pytest.mark.parametrize("who", ["", "x" * 65, "ü" * 33, "a\nb", "\udcff"])
def test_id_that_cannot_be_sent_is_refused(who: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        check_id(who)


# ------------------------------------------------------------------ bytes

GOLDEN = {
    Announce(1, 258, bytes(range(32))): "00000001 00000001 0000000000000102" + bytes(range(32)).hex(),
    Region(0xAABBCCDD, 0x7F0000001000, 65536): "00000002 aabbccdd 00007f0000001000 0000000000010000",
    Done(5): "00000003 00000000 0000000000000005",
    Verdict(1): "00000004 00000001",
    Id(padded("alice", 64)): "00000005 00000000 616c696365" + "00" * 59,
    Key(padded("8f", 64)): "00000006 00000000 3866" + "00" * 62,
    Error(padded("no", 120)): "00000007 00000000 6e6f" + "00" * 118,
}


@pytest.mark.parametrize("message", GOLDEN, ids=lambda one: one.type.name)
def test_messages_have_the_bytes_that_the_docs_say(message: Message) -> None:
    data = bytes.fromhex(GOLDEN[message])
    assert message.emit() == data
    assert messages.parse(data) == message
    assert len(data) <= MESSAGE_BYTES


@given(
    st.binary(max_size=MESSAGE_BYTES)
    | st.builds(lambda n, rest: n.to_bytes(4, "big") + rest, st.integers(0, 9), st.binary(max_size=124))
)
def test_any_bytes_are_a_message_or_a_fault(data: bytes) -> None:
    for take in (
        send_state(SenderState.TOLD).receive,
        receive_state(ReceiverState.CONNECTED).receive,
        receive_state(ReceiverState.VERIFIED).receive,
    ):
        with contextlib.suppress(Fault):
            take(data)


def test_text_is_cut_between_characters() -> None:
    assert padded("ü" * 40, 5) == "üü".encode() + b"\0"


# ------------------------------------------------------------------ the document


def test_document_has_the_tables_and_the_structures(root: Path) -> None:
    page = (root / "docs/lab3.md").read_text()
    assert markdown(SENDER) in page
    assert markdown(RECEIVER) in page
    sizes = {kind.type.name: kind.fields.size for kind in messages.CLASSES.values()}
    for name, size in sizes.items():
        assert f"| {name} | {int(messages.Type[name])} | {size} |" in page
    for code in Code:
        assert f"| {int(code)} |" in page


@pytest.mark.parametrize(
    ("end", "what", "words"),
    [
        (
            StreamEnd.TERMINATED,
            (0, 0, 0),
            "memory of work that the sender has posted is not registered any more",
        ),
        (StreamEnd.REFUSED, (1, 2, 2), "the sender sent a message out of turn, which met no receive"),
        (StreamEnd.FIN, (0, 0, 0), "the sender disconnected, or its process has died"),
    ],
)
def test_what_the_end_of_a_connection_means_in_the_lab(
    end: StreamEnd, what: tuple[int, int, int], words: str
) -> None:
    assert stream.words(StreamEvent(1, end, *what, 0), "sender") == words


def test_any_other_end_is_told_in_the_words_of_its_event() -> None:
    event = StreamEvent(1, StreamEnd.REFUSED, 2, 0, 2, 0)
    assert stream.words(event, "sender") == f"the connection to the sender has ended: {event.explain()}"
