# SPDX-License-Identifier: Apache-2.0
"""Channels on queue pairs: messages come whole and in order, by threads and by tasks; who lies is told."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from time import monotonic
from typing import Any

import pytest

import rnic
from patterns.ends import WAIT, queue_pair, queue_pairs
from rnic.patterns.chain import QueueError
from rnic.patterns.credits import AsyncChannel, Channel
from rnic.patterns.cursor import LiarError
from rnic.patterns.wait import How
from rnic.testing import complete, connect, loopback, prepare
from waiting import until

SIZES = [0, 1, 55, 56, 57, 248, 4087, 4088, 4089, 100_000]


@contextmanager
def channels(**options: Any) -> Iterator[tuple[Channel, Channel]]:
    with queue_pairs() as (a, b), ExitStack() as stack:
        pair = Channel(a, **options), Channel(b, receives=3, size=64)
        for channel in pair:
            stack.callback(channel.abort)  # which does nothing after close()
        yield pair


def echo(channel: Channel) -> None:
    for message in channel:
        channel.send(message, WAIT)
    channel.close(WAIT)


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """It runs in a thread meanwhile, and has to end well."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield
        future.result(WAIT)


@pytest.mark.parametrize("how", How, ids=lambda how: how.name)
def test_messages_of_every_length_come_back(how: How) -> None:
    with channels(how=how) as (a, b), beside(lambda: echo(b)):
        for size in SIZES:
            message = Random(size).randbytes(size)
            a.send(message, WAIT)
            assert a.recv(WAIT) == message
        a.close(WAIT)


def speak(channel: Channel) -> None:
    for number in range(500):
        channel.send(b"%d" % number, WAIT)


def test_many_small_ones_come_in_order() -> None:
    with channels() as (a, b), beside(lambda: speak(a)):
        assert [int(b.recv(WAIT)) for _ in range(500)] == list(range(500))
        assert b.statistics().arrived == 501  # with the HELLO, and no message was sent twice


def test_both_directions_at_once_do_not_stall_each_other() -> None:
    """Both programs send all before they receive."""
    messages = [bytes([n]) * n for n in range(200)]

    def talk(channel: Channel) -> list[bytes]:
        for message in messages:
            channel.send(message, WAIT)
        return [channel.recv(WAIT) for _ in messages]

    with channels() as (a, b), ThreadPoolExecutor(2) as pool:
        assert [list(got) for got in pool.map(talk, (a, b))] == [messages, messages]


def test_a_channel_is_made_from_init_on() -> None:
    with ExitStack() as stack:
        a, b = queue_pair(stack), queue_pair(stack)
        with pytest.raises(ValueError, match="RESET: move it to INIT"):
            Channel(a)
        at_a, at_b = prepare(a), prepare(b)
        left, right = Channel(a), Channel(b)
        complete(a, at_a, at_b)
        complete(b, at_b, at_a)
        with beside(lambda: echo(right)):
            left.send(b"hello", WAIT)
            assert left.recv(WAIT) == b"hello"
            left.close(WAIT)


def test_over_iwarp_which_has_no_rnr() -> None:
    with queue_pairs("iwarp_lo") as (a, b):
        left, right = Channel(a), Channel(b, receives=3, size=64)
        with beside(lambda: echo(right)):
            for size in SIZES:
                left.send(bytes(size), WAIT)
                assert left.recv(WAIT) == bytes(size)
            left.close(WAIT)


def test_timeouts_leave_the_channel_usable() -> None:
    with channels() as (a, b):
        with pytest.raises(TimeoutError, match="recv: no message"):
            a.recv(0)
        with pytest.raises(TimeoutError, match="send: the peer"):
            a.send(b"x" * 1000, 0)  # its HELLO has not come
        with beside(lambda: echo(b)):
            a.send(b"y" * 1000, WAIT)
            assert a.recv(WAIT) == b"y" * 1000
            a.close(WAIT)


def say(channel: Channel, message: bytes) -> None:
    channel.send(message, WAIT)
    channel.close(WAIT)


