# SPDX-License-Identifier: Apache-2.0
"""A receiver that knows the file, and looks at every step of a sender.

It sees whether DONE came behind the bytes without a race: no receive is posted for DONE until the transport
has turned a SEND away for want of one (an RNR NAK).  A reliable connection executes requests in order, so
what was posted ahead of that SEND has been executed then, and what was posted behind it has not.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack, suppress
from enum import Enum

from rnic.cli.lab3 import messages
from rnic.cli.lab3.child import Child
from rnic.cli.lab3.faults import Code, Fault
from rnic.cli.lab3.line import SLICE, Line, answer
from rnic.cli.lab3.messages import Message, Region, Type
from rnic.cli.lab3.protocol import Action, Receiver, ReceiverState, Send, Store, key_of
from rnic.cli.lab3.receiver import REGION_ACCESS, describe
from rnic.rdmacm import CmId, EventChannel, EventType, create_id

HOST = "127.0.0.1"
SETTLE = 1.0  # seconds in which a WRITE that was overtaken, or a disconnect, still comes


class Step(Enum):
    """What a sender has to do, in order; the value says it in words."""

    CONNECT = "connects"
    ANNOUNCE = "announces the length"
    REGION = "can receive the region"
    WRITE = "writes the bytes into it"
    DONE = "says DONE behind them"
    HASH = "announced the right hash"
    ID = "sends its id"
    KEY = "prints its secret key"
    DISCONNECT = "disconnects"
    EXIT = "ends with exit code 0"


class Judge:
    """One file and one sender."""

    def __init__(self, data: bytes, who: str, secret: bytes, region: int) -> None:
        self.step = Step.CONNECT
        """Where the sender stands; after a failure, what it failed."""
        self._data, self._who, self._region = data, who, region
        self._key = key_of(secret, who)
        self._secret = secret
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._channel = stack.enter_context(EventChannel())
            self._listener = stack.enter_context(create_id(self._channel))
            self._listener.bind_addr((HOST, 0))
            self._listener.listen()
            self._stack = stack.pop_all()
        self.port = self._listener.get_src_port()

    def examine(self, child: Child) -> str | None:
        """Take the sender through all steps; None when all are good, else what is wrong with `step`."""
        with self._stack:
            try:
                self._examine(child)
            except (Fault, OSError) as failure:
                return describe(failure)
        return None

    def _examine(self, child: Child) -> None:
        with answer(self._request(child), child.seconds, gone=child.gone) as line:
            try:
                self._converse(line)
            except Fault as fault:
                if fault.code is Code.PROTOCOL:
                    line.refuse(fault.message)
                raise
            self._part(line, child)

    def _request(self, child: Child) -> CmId:
        while True:
            with suppress(TimeoutError), self._channel.get_cm_event(SLICE) as event:
                if event.event is EventType.CONNECT_REQUEST:
                    return event.id
            if why := child.gone():
                raise Fault(Code.LOST, f"no request to connect came: {why}")

    # ------------------------------------------------------------------ the conversation

    def _converse(self, line: Line) -> None:
        mr = line.stack.enter_context(line.pd.alloc_mr(self._region, REGION_ACCESS))
        machine = Receiver(
            Region(mr.rkey, mr.addr, mr.length), lambda who: key_of(self._secret, who), len(self._data) + 1
        )
        self.step = Step.ANNOUNCE
        action = machine.receive(line.receive("waiting for ANNOUNCE"))
        if machine.length != len(self._data):
            raise _wrong(f"ANNOUNCE has a length of {machine.length}, the file has {len(self._data)} bytes")
        self.step = Step.REGION
        while machine.state is ReceiverState.OFFERED:
            action = self._chunk(line, machine, mr.buf, action)
        self.step = Step.HASH
        good = machine.state is ReceiverState.VERIFIED
        if good:
            line.expect()
        self._deliver(line, action, "the verdict")
        if not good:
            right = hashlib.sha256(self._data).hexdigest()
            raise _wrong(f"ANNOUNCE has the SHA-256 {machine.sha256.hex()}, the file's is {right}")
        self.step = Step.ID
        action = machine.receive(line.receive("waiting for ID"))
        if machine.id != self._who:
            raise _wrong(f"the id that came is {machine.id!r}, not {self._who!r}")
        self.step = Step.KEY
        self._deliver(line, action, "the key")

    def _deliver(self, line: Line, action: Action, what: str) -> None:
        """Send it.  Whether a sender that goes before it has acknowledged it had it, its next steps show."""
        assert isinstance(action, Send)
        try:
            line.send(action.message, f"sending {what}")
        except Fault as fault:
            if line.qp.statistics().counters.rnr_nak_received:
                text = f"{what} could not be delivered: no receive was posted for it"
                raise Fault(fault.code, text) from None
            if fault.code is not Code.LOST:
                raise

    def _chunk(self, line: Line, machine: Receiver, region: memoryview, offer: Action) -> Action:
        """From REGION to DONE, for what the region holds."""
        start, size = machine.stored_bytes, machine.chunk
        chunk = Chunk(self._data[start : start + size], region)
        turned_away = _rnr_naks(line)
        self._deliver(line, offer, "the region")
        self.step = Step.WRITE
        doing = f"waiting for DONE of bytes {start} to {start + size}"
        try:
            line.until(lambda: _rnr_naks(line) > turned_away, doing)
        except Fault:
            self.step = Step.DONE if chunk.is_right() else Step.WRITE
            raise
        in_order = chunk.is_right()
        line.expect()
        data = line.receive(doing)
        if not in_order:
            raise self._not_written(line, chunk, messages.parse(data))
        self.step = Step.DONE
        action = machine.receive(data)
        assert isinstance(action, Store)
        return machine.stored(hashlib.sha256(self._data[: start + size]).digest())

    def _not_written(self, line: Line, chunk: Chunk, message: Message) -> Fault:
        """Why a message came that should have come behind the bytes."""
        if message.type is not Type.DONE:
            return _wrong(f"{message.type.name} came, but {chunk.difference()}")
        with suppress(Fault):
            line.until(chunk.is_right, "waiting for the bytes", min(SETTLE, line.timeout))
        if chunk.is_right():
            self.step = Step.DONE
            return _wrong("DONE came before the bytes: it was posted ahead of the RDMA WRITE")
        return _wrong(f"DONE came, but {chunk.difference()}")

    # ------------------------------------------------------------------ the end

    def _part(self, line: Line, child: Child) -> None:
        """The key is delivered: what is printed, the disconnect, the exit code."""
        self._wait_for_end(line, child)
        running = child.running
        child.end()
        printed = [text for text in child.output().splitlines() if text.startswith("secret key:")]
        if f"secret key: {self._key}" not in printed:
            said = f"it printed {printed[0]!r}" if printed else "it printed no line 'secret key: ...'"
            raise _wrong(f"{said}; the key is {self._key!r}")
        self.step = Step.DISCONNECT
        if line.end is None or line.died:
            raise _wrong("it has its key, but the connection was never ended")
        self.step = Step.EXIT
        if running:
            raise _wrong(f"it was still running after {child.seconds:g} s")
        if child.status:
            raise _wrong(f"it ended with {child.how()}")

    def _wait_for_end(self, line: Line, child: Child) -> None:
        until = None
        while line.end is None or child.running:
            line.pump(SLICE)
            if until is None and child.gone():
                until = time.monotonic() + SETTLE
            if until is not None and (child.running or time.monotonic() > until):
                return


class Chunk:
    """Bytes that should come into a region; before that, each byte there is another one."""

    def __init__(self, data: bytes, region: memoryview) -> None:
        self._data, self._region = data, region
        region[: len(data)] = bytes(byte ^ 0xFF for byte in data)

    def is_right(self) -> bool:
        """Whether they are all there."""
        return bytes(self._region[: len(self._data)]) == self._data

    def difference(self) -> str:
        """What is not there."""
        came = bytes(self._region[: len(self._data)])
        wrong = [at for at, (a, b) in enumerate(zip(came, self._data, strict=True)) if a != b]
        if len(wrong) == len(came):
            return f"none of the {len(came)} bytes of this chunk is in the region"
        return f"{len(wrong)} of the {len(came)} bytes of this chunk are wrong, the first at {wrong[0]}"


def _rnr_naks(line: Line) -> int:
    return line.qp.statistics().counters.rnr_nak_sent


def _wrong(text: str) -> Fault:
    return Fault(Code.PROTOCOL, text)
