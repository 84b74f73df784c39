/* SPDX-License-Identifier: Apache-2.0
 *
 * play.c: carries out verbs that lines of stdin name, and prints a line of results for each. player.py does the same
 * with rnic's Python API; script.py says what the words and their numbers mean.
 *
 * play DEVICE
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOTS = 8, MOST = 24, BYTES = 1 << 14, STASH = 4096, PATIENCE = 60 };

static struct ibv_context *context;
static struct ibv_pd *pds[SLOTS];
static struct ibv_mr *mrs[SLOTS];
static struct ibv_cq *cqs[SLOTS];
static struct ibv_srq *srqs[SLOTS];
static struct ibv_qp *qps[SLOTS];
static struct ibv_ah *ahs[SLOTS];
static uint8_t memory[SLOTS][BYTES];

/* What a queue pair has been given and has not completed; receives of a shared queue do not count. */
static struct {
    int sends, receives;
} pending[SLOTS];

/* Completions that were taken, until a line asks for them. wr_id: bit 40 for receives, slot of the queue pair << 32, line. */
static struct {
    struct ibv_wc wc[STASH];
    int n;
} stash[SLOTS];

static long line, arg[MOST]; /* the line's number, and its arguments */

static void show(int rc) {
    if (rc)
        printf("E%d\n", rc);
    else
        printf("ok\n");
}
static void show_pointer(const void *made) { show(made ? 0 : errno); }

#define ABSENT(object)                                                                                                 \
    if (!(object)) {                                                                                                   \
        printf("absent\n");                                                                                            \
        return;                                                                                                        \
    }
#define TAKEN(object)                                                                                                  \
    if (object) {                                                                                                      \
        printf("taken\n");                                                                                             \
        return;                                                                                                        \
    }
#define MAKE(where, call)                                                                                              \
    do {                                                                                                               \
        TAKEN(where);                                                                                                  \
        (where) = call;                                                                                                \
        show_pointer(where);                                                                                           \
    } while (0)
#define BREAK(where, call)                                                                                             \
    do {                                                                                                               \
        int rc_;                                                                                                       \
        ABSENT(where);                                                                                                 \
        rc_ = call(where);                                                                                             \
        if (!rc_)                                                                                                      \
            (where) = NULL;                                                                                            \
        show(rc_);                                                                                                     \
    } while (0)

/* ---------------------------------------------------------------- completions */

static void take(int c) {
    struct ibv_wc wc;
    while (cqs[c] && ibv_poll_cq(cqs[c], 1, &wc) > 0) {
        int q = (int)(wc.wr_id >> 32 & 0xff);
        if (stash[c].n < STASH)
            stash[c].wc[stash[c].n++] = wc;
        if (wc.wr_id >> 40)
            pending[q].receives--;
        else
            pending[q].sends--;
    }
}

/* Whether all that will complete has. */
static bool is_quiet(void) {
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    int q, c;
    bool quiet = true;
    for (q = 0; q < SLOTS; q++)
        if (qps[q] && !ibv_query_qp(qps[q], &attr, IBV_QP_STATE, &init)) {
            bool in_error = attr.qp_state == IBV_QPS_ERR;
            if (pending[q].sends > 0 && (in_error || attr.qp_state == IBV_QPS_RTS))
                quiet = false;
            if (pending[q].receives > 0 && in_error && !qps[q]->srq)
                quiet = false;
        }
    for (c = 0; c < SLOTS; c++)
        take(c);
    return quiet;
}

static void settle(void) {
    time_t limit = time(NULL) + PATIENCE;
    while (!is_quiet())
        if (time(NULL) > limit) {
            printf("stuck\n");
            exit(1);
        }
}

/* Completions of one queue are in order; those of different queues need not be. */
static int by_queue(const void *a, const void *b) {
    uint64_t x = ((const struct ibv_wc *)a)->wr_id, y = ((const struct ibv_wc *)b)->wr_id;
    return (x >> 32 > y >> 32) - (x >> 32 < y >> 32);
}

static void insertion_sort(struct ibv_wc *wc, int n) { /* a stable one */
    int i, j;
    for (i = 1; i < n; i++) {
        struct ibv_wc one = wc[i];
        for (j = i; j && by_queue(&wc[j - 1], &one) > 0; j--)
            wc[j] = wc[j - 1];
        wc[j] = one;
    }
}

