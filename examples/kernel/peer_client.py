# SPDX-License-Identifier: Apache-2.0
"""A client of the kernel module listener: it sends texts, and checks the answers (message.h).

python peer_client.py 10.77.0.2                  over RoCE
python peer_client.py 10.77.0.2 --device iwarp_rnicvm0 --count 1000
"""

from __future__ import annotations

import argparse
import random
import sys
from contextlib import suppress
from typing import NoReturn

import program
from living import PROBE, write_nothing
from message import MAGIC, MESSAGE_MAX, TEXT_MAX, Kind, Message, Offer, Request, Service, capitals

from rnic import SGE, WC, SendFlags, WCStatus
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, create_id
from rnic.verbs.qp import QPCap

WAIT = 60.0  # seconds
PROBES = int(WAIT / PROBE)  # while it waits for an answer


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A client that sends texts, and checks their answers.")
    parser.add_argument("host", help="the server's address")
    parser.add_argument("-p", "--port", type=int, default=7471, help="its port (7471)")
    parser.add_argument("-d", "--device", help="such as iwarp_eth0 (the first that reaches the server)")
    parser.add_argument("-n", "--count", type=int, default=100, help="how many texts (100)")
    parser.add_argument("-s", "--size", type=int, help=f"bytes of each, {TEXT_MAX} at most (different ones)")
    parser.add_argument("--hold", action="store_true", help="stay connected until Ctrl-C")
    return parser.parse_args()


class Client:
    """A connection: `depth` asks are on their way at most, each with a receive for its answer."""

    def __init__(self, cm_id: CmId, channel: EventChannel, depth: int) -> None:
        self.cm_id, self.channel, self.depth = cm_id, channel, depth
        # A probe's place is free again with the ask behind it, whose answer is `depth` answers away.
        self.sends = (depth + 1) * (PROBES + 1)
        cm_id.create_qp(cap=QPCap(max_send_wr=self.sends, max_recv_wr=depth))
        self.asks, self.answers = bytearray(depth * MESSAGE_MAX), bytearray(depth * MESSAGE_MAX)
        self.from_here, self.to_here = cm_id.reg_msgs(self.asks), cm_id.reg_msgs(self.answers)
        for slot in range(depth):
            self.post_receive(slot)

    def post_receive(self, slot: int) -> None:
        """Post a receive into a slot."""
        self.cm_id.post_recv(SGE(self.to_here, slot * MESSAGE_MAX, MESSAGE_MAX), wr_id=slot)

    def connect(self) -> None:
        """Connect; ends the program if the server refuses."""
        # The kernel's end retries as often as this end says; 7 is for ever in rxe.
        self.cm_id.connect(ConnParam(private_data=Request(Service.ECHO).pack(), retry_count=6))
        with self.channel.get_cm_event(WAIT) as event:
            data = event.param.private_data if isinstance(event.param, ConnParam) else b""
            if event.event is not EventType.ESTABLISHED:
                sys.exit(event.explain() + offered(data))
        try:
            offer = Offer.unpack(data)
        except ValueError as error:
            sys.exit(f"the server accepted without an offer: {error}")
        if not offer.depth:
            sys.exit("the server has no receives for messages")
        self.depth = min(self.depth, offer.depth)

    def ask(self, number: int, text: bytes) -> None:
        """Send an ask; its slot must be free."""
        start = number % self.depth * MESSAGE_MAX
        data = Message(Kind.ASK, number, text).pack()
        self.asks[start : start + len(data)] = data
        self.cm_id.post_send(SGE(self.from_here, start, len(data)))

    def answer(self) -> Message:
        """Wait for the next answer, and for the end of a send: the next ask may take its slot."""
        got, sent = self.receive(), self.cm_id.get_send_comp(WAIT)
        if got.status != WCStatus.SUCCESS or sent.status != WCStatus.SUCCESS:
            self.end(sent, got)
        start = got.wr_id * MESSAGE_MAX
        found = Message.unpack(bytes(self.answers[start : start + got.byte_len]))
        self.post_receive(got.wr_id)
        return found

    def receive(self) -> WC:
        """Wait for the completion of a receive; a silent server has to acknowledge WRITEs of no bytes.

        Asks may be under way, so write_nothing() cannot be used. Nobody takes completions of these WRITEs:
        if one fails, the receives fail with it.
        """
        for _ in range(PROBES):
            with suppress(TimeoutError):
                return self.cm_id.get_recv_comp(PROBE)
            self.cm_id.post_write(remote_addr=0, rkey=0, flags=SendFlags(0))
        sys.exit(f"no answer in {WAIT:.0f} s")

    def end(self, sent: WC, got: WC) -> NoReturn:
        """End the program. The send that failed first says why; what came behind it was flushed."""
        assert self.cm_id.send_cq
        sends = [sent, *self.cm_id.send_cq.poll(self.sends)]
        first = next(wc for wc in (*sends, got) if wc.status != WCStatus.SUCCESS)
        sys.exit(f"the connection has ended: {first.status.name}")

    def exchange(self, texts: list[bytes]) -> None:
        """Ask for all texts, and check all answers, which come in the order of the asks."""
        for number in range(len(texts) + self.depth):
            if number >= self.depth and number - self.depth < len(texts):
                check(self.answer(), number - self.depth, texts)
            if number < len(texts):
                self.ask(number, texts[number])

    def hold(self) -> None:
        """Stay connected until Ctrl-C; ends the program if the connection ends, or nobody is there."""
        status = WCStatus.SUCCESS
        while status is WCStatus.SUCCESS:
            with suppress(TimeoutError), self.channel.get_cm_event(PROBE) as event:
                if event.event in (EventType.DISCONNECTED, EventType.DEVICE_REMOVAL):
                    sys.exit(f"the connection has ended: {event.explain()}")
            status = write_nothing(self.cm_id).status
        sys.exit(f"the connection has ended: {status.name}")