def test_the_end_comes_behind_the_messages_and_close_waits_for_it() -> None:
    with channels() as (a, b):
        with beside(lambda: say(b, b"last")):
            assert list(a) == [b"last"]
            a.close(WAIT)
        with pytest.raises(ValueError, match="closed"):
            a.send(b"")


def test_close_does_not_wait_longer_than_it_says() -> None:
    with channels() as (a, _):
        with pytest.raises(TimeoutError, match="did not close its end"):
            a.close(0)
        with pytest.raises(ValueError, match="closed"):
            a.recv()


def test_abort_tells_the_peer_why() -> None:
    with channels() as (a, b):
        with beside(lambda: b.recv(WAIT)):
            a.send(b"hello", WAIT)
        a.abort("enough")
        with pytest.raises(rnic.AbortedError, match="enough"):
            b.recv(WAIT)
        with pytest.raises(rnic.AbortedError):
            b.send(b"x", WAIT)


def test_close_tells_of_an_end_that_no_call_has_told_of() -> None:
    with channels() as (a, b):
        with beside(lambda: a.send(b"one", WAIT)):
            assert b.recv(WAIT) == b"one"
        a.abort("enough")
        until(lambda: b._move() or b.error is not None, "it knows")
        with pytest.raises(rnic.AbortedError, match="enough"):
            b.close(WAIT)
        b.close(WAIT)


def test_a_failed_queue_pair_is_told_by_its_completion() -> None:
    with channels() as (_, b):
        b._qp.modify(rnic.QPAttr(qp_state=rnic.QPState.ERR))
        with pytest.raises(QueueError):
            b.recv(WAIT)


def test_what_was_flushed_behind_a_request_that_failed_is_not_blamed() -> None:
    with channels() as (a, b):
        with beside(lambda: b.recv(WAIT)):
            a.send(b"hello", WAIT)
        with a.qp.pd.alloc_mr(8, rnic.AccessFlags.LOCAL_WRITE) as mr:
            wr = rnic.SendWR(opcode=rnic.WROpcode.RDMA_WRITE, sg_list=[rnic.SGE(mr)], rkey=1)
            with pytest.raises(QueueError) as found:
                a.carry_out([wr], WAIT)
        assert found.value.wc.status is rnic.WCStatus.REM_ACCESS_ERR
        with pytest.raises(QueueError, match="REM_ACCESS_ERR"):
            a.recv(WAIT)


def test_what_cannot_be_posted_ends_the_channel_and_is_what_has_ended_it() -> None:
    with channels() as (a, b):
        with beside(lambda: b.recv(WAIT)):
            a.send(b"good", WAIT)
        with pytest.raises(rnic.PostError):  # unsignaled, so that the places never are free again
            a.qp.post_send([rnic.SendWR(opcode=rnic.WROpcode.RDMA_WRITE) for _ in range(64)])
        for _ in range(3):
            with pytest.raises(rnic.LostError, match="the send queue is full"):
                a.send(b"late", WAIT)
        assert isinstance(a.error, rnic.LostError)


def test_a_second_thread_is_refused() -> None:
    with channels() as (a, b):
        waits = threading.Thread(target=lambda: a.recv(WAIT))
        waits.start()
        until(lambda: a._inside, "the first one waits")
        with pytest.raises(RuntimeError, match="another thread"):
            a.send(b"")
        b_sends = threading.Thread(target=lambda: b.send(b"x", WAIT))
        b_sends.start()
        waits.join()
        b_sends.join()


LIES = {  # docs/endpoint-protocol.md
    "credits": struct.pack(">BBHI", 3, 0, 99, 0),
    "a length": struct.pack(">BBHIQ", 1, 1, 0, 1, 1) + b"abc",
    "a type": struct.pack(">BBHI", 77, 0, 0, 0),
    "nothing": b"",
}


