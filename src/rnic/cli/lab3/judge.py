# SPDX-License-Identifier: Apache-2.0
"""A receiver that knows the file, and looks at every step of a sender.

It sees two things without a race:

- DONE came behind the bytes.  No receive is posted for DONE until the transport has turned a SEND away (an
  RNR NAK).  A reliable connection executes requests in order.  So all work that was posted ahead of that SEND
  has been executed then, and none that was posted behind it.
- A receive was posted before the SEND that is answered.  Each answer goes out at once, while slow.py keeps
  the sender in post_send().  An answer that meets no receive is an RNR NAK here.

iWARP has no RNR NAK: a SEND without a receive ends the connection.  There the receive for DONE is posted
ahead of it.  A program in Python is in post_send() of DONE when the judge looks at the region.  Another one
is not, and in the run with late SENDs Python is not.  Then two bytes of DONE come into the region, on top of
a WRITE that went ahead, and below one that comes later.  An answer without a receive ends the connection.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import ExitStack, suppress

import rnic
from rnic.cli import network
from rnic.cli.endpoint import is_iwarp
from rnic.cli.lab3 import messages
from rnic.cli.lab3.cases import Case, Step
from rnic.cli.lab3.child import Child
from rnic.cli.lab3.chunk import Chunk
from rnic.cli.lab3.faults import Code, Fault
from rnic.cli.lab3.line import SLICE, Line, answer
from rnic.cli.lab3.messages import TEXT_BYTES, Error, Message, Type, Verdict, padded
from rnic.cli.lab3.protocol import Action, Receiver, ReceiverState, Send, Store, key_of
from rnic.cli.lab3.receiver import describe
from rnic.rdmacm import CmId, EventChannel, EventType, create_id

SETTLE = 1.0  # seconds in which a WRITE that was overtaken, a disconnect, or the end of a process still comes
TELLING_ROOM = 1 << 64  # more than any file: a wrong length is told as such, not as a disk that is full
ERROR = Error(padded("the grader looks at what you do when you are refused", TEXT_BYTES))
NOT_TAKEN = {rnic.WCStatus.REM_INV_REQ_ERR, rnic.WCStatus.REM_OP_ERR}  # a receive that is no good
REFUSED = {
    Step.ANNOUNCE: "ERROR instead of REGION",
    Step.DONE: "a bad VERDICT",
    Step.ID: "ERROR instead of KEY",
}


class Judge:
    """One case and one sender."""

    def __init__(self, data: bytes, who: str, secret: bytes, case: Case) -> None:
        self.step = Step.CONNECT
        """Where the sender stands; after a failure, what it failed."""
        self.host = network.here()
        self._data, self._who, self._case = data, who, case
        self._delivering = (self.step, "")
        """What the sender was given last, and at which step."""
        self._key = key_of(secret, who)
        self._secret = secret
        self._stack = ExitStack()
        with ExitStack() as stack:
            self._channel = stack.enter_context(EventChannel())
            self._listener = stack.enter_context(create_id(self._channel))
            self._listener.bind_addr((self.host, 0))
            self._listener.listen()
            self._stack = stack.pop_all()
        self.port = self._listener.get_src_port()
        context = self._listener.verbs
        assert context is not None
        self.is_iwarp = is_iwarp(context.device)

    def examine(self, child: Child) -> str | None:
        """Take the sender through all steps; None when all are good, else what is wrong with `step`."""
        with self._stack:
            try:
                self._examine(child)
            except (Fault, OSError) as failure:
                return self._how_it_ended(child, failure)
        return None

    def _how_it_ended(self, child: Child, failure: Fault | OSError) -> str:
        """Say it, if the sender ended without a disconnect: one was made for it.

        On iWARP any end of a connection may be that of the process.
        """
        text = describe(failure)
        lost = isinstance(failure, Fault) and failure.code is Code.LOST
        if lost if self.is_iwarp else child.has_abandoned:
            child.wait(SETTLE)
            if not child.running and child.how() not in text:
                return f"{text}: it ended with {child.how()}"
        return text

    def _examine(self, child: Child) -> None:
        with answer(self._request(child), child.seconds, gone=child.gone) as line:
            try:
                self._converse(line, child)
            except Fault as fault:
                child.open_gate()
                self._look_back(line, child)
                if fault.code is Code.PROTOCOL:
                    line.refuse(fault.message)
                raise
            child.open_gate()
            if self._case.refused is None:
                self._part(line, child)
            else:
                self._stop(line, child)

    def _request(self, child: Child) -> CmId:
        while True:
            with suppress(TimeoutError), self._channel.get_cm_event(SLICE) as event:
                if event.event is EventType.CONNECT_REQUEST:
                    return event.id
            if why := child.gone():
                raise Fault(Code.LOST, f"no request to connect came: {why}")

    # ------------------------------------------------------------------ the conversation

    def _converse(self, line: Line, child: Child) -> None:
        """Up to the key, or to what refuses the sender."""
        chunks = [self._chunk(line, 0, 0)]
        machine = Receiver(chunks[0].region, lambda who: key_of(self._secret, who), TELLING_ROOM)
        self.step = Step.ANNOUNCE
        action = machine.receive(line.receive("waiting for ANNOUNCE"))
        if machine.length != len(self._data):
            size = len(self._data)
            raise _wrong(
                f"ANNOUNCE has a length of {machine.length}, the file has {size} bytes: announce all"
            )
        if self._case.refused is Step.ANNOUNCE:
            return self._refuse(line, child, ERROR)
        while machine.state is ReceiverState.OFFERED:
            action = self._take(line, child, machine, chunks, action)
        if self._case.refused is Step.DONE:
            return self._refuse(line, child, Verdict(0))
        self.step = Step.HASH
        self._judge(line, child, machine, action)
        self.step = Step.ID
        action = machine.receive(line.receive("waiting for ID"))
        if machine.id != self._who:
            raise _wrong(f"the id that came is {machine.id!r}, not {self._who!r}: send what --id says")
        if self._case.refused is Step.ID:
            return self._refuse(line, child, ERROR)
        self.step = Step.KEY
        return self._deliver(line, child, action, "the key")

    def _judge(self, line: Line, child: Child, machine: Receiver, verdict: Action) -> None:
        good = machine.state is ReceiverState.VERIFIED
        if good:
            line.expect()
        self._deliver(line, child, verdict, "the verdict")
        if not good:
            right = hashlib.sha256(self._data).hexdigest()
            raise _wrong(
                f"ANNOUNCE has the SHA-256 {machine.sha256.hex()}, the file's is {right}: "
                f"hash all of its bytes with {child.advice.hash}"
            )

    def _refuse(self, line: Line, child: Child, message: Message) -> None:
        self.step = Step.STOP
        line.expect()
        self._deliver(line, child, Send(message), "the refusal")

    def _deliver(self, line: Line, child: Child, action: Action, what: str) -> None:
        """Send it.  Whether a sender that goes before it has acknowledged it had it, its next steps show."""
        assert isinstance(action, Send)
        self._delivering = (self.step, what)
        try:
            delivered = line.send_at_once(action.message, f"sending {what}")
        except Fault as fault:
            if fault.code is not Code.LOST or line.failed in NOT_TAKEN:
                raise
            return
        if not delivered:
            raise _not_delivered(what, child)
        child.let_go()

    def _look_back(self, line: Line, child: Child) -> None:
        """iWARP: Fault when the sender did not take what it was given last, as comes out later."""
        step, what = self._delivering
        if self.is_iwarp and line.met_no_receive:
            self.step = step
            raise _not_delivered(what, child)
        if self.is_iwarp and line.failed in NOT_TAKEN:
            self.step = step
            raise Fault(Code.LOST, f"sending {what}: {line.end}")

    def _take(
        self, line: Line, child: Child, machine: Receiver, chunks: list[Chunk], offer: Action
    ) -> Action:
        """From REGION to DONE, for what the region holds."""
        start, size, chunk = machine.stored_bytes, machine.chunk, chunks[-1]
        self.step = Step.REGION
        turned_away = _rnr_naks(line)
        if self.is_iwarp:
            line.expect(chunk.mark() if self._case.late else None)
        self._deliver(line, child, offer, "the region")
        self.step = Step.WRITE
        doing = f"waiting for DONE of bytes {start} to {start + size}"
        try:
            line.until(lambda: line.has_message or _rnr_naks(line) > turned_away, doing)
        except Fault:
            self.step = Step.DONE if chunk.is_right() else Step.WRITE
            raise
        in_order = chunk.is_under_marks()
        if not self.is_iwarp:
            line.expect()
        if not in_order:
            raise self._not_written(line, child, chunks, doing)
        data = line.receive(doing)
        self.step = Step.DONE
        action = machine.receive(data)
        assert isinstance(action, Store)
        chunks.append(self._chunk(line, start + size, len(chunks)))
        machine.region = chunks[-1].region
        return machine.stored(hashlib.sha256(self._data[: start + size]).digest())

    def _chunk(self, line: Line, start: int, number: int) -> Chunk:
        """The next one, with a region of its own."""
        room = self._case.regions[min(number, len(self._case.regions) - 1)]
        return Chunk(line, self._data[start : start + room], room)

    def _not_written(self, line: Line, child: Child, chunks: list[Chunk], doing: str) -> Fault:
        """Why a message comes that should have come behind the bytes."""
        chunk = chunks[-1]
        try:
            message = messages.parse(line.receive(doing))
        except Fault as fault:
            if fault.code is Code.PROTOCOL:
                return _wrong(f"{fault.message}; the file's bytes go by RDMA WRITE, not by SEND")
            raise
        if message.type is not Type.DONE:
            return _wrong(f"{message.type.name} came, but {self._difference(chunks)}")
        child.open_gate()
        with suppress(Fault):
            line.until(chunk.is_right, "waiting for the bytes", min(SETTLE, line.timeout))
        if chunk.is_right():
            self.step = Step.DONE
            return _wrong("DONE came before the bytes: post it behind the RDMA WRITE, not ahead of it")
        return _wrong(f"DONE came, but {self._difference(chunks)}")

    def _difference(self, chunks: list[Chunk]) -> str:
        *earlier, chunk = chunks
        return chunk.difference(earlier, self._data)

    # ------------------------------------------------------------------ the end

    def _part(self, line: Line, child: Child) -> None:
        """The key is delivered: what is printed, the disconnect, the exit code."""
        self._wait_for_end(line, child)
        running = child.running
        child.end()
        printed = _keys(child)
        if f"secret key: {self._key}" not in printed:
            said = f"it printed {printed[0]!r}" if printed else "it printed no key to stdout"
            raise _wrong(f"{said}: print 'secret key: ' and the key, which is {self._key}")
        self.step = Step.DISCONNECT
        if line.end is None or line.died or child.has_abandoned:
            text = f"it has its key, but did not end the connection: call {child.advice.disconnect}"
            raise _wrong(text)
        self.step = Step.EXIT
        if running:
            raise _wrong(f"it was still running after {child.seconds:g} s")
        if child.status:
            raise _wrong(f"it ended with {child.how()}: a sender that has its key ends with exit code 0")

    def _stop(self, line: Line, child: Child) -> None:
        """The sender is refused: it says nothing more, has no key, and ends with another exit code than 0."""
        with suppress(Fault):
            line.until(lambda: line.has_message or line.end is not None, "waiting for the disconnect")
        assert self._case.refused is not None
        after = REFUSED[self._case.refused]
        if line.has_message:
            message = messages.parse(line.receive("refused"))
            raise _wrong(f"{message.type.name} came after {after}: send nothing more, disconnect and end")
        self._wait_for_end(line, child)
        running = child.running
        child.end()
        if printed := _keys(child):
            raise _wrong(f"after {after} it printed {printed[0]!r}: there is no key")
        if running:
            raise _wrong(f"after {after} it was still running after {child.seconds:g} s")
        if not child.status or child.status < 0:
            raise _wrong(f"after {after} it ended with {child.how()}: end with {child.advice.fail}")

    def _wait_for_end(self, line: Line, child: Child) -> None:
        until = None
        while line.end is None or child.running:
            line.pump(SLICE)
            if until is None and child.gone():
                until = time.monotonic() + SETTLE
            if until is not None and (child.running or time.monotonic() > until):
                break
        self._look_back(line, child)


def _keys(child: Child) -> list[str]:
    """The lines that it printed and that say they are a key."""
    return [text for text in child.output().splitlines() if text.startswith("secret key:")]


def _rnr_naks(line: Line) -> int:
    return line.qp.statistics().counters.rnr_nak_sent


def _not_delivered(what: str, child: Child) -> Fault:
    return _wrong(
        f"{what} could not be delivered, because no receive was posted: call {child.advice.receive} "
        "before you post the SEND of the message that it answers"
    )


def _wrong(text: str) -> Fault:
    return Fault(Code.PROTOCOL, text)
