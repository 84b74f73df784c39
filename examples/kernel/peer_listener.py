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
import threading

import program
from living import next_receive
from message import MESSAGE_MAX, Kind, Message, Offer, Request, Service, capitals

from rnic import SGE, WCStatus
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, create_id
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
        return Message(Kind.WRONG, 0, str(error).encode())
    if ask.kind != Kind.ASK:
        return Message(Kind.WRONG, ask.number, b"kind %d is no ask" % ask.kind)
    return Message(Kind.ANSWER, ask.number, capitals(ask.text))


class Agent(threading.Thread):
    """Serves one client until the connection ends."""

    def __init__(self, cm_id: CmId, depth: int) -> None:
        super().__init__(daemon=True)
        self.cm_id, self.depth = cm_id, depth
        self.answered = self.wrong = 0
        self.peer = cm_id.get_peer_addr()
        cm_id.create_qp(cap=QPCap(max_send_wr=depth, max_recv_wr=depth))
        self.buffer = bytearray((depth + 1) * MESSAGE_MAX)  # a slot for each receive, and one for an answer
        self.memory = cm_id.reg_msgs(self.buffer)
        for slot in range(depth):
            self.post_receive(slot)

    def post_receive(self, slot: int) -> None:
        """Post a receive into a slot of the buffer."""
        self.cm_id.post_recv(SGE(self.memory, slot * MESSAGE_MAX, MESSAGE_MAX), wr_id=slot)

    def run(self) -> None:
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

    def end(self) -> None:
        """The connection has ended: free what it had."""
        self.join()
        self.memory.close()
        self.cm_id.destroy()
        print(f"{self.peer}: {self.answered} texts answered, {self.wrong} messages wrong", flush=True)


class Server:
    """The agents of the clients that are connected."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.agents: dict[CmId, Agent] = {}
        self.ended = 0

    def request(self, event: Event) -> None:
        """A client wants to connect: accept it, or refuse it and say why."""
        assert isinstance(event.param, ConnParam)
        try:
            wanted = Request.unpack(event.param.private_data)
            if wanted.service != Service.ECHO:
                raise ValueError(f"service {wanted.service} is not {Service.ECHO:d}")
        except ValueError as error:
            print(f"{event.id.get_peer_addr()}: refused: {error}", flush=True)
            event.id.reject(Request(Service.ECHO).pack())
            return
        agent = self.agents[event.id] = Agent(event.id, self.depth)
        event.id.accept(ConnParam(private_data=Offer(self.depth).pack()))
        agent.start()

    def handle(self, event: Event) -> None:
        """Handle one event."""
        match event.event:
            case EventType.CONNECT_REQUEST:
                self.request(event)
            case EventType.DISCONNECTED:
                event.id.disconnect()  # confirms it; receives are flushed, and the agent ends
            case EventType.UNREACHABLE | EventType.CONNECT_ERROR if event.id in self.agents:
                event.id.destroy_qp()
            case _:
                return

    def serve(self, events: EventChannel, clients: int) -> None:
        """Until so many clients have come and gone."""
        while not clients or self.ended < clients:
            with events.get_cm_event() as event:
                self.handle(event)
            if event.event in (EventType.DISCONNECTED, EventType.UNREACHABLE, EventType.CONNECT_ERROR):
                self.end(event.id)
            elif event.event is EventType.CONNECT_REQUEST and event.id not in self.agents:
                event.id.destroy()

    def end(self, cm_id: CmId) -> None:
        """A connection has ended, or was not made."""
        if agent := self.agents.pop(cm_id, None):
            agent.end()
            self.ended += 1


def main() -> None:
    """Listen, and serve all clients."""
    chosen = options()
    if not 1 <= chosen.depth <= DEPTH_MAX:
        sys.exit(f"--depth {chosen.depth}: a client has 1 to {DEPTH_MAX} receives")
    with EventChannel() as events, create_id(events, device=chosen.device) as listener:
        listener.bind_addr((chosen.bind, chosen.port))
        listener.listen()
        print(f"listening on port {listener.get_src_port()} of {chosen.bind}", flush=True)
        Server(chosen.depth).serve(events, chosen.clients)


if __name__ == "__main__":
    program.run(main)
