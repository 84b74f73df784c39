# SPDX-License-Identifier: Apache-2.0
"""Hellos, refusals, options and errors: what is taken, what is refused, and by which name."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic.endpoint import (
    AbortedError,
    Capability,
    ClosedError,
    Config,
    EndpointError,
    Hello,
    LostError,
    NoHelloError,
    ProtocolError,
    Reason,
    RefusedError,
    VersionError,
    parse_refusal,
    refusal,
)
from rnic.endpoint.hello import CAPABILITIES, MAX_DATA_ANSWERING, MAX_DATA_ASKING, common_version
from rnic.enums import AccessFlags

READ, WRITE, ATOMIC = AccessFlags.REMOTE_READ, AccessFlags.REMOTE_WRITE, AccessFlags.REMOTE_ATOMIC
SMALL = Config(receive_size=64, receives=3, max_message=4096, max_backlog=300, max_regions=4)
HELLO = SMALL.hello()


# ---------------------------------------------------------------- the hello


def test_hello_says_what_was_configured_and_fits_a_request() -> None:
    config = Config(receive_size=100, receives=7, max_message=9, max_regions=3, access=READ)
    assert Hello.parse(config.hello().emit()) == Hello(1, 2, READ, 100, 7, 3, 9, CAPABILITIES)
    assert len(config.hello(bytes(MAX_DATA_ASKING)).emit()) == 56
    assert len(config.hello(bytes(MAX_DATA_ANSWERING)).emit()) == 196
    assert Hello.parse(config.hello(b"token").emit().ljust(56, b"\0")).data == b"token"


def test_a_peer_of_version_1_says_no_more_than_that() -> None:
    old = replace(HELLO, version_max=1, data=b"ignored", capabilities=Capability.TAG).emit()
    assert len(old) == Hello.SIZE
    peer = Hello.parse(old.ljust(56, b"\xff"))
    assert peer == replace(HELLO, version_max=1, capabilities=Capability(0))
    assert peer.version == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (HELLO.emit()[:-1], "the hello has 31 bytes, not those of version 2"),
        (HELLO.emit()[:28] + b"\x05\0\0\0" + b"four", "the hello has 4 of 5 bytes of data"),
    ],
)
def test_a_hello_of_version_2_that_is_cut_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        Hello.parse(data)


def test_capabilities_that_are_not_known_do_not_matter() -> None:
    data = bytearray(HELLO.emit())
    data[24:28] = b"\xff" * 4
    assert Hello.parse(data) == HELLO


@given(st.binary(max_size=60))
def test_any_private_data_is_a_hello_or_refused_in_words(data: bytes) -> None:
    for private_data in (data, HELLO.emit()[:6] + data, HELLO.emit()[: len(data)]):
        try:
            hello = Hello.parse(private_data)
        except ProtocolError as error:
            assert str(error).isprintable()  # noqa: PT017
        else:
            assert 1 <= hello.version <= 2


def test_what_follows_the_hello_does_not_matter() -> None:
    assert Hello.parse(HELLO.emit() + b"a later version's") == HELLO


def test_flags_that_are_not_known_do_not_matter() -> None:
    data = bytearray(HELLO.emit())
    data[6:8] = b"\xff\xff"
    assert Hello.parse(data) == HELLO


@pytest.mark.parametrize("data", [b"", bytes(56), b"GET / HTTP/1.1", b"rnE", b"rnEP\x01"])
def test_peer_without_a_hello_is_refused(data: bytes) -> None:
    with pytest.raises(NoHelloError, match=r"no rnic endpoint.*raw") as caught:
        Hello.parse(data)
    assert caught.value.reason == Reason.HELLO


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
        Hello.parse(replace(HELLO, **change).emit())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"receive_size": 64}, True), ({"receive_size": 63}, False),
        ({"receive_size": 1 << 31}, True), ({"receive_size": (1 << 31) + 1}, False),
        ({"receives": 3}, True), ({"receives": 2}, False), ({"receives": 0xFFFF}, True),
        ({"version_min": 1, "version_max": 255}, True), ({"version_min": 0}, False),
        ({"max_message": 0}, True), ({"max_message": (1 << 64) - 1}, True), ({"max_regions": 0xFFFF}, True),
    ],
)  # fmt: skip
def test_a_hello_is_taken_up_to_its_limits(change: dict[str, Any], fits: bool) -> None:
    hello = replace(HELLO, **change)
    if fits:
        assert Hello.parse(hello.emit()) == hello
    else:
        with pytest.raises(ProtocolError):
            Hello.parse(hello.emit())


@pytest.mark.parametrize(
    ("size", "error", "words"),
    [(0, NoHelloError, "begins with nothing, not"), (3, NoHelloError, "begins with 72 6e 45, not"),
     (5, NoHelloError, "begins with 72 6e 45 50 01, not"), (6, ProtocolError, "the hello has 6 of 24"),
     (23, ProtocolError, "the hello has 23 of 24")],
)  # fmt: skip
def test_a_hello_that_was_cut_is_told_by_what_is_there(
    size: int, error: type[EndpointError], words: str
) -> None:
    with pytest.raises(error, match=words):
        Hello.parse(HELLO.emit()[:size])


def test_of_what_is_no_hello_eight_bytes_are_shown() -> None:
    with pytest.raises(NoHelloError, match="begins with 00 01 02 03 04 05 06 07, not"):
        Hello.parse(bytes(range(20)))


# ---------------------------------------------------------------- the version, the refusal


def test_highest_common_version_is_spoken() -> None:
    assert common_version((1, 3), (2, 5)) == common_version((2, 5), (1, 3)) == 3
    assert replace(HELLO, version_max=9).version == 2


def test_version_error_names_both_at_both_ends() -> None:
    newer = replace(HELLO, version_min=3, version_max=4).emit()[:6]  # nothing else of it need be understood
    with pytest.raises(VersionError, match="we speak 1 to 2, the peer 3 to 4") as caught:
        Hello.parse(newer)
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


def test_a_refusal_may_be_without_words_and_carries_sixteen_bits_of_its_reason() -> None:
    assert len(refusal(1, "")) == 8
    for reason in (1, 0xFFFF):
        error = parse_refusal(refusal(reason | 0x10000, ""))
        assert (type(error), str(error), error.reason) == (
            RefusedError,
            "the peer refused: (no text)",
            reason,
        )
    assert "no reason in words" in str(parse_refusal(refusal(1, "")[:7]))
    assert len(refusal(1, "x" * 141)) == len(refusal(1, "x" * 140)) == 148


@pytest.mark.parametrize(
    "cls", [ProtocolError, NoHelloError, VersionError, RefusedError, AbortedError, LostError, ClosedError]
)
def test_an_error_can_be_sent_to_another_process(cls: type[EndpointError]) -> None:
    error = pickle.loads(pickle.dumps(cls("why", Reason.CREDIT)))
    assert (type(error), str(error), error.reason) == (cls, "why", Reason.CREDIT)
    assert cls("why").reason == Reason.VIOLATION


# ---------------------------------------------------------------- options


def test_what_a_config_is_by_default() -> None:
    assert Config() == Config(
        receive_size=1 << 16, receives=32, send_size=1 << 16, max_message=1 << 30, max_backlog=1 << 20,
        max_regions=1024, access=READ | WRITE | ATOMIC, idle_interval=10.0, raw=False,
    )  # fmt: skip


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


@pytest.mark.parametrize("spin", [-1e-6, 0.0011, float("nan")])
def test_the_time_to_look_has_limits(spin: float) -> None:
    with pytest.raises(ValueError, match=r"it can be 0 to 0\.001 seconds"):
        Config(spin=spin)
