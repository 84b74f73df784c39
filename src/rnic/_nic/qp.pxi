# SPDX-License-Identifier: Apache-2.0

# What bounds each field of struct rnic_qp_cap, in struct rnic_device_attr.
cdef dict CAP_LIMITS = {
    "max_send_wr": "max_qp_wr", "max_recv_wr": "max_qp_wr", "max_send_sge": "max_sge", "max_recv_sge": "max_sge",
    "max_inline_data": "max_inline_data",
}


cdef class QP(Poster):
    """A queue pair: one end of a connection (IBA 10.2.4; ibv_create_qp(3)); PD.create_qp() makes it.

    It keeps the memory regions of posted work alive.
    """

    cdef rnic_qp *p
    cdef const rnic_ext_now *now        # or NULL
    cdef const rnic_ext_behind *behind  # or NULL
    cdef readonly PD pd              #: The protection domain; None of XRC_RECV.
    cdef readonly XRCD xrcd          #: The XRC domain of XRC_RECV, else None.
    cdef readonly CQ send_cq         #: Where send work requests complete; None of XRC_RECV.
    cdef readonly CQ recv_cq         #: Where receive work requests complete; None of XRC_SEND and XRC_RECV.
    cdef readonly SRQ srq            #: Where it takes receives from, if not from its own queue.
    cdef readonly RwqIndTable rwq_ind_tbl  #: By what it spreads received frames over work queues, or None.
    cdef readonly object qp_context  #: The caller's own.
    cdef readonly uint32_t qp_num    #: The number that the peer has to know, 24 bits.
    cdef set groups             # (GID as bytes, lid) of the multicast groups that it is attached to
    cdef int type
    cdef rnic_qp_cap cap

    def __cinit__(self, PD pd, init, extension=None):
        cdef rnic_qp_init_attr_ex more
        cdef rnic_qp_init_attr *attr = &more.base
        cdef rnic_err err
        cdef CQ send_cq, recv_cq
        cdef SRQ srq
        cdef RwqIndTable table
        cdef bytes hash_key = b""
        if pd is None:
            self.make_shared(init)
            return
        send_cq, recv_cq, srq, table = init.send_cq, init.recv_cq, init.srq, init.rwq_ind_tbl
        owners = tuple(one for one in (send_cq, recv_cq, srq, table, pd) if one is not None)
        cap = init.cap.as_struct()
        for name, value in cap.items():
            limited("create_qp" if extension is None else "create_qp_ex", f"cap.{name}", value, pd.ctx, CAP_LIMITS[name])
        for needed in owners:
            (<Handle?>needed).need("create_qp")
        if extension is not None:
            pd.need_verb("create_qp_ex", pd.ops.create_qp_ex is not NULL)
        memset(&more, 0, sizeof(more))
        attr.qp_context = <void *>self
        attr.send_cq = NULL if send_cq is None else send_cq.p
        attr.recv_cq = NULL if recv_cq is None else recv_cq.p
        if table is not None:
            attr.rwq_ind_tbl = table.p
        if init.rx_hash_conf is not None:
            hash_key = init.rx_hash_conf.rx_hash_key
            attr.rx_hash_conf.rx_hash_function = init.rx_hash_conf.rx_hash_function
            attr.rx_hash_conf.rx_hash_fields_mask = init.rx_hash_conf.rx_hash_fields_mask
            attr.rx_hash_conf.rx_hash_key, attr.rx_hash_conf.rx_hash_key_len = hash_key, min(len(hash_key), 255)
        attr.srq = NULL if srq is None else srq.p
        attr.qp_type, attr.sq_sig_all = init.qp_type, init.sq_sig_all
        attr.cap = cap
        err.text[0] = 0
        if extension is None:
            check(pd.ops.create_qp(pd.p, attr, &self.p, &err), "create_qp", &err)
        else:
            more.comp_mask, more.create_flags = extension["comp_mask"], extension["create_flags"]
            more.source_qpn, more.max_tso_header = extension["source_qpn"], extension["max_tso_header"]
            more.send_ops_flags = extension["send_ops_flags"]
            check(pd.ops.create_qp_ex(pd.p, &more, &self.p, &err), "create_qp_ex", &err)
        self.now, self.behind = pd.ctx.now, pd.ctx.behind
        self.pd, self.send_cq, self.recv_cq, self.qp_context = pd, send_cq, recv_cq, init.qp_context
        self.srq, self.rwq_ind_tbl = srq, table
        self.qp_num, self.type, self.cap = self.p.qp_num, self.p.qp_type, attr.cap
        self.groups = set()
        self.attach(pd.ctx, (*owners, pd.ctx), "destroy_qp")

    cdef int make_shared(self, init) except -1:
        """Makes an XRC_RECV queue pair of init.xrcd; or, for a record with qp_num, opens an existing one
        (ibv_open_qp).
        """
        cdef XRCD xrcd = init.xrcd
        cdef uint32_t qp_num
        cdef rnic_qp_open_attr opened
        cdef rnic_qp_init_attr attr
        cdef rnic_err err
        cdef Context ctx
        verb = "open_qp" if hasattr(init, "qp_num") else "create_qp"
        if xrcd is None:
            raise VerbsError(EINVAL, "an XRC domain is needed: give xrcd", verb)
        ctx = xrcd.ctx
        opens = verb == "open_qp"
        xrcd.need_verb(verb, ctx.ops.open_qp is not NULL if opens else ctx.ops.create_xrc_qp is not NULL)
        memset(&attr, 0, sizeof(attr))
        err.text[0] = 0
        if opens:
            opened.qp_num, opened.xrcd, opened.qp_context, opened.qp_type = (
                init.qp_num, xrcd.p, <void *>self, init.qp_type)
            check(ctx.ops.open_qp(ctx.p, &opened, &self.p, &err), verb, &err)
        else:
            attr.qp_context, attr.qp_type = <void *>self, init.qp_type
            attr.send_cq = NULL if init.send_cq is None else (<CQ?>init.send_cq).p
            attr.recv_cq = NULL if init.recv_cq is None else (<CQ?>init.recv_cq).p
            attr.srq = NULL if init.srq is None else (<SRQ?>init.srq).p
            check(ctx.ops.create_xrc_qp(xrcd.p, &attr, &self.p, &err), verb, &err)
        self.now, self.behind = ctx.now, ctx.behind
        self.xrcd, self.qp_context = xrcd, init.qp_context
        self.qp_num, self.type, self.cap = self.p.qp_num, self.p.qp_type, attr.cap
        self.groups = set()
        self.attach(ctx, (xrcd, ctx), "destroy_qp")
        return 0

    cdef int destroy(self, rnic_err *err):
        cdef int rc
        with nogil:
            rc = self.ops.destroy_qp(self.p, err)
        return rc

    cdef void gone(self):
        self.kept = set()

    cdef void settle(self):
        cdef rnic_gid gid
        cdef rnic_err err
        groups, self.groups = self.groups, set()
        if self.pid == getpid():
            for raw, lid in groups:
                gid = gid_of(raw)
                self.ops.detach_mcast(self.p, &gid, lid, &err)

    cdef str label(self):
        return f"QP 0x{self.qp_num:06x}"

    @property
    def qp_type(self):
        """The transport service (QPType)."""
        return as_member(QPType, self.type)

    def raw_cap(self):
        """The fields of struct rnic_qp_cap, as granted at creation."""
        return self.cap

    def raw_modify(self, attr, uint32_t mask):
        """ibv_modify_qp with all fields of struct rnic_qp_attr."""
        cdef rnic_qp_attr c = attr
        cdef rnic_err err
        cdef int rc
        self.need("modify_qp")
        err.text[0] = 0
        self.calls += 1
        with nogil:
            rc = self.ops.modify_qp(self.p, &c, mask, &err)
        self.calls -= 1
        check(rc, "modify_qp", &err)

    def raw_query(self):
        """The fields of struct rnic_qp_attr, and those of struct rnic_qp_init_attr that are no pointers."""
        cdef rnic_qp_attr attr
        cdef rnic_qp_init_attr init
        cdef rnic_err err
        self.need_verb("query_qp", self.ops.query_qp is not NULL)
        memset(&attr, 0, sizeof(attr))
        memset(&init, 0, sizeof(init))
        err.text[0] = 0
        check(self.ops.query_qp(self.p, &attr, &init, &err), "query_qp", &err)
        return attr, {"cap": init.cap, "qp_type": init.qp_type, "sq_sig_all": init.sq_sig_all}

    def raw_attach_stream(self, int fd, const uint8_t[::1] data, values):
        """Go by a connected socket from now on, which is the queue pair's; a dict of struct rnic_stream_attr's flags."""
        cdef rnic_stream_attr attr
        cdef rnic_err err
        self.need_verb("attach_stream", self.ctx.stream is not NULL)
        memset(&attr, 0, sizeof(attr))
        attr.fd, attr.line, attr.nbytes = fd, -1, <uint32_t>data.shape[0]
        if data.shape[0]:
            attr.bytes = &data[0]
        attr.rtr, attr.initiator, attr.crc = values["rtr"], values["initiator"], values["crc"]
        attr.markers_in, attr.markers_out, attr.rfc7306 = values["markers_in"], values["markers_out"], values["rfc7306"]
        attr.tell_ready = values["tell_ready"]
        err.text[0] = 0
        check(self.ctx.stream.attach(self.p, &attr, &err), "attach_stream", &err)

    def raw_confirm_stream(self, bint both):
        """SENDs and WRITEs complete when the peer has them; the peer's, too."""
        cdef rnic_err err
        self.need_verb("confirm_stream", self.ctx.stream is not NULL)
        err.text[0] = 0
        check(self.ctx.stream.confirm(self.p, both, &err), "confirm_stream", &err)

    def raw_attach_mcast(self, bytes raw_gid, uint16_t lid):
        """ibv_attach_mcast."""
        cdef rnic_gid gid = gid_of(raw_gid)
        cdef rnic_err err
        self.need_verb("attach_mcast", self.ops.attach_mcast is not NULL)
        err.text[0] = 0
        check(self.ops.attach_mcast(self.p, &gid, lid, &err), "attach_mcast", &err)
        self.groups.add((raw_gid, lid))

    def raw_detach_mcast(self, bytes raw_gid, uint16_t lid):
        """ibv_detach_mcast."""
        cdef rnic_gid gid = gid_of(raw_gid)
        cdef rnic_err err
        self.need_verb("detach_mcast", self.ops.detach_mcast is not NULL)
        err.text[0] = 0
        check(self.ops.detach_mcast(self.p, &gid, lid, &err), "detach_mcast", &err)
        self.groups.discard((raw_gid, lid))

    def attach_comp_cntr(self, CompCntr comp_cntr not None, attr):
        """Count operations in a completion counter from now on, until the queue pair is closed
        (ibv_qp_attach_comp_cntr(3)).

        `attr` is a QPAttachCompCntrAttr, which names the operations. Each operation can have one counter; a counter
        may serve many queue pairs. Raises VerbsError: EINVAL unless the queue pair is in RESET or INIT, EBUSY if one
        of the operations has a counter, EOPNOTSUPP for an operation that the type of queue pair does not have.
        """
        cdef rnic_err err
        self.need_verb("attach_comp_cntr", self.ops.attach_comp_cntr is not NULL)
        comp_cntr.need("attach_comp_cntr")
        err.text[0] = 0
        check(self.ops.attach_comp_cntr(self.p, comp_cntr.p, attr.op_mask, &err), "attach_comp_cntr", &err)
        self.hold(comp_cntr)

    def raw_stats(self):
        """The fields of struct rnic_qp_stats."""
        cdef rnic_qp_stats stats
        cdef rnic_err err
        self.need_verb("query_qp_stats", self.ctx.stats is not NULL)
        memset(&stats, 0, sizeof(stats))
        err.text[0] = 0
        check(self.ctx.stats.query_qp(self.p, &stats, &err), "query_qp_stats", &err)
        return stats

    @property
    def state(self):
        """The current state of the queue pair (QPState)."""
        cdef rnic_qp_attr attr
        cdef rnic_qp_init_attr init
        cdef rnic_err err
        self.need_verb("query_qp", self.ops.query_qp is not NULL)
        err.text[0] = 0
        check(self.ops.query_qp(self.p, &attr, &init, &err), "query_qp", &err)
        return as_member(QPState, attr.qp_state)

    def post_send(self, wrs):
        """Post a SendWR, or a sequence of them as one chain (ibv_post_send(3)).

            qp.post_send(rnic.SendWR(1, rnic.WROpcode.SEND, rnic.SendFlags.SIGNALED, [rnic.SGE(mr)]))

        The call returns at once; completions come to send_cq. The memory must not change until the work completes,
        unless it is INLINE. Raises PostError with `bad_wr` and `index`: the requests before it were posted, it and
        those after it were not. Memory of another protection domain is found out later: the request completes with
        LOC_PROT_ERR, and the queue pair fails. This is also so for a receive.
        """
        if type(wrs) is not SendWR or not self.post_now(<SendWR>wrs):
            self.post(wrs, SendWR, "post_send")

    cdef bint post_now(self, SendWR wr) except -1:
        """Posts without releasing the GIL, which would take longer; only for a request that just names its own
        memory.
        """
        if self.now is NULL or wr.kept_by != self.token or wr.in_chain:
            return False
        if wr.c.opcode >= RNIC_WR_LOCAL_INV or wr.ah is not None:
            return False
        self.need("post_send")
        if wr.c.send_flags & RNIC_SEND_INLINE:
            wr.locate("post_send")
        return self.now.post_send(self.p, <rnic_send_wr *>wr.fill(NULL))

    def post_recv(self, wrs):
        """Post a RecvWR, or a sequence of them as one chain (ibv_post_recv(3)).

        Messages take receives in the order of posting; completions come to recv_cq. Raises PostError as post_send()
        does. Raises EINVAL if the queue pair uses a shared receive queue: post receives there.
        """
        if type(wrs) is not RecvWR or not self.receive_now(<RecvWR>wrs):
            self.post(wrs, RecvWR, "post_recv")

    cdef bint receive_now(self, RecvWR wr) except -1:
        """Posts one receive without releasing the GIL; a refused one is posted again, for the error text."""
        cdef const rnic_recv_wr *bad
        if wr.kept_by != self.token or wr.in_chain:
            return False
        self.need("post_recv")
        return self.ops.post_recv(self.p, <rnic_recv_wr *>wr.fill(NULL), &bad, NULL) == 0

    def raw_bind_mw(self, MW mw not None, info, uint32_t send_flags, uint64_t wr_id):
        """ibv_bind_mw."""
        cdef rnic_mw_bind bind
        cdef rnic_err err
        cdef int rc
        cdef MR mr
        self.need_verb("bind_mw", self.ops.bind_mw is not NULL)
        mw.need("bind_mw")
        bind.wr_id, bind.send_flags = wr_id, send_flags
        mr = bind_info_of(info, &bind.bind_info, "bind_mw")
        err.text[0] = 0
        self.calls += 1
        mw.begin_bind(mr)
        with nogil:
            rc = self.ops.bind_mw(self.p, mw.p, &bind, &err)
        mw.end_bind(mr)
        self.calls -= 1
        check(rc, "bind_mw", &err)

    def raw_post_whole(self, wrs):
        """Post a chain of SendWRs, all or none, as ibv_wr_complete does."""
        self.need_verb("wr_complete", self.ops.post_send_whole is not NULL)
        self.post(wrs, SendWR, "wr_complete", SENDS_WHOLE)

    def raw_post_behind(self, wrs):
        """As post_send(); WRITEs of a piece and of a word may wait for what is under way (struct rnic_ext_behind)."""
        self.post(wrs, SendWR, "post_send", SENDS_BEHIND)

    def raw_modify_rate_limit(self, attr):
        """ibv_modify_qp_rate_limit with the fields of struct rnic_qp_rate_limit_attr."""
        cdef rnic_qp_rate_limit_attr c = attr
        cdef rnic_err err
        self.need_verb("modify_qp_rate_limit", self.ops.modify_qp_rate_limit is not NULL)
        err.text[0] = 0
        check(self.ops.modify_qp_rate_limit(self.p, &c, &err), "modify_qp_rate_limit", &err)

    def raw_query_data_in_order(self, int opcode, uint32_t flags):
        """ibv_query_qp_data_in_order."""
        cdef rnic_err err
        self.need_verb("query_qp_data_in_order", self.ops.query_qp_data_in_order is not NULL)
        err.text[0] = 0
        return check(self.ops.query_qp_data_in_order(self.p, opcode, flags, &err), "query_qp_data_in_order", &err)

    def raw_set_ece(self, ece):
        """ibv_set_ece with the fields of struct rnic_ece; returns what was accepted."""
        cdef rnic_ece c = ece
        cdef rnic_err err
        self.need_verb("set_ece", self.ops.set_ece is not NULL)
        err.text[0] = 0
        check(self.ops.set_ece(self.p, &c, &err), "set_ece", &err)
        return c

    def raw_query_ece(self):
        """The fields of struct rnic_ece."""
        cdef rnic_ece c
        cdef rnic_err err
        self.need_verb("query_ece", self.ops.query_ece is not NULL)
        memset(&c, 0, sizeof(c))
        err.text[0] = 0
        check(self.ops.query_ece(self.p, &c, &err), "query_ece", &err)
        return c

    cdef int submit(self, int work, void *head, const void **bad, rnic_err *err) noexcept nogil:
        if work == SENDS_WHOLE:
            return self.ops.post_send_whole(self.p, <rnic_send_wr *>head, <const rnic_send_wr **>bad, err)
        if work == SENDS_BEHIND and self.behind is not NULL and self.behind.post_send(self.p, <rnic_send_wr *>head):
            return 0
        if work == SENDS or work == SENDS_BEHIND:
            return self.ops.post_send(self.p, <rnic_send_wr *>head, <const rnic_send_wr **>bad, err)
        return self.ops.post_recv(self.p, <rnic_recv_wr *>head, <const rnic_recv_wr **>bad, err)

    cdef bint idle(self):
        cdef rnic_qp_stats stats
        cdef rnic_err err
        if self.ctx.stats is NULL:
            return False
        return self.ctx.stats.query_qp(self.p, &stats, &err) == 0 and stats.sq_depth == 0 and stats.rq_depth == 0

    def __repr__(self):
        if not self.live:
            return f"<{self.label()} {name_of(self.qp_type)} closed>"
        try:
            state = name_of(self.state)
        except VerbsError:
            state = "?"
        return f"<{self.label()} {name_of(self.qp_type)} {state}>"
