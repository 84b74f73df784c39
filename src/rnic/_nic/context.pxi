# SPDX-License-Identifier: Apache-2.0

cdef enum:
    MAX_PKEYS = 256     # that are handed on; how many a port takes is the provider's to say


cdef int fill_pkeys(uint16_t *table, pkeys, str verb) except -1:
    keys = tuple(pkeys)
    if len(keys) > MAX_PKEYS:
        raise VerbsError(EINVAL, f"{len(keys)} P_Keys do not fit the table", verb)
    for i, key in enumerate(keys):
        if not 0 <= key <= 0xFFFF:
            raise VerbsError(EINVAL, f"P_Key {key:#x} does not have 16 bits", verb)
        table[i] = key
    return len(keys)


cdef class Context(Handle):
    """An open device (ibv_open_device(3)); rnic.open_device() makes it."""

    cdef rnic_context *p
    cdef readonly str name      #: The device's name.
    # The provider's extensions; NULL: it lacks them.
    cdef const rnic_ext_cm *cm
    cdef const rnic_ext_now *now
    cdef const rnic_ext_behind *behind
    cdef const rnic_ext_stats *stats
    cdef const rnic_ext_causes *causes
    cdef const rnic_ext_faults *faults
    cdef const rnic_ext_events *events
    cdef const rnic_ext_pkeys *pkeys
    cdef const rnic_ext_memory *memory
    cdef const rnic_ext_query *query
    cdef const rnic_ext_stream *stream
    cdef const rnic_ext_drive *drive

    def __init__(self):
        raise TypeError("use rnic.open_device()")

    @classmethod
    def wrap(cls, name, address):
        """Take over a provider's struct rnic_context at this address; close() calls the provider's close."""
        cdef Context self = cls.__new__(cls)
        cdef rnic_context *p = <rnic_context *><uintptr_t>address
        cdef rnic_err err
        err.text[0] = 0
        check(rnic_provider_check(p.provider, &err), "open_device", &err)
        self.adopt(name, p)
        return self

    @classmethod
    def raw_open(cls, provider, name, rcvbuf=0, max_window=0, no_gso=False, pkeys=(), congestion=0, local=0):
        """Open a device of a provider, both by name."""
        cdef Context self = cls.__new__(cls)
        cdef const rnic_provider *its = provider_of(provider, "open_device")
        cdef rnic_open_attr attr
        cdef rnic_context *p = NULL
        cdef rnic_err err
        cdef bytes encoded = os.fsencode(name)
        cdef const char *c_name = encoded
        cdef int rc
        cdef uint16_t table[MAX_PKEYS]
        memset(&attr, 0, sizeof(attr))
        attr.num_pkeys, attr.pkeys = fill_pkeys(table, pkeys, "open_device"), table
        attr.rcvbuf, attr.max_window, attr.no_gso = rcvbuf, max_window, no_gso
        attr.congestion, attr.local = congestion, local
        err.text[0] = 0
        with nogil:
            rc = its.open(c_name, &attr, &p, &err)
        check(rc, "open_device", &err)
        self.adopt(name, p)
        return self

    @classmethod
    def raw_import(cls, int cmd_fd):
        """The context behind a cmd_fd, of whichever provider it is, and its device as of device_list()."""
        cdef Context self = cls.__new__(cls)
        cdef const rnic_provider *its = rnic_provider_at(0)
        cdef rnic_device_info info
        cdef rnic_context *p = NULL
        cdef rnic_err first, err
        cdef int rc = -EINVAL, i = 0
        first.text[0] = 0
        while its is not NULL and rc == -EINVAL:
            if its.import_ is not NULL:
                err.text[0] = 0
                with nogil:
                    rc = its.import_(cmd_fd, &p, &info, &err)
                if rc != -EINVAL or first.text[0] == 0:
                    first = err
            i += 1
            its = rnic_provider_at(i)
        check(rc, "import_device", &first)
        self.adopt(info.name.decode(), p)
        return self, described(&info, p.provider)

    cdef int adopt(self, str name, rnic_context *p) except -1:
        self.p = p
        self.ops = p.ops
        self.cm = <const rnic_ext_cm *>rnic_extension(p, RNIC_EXT_CM)
        self.now = <const rnic_ext_now *>rnic_extension(p, RNIC_EXT_NOW)
        self.behind = <const rnic_ext_behind *>rnic_extension(p, RNIC_EXT_BEHIND)
        self.stats = <const rnic_ext_stats *>rnic_extension(p, RNIC_EXT_STATS)
        self.causes = <const rnic_ext_causes *>rnic_extension(p, RNIC_EXT_CAUSES)
        self.faults = <const rnic_ext_faults *>rnic_extension(p, RNIC_EXT_FAULTS)
        self.events = <const rnic_ext_events *>rnic_extension(p, RNIC_EXT_EVENTS)
        self.pkeys = <const rnic_ext_pkeys *>rnic_extension(p, RNIC_EXT_PKEYS)
        self.memory = <const rnic_ext_memory *>rnic_extension(p, RNIC_EXT_MEMORY)
        self.query = <const rnic_ext_query *>rnic_extension(p, RNIC_EXT_QUERY)
        self.stream = <const rnic_ext_stream *>rnic_extension(p, RNIC_EXT_STREAM)
        self.drive = <const rnic_ext_drive *>rnic_extension(p, RNIC_EXT_DRIVE)
        self.name = name
        self.closer = "close_device"
        self.live = True
        contexts.add(self)
        return 0

    cdef int destroy(self, rnic_err *err):
        cdef int rc
        with nogil:
            rc = self.ops.close(self.p, err)
        return rc

    def close(self, force=False):
        """Close the device (ibv_close_device(3)); a second call does nothing.

        With `force` all objects that are left in the context are closed with it, as the kernel does at the end of a
        process: queue pairs leave their multicast groups, work under way does not complete, and events need not be
        acknowledged. If import_device() has opened the same context once more in this process, its objects stay in
        the device until the last of these is closed, with `force`.

        Raises VerbsError: EBUSY, and nothing is closed, without `force` while objects are left, and with it while a
        call in another thread (which may wait for an event) uses the context or an object of it, or an MR.buf of memory
        that the device has allocated is used. EBUSY, too, while a process that has been stopped is in the middle of
        reading or writing memory: then all objects are closed, and close() can be called again. EOPNOTSUPP for `force`,
        if the device's provider lacks it.
        """
        if force and self.live and self.pid == getpid():
            self.close_all()
        else:
            Handle.close(self)

    cdef int close_all(self) except -1:
        cdef rnic_err err
        cdef int rc
        cdef dict found = {}
        self.need_verb("close_device", self.ops.close_all is not NULL)
        self.gather(found)
        for one in found.values():
            (<Handle>one).check_idle("close_device")
        for one in found.values():
            (<Handle>one).live = False
        self.leaving = True
        err.text[0] = 0
        with nogil:
            rc = self.ops.close_all(self.p, &err)
        del found[id(self)]
        for one in found.values():
            (<Handle>one).gone()
            (<Handle>one).detach()
        self.leaving, self.live = False, rc < 0
        return check(rc, "close_device", &err)

    cdef str label(self):
        return f"Context {self.name}"

    cdef object user(self, void *key):
        """The object of this context that was given to the provider as key; None when it has gone."""
        # First without Python's code, in which the handler of a signal could raise: what has been taken would be lost.
        if self.live and <uintptr_t>key in self.users:
            return self.users[<uintptr_t>key]()
        for one in (self, *contexts):  # an imported context is the same one to the provider
            if (<Context>one).live and (<Context>one).p == self.p and <uintptr_t>key in (<Context>one).users:
                return (<Context>one).users[<uintptr_t>key]()
        return None

    @property
    def cmd_fd(self):
        """The file descriptor for import_device(), in this process or, sent by SCM_RIGHTS, in another one.

        The context owns it: pass on a duplicate, or leave the context open until the other process has imported it. A
        process with this descriptor can map all memory of alloc_mr() and alloc_dm() of this context, and use it. -1:
        the provider has no such descriptor.
        """
        self.need("cmd_fd")
        return self.p.cmd_fd

    @property
    def provider(self):
        """The name of the device's provider: "soft" is the software RNIC."""
        self.need("provider")
        return self.p.provider.name.decode()

    @property
    def extensions(self):
        """The names of what the device's provider has beyond the verbs of libibverbs, such as "rnic.cm/1" (nic_ext.h).

        Calls that need another one raise EOPNOTSUPP.
        """
        cdef const rnic_extension_row *row
        self.need("extensions")
        names = []
        row = self.p.provider.extensions
        while row is not NULL and row.name is not NULL:
            names.append(row.name.decode())
            row += 1
        return tuple(names)

    def raw_query_device(self):
        """The fields of struct rnic_device_attr."""
        cdef rnic_device_attr attr
        cdef rnic_err err
        self.need("query_device")
        memset(&attr, 0, sizeof(attr))
        err.text[0] = 0
        check(self.ops.query_device(self.p, &attr, &err), "query_device", &err)
        return attr

    @property
    def num_comp_vectors(self):
        """The number of completion vectors, of which create_cq() chooses one.

        A vector is a thread that delivers completion events. The software RNIC has one.
        """
        self.need("num_comp_vectors")
        return self.p.num_comp_vectors

    def raw_query_device_ex(self):
        """The fields of struct rnic_device_attr_ex."""
        cdef rnic_device_attr_ex attr
        cdef rnic_err err
        self.need("query_device_ex")
        memset(&attr, 0, sizeof(attr))
        err.text[0] = 0
        if self.ops.query_device_ex is NULL:    # as libibverbs does
            check(self.ops.query_device(self.p, &attr.orig_attr, &err), "query_device_ex", &err)
        else:
            check(self.ops.query_device_ex(self.p, &attr, &err), "query_device_ex", &err)
        return attr

    def raw_query_rt_values(self, uint32_t comp_mask):
        """(comp_mask, tv_sec, tv_nsec) of struct rnic_values_ex."""
        cdef rnic_values_ex values
        cdef rnic_err err
        self.need_verb("query_rt_values_ex", self.ops.query_rt_values is not NULL)
        memset(&values, 0, sizeof(values))
        values.comp_mask = comp_mask
        err.text[0] = 0
        check(self.ops.query_rt_values(self.p, &values, &err), "query_rt_values_ex", &err)
        return values.comp_mask, values.raw_clock.tv_sec, values.raw_clock.tv_nsec

    def raw_init_ah_from_wc(self, int port_num, WC wc, const uint8_t[::1] grh, int sgid_index):
        """The fields of struct rnic_ah_attr; sgid_index -1: the address that the datagram came to."""
        cdef rnic_ah_attr attr
        cdef rnic_err err
        self.need("init_ah_from_wc")
        err.text[0] = 0
        if grh.shape[0] < 40:
            raise VerbsError(EINVAL, f"{grh.shape[0]} bytes are no GRH, which has 40", "init_ah_from_wc")
        check(rnic_init_ah_from_wc(self.p, port_num, &wc.c, &grh[0], sgid_index, &attr, &err), "init_ah_from_wc", &err)
        return attr

    def raw_query_comp_cntr_caps(self):
        """The fields of struct rnic_comp_cntr_caps."""
        cdef rnic_comp_cntr_caps caps
        cdef rnic_err err
        self.need_verb("query_comp_cntr_caps", self.ops.query_comp_cntr_caps is not NULL)
        err.text[0] = 0
        check(self.ops.query_comp_cntr_caps(self.p, &caps, &err), "query_comp_cntr_caps", &err)
        return caps

    def raw_query_raw(self):
        """The fields of struct rnic_raw_attr."""
        cdef rnic_raw_attr attr
        cdef rnic_err err
        self.need_verb("query_raw", self.query is not NULL)
        memset(&attr, 0, sizeof(attr))
        err.text[0] = 0
        check(self.query.raw(self.p, &attr, &err), "query_raw", &err)
        return attr

    def raw_query_port(self, int port):
        """The fields of struct rnic_port_attr."""
        cdef rnic_port_attr attr
        cdef rnic_err err
        self.need("query_port")
        memset(&attr, 0, sizeof(attr))
        err.text[0] = 0
        check(self.ops.query_port(self.p, port, &attr, &err), "query_port", &err)
        return attr

    def raw_query_gid(self, int port, int index):
        """The fields of struct rnic_gid_entry."""
        cdef rnic_gid_entry entry
        cdef rnic_err err
        self.need("query_gid")
        memset(&entry, 0, sizeof(entry))
        err.text[0] = 0
        check(self.ops.query_gid(self.p, port, index, &entry, &err), "query_gid", &err)
        return entry

    def query_pkey(self, int port, int index):
        """The partition key at an index of a port's table, a 16-bit number (ibv_query_pkey(3))."""
        cdef uint16_t pkey = 0
        cdef rnic_err err
        self.need_verb("query_pkey", self.ops.query_pkey is not NULL)
        err.text[0] = 0
        check(self.ops.query_pkey(self.p, port, index, &pkey, &err), "query_pkey", &err)
        return pkey

    def set_pkeys(self, pkeys, int port_num=1):
        """Fill a port's P_Key table from index 0 on; the other entries become empty. A change raises the event
        PKEY_CHANGE.

        On InfiniBand links the subnet manager does this; a software device has none. Queue pairs follow the entry of
        their pkey_index. Raises VerbsError: EINVAL for more than query_port().pkey_tbl_len keys, for a duplicate, or
        for a key that names no partition (IBA 10.9.1).
        """
        cdef uint16_t table[MAX_PKEYS]
        cdef rnic_err err
        cdef int n
        self.need_verb("set_pkeys", self.pkeys is not NULL)
        n = fill_pkeys(table, pkeys, "set_pkeys")
        err.text[0] = 0
        check(self.pkeys.set(self.p, port_num, table, n, &err), "set_pkeys", &err)

    def raw_counters(self):
        """The values of struct rnic_counters, in the order of counter_names()."""
        cdef rnic_counters counters
        cdef rnic_err err
        self.need_verb("query_counters", self.stats is not NULL)
        memset(&counters, 0, sizeof(counters))
        err.text[0] = 0
        check(self.stats.query_counters(self.p, &counters, &err), "query_counters", &err)
        return counters.value

    def raw_set_fault(self, values, lose=()):
        """Set the fault injector: a dict of struct rnic_fault's numbers and up to 8 (opcode, nth, count); None: off."""
        cdef rnic_fault fault
        cdef rnic_err err
        cdef int i
        self.need_verb("set_fault", self.faults is not NULL)
        err.text[0] = 0
        if values is None:
            check(self.faults.set(self.p, NULL, &err), "set_fault", &err)
            return
        memset(&fault, 0, sizeof(fault))
        fault.seed, fault.loss, fault.duplicate = values["seed"], values["loss"], values["duplicate"]
        fault.reorder, fault.delay, fault.flip = values["reorder"], values["delay"], values["flip"]
        fault.reorder_gap, fault.delay_ns = values["reorder_gap"], values["delay_ns"]
        fault.mark, fault.reset, fault.stall = values["mark"], values["reset"], values["stall"]
        fault.reset_after, fault.stall_after = values["reset_after"], values["stall_after"]
        fault.chunk, fault.flip_header = values["chunk"], values["flip_header"]
        if len(lose) > RNIC_FAULT_RULES:
            raise VerbsError(EINVAL, f"at most {RNIC_FAULT_RULES} rules can lose packets", "set_fault")
        for i, (opcode, nth, count) in enumerate(lose):
            fault.lose[i].opcode, fault.lose[i].nth, fault.lose[i].count = opcode, nth, count
        check(self.faults.set(self.p, &fault, &err), "set_fault", &err)

    def raw_raise_event(self, int event_type, uint64_t after):
        """Raise an asynchronous event `after` ns from now."""
        cdef rnic_err err
        self.need_verb("raise_event", self.events is not NULL)
        err.text[0] = 0
        check(self.events.raise_(self.p, event_type, after, &err), "raise_event", &err)

    def cm_slot(self):
        """The number in the upper 10 bits of every communication id of this context.

        On a host with many processes, messages of the CM find the right process by it: index | cm_slot() << 22 is a
        valid id.
        """
        cdef uint32_t slot = 0
        cdef rnic_err err
        self.need_verb("cm_slot", self.cm is not NULL)
        err.text[0] = 0
        check(self.cm.slot(self.p, &slot, &err), "cm_slot", &err)
        return slot

    def cm_watch(self, uint32_t slot):
        """A file descriptor that hangs up (POLLHUP) when the process of this host with this slot dies; the caller
        closes it.

        It also hangs up when that process closes its context. It does not hang up while the process is stopped, nor
        when another process takes the slot afterwards. Raises VerbsError: ECONNREFUSED if no process has the slot.
        """
        cdef int fd = -1
        cdef rnic_err err
        self.need_verb("cm_watch", self.cm is not NULL)
        err.text[0] = 0
        check(self.cm.watch(self.p, slot, &fd, &err), "cm_watch", &err)
        return fd

    def raw_cm_watch_service(self, uint64_t service_id, raw_gid):
        """cm_watch() of the process that listens to a service at an address."""
        cdef int fd = -1
        cdef rnic_gid gid = gid_of(raw_gid)
        cdef rnic_err err
        self.need_verb("cm_watch_service", self.cm is not NULL)
        err.text[0] = 0
        check(self.cm.watch_service(self.p, service_id, &gid, &fd, &err), "cm_watch_service", &err)
        return fd

    def stream_fileno(self):
        """A file descriptor that is readable while next_stream_event() has an event; the context owns it. EOPNOTSUPP: the
        device has no connections of this kind.
        """
        cdef rnic_err err
        self.need_verb("stream_fileno", self.stream is not NULL)
        err.text[0] = 0
        return check(self.stream.fd(self.p), "stream_fileno", &err)

    def raw_next_stream_event(self):
        """The fields of struct rnic_stream_event; None: there is no event."""
        cdef rnic_stream_event event
        cdef rnic_err err
        cdef int rc
        self.need_verb("next_stream_event", self.stream is not NULL)
        memset(&event, 0, sizeof(event))
        err.text[0] = 0
        rc = self.stream.next_event(self.p, &event, &err)
        if rc == -EAGAIN:
            return None
        check(rc, "next_stream_event", &err)
        return event

    def find_qp(self, int qp_num):
        """The open queue pair of this context with a number; None: there is none."""
        cdef dict found = {}
        self.gather(found)
        return next((one for one in found.values() if isinstance(one, QP) and one.qp_num == qp_num), None)

    def async_fileno(self):
        """A file descriptor that is readable while asynchronous events wait, for select, epoll and asyncio."""
        self.need_verb("get_async_event", self.ops.get_async_event is not NULL)
        return self.p.async_fd

    def raw_get_async_event(self, timeout=None):
        """The next asynchronous event as (event_type, port_num, object or None, its AsyncToken or None); waits for one."""
        cdef rnic_async_event event
        cdef rnic_err err
        cdef double deadline = deadline_of(timeout)
        cdef int rc
        while True:
            self.need_verb("get_async_event", self.ops.get_async_event is not NULL)
            memset(&event, 0, sizeof(event))
            err.text[0] = 0
            # With the GIL: the object behind event.context cannot go before it is held here.
            rc = self.ops.get_async_event(self.p, &event, &err)
            if rc != -EAGAIN:
                check(rc, "get_async_event", &err)
                element = self.user(event.context)
                token = None if element is None else token_of(element, &event)
                if element is None and event.context is not NULL:
                    self.ops.ack_async_event(self.p, &event, &err)      # it is being collected
                return event.event_type, event.port_num, element, token
            wait_readable(self, self.p.async_fd, deadline, "get_async_event")
