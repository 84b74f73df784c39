/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on the memory of a peer on this host, without the peer: what is done so, and what takes the long way.  Both
 * ends are this process; what the peer's memory file says is the test's.
 */
#include "roce/direct.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "check.h"
#include "fabric.h"
#include "roce/message.h"
#include "wire/bth.h"

enum { DOMAIN = 3, KEY = 0x1200, FAR = 0x1300, IOVA = 1000, LENGTH = 100000, MOST = 16 << 20 };

static struct pair p;
static unsigned long npieces; /* of ours, that the kernel was given, */
static size_t last_piece;     /* and the bytes of the last one */

ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n, const struct iovec *there,
                         unsigned long m, unsigned long flags) {
    npieces = n;
    last_piece = here[n - 1].iov_len;
    return syscall(SYS_process_vm_readv, pid, here, n, there, m, flags);
}

static struct store file; /* the peer's */
static struct remote remote;
static _Atomic uint32_t mark;
static int line[2], of_qp;
static uint8_t *theirs;  /* in the file, */
static uint64_t lies_at; /* and where there */
static uint8_t *far;     /* in the process alone */
static uint8_t *ours;

#define READS (RNIC_ACCESS_REMOTE_READ | STORE_ANSWERS)
#define ALLOWED (ALL_ACCESS | STORE_ANSWERS)

static void publish(int kind, uint32_t key, uint64_t offset) {
    store_publish(&file, &(struct store_record){.kind = (uint32_t)kind,
                                                .key = key,
                                                .pd = DOMAIN,
                                                .access = ALL_ACCESS,
                                                .iova = IOVA,
                                                .offset = offset,
                                                .length = LENGTH});
}

static void allow(uint32_t access) {
    store_withdraw(&file, of_qp);
    of_qp = store_publish(&file, &(struct store_record){.kind = STORE_QP,
                                                        .handle = p.a.qp->attr.dest_qp_num,
                                                        .key = p.a.qp->pub.qp_num,
                                                        .pd = DOMAIN,
                                                        .access = access});
}

static void begin_with(const struct options *o) {
    pair_open_options(&p, o);
    post_write(&p.a, 99, 0, 0, 8); /* the first goes by the wire, always */
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 99, SUCCESS);
    CHECK_EQ(store_open(&file, "lo", RNIC_TRANSPORT_IB, 42, NULL), 0);
    CHECK_EQ(store_alloc(&file, LENGTH, &lies_at, &theirs, NULL), 0);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, line), 0);
    CHECK_EQ(remote_open(&remote, file.fd, getpid(), line[0], &mark), 0);
    far = malloc(LENGTH);
    ours = p.a.mem;
    fill(theirs, LENGTH, 1);
    fill(far, LENGTH, 2);
    fill(ours, p.a.bytes, 3);
    of_qp = -1;
    allow(ALLOWED);
    publish(STORE_MR, KEY, lies_at);
    publish(STORE_ORDINARY, FAR, (uintptr_t)far);
    p.a.qp->remote = &remote;
}
#define BEGIN(...) begin_with(&(struct options){__VA_ARGS__})

static void end_with(void (*close_pair)(struct pair *)) {
    CHECK_EQ(mark % 2, 0);
    p.a.qp->remote = NULL;
    close_pair(&p);
    remote_close(&remote);
    store_close(&file);
    close(line[0]);
    close(line[1]);
    free(far);
}

static void end(void) { end_with(pair_close_quietly); }

static struct rnic_sge sge;

static struct rnic_send_wr one_sided(int opcode, uint64_t at, uint64_t to, uint32_t n) {
    struct rnic_send_wr wr = {
        .wr_id = 7, .opcode = opcode, .send_flags = RNIC_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1};
    sge = (struct rnic_sge)SGE(&p.a, at, n);
    if (opcode == RNIC_WR_ATOMIC_CMP_AND_SWP || opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = IOVA + to;
        wr.wr.atomic.rkey = KEY;
    } else {
        wr.wr.rdma.remote_addr = IOVA + to;
        wr.wr.rdma.rkey = KEY;
    }
    return wr;
}

/* Done at once, with its completion; nothing is sent. */
static void is_done(const struct rnic_send_wr *wr, int opcode, uint32_t bytes) {
    uint64_t before = COUNTER(&p.a, local_direct);
    uint32_t psn = rc_of(p.a.qp)->req.psn;
    CHECK(direct_post(p.a.qp, wr));
    struct rnic_wc wc = WANT(p.a.send_cq, 7, SUCCESS);
    CHECK_EQ(wc.opcode, opcode);
    CHECK_EQ(wc.byte_len, bytes);
    CHECK_EQ(COUNTER(&p.a, local_direct), before + 1);
    CHECK_EQ(rc_of(p.a.qp)->req.psn, psn);
    CHECK_EQ(rc_of(p.a.qp)->req.next, wq_head(&p.a.qp->sq));
    CHECK_EQ(mark % 2, 0);
}

/* Nothing has happened: it is to be posted. */
static void is_left(const struct rnic_send_wr *wr) {
    static uint8_t before[LENGTH];
    uint64_t count = COUNTER(&p.a, local_direct);
    uint32_t head = wq_head(&p.a.qp->sq);
    memcpy(before, theirs, LENGTH);
    CHECK(!direct_post(p.a.qp, wr));
    CHECK(!memcmp(before, theirs, LENGTH));
    CHECK_EQ(COUNTER(&p.a, local_direct), count);
    CHECK_EQ(wq_head(&p.a.qp->sq), head);
    CHECK_EQ(mark % 2, 0);
    WANT_NONE(p.a.send_cq);
}

