# SPDX-License-Identifier: Apache-2.0
"""An open device, and the verbs of an open device."""

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Self

from rnic._nic import nic
from rnic.enums import (
    EventType,
    NodeType,
    Transport,
)
from rnic.errors import VerbsError
from rnic.notebook import table
from rnic.records import Record, field
from rnic.verbs.ah import GID
from rnic.verbs.cntr import CompCntrInitAttr
from rnic.verbs.cq import CQInitAttrEx
from rnic.verbs.device import Device
from rnic.verbs.faults import Faults
from rnic.verbs.memory import AllocDMAttr, ParentDomainInitAttr
from rnic.verbs.pd import PD
from rnic.verbs.qp import QP, QPOpenAttr
from rnic.verbs.qp_ex import QPEx, QPInitAttrEx
from rnic.verbs.queries import Queries
from rnic.verbs.srq import SRQ, SRQInitAttrEx
from rnic.verbs.stream import StreamEvent
from rnic.verbs.wq import (
    WQ,
    RwqIndTable,
    RwqIndTableInitAttr,
    WQInitAttr,
)
from rnic.verbs.xrcd import XRCD

__all__ = ["AsyncEvent", "Context"]


class AsyncEvent(Record):
    """A report that no completion can carry, such as a failed queue pair or a port that is down
    (ibv_get_async_event(3)).

    Acknowledge the event of a QP, CQ, SRQ or WQ with ack(), or drop the event. Until then close() of the
    object raises EBUSY. (libibverbs waits instead, but a thread that waits for itself waits for ever.)
    """

    event_type: EventType
    """What happened."""
    element: "nic.QP | nic.CQ | nic.SRQ | nic.WQ | int | None"
    """The QP, CQ, SRQ or WQ of the event, the number of the port, or None for the whole device."""
    _token: nic.AsyncToken | None = field(default=None, compare=False, repr=False)

    def ack(self) -> None:
        """Acknowledge the event (ibv_ack_async_event(3)).

        Raises VerbsError: EINVAL the second time. Events of a port or of the device keep no object open.
        """
        if self._token is not None:
            self._token.ack()


