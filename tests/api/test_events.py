# SPDX-License-Identifier: Apache-2.0
"""Completion channels and asynchronous events: waiting, timeouts, signals, file descriptors."""

import errno
import select
import signal
import threading
import time
from typing import Any

import pytest

import rnic
from api.conftest import Objects
from api.recorder import Recorder
from rnic import EventType


def test_an_event_names_its_queue(objects: Objects) -> None:
    objects.recorder.cq_event()
    assert select.select([objects.channel], [], [], 0)[0] == [objects.channel]
    assert objects.channel.get_cq_event(0) is objects.cq
    assert select.select([objects.channel], [], [], 0)[0] == []
    objects.cq.ack_events()
    assert objects.recorder.take() == ["get_cq_event", "ack_cq_events 1"]


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_a_wait_ends_in_time(objects: Objects, timeout: float) -> None:
    for wait in (objects.channel.get_cq_event, objects.ctx.get_async_event):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            wait(timeout=timeout)
        assert timeout <= time.monotonic() - began


def test_a_wait_is_woken(objects: Objects) -> None:
    threading.Timer(0.02, objects.recorder.cq_event).start()
    assert objects.channel.get_cq_event(60) is objects.cq
    objects.cq.ack_events()
    threading.Timer(0.02, objects.recorder.cq_event).start()
    assert objects.channel.get_cq_event() is objects.cq
    objects.cq.ack_events()


class AlarmError(Exception):
    """What the test's signal handler raises."""


def test_a_signal_ends_a_wait(objects: Objects) -> None:
    def interrupt(*_: Any) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for wait in (objects.channel.get_cq_event, objects.ctx.get_async_event):
            with pytest.raises(AlarmError):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    objects.recorder.cq_event()
    assert objects.channel.get_cq_event(1) is objects.cq
    objects.cq.ack_events()


def test_a_signal_without_an_exception_goes_on_waiting(objects: Objects) -> None:
    seen: list[int] = []

    def ring(*_: Any) -> None:
        seen.append(1)
        objects.recorder.cq_event()

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert objects.channel.get_cq_event(60) is objects.cq
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [1]
    objects.cq.ack_events()


def test_a_queue_with_unacknowledged_events_is_busy(recorder: Recorder) -> None:
    with recorder.context as ctx, ctx.create_comp_channel() as channel:
        cq = ctx.create_cq(4, channel)
        recorder.cq_event()
        channel.get_cq_event(0)
        with pytest.raises(rnic.VerbsError, match="destroy_cq: unacknowledged events: 1") as caught:
            cq.close()
        assert caught.value.errno == errno.EBUSY
        cq.ack_events(1)
        cq.close()


def test_a_dropped_queue_acknowledges_its_events(recorder: Recorder) -> None:
    with recorder.context as ctx, ctx.create_comp_channel() as channel:
        cq = ctx.create_cq(4, channel)
        recorder.cq_event()
        channel.get_cq_event(0)
        recorder.take()
        with pytest.warns(ResourceWarning, match="unclosed CQ"):
            del cq
        assert recorder.take() == ["ack_cq_events 1", "destroy_cq"]


def test_async_events_name_what_they_are_about(objects: Objects) -> None:
    r, ctx = objects.recorder, objects.ctx
    r.async_event(EventType.QP_FATAL, of="qp")
    assert select.select([ctx.async_fileno()], [], [], 0)[0]
    assert ctx.get_async_event(0) == rnic.AsyncEvent(EventType.QP_FATAL, objects.qp)
    r.async_event(EventType.CQ_ERR, of="cq")
    assert ctx.get_async_event(0) == rnic.AsyncEvent(EventType.CQ_ERR, objects.cq)
    r.async_event(EventType.PORT_ERR, port=1)
    assert ctx.get_async_event(0) == rnic.AsyncEvent(EventType.PORT_ERR, 1)
    r.async_event(EventType.DEVICE_FATAL)
    assert ctx.get_async_event(0) == rnic.AsyncEvent(EventType.DEVICE_FATAL, None)


# ------------------------------------------------------------------ acknowledgement


def test_an_event_is_acknowledged_once(objects: Objects) -> None:
    r, ctx = objects.recorder, objects.ctx
    r.async_event(EventType.QP_FATAL, of="qp")
    event = ctx.get_async_event(0)
    r.take()
    event.ack()
    assert r.take() == [f"ack_async_event {EventType.QP_FATAL:d}"]
    with pytest.raises(rnic.VerbsError, match="acknowledged already") as caught:
        ctx.ack_async_event(event)
    assert (caught.value.errno, caught.value.verb) == (errno.EINVAL, "ack_async_event")
    del event
    assert r.take() == []


def test_an_event_that_is_dropped_is_acknowledged(objects: Objects) -> None:
    r, ctx = objects.recorder, objects.ctx
    r.async_event(EventType.CQ_ERR, of="cq")
    event = ctx.get_async_event(0)
    r.take()
    del event
    assert r.take() == [f"ack_async_event {EventType.CQ_ERR:d}"]


def test_events_of_ports_and_devices_need_no_acknowledgement(objects: Objects) -> None:
    r, ctx = objects.recorder, objects.ctx
    for kind, port in ((EventType.PORT_ERR, 1), (EventType.DEVICE_FATAL, 0)):
        r.async_event(kind, port=port)
        event = ctx.get_async_event(0)
        r.take()
        event.ack()
        ctx.ack_async_event(event)
        assert r.take() == []


def overrun(pd: rnic.PD, cq: rnic.CQ) -> rnic.QP:
    """A queue pair whose completion queue, of one entry, has overrun: two events."""
    qp = pd.create_qp(rnic.QPInitAttr(cq, cq))
    qp.modify(
        rnic.QPAttr(qp_state=rnic.QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=rnic.AccessFlags(0))
    )
    qp.post_recv([rnic.RecvWR(i) for i in range(3)])
    qp.modify(rnic.QPAttr(qp_state=rnic.QPState.ERR))
    return qp


def test_an_object_with_unacknowledged_events_is_busy() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd:
        cq = ctx.create_cq(1)
        qp = overrun(pd, cq)
        events = [ctx.get_async_event(60)]
        assert events[0] == rnic.AsyncEvent(EventType.CQ_ERR, cq)
        qp.close()
        with pytest.raises(
            rnic.VerbsError, match="destroy_cq: unacknowledged asynchronous events: 1;"
        ) as caught:
            cq.close()
        assert caught.value.errno == errno.EBUSY
        events[0].ack()
        cq.close()
        events.clear()


def test_an_object_that_goes_acknowledges_what_is_held() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd:
        cq = ctx.create_cq(1)
        held = []
        with pytest.raises(ZeroDivisionError), cq:
            overrun(pd, cq).close()
            held.append(ctx.get_async_event(60))
            raise ZeroDivisionError
        assert cq.closed
        held[0].ack()


def test_events_that_nobody_took_go_with_their_object() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(1) as cq:
        overrun(pd, cq).close()
        assert ctx.get_async_event(60).event_type is EventType.CQ_ERR
        with pytest.raises(TimeoutError):
            ctx.get_async_event(0)
