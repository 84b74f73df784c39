# SPDX-License-Identifier: Apache-2.0
"""What peer_listener.py and peer_memory.py share: the events of RDMA-CM, and a thread for each client."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from message import Offer, Request, Service

from rnic import VerbsError
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType

FAILED = (EventType.UNREACHABLE, EventType.CONNECT_ERROR)  # before the connection was established


class Client(threading.Thread, ABC):
    """Serves one client until its connection ends."""

    offer: Offer  # what the client is told when it is accepted

    def __init__(self, cm_id: CmId) -> None:
        super().__init__(daemon=True)
        self.cm_id, self.peer = cm_id, cm_id.get_peer_addr()

    @abstractmethod
    def serve(self) -> None:
        """Answer messages, until a work request fails."""

    @abstractmethod
    def free(self) -> str:
        """Free what the client had; returns a line for the user."""

    def run(self) -> None:
        """Serve; what cannot go on ends the connection."""
        try:
            self.serve()
        except VerbsError as error:
            print(f"{self.peer}: {error}", flush=True)
            with suppress(VerbsError):  # it has ended
                self.cm_id.disconnect()

    def end(self) -> None:
        """The connection has ended, and with it what was posted: free what the client had."""
        self.join()
        said = self.free()
        self.cm_id.destroy()
        print(f"{self.peer}: {said}", flush=True)


class Server:
    """The clients that are connected."""

    def __init__(self, service: Service, client: Callable[[CmId], Client]) -> None:
        self.service, self.client = service, client
        self.clients: dict[CmId, Client] = {}

    def request(self, event: Event) -> None:
        """A client wants to connect: accept it, or refuse it and say why."""
        assert isinstance(event.param, ConnParam)
        try:
            wanted = Request.unpack(event.param.private_data).service
            if wanted != self.service:
                raise ValueError(f"service {wanted} is not {self.service:d}")
        except ValueError as error:
            print(f"{event.id.get_peer_addr()}: refused: {error}", flush=True)
            self.refuse(event.id)
            return
        try:
            client = self.client(event.id)
            event.id.accept(ConnParam(private_data=client.offer.pack()))
            client.start()
        except (VerbsError, RuntimeError) as error:  # no memory or thread for one more, or it has gone
            print(f"{event.id.get_peer_addr()}: not accepted: {error}", flush=True)
            self.refuse(event.id)
            return
        self.clients[event.id] = client

    def refuse(self, cm_id: CmId) -> None:
        """Say which service there is. A client that has gone meanwhile needs no answer."""
        with suppress(VerbsError):
            cm_id.reject(Request(self.service).pack())

    def serve(self, events: EventChannel, clients: int = 0) -> None:
        """Handle events until so many clients have come and gone; 0: until the program is ended."""
        ended = 0
        while not clients or ended < clients:
            with events.get_cm_event() as event:
                if event.event is EventType.CONNECT_REQUEST:
                    self.request(event)
                elif event.event is EventType.DISCONNECTED:
                    with suppress(VerbsError):  # its device has gone meanwhile
                        event.id.disconnect()  # confirms it; receives are flushed: the client's thread ends
                elif event.event in FAILED and event.id in self.clients:
                    event.id.destroy_qp()  # the same
            ended += self.after(event)

    def after(self, event: Event) -> int:
        """Destroy an id that has come to its end. This waits until its event is acknowledged.

        Returns how many clients have ended.
        """
        if event.event is EventType.CONNECT_REQUEST and event.id not in self.clients:
            event.id.destroy()
        elif event.event in (EventType.DISCONNECTED, EventType.DEVICE_REMOVAL, *FAILED):
            if event.id in self.clients:
                self.clients.pop(event.id).end()
                return 1
            if event.event is EventType.DEVICE_REMOVAL:
                self.close()
                sys.exit("the device that this program listens on has gone")
        return 0

    def close(self) -> None:
        """The device has gone, and with it all connections."""
        while self.clients:
            self.clients.popitem()[1].end()