class Context(Queries):
    """An open device (ibv_open_device(3)); rnic.open_device() makes it.

    The software RNIC runs in a thread of its own until close(). So it serves peers while the Python program
    is busy or asleep.
    """

    __slots__ = ("device",)

    device: Device
    """The device that was opened."""

    @classmethod
    def of_device(
        cls,
        device: Device,
        *,
        rcvbuf: int,
        max_window: int,
        gso: bool,
        pkeys: Sequence[int],
        congestion_control: bool | None,
        local: bool,
    ) -> Self:
        """Open a device; rnic.open_device() calls it when the device is found."""
        congestion = 0 if congestion_control is None else 1 if congestion_control else -1
        context = cls.raw_open(
            device.provider, device.name, rcvbuf, max_window, not gso, pkeys, congestion, 1 if local else -1
        )
        context.device = device
        if "rnic.stats/1" in context.extensions and context.counters().unfit_ip_ids:
            warnings.warn(
                f"{device.name}: this kernel does not fill IPv4 headers as the ICRC needs "
                "(identification 0, DF): "
                "hardware and kernel peers will drop what rnic sends over IPv4; IPv6 is not affected",
                RuntimeWarning,
                stacklevel=3,
            )
        return context

    @classmethod
    def of_cmd_fd(cls, cmd_fd: int) -> Self:
        """Open the context behind a cmd_fd; rnic.import_device() calls it."""
        context, info = cls.raw_import(cmd_fd)
        context.device = Device.from_struct(info)
        return context

    @classmethod
    def from_pointer(cls, address: int, device: Device | None = None) -> Self:
        """Take over a context of another provider, from the address of a struct rnic_context of nic.h.

        close() calls the provider's close.
        """
        context = cls.wrap("foreign" if device is None else device.name, address)
        context.device = device or Device(
            "foreign", "", 0, 0, Transport.UNKNOWN, NodeType.CA, context.provider
        )
        return context

    def cm_listen(
        self,
        service_id: int,
        addr: "GID | str | None" = None,
        *,
        afonly: bool = False,
        reuse: bool = False,
        hold: bool = False,
    ) -> nic.Listener:
        """Deliver the CM's requests for a service to this context's GSI queue pair, until the listener
        closes.

        `addr` is one of the device's addresses, "0.0.0.0" for every IPv4 address, "::" (or None) for every
        address, or "::" with `afonly` for every IPv6 address. Any process of this host that receives a REQ or
        SIDR_REQ hands it on to the listener. A request without a listener is refused at once (IBA 12.6.7.2,
        reason 8; 12.11.2, status 1). With `hold` requests are refused here, too: the call only reserves the
        service on this host.

        Raises VerbsError: EADDRINUSE if another listener of this host has the service at this address, at all
        addresses, or at one of all (with `reuse` only the first counts); EADDRNOTAVAIL if the device does not
        have the address.
        """
        gid = GID("::" if addr is None else addr)
        return nic.Listener(self, service_id, gid.raw, afonly, reuse, hold)

    def cm_watch_service(self, service_id: int, addr: "GID | str") -> int:
        """A file descriptor that hangs up when the process that listens for a service at an address of this
        device dies.

        It also hangs up when the process no longer listens. cm_watch() does the same for the owner of a slot.
        """
        return self.raw_cm_watch_service(service_id, GID(addr).raw)

    def _repr_html_(self) -> str:
        return table("Context", [("device", self.name), *self._shown()])

    def _shown(self) -> Iterator[tuple[str, object]]:
        """What a notebook shows, as far as the device still tells."""
        try:
            port = self.query_port(1)
            yield from (("state", port.state), ("active MTU", port.active_mtu.nbytes))
            yield from ((f"GID {entry.gid_index}", entry.gid) for entry in self.query_gid_table())
        except VerbsError as error:
            yield "state", error

    def set_faults(self, faults: Faults | None) -> None:
        """Inject faults into the packets that this context sends, or into its connections, from now on; None
        ends it.

        Raises VerbsError: EOPNOTSUPP for a fault that this kind of device does not have.
        """
        if faults is None:
            self.raw_set_fault(None)
        else:
            self.raw_set_fault(faults.as_struct(), faults.rules())

    def raise_event(self, event_type: EventType, after: float = 0.0) -> None:
        """Raise an event of the port or of the device on purpose, `after` seconds from now.

        What it tells of happens. After PORT_ERR the port is DOWN, and nothing is sent or received until
        PORT_ACTIVE. After DEVICE_FATAL all work is flushed, and calls raise EIO. The other events, such as
        PKEY_CHANGE, tell and change nothing.

        Raises VerbsError: EINVAL for an event of a queue pair, completion queue or shared receive queue.
        """
        self.raw_raise_event(int(event_type), round(after * 1e9))

    def get_async_event(self, timeout: float | None = None) -> AsyncEvent:
        """Wait for the next asynchronous event of this context (ibv_get_async_event(3)).

        `timeout` is in seconds; None waits for ever, 0 does not wait. Raises TimeoutError at its end. The
        file descriptor async_fileno() is readable while an event waits. docs/async-events.md lists the causes
        of each event.
        """
        kind, port_num, element, token = self.raw_get_async_event(timeout)
        return AsyncEvent(EventType(kind), port_num or None if element is None else element, token)

    def next_stream_event(self) -> StreamEvent | None:
        """iWARP: take the oldest report of a connection; None if there is none.

        There is one for each connection that ends while its queue pair is open and not in RESET. If
        StreamAttr.tell_ready asks for it, there is one ahead of that with StreamEnd.READY: the peer's first
        message has come. The file descriptor stream_fileno() is readable while a report waits. RDMA-CM takes
        the reports of the contexts that it opens itself: who takes them in its place, as from CmId.verbs,
        takes events of its ids. Raises VerbsError: EOPNOTSUPP if the device is not an iWARP device.
        """
        event = self.raw_next_stream_event()
        return None if event is None else StreamEvent.from_struct(event)

    def ack_async_event(self, event: AsyncEvent) -> None:
        """Acknowledge an event, as event.ack() does (ibv_ack_async_event(3))."""
        event.ack()

    def alloc_pd(self) -> PD:
        """Create a protection domain (ibv_alloc_pd(3))."""
        return PD(self)

    def open_xrcd(self, fd: int | None = None, oflags: int = os.O_CREAT) -> XRCD:
        """Open an XRC domain (ibv_open_xrcd(3)): the domain of a file, given by its descriptor, or a new
        private domain.

        `oflags`: with O_CREAT a file without a domain gets one; with O_CREAT and O_EXCL the file must not
        have one yet. Each Context that opens the domain of a file has its own part of it: queue pairs serve
        the shared receive queues of their Context. The domain ends when its last XRCD is closed.

        Raises VerbsError: EAGAIN if the file has no domain and O_CREAT is not given; EINVAL if it has one and
        O_EXCL is given (as the kernel's verbs).
        """
        return XRCD(self, -1 if fd is None else fd, oflags)

    def create_srq_ex(self, init_attr: SRQInitAttrEx) -> SRQ:
        """Create a shared receive queue: ordinary, XRC or tag matching (ibv_create_srq_ex(3)).

        Queue pairs of a tag matching SRQ must be RC. Their receives complete at the `cq` of the SRQ. They
        cannot send: the device uses their send queues for rendezvous.

        SRQ.get_srq_num() is the number of an XRC one. Raises VerbsError: EINVAL for a missing value, or one
        beyond DeviceAttr's limits; EOPNOTSUPP for other types.
        """
        return SRQ(None, init_attr)

    def open_qp(self, attr: QPOpenAttr) -> QP:
        """Open another handle of an existing XRC_RECV queue pair (ibv_open_qp(3)).

        Each handle can modify and query the queue pair, and gets its events. The queue pair ends when the
        last handle is closed. Raises VerbsError: EINVAL if the domain has no queue pair of this number and
        type.
        """
        return QP(None, attr)

    def alloc_td(self) -> nic.TD:
        """Create a thread domain (ibv_alloc_td(3)), a hint for alloc_parent_domain()."""
        return nic.TD(self)

    def alloc_parent_domain(self, attr: ParentDomainInitAttr) -> PD:
        """Create a parent domain, which can be used wherever attr.pd can (ibv_alloc_parent_domain(3)).

        Objects of the parent domain and objects of attr.pd can be used together. close() raises EBUSY while
        it has objects. While it is open, close() of attr.pd and attr.td raises EBUSY.

        Raises VerbsError: EOPNOTSUPP for allocators, EINVAL for a parent domain of a parent domain.
        """
        attr.check()
        return PD(self, attr.pd, attr.td)

    def alloc_dm(self, attr: AllocDMAttr) -> nic.DM:
        """Allocate memory of the device (ibv_alloc_dm(3)).

        Raises VerbsError: EINVAL for a length that is not a multiple of 4, or an alignment larger than a
        page; ENOMEM if less than this is left of DeviceAttrEx.max_dm_size.
        """
        return nic.DM(self, attr.length, attr.log_align_req)

    def import_pd(self, handle: int) -> PD:
        """Import the protection domain with this handle (PD.handle) of this context (ibv_import_pd(3)).

        close() ends the import. If the same process made the domain, the import is the domain itself, which
        cannot be closed before (EBUSY). If another process made it, the import is a new domain for queue
        pairs of this context; PD.import_mr() adds the other process' memory.

        Raises VerbsError: ENOENT if there is no such domain; EOPNOTSUPP if the other process does not share
        it.
        """
        return PD(self, handle=handle)

    def import_dm(self, handle: int) -> nic.DM:
        """Import the device memory with this handle (DM.handle), as import_pd() does (ibv_import_dm(3))."""
        return nic.DM(self, handle=handle)

    def create_qp_ex(self, init_attr: QPInitAttrEx) -> QPEx:
        """Create a queue pair with builders of work requests in the domain init_attr.pd
        (ibv_create_qp_ex(3)).

        Raises VerbsError as PD.create_qp() does. Raises EOPNOTSUPP also if the device does not have all of
        send_ops_flags for this type, or a creation flag.
        """
        return QPEx.create(init_attr)

    def create_comp_channel(self) -> nic.CompChannel:
        """Create a channel for completion events (ibv_create_comp_channel(3))."""
        return nic.CompChannel(self)

    def create_cq(
        self,
        cqe: int,
        channel: nic.CompChannel | None = None,
        cq_context: object = None,
        comp_vector: int = 0,
    ) -> nic.CQ:
        """Create a completion queue for at least `cqe` completions (ibv_create_cq(3)).

        With a channel, CQ.req_notify() makes the queue report its next completion there. `cq_context` is any
        object of the caller. Raises VerbsError: EINVAL if `comp_vector` is not below num_comp_vectors.
        """
        return nic.CQ(self, cqe, channel, cq_context, comp_vector)

    def create_cq_ex(self, attr: CQInitAttrEx) -> nic.CQEX:
        """Create an extended completion queue, whose completions are read one by one (ibv_create_cq_ex(3)).

        Raises VerbsError: EOPNOTSUPP for fields that the device's completions do not have.
        """
        return nic.CQEX(
            self, attr.cqe, attr.channel, attr.cq_context, attr.comp_vector, extensions=attr.extensions()
        )

    def create_counters(self) -> nic.FlowCounters:
        """Create an object for counters of flows (ibv_create_counters(3))."""
        return nic.FlowCounters(self)

    def create_wq(self, init_attr: WQInitAttr) -> WQ:
        """Create a receive work queue, in the state RESET (ibv_create_wq(3)).

        Raises VerbsError: EINVAL for a size beyond DeviceAttr's limits, EOPNOTSUPP for flags, ENOMEM beyond
        DeviceAttrEx.max_wq_type_rq.
        """
        return WQ(self, init_attr)

    def create_rwq_ind_table(self, init_attr: RwqIndTableInitAttr) -> RwqIndTable:
        """Create an indirection table of work queues (ibv_create_rwq_ind_table(3)).

        Raises VerbsError: EINVAL if the length of ind_tbl is not 2**log_ind_tbl_size, or is too large.
        """
        return RwqIndTable(self, init_attr)

    def create_comp_cntr(self, attr: CompCntrInitAttr | None = None) -> nic.CompCntr:
        """A new completion counter, at 0 (rdma-core 64: ibv_create_comp_cntr(3)).

        Without `attr` it counts work requests.
        """
        return nic.CompCntr(self, attr or CompCntrInitAttr())