static void pol(void) {
    int c = (int)arg[0], i;
    ABSENT(cqs[c]);
    settle();
    insertion_sort(stash[c].wc, stash[c].n);
    printf("ok");
    for (i = 0; i < stash[c].n; i++) {
        const struct ibv_wc *wc = &stash[c].wc[i];
        bool received = wc->wr_id >> 40;
        printf(" %" PRIu64 ":%d", wc->wr_id, wc->status);
        if (wc->status != IBV_WC_SUCCESS)
            continue;
        printf(":%d", wc->opcode);
        if (received)
            printf(":%u:%u:%x", wc->byte_len, wc->wc_flags, wc->wc_flags & IBV_WC_WITH_IMM ? be32toh(wc->imm_data) : 0);
    }
    printf("\n");
    stash[c].n = 0;
}

/* ---------------------------------------------------------------- domains, memory, queues */

static void pd(void) { MAKE(pds[arg[0]], ibv_alloc_pd(context)); }
static void pd_end(void) { BREAK(pds[arg[0]], ibv_dealloc_pd); }

static void mr(void) {
    ABSENT(pds[arg[1]]);
    MAKE(mrs[arg[0]], ibv_reg_mr(pds[arg[1]], memory[arg[0]], (size_t)arg[2], (int)arg[3]));
}
static void mr_end(void) { BREAK(mrs[arg[0]], ibv_dereg_mr); }

static void cq(void) {
    stash[arg[0]].n = cqs[arg[0]] ? stash[arg[0]].n : 0;
    MAKE(cqs[arg[0]], ibv_create_cq(context, (int)arg[1], NULL, NULL, 0));
}
static void cq_end(void) { BREAK(cqs[arg[0]], ibv_destroy_cq); }
static void cq_resize(void) {
    int rc;
    ABSENT(cqs[arg[0]]);
    rc = ibv_resize_cq(cqs[arg[0]], (int)arg[1]);
    if (rc)
        show(rc);
    else
        printf("ok %d\n", cqs[arg[0]]->cqe);
}

static void srq(void) {
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = (uint32_t)arg[2], .max_sge = (uint32_t)arg[3]}};
    ABSENT(pds[arg[1]]);
    MAKE(srqs[arg[0]], ibv_create_srq(pds[arg[1]], &attr));
}
static void srq_end(void) { BREAK(srqs[arg[0]], ibv_destroy_srq); }
static void srq_modify(void) {
    struct ibv_srq_attr attr = {.max_wr = (uint32_t)arg[2], .srq_limit = (uint32_t)arg[3]};
    ABSENT(srqs[arg[0]]);
    show(ibv_modify_srq(srqs[arg[0]], &attr, (int)arg[1]));
}
static void srq_query(void) {
    struct ibv_srq_attr attr;
    int rc;
    ABSENT(srqs[arg[0]]);
    rc = ibv_query_srq(srqs[arg[0]], &attr);
    if (rc)
        show(rc);
    else
        printf("ok %u %u %u\n", attr.max_wr, attr.max_sge, attr.srq_limit);
}

/* ---------------------------------------------------------------- queue pairs */

static void qp(void) {
    struct ibv_qp_init_attr attr = {
        .cap = {(uint32_t)arg[6], (uint32_t)arg[7], (uint32_t)arg[8], (uint32_t)arg[9], (uint32_t)arg[10]},
        .qp_type = (enum ibv_qp_type)arg[1],
        .sq_sig_all = (int)arg[11],
    };
    ABSENT(pds[arg[2]]);
    ABSENT(arg[3] < 0 || cqs[arg[3]]);
    ABSENT(arg[4] < 0 || cqs[arg[4]]);
    ABSENT(arg[5] < 0 || srqs[arg[5]]);
    TAKEN(qps[arg[0]]);
    attr.send_cq = arg[3] < 0 ? NULL : cqs[arg[3]];
    attr.recv_cq = arg[4] < 0 ? NULL : cqs[arg[4]];
    attr.srq = arg[5] < 0 ? NULL : srqs[arg[5]];
    qps[arg[0]] = ibv_create_qp(pds[arg[2]], &attr);
    if (qps[arg[0]])
        printf("ok %u %u %u %u %u\n", attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_send_sge,
               attr.cap.max_recv_sge, attr.cap.max_inline_data);
    else
        show(errno);
    pending[arg[0]].sends = pending[arg[0]].receives = 0;
}
static void qp_end(void) { BREAK(qps[arg[0]], ibv_destroy_qp); }

static uint32_t number_of(long q) { return q < 0 ? (uint32_t)-q : qps[q] ? qps[q]->qp_num : 0xffffff; }

