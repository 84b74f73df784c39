# SPDX-License-Identifier: Apache-2.0
"""Hellos, refusals, and the order in which a driver has to do things."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoint.queues import SMALL, Pair
from rnic.endpoint import (
    Config,
    EndpointError,
    Hello,
    NoHelloError,
    Protocol,
    ProtocolError,
    Reason,
    RefusedError,
    Role,
    State,
    VersionError,
    parse_refusal,
    refusal,
)
from rnic.endpoint.hello import (
    CAPABILITIES,
    MAX_DATA_ANSWERING,
    MAX_DATA_ASKING,
    Capability,
    agree,
    common_version,
)
from rnic.endpoint.state import TRANSITIONS, Input, step
from rnic.enums import AccessFlags

HELLO = SMALL.hello()


def acceptor(config: Config = SMALL) -> Protocol:
    protocol = Protocol(config, Role.ACCEPTOR)
    protocol.receives_posted(protocol.receives_to_post())
    return protocol


def test_hello_says_what_was_configured_and_fits_a_request() -> None:
    config = Config(
        receive_size=100, receives=7, max_message=9, max_regions=3, access=AccessFlags.REMOTE_READ
    )
    pair = Pair(config, SMALL)
    assert pair.b.protocol.peer == Hello(1, 2, AccessFlags.REMOTE_READ, 100, 7, 3, 9, CAPABILITIES)
    assert pair.a.protocol.version == pair.b.protocol.version == 2
    assert len(config.hello(bytes(MAX_DATA_ASKING)).emit()) == 56
    assert len(config.hello(bytes(MAX_DATA_ANSWERING)).emit()) == 196


def test_programs_say_something_with_the_hello() -> None:
    pair = Pair(hello=False)
    a, b = pair.a.protocol, pair.b.protocol
    with pytest.raises(ValueError, match="the data of a hello has 25 bytes, there is room for 24"):
        a.hello(bytes(25))
    assert b.accept_hello(a.hello(b"token").ljust(56, b"\0"), 0.0) is b.peer
    with pytest.raises(ValueError, match="there is room for 164"):
        b.hello(bytes(165))
    a.accept_hello(b.hello(b"welcome").ljust(196, b"\0"), 0.0)
    assert (a.peer and a.peer.data, b.peer and b.peer.data) == (b"welcome", b"token")


def test_a_peer_of_version_1_hears_and_says_no_more_than_that() -> None:
    pair = Pair(hello=False)
    old = replace(HELLO, version_max=1, data=b"ignored", capabilities=Capability.TAG).emit()
    assert len(old) == Hello.SIZE
    protocol = pair.b.protocol
    peer = protocol.accept_hello(old.ljust(56, b"\xff"), 0.0)
    assert peer == replace(HELLO, version_max=1, capabilities=Capability(0))
    assert protocol.version == 1
    assert not any(protocol.knows(one) for one in Capability)
    assert not protocol.stop(1)
    with pytest.raises(ValueError, match="the peer speaks version 1, which has no tags"):
        protocol.send(b"x", tag=1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HELLO.emit()[:-1], "the hello has 31 bytes, not those of version 2"),
        (HELLO.emit()[:28] + b"\x05\0\0\0" + b"four", "the hello has 4 of 5 bytes of data"),
    ],
)
def test_a_hello_of_version_2_that_is_cut_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        acceptor().accept_hello(data, 0.0)


def test_capabilities_that_are_not_known_do_not_matter() -> None:
    data = bytearray(HELLO.emit())
    data[24:28] = b"\xff" * 4
    assert Hello.parse(data) == HELLO


@given(st.binary(max_size=60))
def test_any_private_data_is_a_hello_or_refused_in_words(data: bytes) -> None:
    for private_data in (data, HELLO.emit()[:6] + data, HELLO.emit()[: len(data)]):
        protocol = acceptor()
        with contextlib.suppress(ProtocolError):
            protocol.accept_hello(private_data, 0.0)
        assert protocol.state in (State.OPEN, State.FAILED)


def test_what_follows_the_hello_does_not_matter() -> None:
    assert Hello.parse(HELLO.emit() + b"a later version's") == HELLO


def test_flags_that_are_not_known_do_not_matter() -> None:
    data = bytearray(HELLO.emit())
    data[6:8] = b"\xff\xff"
    assert Hello.parse(data) == HELLO


@pytest.mark.parametrize("data", [b"", bytes(56), b"GET / HTTP/1.1", b"rnE", b"rnEP\x01"])
def test_peer_without_a_hello_is_refused(data: bytes) -> None:
    with pytest.raises(NoHelloError, match=r"no rnic endpoint.*raw") as caught:
        acceptor().accept_hello(data, 0.0)
    assert caught.value.reason == Reason.HELLO


def test_peer_without_a_hello_is_served_raw_if_wanted() -> None:
    protocol = acceptor(replace(SMALL, raw=True))
    assert protocol.accept_hello(b"something else", 0.0) is None
    assert protocol.state is State.RAW
    assert protocol.next_send() is None
    assert protocol.deadline() is None


def test_raw_still_refuses_a_bad_hello() -> None:
    with pytest.raises(ProtocolError):
        acceptor(replace(SMALL, raw=True)).accept_hello(HELLO.emit()[:10], 0.0)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"receive_size": 63}, "receives of 63 bytes"),
        ({"receive_size": (1 << 31) + 1}, "receives of 2147483649 bytes"),
        ({"receives": 2}, "2 receives"),
        ({"version_min": 0}, "versions 0 to 2"),
        ({"version_min": 3, "version_max": 2}, "versions 3 to 2"),
    ],
)
def test_hello_with_values_that_cannot_be_is_refused(change: dict[str, int], word: str) -> None:
    with pytest.raises(ProtocolError, match=word):
        acceptor().accept_hello(replace(HELLO, **change).emit(), 0.0)  # type: ignore[arg-type]


def test_highest_common_version_is_spoken() -> None:
    assert common_version((1, 3), (2, 5)) == common_version((2, 5), (1, 3)) == 3
    assert agree(HELLO, replace(HELLO, version_max=9)) == 2


def test_version_error_names_both_at_both_ends() -> None:
    newer = replace(HELLO, version_min=3, version_max=4).emit()[:6]  # nothing else of it need be understood
    with pytest.raises(VersionError, match="we speak 1 to 2, the peer 3 to 4") as caught:
        acceptor().accept_hello(newer, 0.0)
    private_data = bytearray(refusal(caught.value.reason, str(caught.value)).ljust(148, b"\0"))
    private_data[4:6] = bytes([3, 4])  # as the newer one would have refused us
    error = parse_refusal(private_data)
    assert isinstance(error, VersionError)
    assert "we speak 1 to 2, the peer 3 to 4" in str(error)


def test_refusal_carries_its_words() -> None:
    data = refusal(Reason.APPLICATION, "not today \N{EM DASH} " + 200 * "\N{SNOWMAN}")
    assert len(data) <= 148
    error = parse_refusal(data.ljust(148, b"\0"))
    assert isinstance(error, RefusedError)
    assert str(error).startswith("the peer refused: not today \N{EM DASH} \N{SNOWMAN}")
    assert error.reason == Reason.APPLICATION


@given(st.binary(max_size=160))
def test_any_refusal_is_an_error_with_words(data: bytes) -> None:
    for private_data in (data, b"rnEP" + data):
        error = parse_refusal(private_data)
        assert isinstance(error, EndpointError)
        assert str(error).isprintable()


def test_hello_promises_only_receives_that_are_posted() -> None:
    protocol = Protocol(SMALL, Role.INITIATOR)
    with pytest.raises(RuntimeError, match="4 are not posted"):
        protocol.hello()
    protocol.receives_posted(3)
    with pytest.raises(RuntimeError, match="1 are not posted"):
        protocol.hello()
    with pytest.raises(ValueError, match="2 receives posted where 1"):
        protocol.receives_posted(2)
    protocol.receives_posted(1)
    assert protocol.hello() == protocol.hello() == HELLO.emit()


def test_each_role_has_its_order() -> None:
    with pytest.raises(RuntimeError, match="accept the peer's hello first"):
        acceptor().hello()
    with pytest.raises(RuntimeError, match="by the initiator"):
        Protocol(SMALL, Role.INITIATOR).accept_hello(HELLO.emit(), 0.0)
    protocol = acceptor()
    protocol.accept_hello(HELLO.emit(), 0.0)
    with pytest.raises(RuntimeError, match="by the acceptor in the state 'open'"):
        protocol.accept_hello(HELLO.emit(), 0.0)
    protocol.send(b"early")
    assert protocol.next_send() is None
    protocol.hello()
    assert protocol.next_send() is not None


def test_nothing_moves_before_the_handshake() -> None:
    protocol = acceptor()
    for call in (lambda: protocol.send(b""), lambda: protocol.receive(b"", 0.0)):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(ValueError, match="no such work request"):
        protocol.sent(1, 0.0)
    protocol.close(0.0)
    assert protocol.state is State.FAILED


def test_abort_between_the_hellos_is_told_by_the_farewell() -> None:
    protocol = acceptor()
    protocol.accept_hello(HELLO.emit(), 0.0)
    protocol.abort("changed my mind")
    assert protocol.finished
    assert b"changed my mind" in protocol.farewell


@pytest.mark.parametrize(
    "change",
    [
        {"receive_size": 63},
        {"receive_size": (1 << 31) + 1},
        {"send_size": 63},
        {"send_size": (1 << 31) + 1},
        {"receives": 2},
        {"receives": 65536},
        {"max_message": -1},
        {"max_message": 1 << 64},
        {"max_backlog": 0},
        {"max_regions": -1},
        {"max_regions": 65536},
        {"access": AccessFlags.LOCAL_WRITE},
        {"idle_interval": 0},
    ],
    ids=str,
)
def test_config_that_cannot_be_is_refused_by_name(change: dict[str, int]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=name):
        Config(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"receive_size": 64},
        {"receive_size": 1 << 31},
        {"send_size": 64},
        {"send_size": 1 << 31},
        {"receives": 3},
        {"receives": 65535},
        {"max_message": 0},
        {"max_message": (1 << 64) - 1},
        {"max_backlog": 1},
        {"max_backlog": 1 << 64},
        {"max_regions": 0},
        {"max_regions": 65535},
        {"access": AccessFlags.REMOTE_ATOMIC},
        {"idle_interval": 1e-9},
    ],
    ids=str,
)
def test_the_ends_of_what_a_config_can_be_belong_to_it(change: dict[str, int]) -> None:
    config = Config(**change)  # type: ignore[arg-type]
    assert Hello.parse(config.hello().emit()) == config.hello()


def test_every_pair_of_state_and_input_is_in_the_table_or_refused() -> None:
    for state in State:
        for what in Input:
            if (state, what) in TRANSITIONS:
                assert step(state, what) is TRANSITIONS[state, what]
            else:
                with pytest.raises(RuntimeError, match="cannot happen in the state"):
                    step(state, what)
