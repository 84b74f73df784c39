# SPDX-License-Identifier: Apache-2.0
"""One connection of iWARP between rnic and siw: ends as those of ends.py, which ids of RDMA-CM connect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

from cm_side import CmSide
from ends import Address, End, KernelEnd
from rnic_end import RnicEnd

import rnic
from rdmacm.iwarp_peer import service_of
from rnic import rdmacm
from rnic.records import replace

if TYPE_CHECKING:
    from link import Link

PORT = 7475
ACCESS = ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ")
Told = dict[str, Any]


class CmEnd(End, Protocol):
    """An end with the calls of CmSide."""

    def listen(self, ip: str) -> int: ...
    def call(self, ip: str, port: int) -> None: ...
    def ask(self, data: str = "", ird: int = 4, ord: int = 4) -> None: ...  # noqa: A002
    def take(self) -> Told: ...
    def accept(self, data: str = "", ird: int = 4, ord: int = 4) -> None: ...  # noqa: A002
    def reject(self, data: str = "") -> None: ...
    def disconnect(self) -> None: ...
    def event(self, timeout: float = 60) -> Told: ...
    def pid(self) -> int: ...


class SiwEnd(KernelEnd):
    """In the guest, where guest_siw.py listens. siw completes a WRITE before an earlier READ."""

    in_order = False

    def __init__(self, server: tuple[str, int], *, length: int, access: Iterable[str] = ACCESS) -> None:
        self._begin(server)
        made = self._call("make_end", length=length, access=list(access))
        self.address = Address(made["qp_num"], 0, "", made["addr"], made["rkey"])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The calls of CmSide."""
        call = signature(getattr(CmSide, name))

        def there(*arguments: Any, **named: Any) -> Any:
            given = call.bind(None, *arguments, **named).arguments
            del given["self"]
            return self._call(name, **given)

        return there

    def close(self) -> None:
        """Also when a test has killed its process."""
        with suppress(ConnectionError):
            super().close()
        self._socket.close()

    def pid(self) -> int:
        """Of its process in the guest."""
        return int(self._call("pid"))


class RnicSiwEnd(CmSide, RnicEnd):
    """Of rnic in this process. Its queue pair is made when its device is known."""

    def __init__(
        self,
        device: str,
        *,
        length: int,
        access: Iterable[str] = ACCESS,
        ack_timeout: int | None = None,
        **options: Any,
    ) -> None:
        """ack_timeout: 4.096 us * 2**ack_timeout, as of rdma_set_option(3). options: create_id's."""
        CmSide.__init__(self, rdmacm, device=device, **options)
        self._wanted, self._ack_timeout = (length, access), ack_timeout

    def call(self, ip: str, port: int) -> None:
        super().call(ip, port)
        if self._ack_timeout is not None:
            self.id.set_option(rdmacm.Option.ACK_TIMEOUT, self._ack_timeout)
        self._ready()

    def take(self) -> Told:
        told = super().take()
        self._ready()
        return told

    def _ready(self) -> None:
        context = self.id.verbs
        assert isinstance(context, rnic.Context)
        self._make(context, *self._wanted)
        self.qp_num = self.qp.qp_num
        self.address = Address(self.qp_num, 0, "", self._mr.addr, self._mr.rkey)

    def close(self) -> None:
        """An id lets go of its device: so the queue pair goes first."""
        if self.qp_num:
            RnicEnd.close(self)
        self.close_ids()


JoinPair = Callable[..., tuple[CmEnd, CmEnd]]


def join(caller: CmEnd, listener: CmEnd, ip: str) -> None:
    """Connect two ends; the listener's address is ip."""
    port = listener.listen(ip)
    caller.call(ip, port)
    caller.ask()
    assert listener.take()["event"] == "CONNECT_REQUEST"
    listener.accept()
    for end in (caller, listener):
        told = end.event()
        assert (told["event"], told["status"]) == ("ESTABLISHED", 0), told


def called(link: Link, ends: dict[str, CmEnd], connects: str) -> tuple[CmEnd, CmEnd]:
    """The caller and the listener, which has the request and has not answered it."""
    caller, listener = (ends[name] for name in ("rnic", "kernel"))
    if connects == "kernel":
        caller, listener = listener, caller
    ip = (link.guest_ip if connects == "rnic" else link.host_ip)["ipv4"]
    caller.call(ip, listener.listen(ip))
    caller.ask()
    assert listener.take()["event"] == "CONNECT_REQUEST"
    return caller, listener


@contextmanager
def asking_in_revision(link: Link, revision: int) -> Iterator[None]:
    """Meanwhile ids of rnic's on the link ask for connections in this revision of MPA."""
    with rdmacm.EventChannel() as channel, rdmacm.create_id(channel, device=link.device) as user:
        user.bind_addr((link.host_ip["ipv4"], 0))
        service = service_of(user)  # it stays as long as an id uses it
        before = service.options
        service.options = replace(before, revision=revision)
        try:
            yield
        finally:
            service.options = before