/* ---------------------------------------------------------------- what is looked at */

static void one_request_of_one_element_is_read(void) {
    const uint32_t reads_and_sends = 1u << RNIC_WR_RDMA_READ | 1u << RNIC_WR_SEND | 1u << 31;
    struct direct d;
    BEGIN(0);
    struct rnic_send_wr wr = one_sided(RNIC_WR_RDMA_READ, 0, 0, 8), next = wr;
    CHECK(direct_read(&d, reads_and_sends, &wr));
    CHECK(d.wr.sg_list == &d.sge && d.wr.wr_id == 7 && !memcmp(&d.sge, &sge, sizeof sge));
    static const int others[] = {RNIC_WR_RDMA_WRITE, RNIC_WR_ATOMIC_FETCH_AND_ADD, -1, 32, 33, 64, 1 << 30};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        check_note("opcode %d", others[i]);
        wr.opcode = others[i];
        CHECK(!direct_read(&d, reads_and_sends, &wr));
    }
    wr.opcode = 32; /* no bit of any */
    CHECK(!direct_read(&d, reads_and_sends | 1u, &wr));
    wr.opcode = RNIC_WR_RDMA_WRITE;
    CHECK(direct_read(&d, 1u << RNIC_WR_RDMA_WRITE, &wr));
    wr.opcode = 31;
    CHECK(direct_read(&d, reads_and_sends, &wr));
    wr.opcode = RNIC_WR_RDMA_READ;
    wr.num_sge = 2;
    CHECK(!direct_read(&d, reads_and_sends, &wr));
    wr.num_sge = 0;
    CHECK(!direct_read(&d, reads_and_sends, &wr));
    wr.num_sge = 1;
    wr.next = &next;
    CHECK(!direct_read(&d, reads_and_sends, &wr));
    end();
}

static void what_is_done_at_once_depends_on_the_queue_pair(void) {
    for (int type = RNIC_QPT_RC; type <= RNIC_QPT_UC; type++) {
        pair_open(&p, .type = type);
        uint32_t sends = type == RNIC_QPT_RC ? DIRECT_SEND : 0;
        CHECK_EQ(direct_operations(p.a.qp), sends);
        p.a.qp->remote = &remote;
        CHECK_EQ(direct_operations(p.a.qp), sends | DIRECT_ACCESS);
        CHECK_EQ(DIRECT_SEND & DIRECT_ACCESS, 0);
        struct tagged *was = p.a.qp->tagged;
        p.a.qp->tagged = (struct tagged *)(void *)&p; /* whatever it has there */
        CHECK_EQ(direct_operations(p.a.qp), 0);
        p.a.qp->tagged = was;
        p.a.qp->remote = NULL;
        pair_close(&p);
    }
}

/* ---------------------------------------------------------------- at once */

static void each_operation_is_done_while_it_is_posted(void) {
    uint64_t word = 100, was, add = 5;
    BEGIN(0);
    struct rnic_send_wr wr = one_sided(RNIC_WR_RDMA_WRITE, 64, 500, 300);
    is_done(&wr, RNIC_WCO_RDMA_WRITE, 300);
    CHECK(!memcmp(theirs + 500, ours + 64, 300));
    wr = one_sided(RNIC_WR_RDMA_READ, 0, 900, 33);
    wr.send_flags |= RNIC_SEND_FENCE;
    is_done(&wr, RNIC_WCO_RDMA_READ, 33);
    CHECK(!memcmp(theirs + 900, ours, 33) && memcmp(theirs + 933, ours + 33, 8));
    memcpy(theirs + 8, &word, 8);
    wr = one_sided(RNIC_WR_ATOMIC_FETCH_AND_ADD, 16, 8, 8);
    wr.wr.atomic.compare_add = add;
    is_done(&wr, RNIC_WCO_FETCH_ADD, 8);
    memcpy(&was, ours + 16, 8);
    memcpy(&word, theirs + 8, 8);
    CHECK(was == 100 && word == 105);
    for (int equal = 0; equal < 2; equal++) {
        wr = one_sided(RNIC_WR_ATOMIC_CMP_AND_SWP, 24, 8, 8);
        wr.wr.atomic.compare_add = 104 + (uint64_t)equal;
        wr.wr.atomic.swap = 9;
        is_done(&wr, RNIC_WCO_COMP_SWAP, 8);
        memcpy(&was, ours + 24, 8);
        memcpy(&word, theirs + 8, 8);
        CHECK(was == 105 && word == (equal ? 9 : 105));
    }
    uint8_t loose[16] = {4, 5, 6}; /* memory of no region */
    wr = one_sided(RNIC_WR_RDMA_WRITE, 0, 0, 16);
    wr.send_flags = RNIC_SEND_SIGNALED | RNIC_SEND_INLINE;
    sge = (struct rnic_sge){(uintptr_t)loose, 16, 0};
    is_done(&wr, RNIC_WCO_RDMA_WRITE, 16);
    CHECK(!memcmp(theirs, loose, 16));
    end();
}

static void unsignaled_ones_complete_nothing(void) {
    BEGIN(0);
    struct rnic_send_wr wr = one_sided(RNIC_WR_RDMA_WRITE, 64, 500, 300);
    wr.send_flags = 0;
    CHECK(direct_post(p.a.qp, &wr));
    WANT_NONE(p.a.send_cq);
    CHECK(!memcmp(theirs + 500, ours + 64, 300));
    wr = one_sided(RNIC_WR_RDMA_READ, 0, 900, 33);
    is_done(&wr, RNIC_WCO_RDMA_READ, 33);
    end();
}

