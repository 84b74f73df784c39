/* SPDX-License-Identifier: Apache-2.0
 *
 * inline.c: calls every function that the headers bring inline, on objects of its own, and prints what that did.
 *
 * Functions of tables are stand-ins that print their number in the table and their arguments; those that a library
 * would export are defined below. So the output is a description of the inline functions, to be compared with that of
 * another set of headers.
 */
#include <infiniband/arch.h>
#include <infiniband/ib.h>
#include <infiniband/tm_types.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>

#define WORDS(from, to) (((to) - (from)) / sizeof(void *))

static struct {
    struct verbs_context v;
    struct ibv_device_attr_ex device;
    struct ibv_port_attr port;
    struct ibv_gid_entry gids[2];
    struct ibv_pd pd, other_pd;
    struct ibv_td td;
    struct ibv_xrcd xrcd;
    struct ibv_mr mr, foreign_mr;
    struct ibv_mw mw;
    struct ibv_dm dm;
    struct ibv_cq cq;
    struct ibv_srq srq;
    struct ibv_qp qp;
    struct ibv_wq wq;
    struct ibv_rwq_ind_table ind_table;
    struct ibv_flow flow;
    struct ibv_flow_action action;
    struct ibv_counters counters;
    struct ibv_comp_channel channel;
    struct rdma_cm_id id;
    struct ibv_srq_init_attr_ex srq_attr;
    struct ibv_qp_init_attr_ex qp_attr;
    struct ibv_mw_bind bind;
    struct ibv_ops_wr ops_wr, *bad_ops;
    struct ibv_wc wc;
    struct ibv_cq_ex cq_ex;
    char memory[64];
    struct ibv_qp_ex qp_ex; /* the last one: it may grow */
} w;

static int arguments;   /* of the function that is called next */
static uintptr_t gives; /* what a stand-in returns */
static int polls;       /* so often a queue is empty */

static void show(uintptr_t value) {
    if (value >= (uintptr_t)&w && value < (uintptr_t)(&w + 1))
        printf(" w+%lu", (unsigned long)(value - (uintptr_t)&w));
    else
        printf(" %lx", (unsigned long)(value & 0xff));
}

static uintptr_t stand_in(int number, const uintptr_t *args) {
    int i;
    printf("   %d(", number);
    for (i = 0; i < arguments; i++)
        show(args[i]);
    printf(" )");
    return gives;
}

#define STAND_IN(n)                                                                                                    \
    static uintptr_t stand_in_##n(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) {      \
        uintptr_t args[6];                                                                                             \
        args[0] = a, args[1] = b, args[2] = c, args[3] = d, args[4] = e, args[5] = f;                                  \
        return stand_in(n, args);                                                                                      \
    }
#define TEN(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7) X(n##8) X(n##9)
#define ALL(X) TEN(X, 1) TEN(X, 2) TEN(X, 3) TEN(X, 4) TEN(X, 5)
ALL(STAND_IN)