def inject(qp: rnic.QP, send: bytes) -> None:
    """A SEND that the channel on this queue pair does not know of."""
    flags = rnic.SendFlags.INLINE
    qp.post_send(rnic.SendWR(opcode=rnic.WROpcode.SEND, send_flags=flags, sg_list=[rnic.SGE.inline(send)]))


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_told_and_loses_the_channel(lie: str) -> None:
    with channels() as (a, b):
        with beside(lambda: b.recv(WAIT)):
            a.send(b"hello", WAIT)
        b.send(b"hello", WAIT)
        assert a.recv(WAIT) == b"hello"
        inject(b.qp, LIES[lie])
        with pytest.raises(LiarError) as found:
            a.recv(WAIT)
        with pytest.raises(LiarError):
            a.send(b"more")
        with pytest.raises(rnic.AbortedError, match=str(found.value)[:20]):
            b.recv(WAIT)


def test_a_write_with_immediate_data_is_no_message() -> None:
    with channels() as (a, b):
        with beside(lambda: b.recv(WAIT)):
            a.send(b"hello", WAIT)
        b.qp.post_send(rnic.SendWR(opcode=rnic.WROpcode.RDMA_WRITE_WITH_IMM, imm_data=1))
        with pytest.raises(LiarError, match="a SEND of 0 bytes"):
            a.recv(WAIT)


def test_what_a_channel_needs_is_said() -> None:
    with queue_pairs() as (a, _), pytest.raises(ValueError, match="max_recv_wr"):
        Channel(a, receives=1000)
    with queue_pairs() as (a, _):
        a.post_recv([rnic.RecvWR() for _ in range(a.cap.max_recv_wr)])
        with pytest.raises(rnic.VerbsError, match="post_recv"):
            Channel(a)  # which leaves no memory behind
    with ExitStack() as stack:
        ctx = stack.enter_context(rnic.open_device("roce_lo"))
        pd, cq = stack.enter_context(ctx.alloc_pd()), stack.enter_context(ctx.create_cq(16))
        qp = stack.enter_context(pd.create_qp(rnic.QPInitAttr(cq, cq, qp_type=rnic.QPType.UD)))
        with pytest.raises(ValueError, match="needs one of RC"):
            Channel(qp)


# ------------------------------------------------------------------------------------ asyncio


@contextmanager
def async_channels(**options: Any) -> Iterator[tuple[AsyncChannel, AsyncChannel]]:
    with queue_pairs() as (a, b):
        yield AsyncChannel(a, **options), AsyncChannel(b, receives=3, size=64)


async def within(work: Any) -> Any:
    return await asyncio.wait_for(work, WAIT)


def test_a_message_that_comes_while_a_task_is_about_to_wait_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def talk(a: AsyncChannel, b: AsyncChannel) -> None:
        await asyncio.gather(a.send(b"early"), b.recv())
        move, sent = a._move, False

        def slowly() -> bool:
            """It has found nothing, and then something comes."""
            nonlocal sent
            more = move()
            if not sent:
                sent = True
                b.leave(b"late")
            return more

        monkeypatch.setattr(a, "_move", slowly)
        assert await a.recv() == b"late"
        monkeypatch.undo()
        await asyncio.gather(a.close(WAIT), b.close(WAIT))

    with async_channels() as (a, b):
        asyncio.run(within(talk(a, b)))


def test_tasks_send_and_receive_at_the_same_time() -> None:
    async def talk(a: AsyncChannel, b: AsyncChannel) -> None:
        async def send(channel: AsyncChannel) -> None:
            for size in SIZES:
                await channel.send(bytes(size))

        async def receive(channel: AsyncChannel) -> None:
            for size in SIZES:
                assert await channel.recv() == bytes(size)

        await asyncio.gather(send(a), send(b), receive(a), receive(b))
        await asyncio.gather(a.close(WAIT), b.close(WAIT))

    with async_channels() as (a, b):
        asyncio.run(within(talk(a, b)))


