# SPDX-License-Identifier: Apache-2.0


@cython.final
cdef class CQEX(CQ):
    """An extended completion queue, whose completions are read one by one (ibv_create_cq_ex(3)).

            try:
                cq.start_poll()
                while True:
                    print(cq.wr_id, cq.status, cq.read_byte_len())
                    cq.next_poll()
            ...

    start_poll() and next_poll() return True if there is a completion, else False. Then `wr_id`, `status` and the
    read_...() methods return its fields, until the next call or end_poll(). Only fields that the queue was created to
    keep (CQInitAttrEx.wc_flags) can be read. Threads that share the queue need a lock of their own, since there is
    one current completion. Context.create_cq_ex() makes it.
    """

    cdef rnic_wc c
    cdef rnic_wc_ex beside
    cdef uint64_t flags
    cdef bint current           # c is a completion

    def __cinit__(
        self, Context context not None, cqe, CompChannel channel=None, cq_context=None, comp_vector=0,
        extensions=None,
    ):
        self.flags = extensions["wc_flags"]

    cdef bint take(self, str verb) except -1:
        """Makes the next completion the current one; False: there is none."""
        cdef int got
        self.current = False
        self.calls += 1
        with nogil:
            got = self.ops.poll_cq_ex(self.p, 1, &self.c, &self.beside)
        self.calls -= 1
        if got < 0:
            self.raise_poll_error(got, verb)
        self.current = got == 1
        return self.current

    def start_poll(self):
        """Begin a batch with the oldest completion. Returns False if there is none; then no batch has begun.

        Raises VerbsError: EBUSY if the last batch has not ended, EOVERFLOW if the queue has overrun.
        """
        self.need("start_poll")
        if self.in_batch:
            raise VerbsError(EBUSY, f"a batch of {self.label()} is being polled: end_poll() first", "start_poll")
        if self.kept is not NULL:
            raise VerbsError(EBUSY, f"poll() had no memory for completions of {self.label()}: poll() first", "start_poll")
        self.in_batch = True
        try:
            self.take("start_poll")
        finally:
            self.in_batch = self.current
        return self.current

    def next_poll(self):
        """Move to the next completion. Returns False if there is none; the batch continues until end_poll()."""
        self.need("next_poll")
        if not self.in_batch:
            raise VerbsError(EINVAL, "no batch has begun: start_poll() first", "next_poll")
        return self.take("next_poll")

    def end_poll(self):
        """End the batch; after a start_poll() that returned False this does nothing."""
        self.in_batch = self.current = False

    cdef int field(self, uint64_t flag, str name) except -1:
        """Raise an error if there is no current completion, or if it does not have this field."""
        if not self.current:
            raise VerbsError(EINVAL, "no completion is being looked at: start_poll() first", name)
        if flag & ~self.flags:
            missing = CreateCQWCFlags(flag).name
            raise VerbsError(EINVAL, f"{self.label()} does not keep it: create it with wc_flags {missing}", name)
        return 0

    @property
    def wr_id(self):
        """The wr_id of the work request."""
        self.field(0, "wr_id")
        return self.c.wr_id

    @property
    def status(self):
        """How the work request ended (WCStatus)."""
        self.field(0, "status")
        return WC_STATUS.get(self.c.status, self.c.status)

    def read_opcode(self):
        """The operation that completed (WCOpcode)."""
        self.field(0, "read_opcode")
        return WC_OPCODE.get(self.c.opcode, self.c.opcode)

    def read_vendor_err(self):
        """The provider's reason for a failure, a number; explain() says it in words."""
        self.field(0, "read_vendor_err")
        return self.c.vendor_err

    def read_wc_flags(self):
        """Which optional fields are valid (WCFlags)."""
        self.field(0, "read_wc_flags")
        return WCFlags(self.c.wc_flags)

    def read_byte_len(self):
        """The number of bytes received, read or fetched; not valid for other operations."""
        self.field(RNIC_WC_EX_WITH_BYTE_LEN, "read_byte_len")
        return self.c.byte_len

    def read_imm_data(self):
        """The immediate data of the message, 32 bits, or None."""
        self.field(RNIC_WC_EX_WITH_IMM, "read_imm_data")
        return ntohl(self.c.imm_data) if self.c.wc_flags & RNIC_WCF_WITH_IMM else None

    def read_invalidated_rkey(self):
        """The key that the peer's SEND_WITH_INV invalidated, or None; the queue keeps it with WITH_IMM."""
        self.field(RNIC_WC_EX_WITH_IMM, "read_invalidated_rkey")
        return self.c.invalidated_rkey if self.c.wc_flags & RNIC_WCF_WITH_INV else None

    def read_qp_num(self):
        """The number of the local queue pair."""
        self.field(RNIC_WC_EX_WITH_QP_NUM, "read_qp_num")
        return self.c.qp_num

    def read_src_qp(self):
        """The number of the sender's queue pair, for datagrams."""
        self.field(RNIC_WC_EX_WITH_SRC_QP, "read_src_qp")
        return self.c.src_qp

    def read_slid(self):
        """The sender's local identifier, on InfiniBand links."""
        self.field(RNIC_WC_EX_WITH_SLID, "read_slid")
        return self.c.slid

    def read_sl(self):
        """The service level of a received datagram."""
        self.field(RNIC_WC_EX_WITH_SL, "read_sl")
        return self.c.sl

    def read_dlid_path_bits(self):
        """The path bits of the local identifier that a datagram was sent to."""
        self.field(RNIC_WC_EX_WITH_DLID_PATH_BITS, "read_dlid_path_bits")
        return self.c.dlid_path_bits

    def read_flow_tag(self):
        """The tag of the rule that steered the frame here (SpecActionTag); 0: none."""
        self.field(RNIC_WC_EX_WITH_FLOW_TAG, "read_flow_tag")
        return 0 if self.c.wc_flags & (RNIC_WCF_WITH_IMM | RNIC_WCF_WITH_INV) else self.c.flow_tag

    def read_completion_ts(self):
        """The time of the completion, by the clock of Context.query_rt_values_ex(), in DeviceAttrEx.hca_core_clock
        kHz.
        """
        self.field(RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP, "read_completion_ts")
        return self.beside.raw

    def read_completion_wallclock_ns(self):
        """The time of the completion, in nanoseconds since 1970."""
        self.field(RNIC_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, "read_completion_wallclock_ns")
        return self.beside.wallclock_ns

    def read_tm_info(self):
        """Tag and app_ctx of a message that a tag matching SRQ has matched, as TMInfo."""
        self.field(RNIC_WC_EX_WITH_TM_INFO, "read_tm_info")
        return TMInfo(self.beside.tag, self.beside.tm_priv)

    def explain(self):
        """The current completion in words, as WC.explain()."""
        self.field(0, "explain")
        return explained_by(self.causes, self.p.ctx, &self.c) if self.live else explained(&self.c, NULL)

    cdef str label(self):
        return f"CQEX of {self.p.cqe}" if self.live else "CQEX"