static void what_is_not_usual_takes_the_long_way(void) {
    static const struct {
        int opcode;
        uint32_t flags, n;
        int64_t at, to;
        bool done;
    } rows[] = {
        {RNIC_WR_RDMA_WRITE, 0, 1, 0, 0, true},
        {RNIC_WR_RDMA_WRITE, 0, 0, 0, 0, false},
        {RNIC_WR_RDMA_WRITE, RNIC_SEND_SOLICITED, 1, 0, 0, false},
        {RNIC_WR_RDMA_WRITE, RNIC_SEND_INLINE, 64, 0, 0, true},
        {RNIC_WR_RDMA_WRITE, RNIC_SEND_INLINE, 65, 0, 0, false},
        {RNIC_WR_RDMA_READ, RNIC_SEND_INLINE, 8, 0, 0, false},
        {RNIC_WR_RDMA_WRITE, 0, 8, 0, LENGTH - 8, true},
        {RNIC_WR_RDMA_WRITE, 0, 9, 0, LENGTH - 8, false},
        {RNIC_WR_RDMA_READ, 0, 8, 0, -1, false},
        {RNIC_WR_RDMA_READ, 0, 8, -1, 0, false},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 0, 0, true},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 1, 0, true}, /* its answer may lie anywhere */
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 0, 4, false},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, 0, 7, 0, 0, false},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, 0, 9, 0, 0, false},
        {RNIC_WR_ATOMIC_CMP_AND_SWP, 0, 8, 0, 1, false},
        {RNIC_WR_ATOMIC_CMP_AND_SWP, 0, 16, 0, 0, false},
        {RNIC_WR_ATOMIC_CMP_AND_SWP, 0, 8, 0, LENGTH, false},
    };
    BEGIN(0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        struct rnic_send_wr wr = one_sided(rows[i].opcode, (uint64_t)rows[i].at, (uint64_t)rows[i].to, rows[i].n);
        wr.send_flags |= rows[i].flags;
        if (!rows[i].done) {
            is_left(&wr);
            continue;
        }
        CHECK(direct_post(p.a.qp, &wr));
        WANT(p.a.send_cq, 7, SUCCESS);
    }
    end();
}

/* What the peer allows, what this end has, and what goes on meanwhile. */
static void it_must_be_allowed_and_in_turn(void) {
    enum {
        NO_READ,
        NO_ANSWERS,
        NO_DEPTH,
        NO_WAY,
        FAULTY,
        PACED,
        LOCKED,
        POSTED,
        FULL,
        NOT_OURS,
        READ_ONLY,
        NOTHING,
        CASES
    };
    for (int i = 0; i < CASES; i++) {
        check_note("case %d", i);
        BEGIN(0);
        struct qp *qp = p.a.qp;
        struct rnic_send_wr wr = one_sided(RNIC_WR_RDMA_READ, 0, 0, 8);
        uint32_t depth = qp->attr.max_rd_atomic, access = p.a.mr->access;
        uint32_t freed = atomic_load(&qp->sq.freed), head = atomic_load(&qp->sq.head);
        if (i == NO_READ)
            allow(ALLOWED & ~RNIC_ACCESS_REMOTE_READ);
        if (i == NO_ANSWERS)
            allow(ALL_ACCESS);
        qp->attr.max_rd_atomic = i == NO_DEPTH ? 0 : qp->attr.max_rd_atomic;
        qp->remote = i == NO_WAY ? NULL : &remote;
        qp->nic->faulty = i == FAULTY;
        qp->pace.rate = i == PACED;
        if (i == LOCKED)
            pthread_mutex_lock(&qp->sq.lock);
        if (i == POSTED)
            atomic_store(&qp->sq.head, head + 1);
        if (i == FULL)
            atomic_store(&qp->sq.freed, head - qp->sq.max_wr);
        sge.lkey ^= i == NOT_OURS;
        p.a.mr->access &= i == READ_ONLY ? ~(uint32_t)RNIC_ACCESS_LOCAL_WRITE : UINT32_MAX;
        if (i == NOTHING)
            is_done(&wr, RNIC_WCO_RDMA_READ, 8);
        else
            is_left(&wr);
        if (i == LOCKED)
            pthread_mutex_unlock(&qp->sq.lock);
        if (i == POSTED)
            atomic_store(&qp->sq.head, head);
        if (i == FULL)
            atomic_store(&qp->sq.freed, freed);
        if (i == READ_ONLY || i == NO_DEPTH) { /* neither matters to a WRITE */
            wr = one_sided(RNIC_WR_RDMA_WRITE, 0, 0, 8);
            is_done(&wr, RNIC_WCO_RDMA_WRITE, 8);
        }
        qp->attr.max_rd_atomic = (uint8_t)depth;
        p.a.mr->access = access;
        qp->nic->faulty = false;
        qp->pace.rate = 0;
        end();
    }
}

/* Before anything has been answered nobody knows whether the peer is there; and order holds. */
static void the_first_request_and_those_behind_one_under_way_are_sent(void) {
    BEGIN(0);
    CHECK(direct_is_next(p.a.qp));
    p.a.qp->remote = NULL;
    post_write(&p.a, 1, 0, 0, 8);
    fabric_run(&p.f, p.f.now + 1);
    p.a.qp->remote = &remote;
    CHECK(!direct_is_next(p.a.qp));
    struct rnic_send_wr wr = one_sided(RNIC_WR_RDMA_WRITE, 64, 500, 300);
    is_left(&wr);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(direct_is_next(p.a.qp));
    end();
    pair_open(&p, .quiet = true);
    p.a.qp->remote = &remote;
    CHECK(!direct_is_next(p.a.qp));
    p.a.qp->remote = NULL;
    pair_close(&p);
}

