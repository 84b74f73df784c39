# SPDX-License-Identifier: Apache-2.0
"""A server for the kernel module client: it answers each text in capital letters (message.h).

    python peer_listener.py --bind 10.77.0.1            over RoCE
    python peer_listener.py --bind 10.77.0.1 --device iwarp_rnicvm0

A thread serves each client. Requests of another version or for another service are refused, with private data
that says what there is.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import program
from living import next_receive
from message import MESSAGE_MAX, Kind, Message, Offer, Service, capitals, wrong
from serving import Client, Server

from rnic import SGE, WCStatus
from rnic.rdmacm import CmId, EventChannel, create_id
from rnic.verbs.qp import QPCap

DEPTH_MAX = 1024


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A server that answers texts in capital letters.")
    parser.add_argument("-b", "--bind", default="0.0.0.0", help="an address of this machine (all)")
    parser.add_argument("-p", "--port", type=int, default=7471, help="its port; 0: any free one (7471)")
    parser.add_argument("-d", "--device", help="such as iwarp_eth0 (the first that serves the address)")
    parser.add_argument("--depth", type=int, default=16, help=f"receives for each, 1 to {DEPTH_MAX} (16)")
    parser.add_argument("--clients", type=int, default=0, help="end after so many; 0: never (0)")
    return parser.parse_args()


def answer(data: bytes) -> Message:
    """What to answer to a message."""
    try:
        ask = Message.unpack(data)
    except ValueError as error:
        return wrong(data, str(error))
    if ask.kind != Kind.ASK:
        return wrong(data, f"kind {ask.kind} is no ask")
    return Message(Kind.ANSWER, ask.number, capitals(ask.text))


class Agent(Client):
    """Answers the texts of one client."""

    def __init__(self, cm_id: CmId, depth: int) -> None:
        super().__init__(cm_id)
        self.depth, self.offer = depth, Offer(depth)
        self.answered = self.wrong = 0
        cm_id.create_qp(cap=QPCap(max_send_wr=depth, max_recv_wr=depth))
        self.buffer = bytearray((depth + 1) * MESSAGE_MAX)  # a slot for each receive, and one for an answer
        self.memory = cm_id.reg_msgs(self.buffer)
        for slot in range(depth):
            self.post_receive(slot)

    def post_receive(self, slot: int) -> None:
        """Post a receive into a slot of the buffer."""
        self.cm_id.post_recv(SGE(self.memory, slot * MESSAGE_MAX, MESSAGE_MAX), wr_id=slot)

    def serve(self) -> None:
        """Answer asks. A client that has an answer may ask again, so the receive is posted before."""
        while (asked := next_receive(self.cm_id)).status == WCStatus.SUCCESS:
            start = asked.wr_id * MESSAGE_MAX
            found = answer(bytes(self.buffer[start : start + asked.byte_len]))
            self.post_receive(asked.wr_id)
            if not self.send(found.pack()):
                break
            self.answered += found.kind == Kind.ANSWER
            self.wrong += found.kind == Kind.WRONG

    def send(self, data: bytes) -> bool:
        """Send an answer; returns when its slot is free again, False if the connection has ended."""
        start = self.depth * MESSAGE_MAX
        self.buffer[start : start + len(data)] = data
        self.cm_id.post_send(SGE(self.memory, start, len(data)))
        return self.cm_id.get_send_comp().status == WCStatus.SUCCESS

    def free(self) -> str:
        """The buffer; says what was answered."""
        self.memory.close()
        return f"{self.answered} texts answered, {self.wrong} messages wrong"


def main() -> None:
    """Listen, and serve all clients."""
    chosen = options()
    if not 1 <= chosen.depth <= DEPTH_MAX:
        sys.exit(f"--depth {chosen.depth}: a client has 1 to {DEPTH_MAX} receives")
    with EventChannel() as events, create_id(events, device=chosen.device) as listener:
        listener.bind_addr((chosen.bind, chosen.port))
        listener.listen()
        print(f"listening on port {listener.get_src_port()} of {chosen.bind}", flush=True)
        Server(Service.ECHO, partial(Agent, depth=chosen.depth)).serve(events, chosen.clients)


if __name__ == "__main__":
    program.run(main)