static void ah_attr(struct ibv_ah_attr *attr, long gid_index, long port) {
    memset(attr, 0, sizeof *attr);
    attr->port_num = (uint8_t)port;
    attr->is_global = 1;
    attr->grh.hop_limit = 1;
    attr->grh.sgid_index = (uint8_t)gid_index;
    if (ibv_query_gid(context, 1, 0, &attr->grh.dgid))
        exit(2);
}

static void modify(void) {
    struct ibv_qp_attr attr = {
        .qp_state = (enum ibv_qp_state)arg[2],
        .cur_qp_state = (enum ibv_qp_state)arg[3],
        .pkey_index = (uint16_t)arg[4],
        .port_num = (uint8_t)arg[5],
        .qp_access_flags = (unsigned int)arg[6],
        .path_mtu = (enum ibv_mtu)arg[7],
        .dest_qp_num = number_of(arg[8]),
        .rq_psn = (uint32_t)arg[9],
        .sq_psn = (uint32_t)arg[10],
        .max_rd_atomic = (uint8_t)arg[11],
        .max_dest_rd_atomic = (uint8_t)arg[12],
        .min_rnr_timer = (uint8_t)arg[13],
        .timeout = (uint8_t)arg[14],
        .retry_cnt = (uint8_t)arg[15],
        .rnr_retry = (uint8_t)arg[16],
        .qkey = (uint32_t)arg[18],
    };
    int rc;
    ABSENT(qps[arg[0]]);
    ah_attr(&attr.ah_attr, arg[17], 1);
    settle();
    rc = ibv_modify_qp(qps[arg[0]], &attr, (int)arg[1]);
    if (!rc && arg[1] & IBV_QP_STATE && arg[2] == IBV_QPS_RESET)
        pending[arg[0]].sends = pending[arg[0]].receives = 0;
    show(rc);
    settle();
}

static void query(void) {
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr a;
    int rc;
    ABSENT(qps[arg[0]]);
    settle();
    rc = ibv_query_qp(qps[arg[0]], &a, IBV_QP_STATE, &init);
    if (rc)
        show(rc);
    else
        printf("ok %u %u %u %u %u %d %d %d %u %d %d %d %d %d %d %d %x\n", init.cap.max_send_wr, init.cap.max_recv_wr,
               init.cap.max_send_sge, init.cap.max_recv_sge, init.cap.max_inline_data, a.qp_state, a.pkey_index,
               a.port_num, a.qp_access_flags, a.path_mtu, a.max_rd_atomic, a.max_dest_rd_atomic, a.min_rnr_timer,
               a.timeout, a.retry_cnt, a.rnr_retry, a.qkey);
}

static void ah(void) {
    struct ibv_ah_attr attr;
    ABSENT(pds[arg[1]]);
    ah_attr(&attr, arg[2], arg[3]);
    MAKE(ahs[arg[0]], ibv_create_ah(pds[arg[1]], &attr));
}
static void ah_end(void) { BREAK(ahs[arg[0]], ibv_destroy_ah); }

/* ---------------------------------------------------------------- work */

/* `n` elements, one behind the other; `key` is added to the right one. */
static int elements(struct ibv_sge sges[MOST], long m, long offset, long length, long n, long key) {
    long i;
    if (!mrs[m] || n < 0 || n > MOST)
        return -1;
    for (i = 0; i < n; i++) {
        sges[i].addr = (uintptr_t)memory[m] + (uint64_t)(offset + i * length);
        sges[i].length = (uint32_t)length;
        sges[i].lkey = mrs[m]->lkey + (uint32_t)key;
    }
    return (int)n;
}

static uint64_t id_of(long q, bool receive) { return (uint64_t)receive << 40 | (uint64_t)q << 32 | (uint64_t)line; }

static void send(void) {
    struct ibv_sge sges[MOST];
    struct ibv_send_wr wr = {.opcode = (enum ibv_wr_opcode)arg[1], .send_flags = (unsigned int)arg[2]}, *bad;
    int rc, n;
    ABSENT(qps[arg[0]]);
    ABSENT(mrs[arg[3]]);
    n = elements(sges, arg[3], arg[4], arg[5], arg[6], arg[7]);
    wr.wr_id = id_of(arg[0], false);
    wr.sg_list = sges;
    wr.num_sge = n;
    wr.imm_data = htobe32((uint32_t)line);
    if (qps[arg[0]]->qp_type == IBV_QPT_UD) {
        ABSENT(ahs[arg[8]]);
        wr.wr.ud.ah = ahs[arg[8]];
        wr.wr.ud.remote_qpn = (uint32_t)arg[9];
        wr.wr.ud.remote_qkey = (uint32_t)arg[10];
    } else {
        uint64_t addr = (uintptr_t)memory[arg[8]] + (uint64_t)arg[9];
        uint32_t rkey = (mrs[arg[8]] ? mrs[arg[8]]->rkey : 0) + (uint32_t)arg[10];
        if (arg[1] == IBV_WR_ATOMIC_CMP_AND_SWP || arg[1] == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            wr.wr.atomic.remote_addr = addr;
            wr.wr.atomic.rkey = rkey;
            wr.wr.atomic.compare_add = 1;
            wr.wr.atomic.swap = 7;
        } else {
            wr.wr.rdma.remote_addr = addr;
            wr.wr.rdma.rkey = rkey;
        }
    }
    rc = ibv_post_send(qps[arg[0]], &wr, &bad);
    if (!rc)
        pending[arg[0]].sends++;
    show(rc);
    settle();
}