static void a_queue_is_full_when_it_would_be_and_polling_frees_it(void) {
    BEGIN(.wr = 4);
    struct rnic_send_wr wr = one_sided(RNIC_WR_RDMA_WRITE, 0, 0, 8);
    uint32_t room = p.a.qp->sq.max_wr;
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < room; i++) {
            wr.wr_id = i;
            CHECK(direct_post(p.a.qp, &wr));
        }
        CHECK(!direct_post(p.a.qp, &wr));
        for (uint32_t i = 0; i < room; i++)
            WANT(p.a.send_cq, i, SUCCESS);
    }
    end();
}

/* ---------------------------------------------------------------- in its turn */

static void run(struct rnic_send_wr wr, bool direct) {
    uint64_t before = COUNTER(&p.a, local_direct), copied = p.a.node->nic.copied;
    uint32_t n = 0;
    for (int i = 0; i < wr.num_sge; i++)
        n += wr.sg_list[i].length;
    post(&p.a, wr);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, wr.wr_id, SUCCESS);
    CHECK_EQ(COUNTER(&p.a, local_direct), before + direct);
    CHECK_EQ(p.a.node->nic.copied, copied + (direct ? n : 0));
}

static void what_is_posted_is_done_in_its_turn(void) {
    BEGIN(0);
    struct rnic_sge list[3] = {SGE(&p.a, 1, 100), SGE(&p.a, 5000, 0), SGE(&p.a, 6000, 77)};
    struct rnic_send_wr wr = one_sided(RNIC_WR_RDMA_WRITE, 0, 10, 8);
    wr.sg_list = list, wr.num_sge = 3;
    run(wr, true);
    CHECK(!memcmp(theirs + 10, ours + 1, 100) && !memcmp(theirs + 110, ours + 6000, 77));
    wr.opcode = RNIC_WR_RDMA_READ;
    wr.wr.rdma.remote_addr = IOVA + 3000;
    run(wr, true);
    CHECK(!memcmp(theirs + 3000, ours + 1, 100) && !memcmp(theirs + 3100, ours + 6000, 77));
    wr = one_sided(RNIC_WR_ATOMIC_WRITE, 40, 16, 8);
    run(wr, true);
    CHECK(!memcmp(theirs + 16, ours + 40, 8));
    uint64_t word = 100, was;
    memcpy(theirs + 8, &word, 8);
    wr = one_sided(RNIC_WR_ATOMIC_FETCH_AND_ADD, 16, 8, 8);
    wr.wr.atomic.compare_add = 11;
    run(wr, true);
    memcpy(&was, ours + 16, 8);
    memcpy(&word, theirs + 8, 8);
    CHECK(was == 100 && word == 111);
    wr = one_sided(RNIC_WR_RDMA_WRITE, 0, 0, 16);
    wr.send_flags |= RNIC_SEND_INLINE;
    run(wr, true);
    CHECK(!memcmp(theirs, ours, 16));
    end();
}

/* An element of a send queue that nobody has posted. */
static struct send_wqe *element(int opcode, uint64_t to, uint32_t n, uint32_t key) {
    static union {
        struct send_wqe wqe;
        uint8_t room[sizeof(struct send_wqe) + sizeof(struct rnic_sge)];
    } one;
    one.wqe =
        (struct send_wqe){.opcode = (uint8_t)opcode, .length = n, .num_sge = 1, .remote_addr = IOVA + to, .rkey = key};
    one.wqe.sge[0] = (struct rnic_sge)SGE(&p.a, 0, n);
    return &one.wqe;
}

/* By the kernel, if they are long; the peer is asked for what is short. */
static void long_pieces_of_ordinary_memory_are_copied(void) {
    enum { LONG = 16384 };
    BEGIN(0);
    struct rnic_sge list[4] = {SGE(&p.a, 1, 100), SGE(&p.a, 5000, 0), SGE(&p.a, 6000, LONG - 100), SGE(&p.a, 0, 0)};
    struct rnic_send_wr wr = one_sided(RNIC_WR_RDMA_WRITE, 0, 10, 8);
    wr.sg_list = list, wr.num_sge = 4, wr.wr.rdma.rkey = FAR;
    for (int lists = 0; lists < 2; lists++) {
        wr.opcode = RNIC_WR_RDMA_WRITE;
        wr.wr.rdma.remote_addr = IOVA + 10;
        run(wr, true);
        CHECK(!memcmp(far + 10, ours + list[0].addr - (uintptr_t)ours, list[0].length));
        CHECK(!memcmp(far + 10 + list[0].length, ours + 6000, list[2].length));
        wr.opcode = RNIC_WR_RDMA_READ;
        wr.wr.rdma.remote_addr = IOVA + 40000 + (uint64_t)lists;
        run(wr, true);
        CHECK_EQ(npieces, 4);                                    /* the last word is apart, and nothing is behind it */
        CHECK(last_piece > 0 && last_piece <= sizeof(uint64_t)); /* its reader may poll that */
        CHECK(!memcmp(far + 40000 + lists, ours + list[0].addr - (uintptr_t)ours, list[0].length));
        CHECK(!memcmp(far + 40000 + lists + list[0].length, ours + 6000, list[2].length));
        list[0].length = 90, list[2].length = LONG - 90;
    }
    CHECK(direct_execute(p.a.qp, element(RNIC_WR_RDMA_READ, 0, LONG, FAR)));
    CHECK(direct_execute(p.a.qp, element(RNIC_WR_RDMA_READ, 0, LONG - 1, FAR))); /* as few are under way */
    CHECK(!direct_execute(p.a.qp, element(RNIC_WR_ATOMIC_WRITE, 0, LONG, FAR)));
    struct send_wqe *wqe = element(RNIC_WR_RDMA_WRITE, 0, LONG, FAR);
    wqe->sge[0].lkey ^= 1;
    CHECK(!direct_execute(p.a.qp, wqe));
    end();
}