def test_a_cancelled_send_goes_whole_or_not_at_all() -> None:
    async def talk(a: AsyncChannel, b: AsyncChannel) -> None:
        buffer = bytearray(b"x" * 5000)
        sends = asyncio.create_task(a.send(buffer))
        taking = asyncio.create_task(b.recv())  # its HELLO
        while not a.statistics().sends > 2:
            await asyncio.sleep(0)
        sends.cancel()
        await asyncio.wait([sends])
        buffer[:] = b"y" * 5000
        await a.send(b"next")
        first = await taking
        assert first in (b"x" * 5000, b"next")
        await asyncio.gather(a.close(WAIT), b.close(WAIT))

    with async_channels() as (a, b):
        asyncio.run(within(talk(a, b)))


def test_several_tasks_end_a_channel_at_a_time() -> None:
    async def end(a: AsyncChannel) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await a.recv()
        await asyncio.gather(a.abort("enough"), a.abort(), a.abort())

    with async_channels() as (a, b):
        asyncio.run(within(end(a)))
        asyncio.run(within(b.abort()))


def test_tasks_learn_of_the_end_of_an_abort_and_of_a_lie() -> None:
    async def talk(a: AsyncChannel, b: AsyncChannel, lie: bool) -> type[BaseException]:
        waits = asyncio.create_task(a.recv())
        await asyncio.gather(b.send(b"hello"), a.send(b"hello"), waits)
        waits = asyncio.create_task(a.recv())
        if lie:
            inject(b.qp, LIES["credits"])
        else:
            await b.abort("enough")
        (ended,) = await asyncio.gather(waits, return_exceptions=True)
        assert isinstance(ended, BaseException)
        await a.abort()
        if lie:
            with pytest.raises(rnic.AbortedError, match="credits"):
                await b.recv()  # the HELLO's message was taken by nobody
                await b.recv()
            await b.abort()
        return type(ended)

    for lie, error in (False, rnic.AbortedError), (True, LiarError):
        with async_channels() as (a, b):
            assert asyncio.run(within(talk(a, b, lie))) is error


def test_iterating_ends_when_the_peer_has_closed() -> None:
    async def talk(a: AsyncChannel, b: AsyncChannel) -> list[bytes]:
        async def speak() -> None:
            async with b:
                await b.send(b"one")
                await b.send(b"two")

        speaking = asyncio.create_task(speak())
        got = [message async for message in a]
        await a.close(WAIT)
        await speaking
        return got

    with async_channels() as (a, b):
        assert asyncio.run(within(talk(a, b))) == [b"one", b"two"]


def test_a_thread_and_a_task_understand_each_other() -> None:
    async def talk(a: AsyncChannel) -> None:
        async with a:
            for size in SIZES:
                await a.send(bytes(size))
                assert await a.recv() == bytes(size)

    with queue_pairs() as (a, b):
        threaded, own = Channel(b), AsyncChannel(a)
        with beside(lambda: echo(threaded)):
            asyncio.run(within(talk(own)))


# ------------------------------------------------------------------------------------ the bare queue pair


def qp_with_one_queue(stack: ExitStack) -> rnic.QP:
    ctx = stack.enter_context(rnic.open_device(loopback()))
    pd = stack.enter_context(ctx.alloc_pd())
    cq = stack.enter_context(ctx.create_cq(256, stack.enter_context(ctx.create_comp_channel())))
    return stack.enter_context(pd.create_qp(rnic.QPInitAttr(send_cq=cq, recv_cq=cq)))


def test_one_completion_queue_is_enough() -> None:
    with ExitStack() as stack:
        a, b = qp_with_one_queue(stack), qp_with_one_queue(stack)
        connect(a, b)
        left, right = Channel(a), Channel(b, receives=3, size=64)
        with beside(lambda: echo(right)):
            for size in SIZES:
                left.send(bytes(size), WAIT)
                assert left.recv(WAIT) == bytes(size)
            left.close(WAIT)


