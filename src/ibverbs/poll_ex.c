/* SPDX-License-Identifier: Apache-2.0
 *
 * The extended completion queue (man ibv_create_cq_ex): one completion is taken at a time, and read field by field, so
 * that a queue may be polled in both ways.  A completion lies in the queue's object while it is read.  So a thread has the queue
 * from ibv_start_poll() to ibv_end_poll(), and others wait for it, unless the program has promised that there are none.
 */
#include "lib.h"

static int take(struct ibv_cq_ex *pub) {
    struct cq *cq = (struct cq *)pub;
    int n = QUIETLY(context_of(pub->context)->ops->poll_cq_ex(cq->nic, 1, &cq->wc, &cq->more));
    if (n < 1)
        return n < 0 ? -n : ENOENT;
    pub->wr_id = cq->wc.wr_id;
    pub->status = (enum ibv_wc_status)cq->wc.status;
    return 0;
}

static void end_poll(struct ibv_cq_ex *pub) {
    struct cq *cq = (struct cq *)pub;
    if (!cq->single_threaded)
        pthread_mutex_unlock(&cq->polling);
}

/* A call that finds nothing has ended the poll already (man ibv_start_poll). */
static int start_poll(struct ibv_cq_ex *pub, struct ibv_poll_cq_attr *attr) {
    struct cq *cq = (struct cq *)pub;
    int rc = FAILS(start_poll);
    if (rc)
        return -rc;
    if (attr && attr->comp_mask)
        return EINVAL;
    if (!cq->single_threaded)
        pthread_mutex_lock(&cq->polling);
    rc = take(pub);
    if (rc)
        end_poll(pub);
    return rc;
}

#define READ(type, name, field)                                                                                        \
    static type name(struct ibv_cq_ex *pub) { return (type)((struct cq *)pub)->field; }
READ(enum ibv_wc_opcode, read_opcode, wc.opcode)
READ(uint32_t, read_vendor_err, wc.vendor_err)
READ(uint32_t, read_byte_len, wc.byte_len)
READ(__be32, read_imm_data, wc.imm_data)
READ(uint32_t, read_qp_num, wc.qp_num)
READ(uint32_t, read_src_qp, wc.src_qp)
READ(unsigned, read_wc_flags, wc.wc_flags)
READ(uint32_t, read_slid, wc.slid)
READ(uint8_t, read_dlid_path_bits, wc.dlid_path_bits)
READ(uint64_t, read_completion_ts, more.raw)
READ(uint64_t, read_completion_wallclock_ns, more.wallclock_ns)
READ(uint32_t, read_flow_tag, wc.flow_tag)

static uint8_t read_sl(struct ibv_cq_ex *pub) { return shown_sl(&((const struct cq *)pub)->wc); }

static void read_tm_info(struct ibv_cq_ex *pub, struct ibv_wc_tm_info *info) {
    const struct cq *cq = (const struct cq *)pub;
    *info = (struct ibv_wc_tm_info){cq->more.tag, cq->more.tm_priv};
}

/* A field that was not asked for has no function (man ibv_create_cq_ex). */
void cq_extend(struct cq *cq, uint64_t wc_flags, bool single_threaded) {
    struct ibv_cq_ex *pub = &cq->pub;
    cq->extended = true;
    cq->single_threaded = single_threaded;
    pthread_mutex_init(&cq->polling, NULL);
    pub->start_poll = start_poll;
    pub->next_poll = take;
    pub->end_poll = end_poll;
    pub->read_opcode = read_opcode;
    pub->read_vendor_err = read_vendor_err;
    pub->read_wc_flags = read_wc_flags;
#define IF(flag, name)                                                                                                 \
    if (wc_flags & IBV_WC_EX_WITH_##flag)                                                                              \
    pub->name = name
    IF(BYTE_LEN, read_byte_len);
    IF(IMM, read_imm_data);
    IF(QP_NUM, read_qp_num);
    IF(SRC_QP, read_src_qp);
    IF(SLID, read_slid);
    IF(SL, read_sl);
    IF(DLID_PATH_BITS, read_dlid_path_bits);
    IF(COMPLETION_TIMESTAMP, read_completion_ts);
    IF(FLOW_TAG, read_flow_tag);
    IF(TM_INFO, read_tm_info);
    IF(COMPLETION_TIMESTAMP_WALLCLOCK, read_completion_wallclock_ns);
#undef IF
}