typedef uintptr_t (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
#define NAME(n) stand_in_##n,
static const function stand_ins[] = {ALL(NAME)};

static void fill(void *table, size_t words) { memcpy(table, stand_ins, words * sizeof(void *)); }

#define INT(n, call) (arguments = n, gives = 0x21, errno = 0, report(#call, (uintptr_t)(call)))
#define PTR(n, call) (arguments = n, gives = (uintptr_t)&w.wq, errno = 0, report(#call, (uintptr_t)(call)))
#define NONE(n, call) (arguments = n, gives = 0, errno = 0, call, report(#call, 0))
static void report(const char *call, uintptr_t result) {
    printf("  ->");
    show(result);
    printf(" errno %d: %s\n", errno, call);
}

/* ---------------------------------------------------------------- what a library would export */

static struct ibv_mr *registered(const char *how, unsigned int access) {
    printf(" %s %x", how, access);
    return &w.mr;
}
struct ibv_mr *(ibv_reg_mr)(struct ibv_pd * pd, void *addr, size_t length, int access) {
    (void)pd, (void)addr, (void)length;
    return registered("reg_mr", (unsigned int)access);
}
struct ibv_mr *(ibv_reg_mr_iova)(struct ibv_pd * pd, void *addr, size_t length, uint64_t iova, int access) {
    (void)pd, (void)addr, (void)length, (void)iova;
    return registered("reg_mr_iova", (unsigned int)access);
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access) {
    (void)pd, (void)length;
    return registered(iova == (uintptr_t)addr ? "reg_mr_iova2 at its address" : "reg_mr_iova2", access);
}
int ibv_dereg_mr(struct ibv_mr *mr) { return mr == &w.mr ? 0 : EINVAL; }
struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
    printf(" create_srq %d", (void *)attr == (void *)&w.srq_attr && pd == &w.pd);
    return &w.srq;
}
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
    printf(" create_qp %d", (void *)attr == (void *)&w.qp_attr && pd == &w.pd);
    return &w.qp;
}
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
    printf(" query_device %d", context == &w.v.context && attr == &w.device.orig_attr);
    return 0;
}
int(ibv_query_port)(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *attr) {
    printf(" query_port %d %d", context == &w.v.context && (void *)attr == (void *)&w.port, port_num);
    return 0;
}
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry,
                      uint32_t flags, size_t entry_size) {
    printf(" query_gid_ex %d %u %u %u %u", context == &w.v.context && entry == w.gids, port_num, gid_index, flags,
           (unsigned int)entry_size);
    return 0;
}
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
                             uint32_t flags, size_t entry_size) {
    printf(" query_gid_table %d %u %u %u", context == &w.v.context && entries == w.gids, (unsigned int)max_entries,
           flags, (unsigned int)entry_size);
    return 1;
}
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    printf(" get_cq_event %d", channel == &w.channel);
    *cq = &w.cq;
    *cq_context = &w.id;
    return 0;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents) { printf(" ack %d %u", cq == &w.cq, nevents); }

/* ---------------------------------------------------------------- the calls */

/* Through the second table, which may be absent, short, or empty. */
static void second_table(void) {
    struct ibv_context *context = &w.v.context;
    INT(4, ibv_query_port(context, 3, &w.port));
    INT(5, ibv_advise_mr(&w.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 4, NULL, 5));
    PTR(1, ibv_alloc_null_mr(&w.pd));
    INT(4, ibv_read_counters(&w.counters, NULL, 4, 5));
    INT(3, ibv_attach_counters_point_flow(&w.counters, NULL, &w.flow));
    PTR(2, ibv_create_counters(context, NULL));
    INT(1, ibv_destroy_counters(&w.counters));
    PTR(5, ibv_reg_dm_mr(&w.pd, &w.dm, 4, 5, 6));
    PTR(2, ibv_alloc_dm(context, NULL));
    INT(1, ibv_free_dm(&w.dm));
    INT(2, ibv_modify_flow_action_esp(&w.action, NULL));
    INT(1, ibv_destroy_flow_action(&w.action));
    PTR(2, ibv_create_flow_action_esp(context, NULL));
    INT(2, ibv_modify_qp_rate_limit(&w.qp, NULL));
    PTR(2, ibv_alloc_parent_domain(context, NULL));
    INT(1, ibv_dealloc_td(&w.td));
    PTR(2, ibv_alloc_td(context, NULL));
    INT(2, ibv_modify_cq(&w.cq, NULL));
    w.bad_ops = NULL;
    INT(3, ibv_post_srq_ops(&w.srq, &w.ops_wr, &w.bad_ops));
    printf("   bad %d\n", w.bad_ops == &w.ops_wr);
    INT(1, ibv_destroy_rwq_ind_table(&w.ind_table));
    PTR(2, ibv_create_rwq_ind_table(context, NULL));
    INT(1, ibv_destroy_wq(&w.wq));
    INT(2, ibv_modify_wq(&w.wq, NULL));
    w.wq.wq_context = NULL;
    w.wq.events_completed = 7;
    {
        struct ibv_wq_init_attr attr;
        memset(&attr, 0, sizeof(attr));
        attr.wq_context = &w.id;
        arguments = 1;
        gives = (uintptr_t)&w.wq;
        errno = 0;
        report("ibv_create_wq", (uintptr_t)ibv_create_wq(context, &attr));
        printf("   wq %d %u\n", w.wq.wq_context == &w.id, w.wq.events_completed);
    }
    INT(2, ibv_query_rt_values_ex(context, NULL));
    PTR(2, ibv_create_cq_ex(context, NULL));
    INT(1, ibv_destroy_flow(&w.flow));
    PTR(2, ibv_create_flow(&w.qp, NULL));
    PTR(2, ibv_open_qp(context, NULL));
    INT(2, ibv_get_srq_num(&w.srq, NULL));
    PTR(2, ibv_open_xrcd(context, NULL));
    printf("   op %d %d\n", verbs_get_ctx(context) == &w.v, verbs_get_ctx_op(context, open_xrcd) == &w.v);
    INT(4, ibv_query_device_ex(context, NULL, &w.device));
}