@pytest.mark.parametrize("hello", [b"\1\0\0\0\0\0\0\0rnCF", b"rnEP\7\7" + bytes(26), b"rnEP\1\2" + bytes(30)])
def test_a_peer_whose_hello_cannot_be_is_told_why(hello: bytes) -> None:
    with queue_pairs() as (a, b), b.pd.alloc_mr(128, rnic.AccessFlags.LOCAL_WRITE) as mr:
        channel = Channel(a)
        for at in (0, 64):
            b.post_recv(rnic.RecvWR(at, [rnic.SGE(mr, at, 64)]))
        inject(b, hello)
        with pytest.raises(LiarError, match=r"hello|begins with|version") as found:
            channel.recv(WAIT)
        until(lambda: mr.buf[64] == 8, "the ABORT")
        assert bytes(mr.buf[:4]) == b"rnEP"
        assert str(found.value).encode()[:40] in bytes(mr.buf[64:])
        channel.abort()


def test_an_end_that_waits_for_the_hello_notices_that_the_peer_has_gone() -> None:
    with queue_pairs() as (a, b):
        channel, other = Channel(a), Channel(b)
        with pytest.raises(TimeoutError):
            channel.recv(0)  # its hello has gone
        b.modify(rnic.QPAttr(qp_state=rnic.QPState.ERR))
        with pytest.raises(QueueError):  # RETRY_EXC_ERR, or over iWARP the end of the TCP connection
            channel.recv(WAIT)
        channel.abort()
        other.abort()


def test_reads_and_writes_go_beside_messages_on_a_short_send_queue() -> None:
    """More than there are places, and the message comes behind all of them."""
    count = 200
    with ExitStack() as stack:
        a, b = queue_pair(stack, depth=5), queue_pair(stack)
        connect(a, b)
        left, right = Channel(a), Channel(b)
        access = rnic.AccessFlags.LOCAL_WRITE | rnic.AccessFlags.REMOTE_WRITE
        ours = stack.enter_context(a.pd.alloc_mr(count, access))
        theirs = stack.enter_context(b.pd.alloc_mr(count, access))
        ours.buf[:] = bytes(range(count))
        wrs = [
            rnic.SendWR(
                opcode=rnic.WROpcode.RDMA_WRITE,
                sg_list=[rnic.SGE(ours, at, 1), rnic.SGE(ours, at + 1, 1)],
                remote_addr=theirs.addr + at,
                rkey=theirs.rkey,
            )
            for at in range(0, count, 2)
        ]

        def look() -> None:
            assert right.recv(WAIT) == b"before"
            assert right.recv(WAIT) == b"behind"
            assert bytes(theirs.buf) == bytes(range(count))
            right.close(WAIT)

        with beside(look):
            left.send(b"before", WAIT)
            left.carry_out(wrs, WAIT, behind=lambda: b"behind")
            left.close(WAIT)


@pytest.mark.wire
@pytest.mark.roce  # TCP repairs its own loss
def test_close_succeeds_although_the_last_acknowledgement_is_lost() -> None:
    """The last word of the peer tells that it has all; its device is gone when the goodbye is repeated."""
    for seed in range(20):
        with queue_pairs() as (a, b):
            left, right = Channel(a), Channel(b)
            with beside(lambda: right.recv(WAIT)):  # noqa: B023
                left.send(b"hello", WAIT)
            for n, qp in enumerate((a, b)):
                qp.context.set_faults(rnic.Faults(seed=2 * seed + n, loss=0.3))
            try:
                with beside(lambda: right.close(WAIT)):  # noqa: B023
                    left.close(WAIT)
            finally:
                for qp in (a, b):
                    qp.context.set_faults(None)


def test_an_end_that_closes_does_not_wait_for_an_acknowledgement() -> None:
    with channels() as (a, b):
        with beside(lambda: b.recv(WAIT)):
            a.send(b"hello", WAIT)
        with beside(lambda: b.close(WAIT)):
            began = monotonic()
            a.close(WAIT)
        assert monotonic() - began < 0.4  # a repetition, and a second of lingering, would take longer


def test_a_message_that_proves_too_long_takes_no_other_one_with_it() -> None:
    """Both wait for the peer's hello, which says what it takes."""

    async def talk(a: AsyncChannel, b: AsyncChannel) -> None:
        sends = [asyncio.create_task(a.send(bytes(n))) for n in (1001, 1000)]
        await asyncio.sleep(0.01)
        assert await b.recv() == bytes(1000)
        with pytest.raises(rnic.MessageTooLongError, match="1001 bytes: the peer takes 1000"):
            await sends[0]
        await sends[1]
        await asyncio.gather(a.close(WAIT), b.close(WAIT))

    with queue_pairs() as (a, b):
        left, right = AsyncChannel(a), AsyncChannel(b, receives=3, size=64, max_message=1000)
        asyncio.run(within(talk(left, right)))


