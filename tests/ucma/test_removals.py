# SPDX-License-Identifier: Apache-2.0
"""Devices that are removed on purpose."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic_ns

import pytest

from rnic.programs import wishes
from rnic.rdmacm import EventType
from rnic.ucma import Removal, Server, layouts
from rnic.ucma.layouts import Cmd
from rnic.ucma.removals import Removals
from ucma.client import Device, event_kind, listening, param, resolved
from ucma.under import Program, needs_libraries


class OnCue(Removals):
    """What is to be removed goes when a test says so."""

    cue = threading.Event()

    @property
    def deadline(self) -> int | None:
        return monotonic_ns() + 10**7  # it looks again

    def take(self, now: int) -> list[tuple[int, str]]:
        return super().take(now + 10**12) if self.cue.is_set() else []


@pytest.fixture
def cue(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tells servers that it is time."""
    monkeypatch.setattr("rnic.ucma.server.Removals", OnCue)
    monkeypatch.setattr(OnCue, "cue", threading.Event())
    return OnCue.cue


@pytest.mark.parametrize("name", ["", "roce_lo"])
def test_each_id_of_the_device_is_told(tmp_path: Path, name: str, cue: threading.Event) -> None:
    where = str(tmp_path / "ucma")
    with Server(where, removals=[Removal("roce_other", 0), Removal(name, 1)]), Device(where) as device:
        listener, port = listening(device)
        caller = resolved(device, port)
        cue.set()
        told = {event_kind(device) for _ in range(2)}
        assert told == {(EventType.DEVICE_REMOVAL, listener), (EventType.DEVICE_REMOVAL, caller)}
        for number in (listener, caller):
            device.destroy_id(number)
        again = listening(device)[1]
        resolved(device, again)


def test_an_id_at_any_address_is_told_nothing_and_listens_on_the_device_that_is_there_again(
    tmp_path: Path, cue: threading.Event
) -> None:
    """As with a kernel: such an id has no device of its own."""
    where = str(tmp_path / "ucma")
    with Server(where, removals=[Removal("", 1)]), Device(where) as device:
        listener, port = listening(device, host="0.0.0.0")
        caller = resolved(device, port)
        cue.set()
        assert event_kind(device) == (EventType.DEVICE_REMOVAL, caller)
        caller = resolved(device, port)
        device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
        assert event_kind(device)[0] == EventType.CONNECT_REQUEST
        assert device.destroy_id(listener) == 1


def test_a_process_loses_a_device_once_for_all_its_files() -> None:
    removals = Removals([Removal("a", 5), Removal("b", 9)])
    removals.opened(1, 100)
    removals.opened(1, 103)
    removals.opened(2, 104)
    assert removals.take(105) == [(1, "a")]
    removals.closed(1)
    assert removals.deadline == 109
    removals.closed(1)
    assert removals.take(1000) == [(2, "a"), (2, "b")]
    removals.opened(1, 2000)
    assert removals.deadline == 2005
    removals.closed(1)
    removals.closed(2)
    assert removals.deadline is None


def test_what_the_option_says() -> None:
    own = {
        "RNIC_EVENTS": "port_down@1s,device_removal,m:device_removal@500ms,device_removal@2.5,device_fatal"
    }
    assert wishes.removals(own) == [
        Removal("", 0),
        Removal("m", 500_000_000),
        Removal("", 2_500_000_000),
    ]


@needs_libraries
def test_a_program_is_told_by_verbs_and_by_rdmacm() -> None:
    """However long it takes to have an id: a removal that comes before tells it nothing."""
    assert any(is_told(seconds) for seconds in (0.5, 5, 50))


def is_told(seconds: float) -> bool:
    text = f"""
import ctypes, os, select, struct, sys
fd = os.open("/dev/infiniband/rdma_cm", os.O_RDWR)
room = ctypes.create_string_buffer(4096)
AT = ctypes.addressof(room)
def command(cmd, body, answer):
    return os.write(fd, struct.pack("=IHH", cmd, len(body), answer) + body)
command(0, struct.pack("=QQHB5s", 5, AT, 0x106, 0, b""), 4)
number = struct.unpack_from("=I", room)[0]
to = struct.pack("=HH4s20x", 2, 0x0900, bytes([127, 0, 0, 1]))
command(3, bytes(28) + to + struct.pack("=II", number, 2000), 0)
for kind, patience in ((0, None), (11, {seconds} + 5)):
    if not select.select([fd], [], [], patience)[0]:
        sys.exit("nothing comes")
    command(12, struct.pack("=Q", AT), 4096)
    found = struct.unpack_from("=QII", room)
    assert found[1:] == (number, kind) or found[:2] == (5, number) and found[2] == kind, found
"""
    event = f"device_removal@{int(seconds * 1000)}ms"
    with Program("python3", "-c", text, options=("--event", event)) as program:
        return program.wait() == 0