static void second_tables(void) {
    size_t words = offsetof(struct verbs_context, _ABI_placeholder3) / sizeof(void *);
    struct ibv_query_device_ex_input input;
    unsigned int mask;

    second_table();
    w.v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    for (w.v.sz = 0; w.v.sz <= sizeof(w.v); w.v.sz += 4) {
        memset(&w.v, 0, offsetof(struct verbs_context, _ABI_placeholder3));
        fill(&w.v, words);
        second_table();
    }
    w.v.sz = sizeof(w.v);
    memset(&w.v, 0, offsetof(struct verbs_context, _ABI_placeholder3));
    second_table();
    fill(&w.v, words);
    INT(1, ibv_close_xrcd(&w.xrcd));

    for (mask = 0; mask < 128; mask++) {
        w.srq_attr.comp_mask = w.qp_attr.comp_mask = mask;
        w.srq_attr.srq_type = IBV_SRQT_XRC;
        PTR(2, ibv_create_srq_ex(&w.v.context, &w.srq_attr));
        w.srq_attr.srq_type = IBV_SRQT_BASIC;
        PTR(2, ibv_create_srq_ex(&w.v.context, &w.srq_attr));
        PTR(2, ibv_create_qp_ex(&w.v.context, &w.qp_attr));
    }

    /* A device that says that it cannot is asked in the old way. */
    input.comp_mask = 1;
    INT(4, ibv_query_device_ex(&w.v.context, &input, &w.device));
    arguments = 1;
    for (gives = 0; gives < 100; gives++)
        report("ibv_query_device_ex", (uintptr_t)ibv_query_device_ex(&w.v.context, NULL, &w.device));
}

static void first_table(void) {
    struct ibv_send_wr *bad_send;
    struct ibv_recv_wr *bad_recv;
    PTR(2, ibv_alloc_mw(&w.pd, IBV_MW_TYPE_2));
    fill(&w.v.context.ops, WORDS(0, sizeof(w.v.context.ops)));
    PTR(2, ibv_alloc_mw(&w.pd, IBV_MW_TYPE_2));
    INT(1, ibv_dealloc_mw(&w.mw));
    INT(3, ibv_poll_cq(&w.cq, 2, &w.wc));
    INT(2, ibv_req_notify_cq(&w.cq, 1));
    INT(2, ibv_post_srq_recv(&w.srq, NULL, &bad_recv));
    INT(2, ibv_post_send(&w.qp, NULL, &bad_send));
    INT(2, ibv_post_recv(&w.qp, NULL, &bad_recv));
    fill(&w.wq.post_recv, 1);
    INT(2, ibv_post_wq_recv(&w.wq, NULL, &bad_recv));
    fill(&w.dm.memcpy_to_dm, 2);
    INT(4, ibv_memcpy_to_dm(&w.dm, 2, w.memory, 4));
    INT(4, ibv_memcpy_from_dm(w.memory, &w.dm, 3, 4));

    INT(3, ibv_bind_mw(&w.qp, &w.mw, &w.bind)); /* of no type */
    w.mw.type = IBV_MW_TYPE_2;
    INT(3, ibv_bind_mw(&w.qp, &w.mw, &w.bind));
    w.mw.type = IBV_MW_TYPE_1;
    INT(3, ibv_bind_mw(&w.qp, &w.mw, &w.bind));
    w.bind.bind_info.addr = 1;
    INT(3, ibv_bind_mw(&w.qp, &w.mw, &w.bind));
    w.bind.bind_info.addr = 0;
    w.bind.bind_info.length = 1;
    INT(3, ibv_bind_mw(&w.qp, &w.mw, &w.bind));
    w.bind.bind_info.mr = &w.mr;
    INT(3, ibv_bind_mw(&w.qp, &w.mw, &w.bind));
    w.bind.bind_info.mr = &w.foreign_mr;
    INT(3, ibv_bind_mw(&w.qp, &w.mw, &w.bind));
}