@pytest.mark.parametrize("how", How, ids=lambda how: how.name)
def test_tasks_wait_in_each_way(how: How) -> None:
    async def talk(a: AsyncChannel, b: AsyncChannel) -> None:
        async def answer() -> None:
            async for message in b:
                await b.send(message)
            await b.close(WAIT)

        answering = asyncio.create_task(answer())
        for size in SIZES:
            await a.send(bytes(size))
            assert await a.recv() == bytes(size)
        await a.close(WAIT)
        await answering

    with async_channels(how=how) as (a, b):
        asyncio.run(within(talk(a, b)))


def test_polling_needs_no_completion_channel() -> None:
    with ExitStack() as stack:
        ctx = stack.enter_context(rnic.open_device(loopback()))
        pd = stack.enter_context(ctx.alloc_pd())
        cqs = [stack.enter_context(ctx.create_cq(64)) for _ in "abcd"]
        a, b = (stack.enter_context(pd.create_qp(rnic.QPInitAttr(*cqs[n : n + 2]))) for n in (0, 2))
        connect(a, b)
        left, right = Channel(a, how=How.POLL), Channel(b, how=How.POLL)
        with pytest.raises(ValueError, match="needs a completion channel"):
            Channel(a)
        with beside(lambda: echo(right)):
            left.send(b"hello", WAIT)
            assert left.recv(WAIT) == b"hello"
            left.close(WAIT)


@pytest.mark.parametrize(
    "wrong", [{"receives": 2}, {"size": 63}, {"max_message": -1}, {"max_backlog": -1}], ids=str
)
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    with queue_pairs() as (a, _), pytest.raises(ValueError, match=r"\d"):
        Channel(a, **wrong)


def test_a_direction_whose_program_takes_nothing_does_not_stop_the_other() -> None:
    with queue_pairs() as (a, b):
        left, right = Channel(a), Channel(b, receives=3, size=64, max_backlog=100)

        def speak() -> None:
            for _ in range(50):
                right.send(b"y" * 50, WAIT)

        with beside(speak):
            for _ in range(50):
                with suppress(TimeoutError):
                    left.send(b"x" * 50, 0.001)
                assert left.recv(WAIT) == b"y" * 50
        assert right.statistics().backlog < 50 * 50  # the rest has waited at the sender
        left.abort()
        right.abort()


def test_a_waiting_program_gets_a_message_beyond_the_backlog() -> None:
    with queue_pairs() as (a, b):
        left, right = Channel(a), Channel(b, receives=3, size=64, max_backlog=0)
        with beside(lambda: left.send(bytes(5000), WAIT)):
            assert right.recv(WAIT) == bytes(5000)
        with beside(lambda: left.close(WAIT)):
            right.close(WAIT)


def test_a_send_that_is_given_up_is_taken_back_and_its_buffer_is_free() -> None:
    """Inside the message, too: its peer takes the next one."""
    with queue_pairs() as (a, b):
        left, right = Channel(a), Channel(b, receives=3, size=64)
        with pytest.raises(TimeoutError):
            left.send(b"ahead of the hello", 0)
        with beside(lambda: left.send(b"first", WAIT)):
            assert right.recv(WAIT) == b"first"
        buffer, begun = bytearray(b"x" * 1000), list[int]()
        with pytest.raises(TimeoutError):
            left.send(buffer, 0.01, begins=lambda: begun.append(1))
        buffer += b"more"
        with beside(lambda: left.send(b"second", WAIT, begins=lambda: begun.append(2))):
            assert right.recv(WAIT) == b"second"
        assert begun == [2]
        with beside(lambda: left.close(WAIT)):
            right.close(WAIT)