static void receive(void) {
    struct ibv_sge sges[MOST];
    struct ibv_recv_wr wr = {.wr_id = id_of(arg[0], true), .sg_list = sges}, *bad;
    int rc;
    ABSENT(qps[arg[0]]);
    ABSENT(mrs[arg[1]]);
    wr.num_sge = elements(sges, arg[1], arg[2], arg[3], arg[4], arg[5]);
    rc = ibv_post_recv(qps[arg[0]], &wr, &bad);
    if (!rc)
        pending[arg[0]].receives++;
    show(rc);
    settle();
}

static void srq_receive(void) {
    struct ibv_sge sges[MOST];
    struct ibv_recv_wr wr = {.wr_id = id_of(SLOTS, true) | (uint64_t)arg[0] << 32, .sg_list = sges}, *bad;
    ABSENT(srqs[arg[0]]);
    ABSENT(mrs[arg[1]]);
    wr.num_sge = elements(sges, arg[1], arg[2], arg[3], arg[4], arg[5]);
    show(ibv_post_srq_recv(srqs[arg[0]], &wr, &bad));
}

/* What is in memory: a sum of its bytes. */
static void sum(void) {
    uint32_t all = 0;
    int i;
    for (i = 0; i < BYTES; i++)
        all = all * 31 + memory[arg[0]][i];
    printf("ok %u\n", all);
}

/* ---------------------------------------------------------------- lines */

static const struct {
    const char *word;
    void (*play)(void);
} words[] = {
    {"pd", pd},          {"pd-", pd_end},    {"mr", mr},      {"mr-", mr_end},   {"cq", cq},
    {"cq-", cq_end},     {"cq=", cq_resize}, {"srq", srq},    {"srq-", srq_end}, {"srq=", srq_modify},
    {"srq?", srq_query}, {"qp", qp},         {"qp-", qp_end}, {"qp=", modify},   {"qp?", query},
    {"ah", ah},          {"ah-", ah_end},    {"send", send},  {"recv", receive}, {"srecv", srq_receive},
    {"poll", pol},       {"sum", sum},
};

static void play(char *text) {
    const char *word = strtok(text, " \n"), *number;
    size_t i;
    int n = 0;
    memset(arg, 0, sizeof arg);
    while (word && n < MOST && (number = strtok(NULL, " \n")))
        arg[n++] = strtol(number, NULL, 10);
    for (i = 0; word && i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word)) {
            words[i].play();
            return;
        }
    exit(3);
}

/* A new sequence: what is left goes with the device, as at the end of a process. */
static void begin(struct ibv_device *device) {
    int i, j;
    if (context && ibv_close_device(context))
        exit(4);
    context = ibv_open_device(device);
    if (!context)
        exit(5);
    for (i = 0; i < SLOTS; i++) {
        pds[i] = NULL, mrs[i] = NULL, cqs[i] = NULL, srqs[i] = NULL, qps[i] = NULL, ahs[i] = NULL;
        stash[i].n = pending[i].sends = pending[i].receives = 0;
        for (j = 0; j < BYTES; j++)
            memory[i][j] = (uint8_t)(i * 37 + j);
    }
    line = 0;
    printf("begin\n");
}

int main(int argc, char **argv) {
    char text[512];
    int i, count;
    struct ibv_device **list = ibv_get_device_list(&count), *device = NULL;
    for (i = 0; argc == 2 && list && i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
            device = list[i];
    if (!device)
        return 2;
    while (fgets(text, sizeof text, stdin)) {
        line++;
        if (!strcmp(text, "begin\n"))
            begin(device);
        else
            play(text);
        fflush(stdout);
    }
    if (context && ibv_close_device(context))
        return 4;
    ibv_free_device_list(list);
    return 0;
}