static void registrations(int access) {
    volatile int unknown = access;
    PTR(0, ibv_reg_mr(&w.pd, w.memory, 8, IBV_ACCESS_LOCAL_WRITE));
    PTR(0, ibv_reg_mr(&w.pd, w.memory, 8, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    PTR(0, ibv_reg_mr(&w.pd, w.memory, 8, 0));
    PTR(0, ibv_reg_mr(&w.pd, w.memory, 8, IBV_ACCESS_LOCAL_WRITE | (int)IBV_ACCESS_RELAXED_ORDERING));
    PTR(0, ibv_reg_mr(&w.pd, w.memory, 8, unknown));
    PTR(0, ibv_reg_mr_iova(&w.pd, w.memory, 8, 16, IBV_ACCESS_REMOTE_WRITE));
    PTR(0, ibv_reg_mr_iova(&w.pd, w.memory, 8, 16, (int)IBV_ACCESS_RELAXED_ORDERING));
    PTR(0, ibv_reg_mr_iova(&w.pd, w.memory, 8, 16, unknown));
    PTR(0, rdma_reg_msgs(&w.id, w.memory, 8));
    PTR(0, rdma_reg_read(&w.id, w.memory, 8));
    PTR(0, rdma_reg_write(&w.id, w.memory, 8));
    INT(0, rdma_dereg_mr(&w.mr));
    INT(0, rdma_dereg_mr(&w.foreign_mr));
}

static void posting(void) {
    struct ibv_qp_ex *qp = &w.qp_ex;
    fill(&qp->wr_atomic_cmp_swp,
         WORDS(offsetof(struct ibv_qp_ex, wr_atomic_cmp_swp), offsetof(struct ibv_qp_ex, wr_atomic_write)) + 1);
    NONE(1, ibv_wr_start(qp));
    NONE(5, ibv_wr_atomic_cmp_swp(qp, 2, 3, 4, 5));
    NONE(4, ibv_wr_atomic_fetch_add(qp, 2, 3, 4));
    NONE(4, ibv_wr_atomic_write(qp, 2, 3, w.memory));
    NONE(4, ibv_wr_bind_mw(qp, &w.mw, 3, &w.bind.bind_info));
    NONE(2, ibv_wr_local_inv(qp, 2));
    NONE(3, ibv_wr_rdma_read(qp, 2, 3));
    NONE(3, ibv_wr_rdma_write(qp, 2, 3));
    NONE(4, ibv_wr_rdma_write_imm(qp, 2, 3, 4));
    NONE(1, ibv_wr_send(qp));
    NONE(2, ibv_wr_send_imm(qp, 2));
    NONE(2, ibv_wr_send_inv(qp, 2));
    NONE(4, ibv_wr_send_tso(qp, w.memory, 3, 4));
    NONE(4, ibv_wr_set_ud_addr(qp, NULL, 3, 4));
    NONE(2, ibv_wr_set_xrc_srqn(qp, 2));
    NONE(3, ibv_wr_set_inline_data(qp, w.memory, 3));
    NONE(3, ibv_wr_set_inline_data_list(qp, 2, NULL));
    NONE(4, ibv_wr_set_sge(qp, 2, 3, 4));
    NONE(3, ibv_wr_set_sge_list(qp, 2, NULL));
    INT(1, ibv_wr_complete(qp));
    NONE(1, ibv_wr_abort(qp));
#ifdef RNIC_VERBS_EXTENDED_H
    if (!qp->wr_flush) /* newer than rdma-core 44: no part of the comparison */
        return;
    NONE(6, ibv_wr_flush(qp, 2, 3, 4, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE));
#endif
}

static void polling(void) {
    struct ibv_cq_ex *cq = &w.cq_ex;
    fill(&cq->start_poll, WORDS(offsetof(struct ibv_cq_ex, start_poll), sizeof(*cq)));
    PTR(0, ibv_cq_ex_to_cq(cq));
    INT(2, ibv_start_poll(cq, NULL));
    INT(1, ibv_next_poll(cq));
    NONE(1, ibv_end_poll(cq));
    INT(1, ibv_wc_read_opcode(cq));
    INT(1, ibv_wc_read_vendor_err(cq));
    INT(1, ibv_wc_read_byte_len(cq));
    INT(1, ibv_wc_read_imm_data(cq));
    INT(1, ibv_wc_read_invalidated_rkey(cq));
    INT(1, ibv_wc_read_qp_num(cq));
    INT(1, ibv_wc_read_src_qp(cq));
    INT(1, ibv_wc_read_wc_flags(cq));
    INT(1, ibv_wc_read_slid(cq));
    INT(1, ibv_wc_read_sl(cq));
    INT(1, ibv_wc_read_dlid_path_bits(cq));
    INT(1, ibv_wc_read_completion_ts(cq));
    INT(1, ibv_wc_read_completion_wallclock_ns(cq));
    INT(1, ibv_wc_read_cvlan(cq));
    INT(1, ibv_wc_read_flow_tag(cq));
    NONE(2, ibv_wc_read_tm_info(cq, NULL));
}

/* Functions of the first table that look at what they are given. */
static int posted(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    (void)qp, (void)bad;
    printf(" %d %d next %d sge %d(", wr->wr_id == (uintptr_t)&w.id, wr->opcode, wr->next != NULL, wr->num_sge);
    show((uintptr_t)wr->sg_list->addr);
    printf(" %u %u ) flags %u", wr->sg_list->length, wr->sg_list->lkey, wr->send_flags);
    if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE)
        printf(" %u %u", (unsigned int)wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
    else if (wr->send_flags & IBV_SEND_SOLICITED) /* what the datagram below has */
        printf(" %d %u %x", wr->wr.ud.ah != NULL, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
    return (int)gives;
}
static int received(const char *queue, struct ibv_recv_wr *wr) {
    printf(" %s %d next %d sge %d(", queue, wr->wr_id == (uintptr_t)&w.id, wr->next != NULL, wr->num_sge);
    show((uintptr_t)wr->sg_list->addr);
    printf(" %u %u )", wr->sg_list->length, wr->sg_list->lkey);
    return (int)gives;
}
static int posted_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    (void)qp, (void)bad;
    return received("qp", wr);
}
static int posted_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    (void)srq, (void)bad;
    return received("srq", wr);
}
static int polled(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
    printf(" poll %d %d %d", cq == &w.cq, n, wc == &w.wc);
    return polls-- > 0 ? 0 : (int)gives;
}
static int asked(struct ibv_cq *cq, int solicited_only) {
    printf(" notify %d %d", cq == &w.cq, solicited_only);
    return polls == 8 ? ENOMEM : 0;
}

static void communication(void) {
    struct rdma_cm_id *id = &w.id;
    struct ibv_sge sge;
    int i;
    sge.addr = (uintptr_t)w.memory;
    sge.length = 5;
    sge.lkey = 6;
    w.v.context.ops.post_send = posted;
    w.v.context.ops.post_recv = posted_recv;
    w.v.context.ops.post_srq_recv = posted_srq_recv;
    w.v.context.ops.poll_cq = polled;
    w.v.context.ops.req_notify_cq = asked;
    for (i = 0; i < 2; i++) {
        id->srq = i ? &w.srq : NULL;
        INT(0, rdma_post_recvv(id, id, &sge, 1));
        INT(0, rdma_post_recv(id, id, w.memory, 8, &w.mr));
    }
    INT(0, rdma_post_sendv(id, id, &sge, 1, 1));
    INT(0, rdma_post_readv(id, id, &sge, 1, 2, 10, 11));
    INT(0, rdma_post_writev(id, id, &sge, 1, 3, 10, 11));
    INT(0, rdma_post_send(id, id, w.memory, 8, &w.mr, 1));
    INT(0, rdma_post_send(id, id, w.memory, 8, NULL, 1));
    INT(0, rdma_post_read(id, id, w.memory, 8, &w.mr, 1, 10, 11));
    INT(0, rdma_post_write(id, id, w.memory, 8, &w.mr, 1, 10, 11));
    INT(0, rdma_post_write(id, id, w.memory, 8, NULL, 1, 10, 11));
    INT(0, rdma_post_ud_send(id, id, w.memory, 8, &w.mr, IBV_SEND_SOLICITED, (struct ibv_ah *)w.memory, 12));
    for (i = 0; i < 10; i++) {
        polls = i;
        INT(0, rdma_get_send_comp(id, &w.wc));
        polls = i;
        INT(0, rdma_get_recv_comp(id, &w.wc));
    }
    gives = (uintptr_t)-1;
    polls = 0;
    printf("   %d\n", rdma_get_send_comp(id, &w.wc));
    INT(0, rdma_seterrno(0));
    INT(0, rdma_seterrno(EBUSY));
    PTR(0, rdma_get_local_addr(id));
    PTR(0, rdma_get_peer_addr(id));
}

static void numbers(void) {
    struct ib_addr a, b;
    uint32_t i;
    int j;
    for (i = 0; i < 40; i++) {
        uint32_t x = i * 2654435761u;
        printf("%x %x %d", ibv_inc_rkey(i < 2 ? 0xfeu + i : x), ibv_flow_label_to_udp_sport(x & 0xfffff),
               ibv_is_qpt_supported(0x12345678, (enum ibv_qp_type)(i % 32)));
        printf(" %llx\n", (unsigned long long)(htonll(x) ^ ntohll((uint64_t)x << 7)));
    }
    printf("%d %d\n", vext_field_avail(struct ibv_port_attr, flags, 48),
           vext_field_avail(struct ibv_port_attr, port_cap_flags2, 48));
    ib_addr_set(&b, 1, 2, 3, 4);
    for (j = 0; j < 128; j++) {
        memset(&a, 0, sizeof(a));
        a.sib_raw[j / 8] = (uint8_t)(1 << j % 8);
        printf("%d %d %d\n", ib_addr_any(&a), ib_addr_loopback(&a), ib_addr_cmp(&a, &b) != 0);
    }
    memset(&a, 0, sizeof(a));
    printf("%d %d %d %x\n", ib_addr_any(&a), ib_addr_loopback(&a), ib_addr_cmp(&b, &b), b.sib_addr32[2]);
}

int main(void) {
    struct ibv_context *context = &w.v.context;
    w.pd.context = w.other_pd.context = w.td.context = w.xrcd.context = w.mw.context = w.dm.context = context;
    w.cq.context = w.srq.context = w.qp.context = w.wq.context = w.ind_table.context = w.flow.context = context;
    w.action.context = w.counters.context = context;
    w.mr.pd = w.mw.pd = w.id.pd = w.srq_attr.pd = w.qp_attr.pd = &w.pd;
    w.foreign_mr.pd = &w.other_pd;
    w.mr.addr = w.memory;
    w.mr.length = sizeof(w.memory);
    w.mr.lkey = 77;
    w.id.qp = &w.qp;
    w.id.send_cq = w.id.recv_cq = &w.cq;
    w.id.send_cq_channel = w.id.recv_cq_channel = &w.channel;
    second_tables();
    first_table();
    registrations(IBV_ACCESS_LOCAL_WRITE);
    INT(0, ibv_query_gid_ex(context, 2, 3, w.gids, 4));
    INT(0, ibv_query_gid_table(context, w.gids, 2, 4));
    posting();
    polling();
    communication();
    numbers();
    return 0;
}
