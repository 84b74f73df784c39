# SPDX-License-Identifier: Apache-2.0

cdef dict WC_STATUS = dict(WCStatus._value2member_map_)
cdef dict WC_OPCODE = dict(WCOpcode._value2member_map_)


@cython.final
@cython.freelist(64)
cdef class WC:
    """A work completion: how one work request ended (ibv_poll_cq(3)); CQ.poll() makes it.

    If `ok` is False, only wr_id, status, qp_num and vendor_err are valid.
    """

    cdef rnic_wc c
    cdef str words      # of a failed one

    def __init__(self):
        raise TypeError("CQ.poll() makes completions")

    @property
    def ok(self):
        """Whether the work request succeeded."""
        return self.c.status == RNIC_WC_SUCCESS

    @property
    def wr_id(self):
        """The wr_id of the work request."""
        return self.c.wr_id

    @property
    def status(self):
        """How the work request ended (WCStatus)."""
        return WC_STATUS.get(self.c.status, self.c.status)

    @property
    def opcode(self):
        """The operation that completed (WCOpcode)."""
        return WC_OPCODE.get(self.c.opcode, self.c.opcode)

    @property
    def vendor_err(self):
        """The provider's reason for a failure, a number; explain() says it in words."""
        return self.c.vendor_err

    @property
    def byte_len(self):
        """The number of bytes received, read or fetched; not valid for other operations."""
        return self.c.byte_len

    @property
    def imm_data(self):
        """The immediate data of the message, 32 bits, or None."""
        return ntohl(self.c.imm_data) if self.c.wc_flags & RNIC_WCF_WITH_IMM else None

    @property
    def invalidated_rkey(self):
        """The key that the peer's SEND_WITH_INV invalidated, or None."""
        return self.c.invalidated_rkey if self.c.wc_flags & RNIC_WCF_WITH_INV else None

    @property
    def flow_tag(self):
        """The tag of the rule that steered the frame here (SpecActionTag); 0: none."""
        return 0 if self.c.wc_flags & (RNIC_WCF_WITH_IMM | RNIC_WCF_WITH_INV) else self.c.flow_tag

    @property
    def qp_num(self):
        """The number of the local queue pair."""
        return self.c.qp_num

    @property
    def src_qp(self):
        """The number of the sender's queue pair, for datagrams."""
        return self.c.src_qp

    @property
    def wc_flags(self):
        """Which optional fields are valid (WCFlags)."""
        return WCFlags(self.c.wc_flags)

    @property
    def pkey_index(self):
        """The index of the partition key of a received datagram."""
        return self.c.pkey_index

    @property
    def slid(self):
        """The sender's local identifier, on InfiniBand links."""
        return self.c.slid

    @property
    def sl(self):
        """The service level of a received datagram."""
        return self.c.sl

    @property
    def dlid_path_bits(self):
        """The path bits of the local identifier that a datagram was sent to."""
        return self.c.dlid_path_bits

    def explain(self):
        """The completion in words: what went wrong, on which side, and what to check."""
        return self.words or explained(&self.c, NULL)

    def __repr__(self):
        done = f"{name_of(self.opcode)} {self.c.byte_len} bytes" if self.ok else name_of(self.status)
        return f"<WC {self.c.wr_id} QP 0x{self.c.qp_num:06x} {done}>"

    def _repr_html_(self):
        rows = [("wr_id", self.wr_id), ("queue pair", f"0x{self.c.qp_num:06x}"), ("status", name_of(self.status))]
        if self.ok:
            rows += [("opcode", name_of(self.opcode)), ("bytes", self.byte_len)]
            if self.imm_data is not None:
                rows.append(("immediate data", f"0x{self.imm_data:08x}"))
        else:
            rows.append(("explanation", self.explain()))
        return table("WC", rows)


cdef str explained(const rnic_wc *wc, const rnic_cause *cause):
    cdef char text[RNIC_EXPLAINED]
    rnic_explain(wc, cause, text, RNIC_EXPLAINED)
    return text.decode()


cdef str explained_by(const rnic_ext_causes *causes, rnic_context *context, const rnic_wc *wc):
    """With what the device knows beside the completion, which it forgets when the queue pair is reset or goes."""
    cdef rnic_cause cause
    known = causes is not NULL and causes.of(context, wc, &cause)   # with the GIL: nobody closes the context meanwhile
    return explained(wc, &cause if known else NULL)


cdef WC completion(const rnic_ext_causes *causes, rnic_context *context, const rnic_wc *wc):
    cdef WC item = WC.__new__(WC)
    item.c = wc[0]
    if wc.status != RNIC_WC_SUCCESS and wc.status != RNIC_WC_WR_FLUSH_ERR:
        item.words = explained_by(causes, context, wc)
    return item


cdef list completions(const rnic_ext_causes *causes, rnic_context *context, const rnic_wc *wc, int n):
    cdef list found
    cdef int i
    if n == 1:      # mostly
        return [completion(causes, context, wc)]
    found = [None] * n
    for i in range(n):
        found[i] = completion(causes, context, &wc[i])
    return found