static void what_the_peer_is_to_say_is_not_done(void) {
    static const struct {
        int opcode;
        uint64_t to;
        uint32_t n, key;
        bool done;
    } rows[] = {
        {RNIC_WR_RDMA_WRITE, 0, 8, KEY, true},
        {RNIC_WR_RDMA_WRITE, 0, 0, KEY, false},
        {RNIC_WR_RDMA_WRITE, 0, MOST + 1, KEY, false},
        {RNIC_WR_RDMA_WRITE, LENGTH - 7, 8, KEY, false},
        {RNIC_WR_RDMA_WRITE, 0, 8, KEY + 1, false},
        {RNIC_WR_ATOMIC_WRITE, 8, 8, KEY, true},
        {RNIC_WR_ATOMIC_WRITE, 9, 8, KEY, false},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, 8, 8, KEY, true},
        {RNIC_WR_ATOMIC_FETCH_AND_ADD, 4, 8, KEY, false},
        {RNIC_WR_ATOMIC_CMP_AND_SWP, 8, 8, KEY, true},
        {RNIC_WR_ATOMIC_CMP_AND_SWP, 12, 8, KEY, false},
        {RNIC_WR_SEND, 0, 8, KEY, false},
        {RNIC_WR_FLUSH, 0, 8, KEY, false},
        {RNIC_WR_RDMA_WRITE_WITH_IMM, 0, 8, KEY, false},
    };
    BEGIN(0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        struct send_wqe *wqe = element(rows[i].opcode, rows[i].to, rows[i].n, rows[i].key);
        CHECK_EQ(direct_execute(p.a.qp, wqe), rows[i].done);
        CHECK_EQ(mark % 2, 0);
        wqe->sge[0].lkey ^= 1;
        CHECK(!direct_execute(p.a.qp, wqe));
    }
    end();
}

/* The address that is named and the one where the bytes lie: a region may begin at any. */
static void both_addresses_of_a_word_are_aligned(void) {
    enum { ODD = 0x1400 };
    BEGIN(0);
    store_publish(&file, &(struct store_record){.kind = STORE_MR,
                                                .key = ODD,
                                                .pd = DOMAIN,
                                                .access = ALL_ACCESS,
                                                .iova = IOVA + 4,
                                                .offset = lies_at,
                                                .length = LENGTH});
    for (uint64_t off = 4; off <= 8; off += 4) {
        check_note("%u behind IOVA", (unsigned)off);
        struct rnic_send_wr wr = one_sided(RNIC_WR_ATOMIC_FETCH_AND_ADD, 0, off, 8);
        wr.wr.atomic.rkey = ODD;
        is_left(&wr);
        CHECK(!direct_execute(p.a.qp, element(RNIC_WR_ATOMIC_FETCH_AND_ADD, off, 8, ODD)));
        CHECK(!direct_execute(p.a.qp, element(RNIC_WR_ATOMIC_WRITE, off, 8, ODD)));
        CHECK(direct_execute(p.a.qp, element(RNIC_WR_RDMA_WRITE, off, 8, ODD)));
    }
    end();
}

/* ---------------------------------------------------------------- when it pays to wait */

