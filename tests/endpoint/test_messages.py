# SPDX-License-Identifier: Apache-2.0
"""Messages, regions, goodbyes and probes between two well-behaved ends."""

from __future__ import annotations

import array
from dataclasses import replace

import pytest

from endpoint.queues import SMALL, End, Pair
from rnic.endpoint import (
    AbortedError,
    Closed,
    ClosedError,
    Config,
    Failed,
    LostError,
    MessageReceived,
    MessageTooLongError,
    PeerClosed,
    Reason,
    RegionShared,
    RegionWithdrawn,
    State,
)
from rnic.enums import AccessFlags

READ, WRITE = AccessFlags.REMOTE_READ, AccessFlags.REMOTE_WRITE


def messages(end: End) -> list[bytes]:
    return [bytes(event.data) for event in end.events if isinstance(event, MessageReceived)]


def failure(end: End) -> Failed:
    event = end.events[-1]
    assert isinstance(event, Failed)
    return event


@pytest.fixture
def pair() -> Pair:
    return Pair()


# ------------------------------------------------------------ messages


@pytest.mark.parametrize("size", [0, 1, 47, 48, 49, 103, 104, 105, 4096])
def test_message_of_any_size_arrives_whole_in_as_few_sends_as_it_needs(pair: Pair, size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    pair.exchange(pair.a, data)
    assert messages(pair.b) == [data]
    fragments = [send for send in pair.a.log if send[0] in (1, 2)]
    assert len(fragments) == 1 + max(0, -(-(size - 48) // 56))


def test_payload_is_a_view_of_the_senders_buffer(pair: Pair) -> None:
    data = bytearray(b"x" * 100)
    pair.a.protocol.send(data)
    first, second = pair.a.protocol.next_send(), pair.a.protocol.next_send()
    assert first is not None
    assert second is not None
    assert first.payload.obj is data
    assert second.payload.obj is data


def test_handle_comes_back_when_the_last_piece_has_completed(pair: Pair) -> None:
    handle = pair.a.protocol.send(bytes(100))
    pair.run()
    assert pair.a.delivered == [handle]


def test_one_completion_stands_for_all_before_it(pair: Pair) -> None:
    handles = [pair.a.protocol.send(b"one"), pair.a.protocol.send(b"two")]
    pair.a.post_send()
    pair.a.post_send()
    while pair.arrive(pair.a):
        pass
    assert pair.a.protocol.sent(pair.a.arrived[-1].number, 0.0) == tuple(handles)


def test_any_contiguous_buffer_is_a_message(pair: Pair) -> None:
    pair.a.protocol.send(array.array("I", [1, 2]))
    pair.a.protocol.send(memoryview(b"abcdef")[2:4])
    pair.a.protocol.send(memoryview(bytearray(0)))
    with pytest.raises(ValueError, match="contiguous"):
        pair.a.protocol.send(memoryview(b"abcdef")[::2])
    pair.run()
    assert messages(pair.b) == [array.array("I", [1, 2]).tobytes(), b"cd", b""]


def test_message_longer_than_the_peer_takes_is_refused_and_the_connection_lives(pair: Pair) -> None:
    with pytest.raises(MessageTooLongError, match="4097 bytes is longer than 4096"):
        pair.a.protocol.send(bytes(4097))
    pair.exchange(pair.a, b"still here")
    assert messages(pair.b) == [b"still here"]


def test_message_can_be_taken_back_until_a_piece_is_out(pair: Pair) -> None:
    protocol = pair.a.protocol
    begun, waiting = protocol.send(bytes(100)), protocol.send(b"never")
    pair.a.post_send()
    assert not protocol.cancel(begun)
    assert protocol.cancel(waiting)
    assert not protocol.cancel(waiting)
    pair.exchange(pair.a, b"next")
    assert messages(pair.b) == [bytes(100), b"next"]
    assert protocol.queued == 0


# ------------------------------------------------------------ credits


def test_sender_stops_with_one_credit_left(pair: Pair) -> None:
    pair.a.protocol.send(bytes(1000))
    while pair.a.post_send():
        pass
    assert len(pair.a.wire) == 2
    assert pair.a.protocol.statistics().credits == 1


def test_credits_ride_on_messages_that_go_back() -> None:
    big = Pair(replace(SMALL, receives=8), replace(SMALL, receives=8))
    for _ in range(20):
        big.exchange(big.a, b"ping")
        big.exchange(big.b, b"pong")
    assert big.a.protocol.statistics().credit_sends == big.b.protocol.statistics().credit_sends == 0


def test_explicit_credits_come_at_half() -> None:
    pair = Pair(replace(SMALL, receives=8), replace(SMALL, receives=8))
    for count in range(16):
        pair.exchange(pair.a, b"one way")
        assert pair.b.protocol.statistics().credit_sends == (count + 1) // 4


def test_user_who_takes_nothing_makes_the_peer_wait_and_memory_is_bounded(pair: Pair) -> None:
    for number in range(1000):
        pair.a.protocol.send(number.to_bytes(40, "big"))
    pair.run(takers=())
    seen = pair.b.protocol.statistics()
    assert seen.held > 0
    assert seen.backlog <= SMALL.max_backlog + SMALL.receives * (SMALL.receive_size + 64)
    pair.run()
    assert messages(pair.b) == [number.to_bytes(40, "big") for number in range(1000)]


def test_user_who_takes_nothing_can_still_send(pair: Pair) -> None:
    for _ in range(100):
        pair.a.protocol.send(bytes(200))
        pair.b.protocol.send(bytes(200))
    pair.run(takers=(pair.a,))
    assert len(messages(pair.a)) == 100
    assert len(messages(pair.b)) == 0
    pair.run()
    assert len(messages(pair.b)) == 100


# ------------------------------------------------------------ regions


def test_regions_come_in_order_with_messages(pair: Pair) -> None:
    protocol = pair.a.protocol
    protocol.send(b"before")
    region = protocol.share(0x7F00_0000_1000, 4096, 0xABCD_EF01, READ | WRITE)
    protocol.send(b"between")
    protocol.withdraw(region.id)
    protocol.send(b"after")
    pair.run()
    assert pair.b.events == [
        MessageReceived(b"before"),
        RegionShared(region),
        MessageReceived(b"between"),
        RegionWithdrawn(region),
        MessageReceived(b"after"),
    ]


def test_region_is_unreleased_until_the_peer_says_that_it_is_done(pair: Pair) -> None:
    first, second = (pair.a.protocol.share(0, 8, key, READ) for key in (1, 2))
    pair.run()
    assert dict(pair.b.protocol.regions) == {first.id: first, second.id: second}
    pair.a.protocol.withdraw(second.id)
    pair.a.protocol.withdraw(first.id)
    assert pair.a.protocol.unreleased == (second.id, first.id)
    while pair.a.post_send():
        pair.arrive(pair.a)
    assert not pair.b.protocol.regions
    with pytest.raises(RuntimeError, match="2 receives have to be posted first"):
        pair.b.protocol.next_send()
    pair.b.post_receives()
    release = pair.b.protocol.next_send()
    assert release is not None
    assert release.fence
    pair.b.wire.append((release, b""))
    pair.run()
    assert not pair.a.protocol.unreleased


def test_release_overtakes_messages(pair: Pair) -> None:
    region = pair.a.protocol.share(0, 8, 1, READ)
    pair.run()
    pair.b.protocol.send(bytes(4000))
    pair.b.post_send()
    pair.a.protocol.withdraw(region.id)
    pair.a.post_send()
    pair.arrive(pair.a)
    assert pair.b.post_send()
    assert pair.b.wire[-1][0].header[0] == 6
    pair.run()
    assert messages(pair.a) == [bytes(4000)]


@pytest.mark.parametrize(
    ("addr", "length", "rkey", "access", "word"),
    [
        (0, 8, 1, AccessFlags(0), "access"),
        (0, 8, 1, AccessFlags.LOCAL_WRITE, "access"),
        (0, 8, 1, AccessFlags.REMOTE_ATOMIC, "Config.access allows REMOTE_"),
        (-1, 8, 1, READ, "cannot be a region"),
        (1 << 63, 1 << 63 | 1, 1, READ, "cannot be a region"),
        (0, 8, 1 << 32, READ, "cannot be a region"),
    ],
)
def test_share_refuses_what_cannot_be(
    addr: int, length: int, rkey: int, access: AccessFlags, word: str
) -> None:
    protocol = Pair(replace(SMALL, access=READ | WRITE)).a.protocol
    with pytest.raises(ValueError, match=word):
        protocol.share(addr, length, rkey, access)


def test_no_more_regions_than_the_peer_takes(pair: Pair) -> None:
    regions = [pair.a.protocol.share(0, 8, key, READ) for key in range(SMALL.max_regions)]
    with pytest.raises(ValueError, match="takes 4 regions at a time"):
        pair.a.protocol.share(0, 8, 9, READ)
    pair.a.protocol.withdraw(regions[0].id)
    pair.a.protocol.share(0, 8, 9, READ)
    with pytest.raises(ValueError, match="no region 1 is shared"):
        pair.a.protocol.withdraw(regions[0].id)
    pair.run()
    assert len(pair.b.protocol.regions) == 4


# ------------------------------------------------------------ the end


def test_close_delivers_all_that_was_queued(pair: Pair) -> None:
    for _ in range(10):
        pair.a.protocol.send(bytes(300))
    pair.a.protocol.close(0.0)
    pair.run()
    assert messages(pair.b) == [bytes(300)] * 10
    assert pair.b.events[-1] == PeerClosed()
    assert (pair.a.protocol.state, pair.b.protocol.state) == (
        State.HALF_CLOSED_LOCAL,
        State.HALF_CLOSED_REMOTE,
    )


def test_half_closed_end_still_receives(pair: Pair) -> None:
    pair.a.protocol.close(0.0)
    pair.run()
    for _ in range(50):
        pair.b.protocol.send(bytes(300))
    pair.b.protocol.close(0.0)
    pair.run()
    assert messages(pair.a) == [bytes(300)] * 50
    assert pair.a.events[-2:] == [PeerClosed(), Closed()]
    assert pair.b.events == [PeerClosed(), Closed()]
    assert pair.a.protocol.finished
    assert pair.b.protocol.finished


def test_half_closed_end_still_releases_regions(pair: Pair) -> None:
    region = pair.a.protocol.share(0, 8, 1, READ)
    pair.run()
    pair.b.protocol.close(0.0)
    pair.run()
    pair.a.protocol.withdraw(region.id)
    pair.run()
    assert pair.a.events == [PeerClosed()]
    assert not pair.a.protocol.unreleased


def test_nothing_is_sent_after_close(pair: Pair) -> None:
    pair.a.protocol.close(0.0)
    pair.a.protocol.close(0.0)
    with pytest.raises(ClosedError, match="after close"):
        pair.a.protocol.send(b"")
    with pytest.raises(ClosedError, match="after close"):
        pair.a.protocol.share(0, 8, 1, READ)
    with pytest.raises(ClosedError, match="after close"):
        pair.a.protocol.withdraw(1)


def test_both_close_at_once(pair: Pair) -> None:
    for end in pair.ends:
        end.protocol.send(bytes(1000))
        end.protocol.close(0.0)
    pair.run()
    for end in pair.ends:
        assert end.events == [MessageReceived(bytes(1000)), PeerClosed(), Closed()]


def test_close_that_is_not_answered_in_time_aborts(pair: Pair) -> None:
    pair.a.protocol.close(10.0, timeout=5.0)
    pair.run()
    assert pair.a.protocol.deadline() == 10.0  # of the idle probe, which comes first
    pair.a.protocol.heard(12.0)
    assert pair.a.protocol.deadline() == 15.0
    pair.a.protocol.timer(15.0)
    pair.run()
    assert failure(pair.a).error.reason == failure(pair.b).error.reason == Reason.TIMEOUT


def test_abort_tells_the_peer_why(pair: Pair) -> None:
    pair.a.protocol.send(bytes(4000))
    pair.a.protocol.send(b"")
    pair.a.post_send()
    pair.a.protocol.abort("the disk is full")
    assert not pair.a.protocol.finished
    pair.run()
    assert failure(pair.a).undelivered == 2
    error = failure(pair.b).error
    assert isinstance(error, AbortedError)
    assert str(error) == "the peer aborted the connection: the disk is full"
    assert error.reason == Reason.APPLICATION
    assert pair.a.protocol.finished
    assert pair.b.protocol.finished
    with pytest.raises(ClosedError, match="ended"):
        pair.b.protocol.send(b"")


def test_abort_without_a_credit_rides_in_the_disconnect_request() -> None:
    pair = Pair(SMALL, replace(SMALL, max_backlog=1))
    for end in (pair.a, pair.b):  # b takes nothing, so that a's last credit goes into a CREDIT
        end.protocol.send(b"one")
        end.protocol.send(b"two")
        pair.run(takers=(pair.a,))
    assert pair.a.protocol.statistics().credits == 0
    pair.a.protocol.abort("no room to say so")
    assert pair.a.protocol.finished
    pair.b.protocol.disconnected(pair.a.protocol.farewell.ljust(220, b"\0"))
    pair.run()
    assert str(failure(pair.b).error).endswith(": no room to say so")


def test_goodbye_whose_acknowledgement_is_lost_is_confirmed_by_the_disconnect_request(pair: Pair) -> None:
    pair.b.protocol.close(0.0)
    pair.run()
    pair.a.protocol.send(b"last")
    pair.a.protocol.close(0.0)
    while pair.a.post_send():
        pair.arrive(pair.a)  # and nothing completes
    pair.b.take_event()
    assert pair.b.protocol.state is State.CLOSED
    pair.a.protocol.disconnected(pair.b.protocol.farewell.ljust(220, b"\0"))
    pair.a.take_event()
    assert pair.a.protocol.state is State.CLOSED


@pytest.mark.parametrize("private_data", [b"", bytes(220), b"\x07\0\0\0\0\0\0\x09", b"\x04" + bytes(219)])
def test_disconnect_without_a_goodbye_is_a_loss(pair: Pair, private_data: bytes) -> None:
    pair.a.protocol.send(b"lost")
    pair.a.protocol.close(0.0)
    pair.a.protocol.disconnected(private_data)
    pair.a.take_event()
    assert isinstance(failure(pair.a).error, LostError)
    assert failure(pair.a).undelivered == 1
    pair.a.protocol.disconnected()
    pair.a.protocol.lost("again")
    assert not pair.a.take_event()


def test_disconnect_ends_an_abort_that_was_not_delivered(pair: Pair) -> None:
    pair.a.protocol.abort("enough")
    assert not pair.a.protocol.finished
    pair.a.protocol.disconnected()
    assert pair.a.protocol.finished
    pair.a.take_event()
    assert isinstance(failure(pair.a).error, AbortedError)


def test_disconnect_before_the_hello_is_a_loss() -> None:
    end = Pair(hello=False).a
    end.protocol.disconnected()
    end.take_event()
    assert isinstance(failure(end).error, LostError)


def test_messages_that_came_before_the_failure_can_be_taken(pair: Pair) -> None:
    pair.a.protocol.send(b"in time")
    pair.run(takers=())
    pair.b.protocol.lost("WR_FLUSH_ERR")
    while pair.b.take_event():
        pass
    assert pair.b.events[0] == MessageReceived(b"in time")
    assert str(failure(pair.b).error) == "WR_FLUSH_ERR"


def test_of_an_unfinished_message_nothing_is_kept_when_the_connection_ends(pair: Pair) -> None:
    pair.a.protocol.send(bytes(200))
    pair.a.post_send()
    pair.arrive(pair.a)
    assert 0 < pair.b.protocol.statistics().partial < 200
    pair.b.protocol.lost("no more")
    assert pair.b.protocol.statistics().partial == 0


# ------------------------------------------------------------ time


def test_idle_connection_is_probed_and_the_answer_is_a_sign_of_life(pair: Pair) -> None:
    pair.exchange(pair.a, b"hello")
    assert pair.a.protocol.deadline() == 10.0
    pair.now = 10.0
    pair.a.protocol.timer(9.9)
    assert not pair.a.post_send()
    pair.a.protocol.timer(10.0)
    assert pair.a.post_send()
    assert pair.a.wire[0][0].probe
    assert pair.a.protocol.outstanding == 1
    assert pair.a.protocol.deadline() is None
    pair.run()
    assert pair.a.protocol.deadline() == 20.0
    assert pair.a.protocol.statistics().probes == 1


def test_no_probe_while_something_is_outstanding(pair: Pair) -> None:
    pair.a.protocol.send(b"")
    pair.a.post_send()
    assert pair.a.protocol.deadline() is None
    pair.run()
    assert pair.a.protocol.deadline() == 10.0


@pytest.mark.parametrize(
    ("a", "b"),
    [(replace(SMALL, idle_interval=None), SMALL), (SMALL, replace(SMALL, access=READ))],
    ids=["switched off", "the peer's queue pair takes no WRITE"],
)
def test_no_probe(a: Config, b: Config) -> None:
    protocol = Pair(a, b).a.protocol
    assert protocol.deadline() is None
    protocol.timer(1e9)
    assert protocol.next_send() is None


def test_statistics_tell_what_was_done(pair: Pair) -> None:
    pair.exchange(pair.a, bytes(100))
    seen = pair.a.protocol.statistics()
    assert (seen.messages_sent, seen.sends, seen.queued) == (1, 2, 0)
    seen = pair.b.protocol.statistics()
    assert (seen.messages_received, seen.receives, seen.partial, seen.backlog) == (1, 2, 0, 0)
