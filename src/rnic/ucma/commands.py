# SPDX-License-Identifier: Apache-2.0
"""The commands of rdma/rdma_user_cm.h: what each one means for an id of rnic.rdmacm.

A command that cannot be carried out raises VerbsError with the errno that the kernel's write() would have.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from errno import EADDRINUSE, EAGAIN, EINVAL, ENODATA, ENOSPC, ENOSYS, EOPNOTSUPP
from typing import TYPE_CHECKING, Any

from rnic.enums import EventType as AsyncEventType
from rnic.enums import QPState, QPType
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm import CmId, Event, EventType, IdState, JoinFlags, Option, PortSpace, create_id
from rnic.rdmacm.connecting import DEFAULT_BACKLOG
from rnic.rdmacm.registry import registry
from rnic.records import Record
from rnic.ucma import af_ib, layouts, sockaddrs, structs
from rnic.ucma.failures import Failures
from rnic.ucma.files import File, Handle, Membership, Table
from rnic.ucma.keeping import Keeping
from rnic.ucma.layouts import HEADER, Cmd, Layout
from rnic.ucma.parking import Parking

if TYPE_CHECKING:
    from rnic.rdmacm.sockaddr import SockAddr

_log = Log("rnic.ucma")

MOST_TIMEOUT_MS = (1 << 31) - 1
REJECTED_BY_PROGRAM, REJECTED_ECE = 28, 35  # reasons of a REJ that a program can give (IBA 12.6.7.2)
LEVEL_ID, LEVEL_IB = range(2)
OPTION_IB_PATH = 1
_OPTION_BYTES = {Option.TOS: 1, Option.REUSEADDR: 4, Option.AFONLY: 4, Option.ACK_TIMEOUT: 1}
_FLAGS = (Option.REUSEADDR, Option.AFONLY)


def refuse(errno: int, text: str) -> VerbsError:
    """The error of a command."""
    return VerbsError(errno, text, "rdma_cm")


class Commands:
    """Carries out commands of all programs; one thread calls it."""

    def __init__(self, failures: Failures | None = None) -> None:
        self._failures = failures or Failures()
        self.table = Table()
        self.parking = Parking()
        self.keeping = Keeping()
        self.met: CmId | None = None

    def end(self, file: File) -> None:
        """Destroy the ids of a file: its program has closed it, or is dead."""
        self.table.remove_all(file)
        self.parking.clear(file)

    def expire(self, now: int) -> None:
        """Listeners that were destroyed a moment ago go, taken over or not; devices that nobody uses, too."""
        self.keeping.expire(now)
        for handle in self.parking.expire(now):
            try:
                self._part(handle)
            except VerbsError as error:
                _log.warning("%r has lost its port: %s", handle.one, error)

    def run(self, file: File, message: bytes) -> tuple[bytes, int, File]:
        """Carry out a command (what is written, and the value of an option): the data of the answer, their
        address in the program, and the file that may have fewer events. `met` is the id of it or its event.
        """
        if len(message) < HEADER.size:
            raise refuse(EINVAL, "a command has at least 8 bytes")
        cmd, size, room = HEADER.unpack(message)
        row = _ROWS.get(cmd)
        if row is None:
            raise refuse(ENOSYS if cmd == Cmd.GET_OPTION else EINVAL, f"there is no command {cmd}")
        body = message[HEADER.size :]
        if len(body) < size or size < (row.layout.size if row.least is None else row.least):
            raise refuse(EINVAL, f"{row.layout.names}: {size} bytes are too few")
        if room < row.room:
            raise refuse(ENOSPC, f"{room} bytes are too few for the answer")
        fields = row.layout.read(body[:size])
        self._failures.meet(cmd, fields)
        fields["rest"], fields["room"] = body[size:], room
        handle = self.table.find_anywhere(fields["id"]) if cmd == Cmd.MIGRATE_ID else None
        events_of = handle.file if handle else file
        self.met = None
        return row.call(self, file, fields)[:room], fields.get("response", 0), events_of

    def _find(self, file: File, fields: dict[str, Any]) -> Handle:
        self.met = (found := self.table.find(file, fields["id"])).one
        return found

    def _one(self, file: File, fields: dict[str, Any]) -> CmId:
        return self._find(file, fields).one

    # ------------------------------------------------------------------ ids

    def create_id(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_create_id(3)."""
        ps = _as(PortSpace, fields["ps"])
        kind = _as(QPType, fields["qp_type"]) if ps is PortSpace.IB else None
        one = create_id(file.channel, ps, qp_type=kind)
        one.orders = []  # the queue pairs are in the program
        return layouts.ID_RESP.write(id=self.table.add(file, one, fields["uid"]).number)

    def destroy_id(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_destroy_id(3)."""
        handle = self._find(file, fields)
        self.keeping.keep(handle.one)
        if not self.parking.settle(handle) and handle.one.state is IdState.LISTEN:
            self.parking.park(handle.one, file)
            self.table.forget(handle)
        else:
            self.table.remove(handle)
        return layouts.EVENTS_RESP.write(events_reported=handle.reported)

    def migrate_id(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_migrate_id(3). That the file of `fd` holds the id, src/preload has asked.

        A listener that the id has taken over stays with the parked ones until the id listens.
        """
        handle = self.table.find_anywhere(fields["id"])
        if not self.parking.has_taken(handle):
            handle.one.migrate_id(file.channel)
        handle.file = file
        return layouts.EVENTS_RESP.write(events_reported=handle.reported)

    def holds(self, file: File, fields: dict[str, Any]) -> bytes:
        """Whether an id is one of the file: if not, an error."""
        self._find(file, fields)
        return b""

    # ------------------------------------------------------------------ addresses

    def bind_ip(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_bind_addr(3)."""
        handle = self._find(file, fields)
        data, size = fields["addr"], fields.get("addr_size")
        if af_ib.is_ib(data, size):
            af_ib.bind(handle, data)
            return b""
        addr = sockaddrs.need(data, size)
        af_ib.check_unbound(handle)
        before = handle.one
        adopted = self.parking.take(addr, handle)
        if adopted is None:
            self._bind(before, addr)
            return b""
        adopted.options, adopted.context = before.options, handle
        handle.one = adopted
        before.destroy()
        return b""

    def _bind(self, one: CmId, addr: SockAddr) -> None:
        try:
            one.bind_addr(addr)
        except VerbsError as error:
            if error.errno != EADDRINUSE or not self.parking:
                raise
            self.parking.clear()
            one.bind_addr(addr)

    def _part(self, handle: Handle) -> None:
        """An id that took over a listener does something else: it is bound anew, or loses its port."""
        if self.parking.settle(handle):
            adopted = handle.one
            adopted.destroy()
            handle.one = create_id(handle.file.channel, adopted.ps, qp_type=adopted.qp_type, context=handle)
            handle.one.options, handle.one.orders = adopted.options, []
            handle.one.bind_addr(adopted.get_local_addr())

    def resolve_ip(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_resolve_addr(3)."""
        source, target = sockaddrs.read(fields["src_addr"]), sockaddrs.need(fields["dst_addr"])
        return self._resolve(file, fields, source, target)

    def resolve_addr(self, file: File, fields: dict[str, Any]) -> bytes:
        """The same, with sizes beside the addresses."""
        source = sockaddrs.read_sized(fields["src_addr"], fields["src_size"])
        target = sockaddrs.need(fields["dst_addr"], fields["dst_size"])
        return self._resolve(file, fields, source, target)

    def _resolve(
        self, file: File, fields: dict[str, Any], source: SockAddr | None, target: SockAddr
    ) -> bytes:
        handle = self._find(file, fields)
        if handle.service is not None:
            raise refuse(EINVAL, "the id is bound to an address of InfiniBand")
        self._part(handle)
        handle.one.resolve_addr(source, target, min(fields["timeout_ms"], MOST_TIMEOUT_MS))
        return b""

    def resolve_route(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_resolve_route(3)."""
        self._one(file, fields).resolve_route(min(fields["timeout_ms"], MOST_TIMEOUT_MS))
        return b""

    def query_route(self, file: File, fields: dict[str, Any]) -> bytes:
        """Addresses and path of an id."""
        return structs.route(self._one(file, fields))

    def query(self, file: File, fields: dict[str, Any]) -> bytes:
        """The same, one by one."""
        one = self._one(file, fields)
        if fields["option"] == structs.QUERY_IB_SERVICE:
            raise refuse(ENODATA, "there are service records for InfiniBand only")
        if fields["option"] not in structs.QUERIES:
            raise refuse(ENOSYS, f"there is no query {fields['option']}")
        answer, room = structs.QUERIES[fields["option"]]
        if fields["room"] < room:
            raise refuse(ENOSPC, f"{fields['room']} bytes are too few for the answer")
        return answer(one)

    def resolve_ib_service(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_resolve_addrinfo(3) with RAI_SA."""
        handle = self._find(file, fields)
        if handle.one.state is not IdState.ADDR_BOUND and handle.service is None:
            raise refuse(EINVAL, "the id is not bound to an address")
        raise refuse(EOPNOTSUPP, "there are service records for InfiniBand only")

    # ------------------------------------------------------------------ connections

    def listen(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_listen(3); a backlog that is no number, as C has it, is the longest."""
        handle, backlog = self._find(file, fields), fields["backlog"]
        backlog = backlog if 0 < backlog < 1 << 31 else DEFAULT_BACKLOG
        if handle.service is not None and handle.one.state is IdState.IDLE:
            self._bind(handle.one, af_ib.place(handle.service))
        if self.parking.settle(handle):
            handle.one.backlog = backlog
            handle.one.migrate_id(file.channel)
        else:
            handle.one.listen(backlog)
        return b""

    def connect(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_connect(3)."""
        one = self._one(file, fields)
        is_valid, param = structs.conn_param(fields["conn_param"])
        if not is_valid:
            raise refuse(EINVAL, "there are no parameters")
        _offer(one, fields)
        one.connect(structs.service(param) if one.is_datagram else structs.connected(param))
        return b""

    def accept(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_accept(3); without parameters rdma_establish(3). As with the kernel, the peer is refused if it
        fails.
        """
        handle = self._find(file, fields)
        one = handle.one
        is_valid, param = structs.conn_param(fields["conn_param"])
        uid_before = handle.uid
        with registry.lock:  # no event of the connection comes before it is clear whether it is told
            try:
                if is_valid:
                    handle.uid = fields["uid"]
                    _offer(one, fields)
                    one.accept(structs.service(param) if one.is_datagram else structs.connected(param))
                else:
                    one.establish()
            except VerbsError:
                handle.uid = uid_before
                with contextlib.suppress(VerbsError):  # nothing waits for an answer
                    one.reject()
                raise
        return b""

    def reject(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_reject(3), rdma_reject_ece(3)."""
        one, reason = self._one(file, fields), fields["reason"]
        data = fields["private_data"][: fields["private_data_len"]]
        if reason == REJECTED_ECE:
            one.reject_ece(data)
        elif reason in (0, REJECTED_BY_PROGRAM):
            one.reject(data)
        else:
            raise refuse(EINVAL, f"a program cannot give the reason {reason}")
        return b""

    def disconnect(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_disconnect(3)."""
        self._one(file, fields).disconnect()
        return b""

    def init_qp_attr(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_init_qp_attr(3)."""
        one, state = self._one(file, fields), _as(QPState, fields["qp_state"])
        return structs.qp_attr(one, one.init_qp_attr(state))

    def notify(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_notify(3); an id without a device takes every event, and does nothing."""
        one = self._one(file, fields)
        if one.verbs is not None:
            one.notify(_as(AsyncEventType, fields["event"]))
        return b""

    def set_option(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_set_option(3); the value follows the command."""
        handle, value = self._find(file, fields), fields["rest"]
        if fields["optlen"] != len(value):
            raise refuse(EINVAL, f"the value has {len(value)} bytes, not {fields['optlen']}")
        if (fields["level"], fields["optname"]) == (LEVEL_IB, OPTION_IB_PATH):
            handle.one.set_path(structs.given_path(value, handle.one))
            return b""
        if fields["level"] != LEVEL_ID or fields["optname"] not in tuple(Option):
            raise refuse(ENOSYS, f"there is no option {fields['optname']} of level {fields['level']}")
        option = Option(fields["optname"])
        if len(value) != _OPTION_BYTES[option]:
            raise refuse(EINVAL, f"{option.name} has {_OPTION_BYTES[option]} bytes, not {len(value)}")
        number = value[0] if len(value) == 1 else struct.unpack("=i", value)[0]
        if option in _FLAGS:
            self._part(handle)
            number = int(bool(number))
        handle.one.set_option(option, number)
        return b""

    # ------------------------------------------------------------------ multicast groups

    def join_mcast(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_join_multicast_ex(3)."""
        handle = self._find(file, fields)
        self._part(handle)
        addr = sockaddrs.need(fields["addr"], fields.get("addr_size"))
        flags = _as(JoinFlags, fields.get("join_flags", 0))
        member = self.table.join(handle, fields["uid"], addr)
        try:
            handle.one.join_multicast_ex(addr, flags, member)
        except BaseException:
            self.table.leave(member)
            raise
        return layouts.ID_RESP.write(id=member.number)

    def leave_mcast(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_leave_multicast(3)."""
        member = self.table.find_group(file, fields["id"])
        self.table.leave(member)
        member.handle.one.leave_multicast(member.addr)
        return layouts.EVENTS_RESP.write(events_reported=member.reported)

    # ------------------------------------------------------------------ events

    def write_cm_event(self, file: File, fields: dict[str, Any]) -> bytes:
        """rdma_write_cm_event(3): an event of the program's own, with 8 bytes that it is given back."""
        if fields["event"] not in structs.OF_PROGRAMS:
            raise refuse(EINVAL, f"a program cannot write the event {fields['event']}")
        written = structs.Written(fields["event"], fields["status"], fields["param"][:8])
        self._one(file, fields).write_cm_event(EventType.USER, arg=written)
        return b""

    def get_event(self, file: File, _fields: dict[str, Any]) -> bytes:
        """rdma_get_cm_event(3), for a thread that has taken a byte. EAGAIN: its event has gone."""
        found = file.channel.fetch()
        if found is None:
            raise refuse(EAGAIN, "there is no event")
        with found:
            return self._shown(file, found)

    def _shown(self, file: File, found: Event) -> bytes:
        if isinstance(found.arg, Membership):
            if not self.table.has_group(found.arg):
                raise refuse(EAGAIN, "the group has been left")
            found.arg.reported += 1
            return structs.event(found, found.arg.number, found.arg.uid)
        owner: Handle = found.owner.context  # type: ignore[assignment] # what Table.add() says
        owner.reported += 1
        number, self.met = owner.number, owner.one
        if found.event is EventType.CONNECT_REQUEST:
            handle = self.table.add(file, found.id)
            number, handle.service = handle.number, owner.service
            if found.id.channel is not file.channel:  # the listener was another file's when the request came
                found.id.migrate_id(file.channel)
        return structs.event(found, number, owner.uid)


def _offer(one: CmId, fields: dict[str, Any]) -> None:
    """A vendor's options, if the program knows of them and has some."""
    options = structs.ece(fields["ece"])
    if options.vendor_id:
        one.set_local_ece(options)


def _as(kind: Any, value: int) -> Any:
    """A number as one of an enumeration. Raises VerbsError: EINVAL if it has none of this number."""
    try:
        return kind(value)
    except ValueError:
        raise refuse(EINVAL, f"{value} is no {kind.__name__}") from None


class Row(Record):
    """A command: its struct, the least room for the answer, the least of the struct that is given."""

    layout: Layout
    call: Callable[[Commands, File, dict[str, Any]], bytes]
    room: int = 0
    least: int | None = None
    """None: all of it."""


_C = Commands
_ROWS: dict[int, Row] = {
    Cmd.CREATE_ID: Row(layouts.CREATE_ID, _C.create_id, layouts.ID_RESP.size),
    Cmd.DESTROY_ID: Row(layouts.OF_ID, _C.destroy_id, layouts.EVENTS_RESP.size),
    Cmd.BIND_IP: Row(layouts.BIND_IP, _C.bind_ip),
    Cmd.BIND: Row(layouts.BIND, _C.bind_ip),
    Cmd.RESOLVE_IP: Row(layouts.RESOLVE_IP, _C.resolve_ip),
    Cmd.RESOLVE_ADDR: Row(layouts.RESOLVE_ADDR, _C.resolve_addr),
    Cmd.RESOLVE_ROUTE: Row(layouts.RESOLVE_ROUTE, _C.resolve_route),
    Cmd.QUERY_ROUTE: Row(layouts.QUERY, _C.query_route, layouts.ROUTE_RESP.offset("ibdev_index")),
    Cmd.QUERY: Row(layouts.QUERY, _C.query),
    Cmd.CONNECT: Row(layouts.CONNECT, _C.connect, least=layouts.CONNECT.offset("ece")),
    Cmd.LISTEN: Row(layouts.LISTEN, _C.listen),
    Cmd.ACCEPT: Row(layouts.ACCEPT, _C.accept, least=layouts.ACCEPT.offset("ece")),
    Cmd.REJECT: Row(layouts.REJECT, _C.reject),
    Cmd.DISCONNECT: Row(layouts.DISCONNECT, _C.disconnect),
    Cmd.INIT_QP_ATTR: Row(layouts.INIT_QP_ATTR, _C.init_qp_attr, layouts.QP_ATTR.size),
    Cmd.GET_EVENT: Row(layouts.GET_EVENT, _C.get_event, layouts.EVENT_RESP.offset("reserved")),
    Cmd.SET_OPTION: Row(layouts.SET_OPTION, _C.set_option),
    Cmd.NOTIFY: Row(layouts.NOTIFY, _C.notify),
    Cmd.JOIN_IP_MCAST: Row(layouts.JOIN_IP_MCAST, _C.join_mcast, layouts.ID_RESP.size),
    Cmd.JOIN_MCAST: Row(layouts.JOIN_MCAST, _C.join_mcast, layouts.ID_RESP.size),
    Cmd.LEAVE_MCAST: Row(layouts.OF_ID, _C.leave_mcast, layouts.EVENTS_RESP.size),
    Cmd.RESOLVE_IB_SERVICE: Row(layouts.RESOLVE_IB_SERVICE, _C.resolve_ib_service),
    Cmd.WRITE_CM_EVENT: Row(layouts.WRITE_CM_EVENT, _C.write_cm_event),
    Cmd.MIGRATE_ID: Row(layouts.MIGRATE_ID, _C.migrate_id, layouts.EVENTS_RESP.size),
    layouts.HOLDS: Row(layouts.OF_FILE, _C.holds),
}