static void a_copy_waits_behind_what_is_soon_answered_if_it_pays(void) {
    enum { LONG = 16384 };
    static const struct {
        int ahead, opcode;
        uint32_t n, key;
        bool waits;
    } rows[] = {
        {RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_WRITE, 8, KEY, true},
        {RNIC_WR_RDMA_READ, RNIC_WR_RDMA_READ, 8, KEY, true},
        {RNIC_WR_RDMA_WRITE, RNIC_WR_SEND, 8, KEY, false},
        {RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_WRITE, MOST, KEY, true},
        {RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_WRITE, MOST + 1, KEY, false},
        {RNIC_WR_RDMA_WRITE, RNIC_WR_RDMA_WRITE, LONG, FAR, false}, /* not mapped */
        {RNIC_WR_SEND, RNIC_WR_RDMA_WRITE, LONG - 1, KEY, false},
        {RNIC_WR_SEND, RNIC_WR_RDMA_WRITE, LONG, KEY, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        BEGIN(0);
        struct send_wqe wqe = {.opcode = (uint8_t)rows[i].opcode, .length = rows[i].n, .rkey = rows[i].key};
        CHECK(!direct_waits(p.a.qp, &wqe)); /* nothing is ahead */
        p.a.qp->remote = NULL;
        if (rows[i].ahead == RNIC_WR_SEND) {
            post_recv(&p.b, 5, 0, 64);
            post_send(&p.a, 1, 0, 64);
        } else if (rows[i].ahead == RNIC_WR_RDMA_WRITE) {
            post_write(&p.a, 1, 0, 0, 64);
        } else {
            post_read(&p.a, 1, 0, 0, 64);
        }
        fabric_run(&p.f, p.f.now + 1);
        p.a.qp->remote = &remote;
        CHECK_EQ(direct_waits(p.a.qp, &wqe), rows[i].waits);
        p.a.qp->remote = NULL;
        CHECK(!direct_waits(p.a.qp, &wqe));
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        if (rows[i].ahead == RNIC_WR_SEND)
            WANT(p.b.recv_cq, 5, SUCCESS);
        end();
    }
}

/* ---------------------------------------------------------------- what stays where it is */

/* Instead of its bytes a packet may say where they are: if they are in one piece in the file that the peer has. */
static void a_long_packet_says_where_its_bytes_are_if_the_peer_can_reach_them(void) {
    enum {
        USUAL,
        RECORD_0,
        SHORT,
        NO_WAY,
        BY_WIRE,
        LIST,
        FAULTY,
        UNRELIABLE,
        LEAVING,
        AGAIN,
        ORDINARY,
        SEALED,
        SEALED_0,
        UNSAID,
        NO_REGION,
        BEYOND,
        CASES
    };
    enum { LONG = 4096, AT = 100 };
    for (int i = 0; i < CASES; i++) {
        static uint8_t packet[LONG + 64];
        struct link lane = {.bare = i != BY_WIRE};
        union {
            struct send_wqe wqe;
            uint8_t room[sizeof(struct send_wqe) + 2 * sizeof(struct rnic_sge)];
        } one = {.wqe = {.opcode = RNIC_WR_RDMA_WRITE, .num_sge = i == LIST ? 2 : 1}};
        check_note("case %d", i);
        BEGIN(0);
        struct qp *qp = p.a.qp;
        struct mr *mr = p.a.mr;
        uint32_t n = i == SHORT ? LONG - 1 : LONG, service = qp->ib.service;
        struct out out = {.bth = packet, .row = roce_opcode(ROCE_RC_WRITE_ONLY), .link = &lane, .payload = n};
        memset(packet, 0, sizeof packet);
        bth_set_psn(packet, psn_add(rc_of(qp)->req.max_psn, i == AGAIN ? -1 : 0));
        one.wqe.sge[0] = (struct rnic_sge)SGE(&p.a, 0, LONG + 2 * AT);
        one.wqe.sge[1] = (struct rnic_sge)SGE(&p.a, LONG + 2 * AT, LONG);
        one.wqe.sge[0].addr += i == BEYOND ? p.a.bytes : 0;
        one.wqe.sge[0].lkey ^= i == NO_REGION;
        mr->stored = i != ORDINARY;
        mr->access = i == USUAL ? 0 : ALL_ACCESS; /* to be read by its own queue pair takes no right */
        mr->sealed = i == SEALED ? 7 : i == SEALED_0 ? 0 : -1;
        mr->record = i == UNSAID ? -1 : i == RECORD_0 ? 0 : 3;
        qp->remote = i == NO_WAY ? NULL : &remote;
        qp->nic->faulty = i == FAULTY;
        qp->ib.service = i == UNRELIABLE ? OPC_UC : service;
        qp->leaving = i == LEAVING;
        int ve = message_payload(qp, &out, &one.wqe, AT);
        bool stays = i <= RECORD_0, exposed = qp->exposed;
        qp->nic->faulty = qp->leaving = qp->exposed = mr->stored = false;
        qp->ib.service = service;
        CHECK_EQ(ve, i == NO_REGION ? RNIC_VE_SGE_BAD_LKEY : i == BEYOND ? RNIC_VE_SGE_BOUNDS : 0);
        CHECK_EQ(exposed, stays);
        CHECK_EQ(out.elsewhere.length, stays ? n : 0);
        if (stays) {
            CHECK(out.elsewhere.addr == (uintptr_t)ours + AT && out.elsewhere.lkey == mr->pub.lkey);
            CHECK_EQ(out.owner, qp->pub.qp_num);
        }
        CHECK_EQ(memcmp(out_payload(&out), ours + AT, n) == 0, !stays && !ve);
        end();
    }
}

/* ---------------------------------------------------------------- short SENDs */

static bool no_room;
static uint32_t handed;      /* packets that the way on this host has taken */
static uint8_t first_handed; /* the opcode of the first */
static uint32_t joined;      /* ACKs that went in one piece with a SEND */

static bool hand_over(struct link *link, const struct way *way, const uint8_t *bytes, uint32_t n) {
    (void)link;
    if (no_room)
        return false;
    if (!handed++)
        first_handed = bytes[0];
    uint32_t ack = bytes[0] == ROCE_RC_ACK && n > ACK_BYTES ? ACK_BYTES : 0; /* ahead of a SEND, in one piece */
    if (ack)
        fabric_inject(p.a.node, (struct way *)(uintptr_t)way, bytes, ack);
    joined += ack > 0;
    fabric_inject(p.a.node, (struct way *)(uintptr_t)way, bytes + ack, n - ack);
    return true;
}

static uint64_t read_clock(void *arg) {
    (void)arg;
    return p.f.now;
}

static struct {
    uint8_t bytes[256];
    struct way *way;
    uint32_t n;
} reserved; /* and one that is written there */

static uint8_t *make_room(struct link *link, struct way *way, uint32_t n, uint32_t *crc) {
    (void)link;
    (void)crc;
    reserved.way = way;
    reserved.n = n;
    return n <= sizeof reserved.bytes ? reserved.bytes : NULL;
}

static void written(struct link *link) { hand_over(link, reserved.way, reserved.bytes, reserved.n); }

static const struct link_ops way_ops = {.reserve = make_room, .commit = written, .put = hand_over};
static struct link here = {.ops = &way_ops, .bare = true};

static void begin_on_this_host(void) {
    BEGIN(0);
    handed = joined = 0;
    p.a.node->nic.cq_timing.clock = read_clock;
    p.a.qp->way.link = &here;
    post_recv(&p.b, 5, 0, 64);
}

/* The SEND that has arrived last. */
static const struct record *last_send(void) {
    const struct record *r = &p.f.log[p.f.logged - 1];
    while (!r->arrived || !(roce_opcode(r->opcode)->mask & OPC_SEND))
        r--;
    return r;
}

/* Both ends know of it; its receive's completion. */
static struct rnic_wc arrived(uint32_t n) {
    p.a.qp->way.link = p.a.node->nic.wire; /* its other packets go by the fabric's wire */
    fabric_turn(p.a.qp);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 7, SUCCESS);
    struct rnic_wc wc = WANT(p.b.recv_cq, 5, SUCCESS);
    CHECK_EQ(wc.byte_len, n);
    CHECK(!memcmp(p.b.mem, ours, n));
    return wc;
}