def offered(data: bytes) -> str:
    """What a refusal's private data says of the server; "" if it has none, which over RoCE is zeros."""
    if len(data) < len(Request(0).pack()) or not data.startswith(MAGIC.to_bytes(4, "big")):
        return ""
    try:
        return f"; this program wants service {Service.ECHO:d}, the server has {Request.unpack(data).service}"
    except ValueError as error:
        return f"; the server's {error}"


def check(found: Message, number: int, texts: list[bytes]) -> None:
    """End the program if that is not the answer."""
    if found != Message(Kind.ANSWER, number, capitals(texts[number])):
        sys.exit(f"text {number}, {texts[number]!r}: the answer is {found}")


def texts_of(count: int, size: int | None) -> list[bytes]:
    """Different texts, of all bytes."""
    draw = random.Random(count)
    return [draw.randbytes(draw.randint(0, TEXT_MAX) if size is None else size) for _ in range(count)]


def main() -> None:
    """Connect, ask for all texts, disconnect."""
    chosen = options()
    if chosen.size is not None and not 0 <= chosen.size <= TEXT_MAX:
        sys.exit(f"--size {chosen.size}: a text has 0 to {TEXT_MAX} bytes")
    if chosen.count < 0:
        sys.exit(f"--count {chosen.count}: a number of texts is 0 or more")
    with EventChannel() as channel, create_id(channel, device=chosen.device) as cm_id:
        for step in (lambda: cm_id.resolve_addr(None, (chosen.host, chosen.port)), cm_id.resolve_route):
            step()
            with channel.get_cm_event(WAIT) as event:
                if event.status:
                    sys.exit(event.explain())
        client = Client(cm_id, channel, depth=16)
        client.connect()
        client.exchange(texts_of(chosen.count, chosen.size))
        print(f"{chosen.count} texts answered", flush=True)
        if chosen.hold:
            with suppress(KeyboardInterrupt):
                client.hold()
        cm_id.disconnect()


if __name__ == "__main__":
    program.run(main)