static void a_short_send_goes_at_once_if_it_is_its_turn(void) {
    enum {
        USUAL,
        LONGEST,
        SOLICITED,
        INLINE,
        LONGER,
        FENCED,
        FAULTY,
        PACED,
        MIGRATING,
        LIMITING,
        HALTED,
        BEHIND,
        LOCKED
    };
    for (int i = USUAL; i <= LOCKED; i++) {
        check_note("case %d", i);
        begin_on_this_host();
        struct qp *qp = p.a.qp;
        struct rc *rc = rc_of(qp);
        uint32_t n = i == LONGEST ? REQ_BRIEF : i == LONGER ? REQ_BRIEF + 4 : 8;
        struct rnic_send_wr wr = one_sided(RNIC_WR_SEND, 0, 0, n);
        uint64_t now = 0, sent = COUNTER(&p.a, tx_packets);
        wr.send_flags |= i == SOLICITED ? RNIC_SEND_SOLICITED
                         : i == INLINE  ? RNIC_SEND_INLINE
                         : i == FENCED  ? RNIC_SEND_FENCE
                                        : 0;
        qp->nic->faulty = i == FAULTY;
        qp->pace.rate = i == PACED;
        qp->attr.path_mig_state = i == MIGRATING ? RNIC_MIG_ARMED : RNIC_MIG_MIGRATED;
        rc->congestion.limiting = i == LIMITING;
        rc->req.halted = i == HALTED;
        rc->req.next -= i == BEHIND;
        if (i == LOCKED)
            pthread_mutex_lock(&qp->sq.lock);
        bool done = direct_send(qp, &wr, &now);
        if (i == LOCKED)
            pthread_mutex_unlock(&qp->sq.lock);
        qp->nic->faulty = rc->congestion.limiting = rc->req.halted = false;
        qp->attr.path_mig_state = RNIC_MIG_MIGRATED;
        rc->req.next += i == BEHIND;
        qp->pace.rate = 0;
        CHECK_EQ(done, i <= INLINE);
        CHECK_EQ(handed, i <= INLINE);
        CHECK_EQ(COUNTER(&p.a, tx_packets), sent + (i <= INLINE));
        CHECK_EQ(now, done ? p.f.now : 0);
        qp->way.link = p.a.node->nic.wire;
        if (!done)
            post(&p.a, wr);
        arrived(n);
        CHECK_EQ(last_send()->solicited, i == SOLICITED);
        CHECK(last_send()->ackreq); /* its completion is waited for */
        end();
    }
}

static void a_short_send_may_have_an_immediate_or_no_bytes(void) {
    static const int opcodes[] = {RNIC_WR_SEND, RNIC_WR_SEND_WITH_IMM};
    for (int i = 0; i < 4; i++) {
        uint64_t now;
        check_note("case %d", i);
        begin_on_this_host();
        struct rnic_send_wr wr = one_sided(opcodes[i % 2], 0, 0, i / 2 * 16u);
        wr.imm_data = 0x01020304;
        CHECK(direct_send(p.a.qp, &wr, &now));
        struct rnic_wc wc = arrived((uint32_t)i / 2 * 16);
        CHECK_EQ(wc.wc_flags & RNIC_WCF_WITH_IMM, i % 2 ? RNIC_WCF_WITH_IMM : 0);
        CHECK(i % 2 == 0 || wc.imm_data == 0x01020304);
        end();
    }
}

/* It is posted then, and goes out as others do. */
static void a_short_send_that_finds_no_room_goes_later(void) {
    uint64_t now;
    begin_on_this_host();
    struct rnic_send_wr wr = one_sided(RNIC_WR_SEND, 0, 0, 8);
    uint64_t sent = COUNTER(&p.a, tx_packets);
    uint32_t psn = rc_of(p.a.qp)->req.psn;
    no_room = true;
    bool done = direct_send(p.a.qp, &wr, &now);
    no_room = false;
    CHECK(done);
    CHECK_EQ(rc_of(p.a.qp)->req.psn, psn);
    CHECK_EQ(COUNTER(&p.a, tx_packets), sent);
    arrived(8);
    end();
}

/* Its page is not there, of which only the copy tells. */
static void a_short_send_that_cannot_be_read_ends_in_an_error(void) {
    uint64_t now;
    begin_on_this_host();
    struct mr *mr = p.a.mr;
    mr->kind = MR_GUARDED;
    mr->shift = -mr->pub.iova; /* at address 0 */
    struct rnic_send_wr wr = one_sided(RNIC_WR_SEND, 0, 0, 8);
    CHECK(direct_send(p.a.qp, &wr, &now));
    CHECK_EQ(handed, 0);
    p.a.qp->way.link = p.a.node->nic.wire;
    fabric_turn(p.a.qp);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 7, LOC_PROT_ERR, SGE_UNMAPPED);
    CHECK_EQ(p.a.qp->state, RNIC_QPS_ERR);
    end_with(pair_close);
}

static void a_short_send_counts_for_the_rate(void) {
    uint64_t now;
    begin_on_this_host();
    p.a.node->nic.ib.congestion = true;
    struct rnic_send_wr wr = one_sided(RNIC_WR_SEND, 0, 0, 8);
    CHECK(direct_send(p.a.qp, &wr, &now));
    CHECK_EQ(rc_of(p.a.qp)->congestion.sample, rc_of(p.a.qp)->mtu);
    arrived(8);
    end();
}

/* The peer has asked for an ACK, which is held for company: a SEND is that, if answers go the way that requests do. */
static void an_ack_that_is_held_goes_along_with_a_short_send(void) {
    for (int apart = 0; apart < 2; apart++) {
        check_note("apart %d", apart);
        begin_on_this_host();
        struct rc *rc = rc_of(p.a.qp);
        uint64_t now, acks = COUNTER(&p.a, acks_sent);
        p.a.node->nic.ack_hold = MS;
        p.b.node->nic.ack_hold = MS;
        post_recv(&p.a, 6, 4096, 64);
        post_send(&p.b, 8, 1024, 16);
        while (rc->resp.ack != ACK_ASKED)
            CHECK(fabric_step(&p.f, p.f.now + MS));
        p.a.qp->apart = apart;
        struct rnic_send_wr wr = one_sided(RNIC_WR_SEND, 0, 0, 8);
        CHECK(direct_send(p.a.qp, &wr, &now));
        p.a.qp->apart = false;
        CHECK_EQ(handed, 1);
        CHECK_EQ(joined, !apart);
        CHECK_EQ(COUNTER(&p.a, acks_sent), acks + !apart);
        CHECK_EQ(rc->resp.ack, apart ? ACK_ASKED : ACK_NONE);
        arrived(8);
        WANT(p.b.send_cq, 8, SUCCESS);
        WANT(p.a.recv_cq, 6, SUCCESS);
        end();
    }
}

/* The peer's completion queues may report to one channel, and its program take the first event for that of its own SEND. */
static void an_ack_goes_ahead_of_a_send_whose_program_sleeps(void) {
    for (int brief = 0; brief < 2; brief++) {
        check_note("brief %d", brief);
        begin_on_this_host();
        uint64_t now, acks = COUNTER(&p.a, acks_sent);
        p.a.node->nic.ack_hold = MS;
        p.b.node->nic.ack_hold = MS;
        post_recv(&p.a, 6, 4096, 64);
        post_send(&p.b, 8, 1024, 16);
        while (rc_of(p.a.qp)->resp.ack != ACK_ASKED)
            CHECK(fabric_step(&p.f, p.f.now + MS));
        atomic_store(&((struct cq *)p.a.qp->pub.recv_cq)->armed, CQ_ARMED_ANY);
        struct rnic_send_wr wr = one_sided(RNIC_WR_SEND, 0, 0, 8);
        if (brief)
            CHECK(direct_send(p.a.qp, &wr, &now));
        else
            post_send(&p.a, 7, 0, 64);
        fabric_turn(p.a.qp);
        CHECK_EQ(COUNTER(&p.a, acks_sent), acks + 1);
        CHECK_EQ(handed, brief ? 1 : 2);
        CHECK_EQ(joined, brief);
        CHECK_EQ(first_handed, ROCE_RC_ACK);
        arrived(brief ? 8 : 64);
        WANT(p.b.send_cq, 8, SUCCESS);
        WANT(p.a.recv_cq, 6, SUCCESS);
        end();
    }
}

int main(void) {
    RUN(one_request_of_one_element_is_read);
    RUN(what_is_done_at_once_depends_on_the_queue_pair);
    RUN(each_operation_is_done_while_it_is_posted);
    RUN(unsignaled_ones_complete_nothing);
    RUN(what_is_not_usual_takes_the_long_way);
    RUN(it_must_be_allowed_and_in_turn);
    RUN(the_first_request_and_those_behind_one_under_way_are_sent);
    RUN(a_queue_is_full_when_it_would_be_and_polling_frees_it);
    RUN(what_is_posted_is_done_in_its_turn);
    RUN(long_pieces_of_ordinary_memory_are_copied);
    RUN(what_the_peer_is_to_say_is_not_done);
    RUN(both_addresses_of_a_word_are_aligned);
    RUN(a_copy_waits_behind_what_is_soon_answered_if_it_pays);
    RUN(a_long_packet_says_where_its_bytes_are_if_the_peer_can_reach_them);
    RUN(a_short_send_goes_at_once_if_it_is_its_turn);
    RUN(a_short_send_may_have_an_immediate_or_no_bytes);
    RUN(a_short_send_that_finds_no_room_goes_later);
    RUN(a_short_send_that_cannot_be_read_ends_in_an_error);
    RUN(a_short_send_counts_for_the_rate);
    RUN(an_ack_that_is_held_goes_along_with_a_short_send);
    RUN(an_ack_goes_ahead_of_a_send_whose_program_sleeps);
    return check_done();
}
