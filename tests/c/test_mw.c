/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory windows on virtual time: what binds, what a window lets through, who may invalidate, and that each of it
 * happens once and in its turn, whatever the wire loses, doubles or delays.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define BINDABLE (ALL_ACCESS | RNIC_ACCESS_MW_BIND)
#define WRITABLE RNIC_ACCESS_REMOTE_WRITE
#define SIGNALED .send_flags = RNIC_SEND_SIGNALED
#define AT 4096u /* where the windows of these tests begin, */
#define LONG 512u /* and their length */

static struct pair p;
static struct mr *region; /* of b's memory, with MW_BIND */
static struct mw window;  /* of b */

static void scene_open(int type, const struct options *o) {
    pair_open_options(&p, o);
    region = fabric_mr(p.b.node, &p.b.node->pd, p.b.mem, p.b.bytes, BINDABLE);
    window = (struct mw){.pub = {.pd = &p.b.node->pd.pub, .type = type}};
    CHECK_EQ(mw_insert(&p.b.node->nic.mrs, &window), 0);
}
#define OPEN(type, ...) scene_open(RNIC_MW_##type, &(struct options){__VA_ARGS__})

static void scene_close(void) {
    mw_remove(&p.b.node->nic.mrs, &window);
    CHECK(!region->windows);
    CHECK_EQ(p.b.node->nic.mrs.windows, 0);
    fabric_drop_mr(p.b.node, region);
    pair_close(&p);
}

static uint32_t next_key(void) { return (window.pub.rkey & ~0xFFu) | ((window.pub.rkey + 1) & 0xFF); }

/* A bind of the window to [at, at + length) of b's region, on b's queue pair. */
static struct rnic_send_wr bind_wr(uint64_t id, uint64_t at, uint64_t length, uint32_t access) {
    return (struct rnic_send_wr){
        .wr_id = id,
        .opcode = RNIC_WR_BIND_MW,
        SIGNALED,
        .bind_mw = {&window.pub,
                    next_key(),
                    {length ? &region->pub : NULL, length ? (uintptr_t)p.b.mem + at : 0, length, access}}};
}

static void post_bind(uint64_t id, uint32_t access) { post(&p.b, bind_wr(id, AT, LONG, access)); }

static void bound(uint32_t access) {
    post_bind(1000, access);
    fabric_settle(&p.f);
    CHECK_EQ(WANT(p.b.send_cq, 1000, SUCCESS).opcode, RNIC_WCO_BIND_MW);
    CHECK(window.mr == region);
}

static struct rnic_send_wr invalidate_wr(uint64_t id, int opcode, uint32_t key) {
    return (struct rnic_send_wr){.wr_id = id, .opcode = opcode, SIGNALED, .invalidate_rkey = key};
}

/* A WRITE by a through the window. */
static void write_through(uint64_t id, uint64_t va, uint32_t n) {
    post(&p.a, (struct rnic_send_wr){.wr_id = id,
                                     .opcode = RNIC_WR_RDMA_WRITE,
                                     SIGNALED,
                                     SGL(SGE(&p.a, 0, n)),
                                     .wr.rdma = {va, window.pub.rkey}});
}

static uint64_t va_of(uint64_t at) { return (uintptr_t)p.b.mem + at; }

/* ---------------------------------------------------------------- what a window lets through */

static void every_operation_reaches_its_bytes_and_no_others(void) {
    for (int type = RNIC_MW_TYPE_1; type <= RNIC_MW_TYPE_2; type++) {
        check_note("type %d", type);
        scene_open(type, &(struct options){.mtu = RNIC_MTU_256});
        bound(WRITABLE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC);
        memset(p.b.mem, 0xEE, 3 * AT);
        fill(p.a.mem, LONG, 7);
        write_through(1, va_of(AT), LONG);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        CHECK(filled(p.b.mem + AT, LONG, 7));
        CHECK(p.b.mem[AT - 1] == 0xEE && p.b.mem[AT + LONG] == 0xEE);
        post(&p.a, (struct rnic_send_wr){.wr_id = 2,
                                         .opcode = RNIC_WR_RDMA_READ,
                                         SIGNALED,
                                         SGL(SGE(&p.a, 8192, LONG)),
                                         .wr.rdma = {va_of(AT), window.pub.rkey}});
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 2, SUCCESS);
        CHECK(filled(p.a.mem + 8192, LONG, 7));
        uint64_t before, after;
        memcpy(&before, p.b.mem + AT + 8, sizeof before);
        post(&p.a, (struct rnic_send_wr){.wr_id = 3,
                                         .opcode = RNIC_WR_ATOMIC_FETCH_AND_ADD,
                                         SIGNALED,
                                         SGL(SGE(&p.a, 0, 8)),
                                         .wr.atomic = {va_of(AT + 8), 5, 0, window.pub.rkey}});
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 3, SUCCESS);
        memcpy(&after, p.b.mem + AT + 8, sizeof after);
        CHECK(after == before + 5);
        scene_close();
    }
}

static void a_zero_based_window_is_named_from_0_on(void) {
    OPEN(TYPE_2, 0);
    bound(WRITABLE | RNIC_ACCESS_ZERO_BASED);
    fill(p.a.mem, LONG, 3);
    write_through(1, 0, LONG);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(filled(p.b.mem + AT, LONG, 3));
    write_through(2, 1, LONG); /* one byte beyond */
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 2, REM_ACCESS_ERR, NAK_ACCESS);
    scene_close();
}

/* Its bytes have another name, or may be missing, or are another process', which takes them back. */
static void a_window_reaches_bytes_as_its_region_does(void) {
    static uint64_t serial;
    static const enum mr_kind kinds[] = {MR_PLAIN, MR_GUARDED, MR_FOREIGN, MR_NULL};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        check_note("kind %d", (int)kinds[i]);
        OPEN(TYPE_2, 0);
        serial = 77;
        region->kind = kinds[i];
        region->is = &serial;
        region->was = 77;
        region->shift = 16;
        memset(p.b.mem, 0xEE, 3 * AT);
        bound(WRITABLE);
        fill(p.a.mem, LONG, 3);
        write_through(1, va_of(AT), LONG);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        CHECK_EQ(filled(p.b.mem + AT + 16, LONG, 3), kinds[i] != MR_NULL);
        CHECK(p.b.mem[AT + 15] == 0xEE && p.b.mem[AT + 16 + LONG] == 0xEE);
        serial = 78;
        write_through(2, va_of(AT), 8);
        fabric_settle(&p.f);
        if (kinds[i] == MR_FOREIGN)
            WANT_ERR(p.a.send_cq, 2, REM_ACCESS_ERR, NAK_ACCESS);
        else
            WANT(p.a.send_cq, 2, SUCCESS);
        scene_close();
    }
}

static void what_the_window_does_not_grant_is_an_access_error(void) {
    enum { BEFORE, BEYOND, OLD_KEY, NO_WRITE, NO_READ, NO_ATOMIC, UNBOUND, LKEY, CASES };
    for (int i = 0; i < CASES; i++) {
        check_note("case %d", i);
        OPEN(TYPE_1, 0);
        memset(p.b.mem, 0xEE, 3 * AT);
        bound(i == NO_WRITE    ? RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC
              : i == NO_READ   ? WRITABLE
              : i == NO_ATOMIC ? WRITABLE | RNIC_ACCESS_REMOTE_READ
                               : WRITABLE);
        if (i == UNBOUND) {
            post(&p.b, bind_wr(2, 0, 0, 0));
            fabric_settle(&p.f);
            WANT(p.b.send_cq, 2, SUCCESS);
            CHECK(!window.mr);
        }
        struct rnic_send_wr wr = {.wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, SIGNALED, SGL(SGE(&p.a, 0, 8))};
        wr.wr.rdma.remote_addr = va_of(i == BEFORE ? AT - 1 : i == BEYOND ? AT + LONG - 7 : AT);
        wr.wr.rdma.rkey = i == OLD_KEY ? window.pub.rkey - 1 : window.pub.rkey;
        if (i == NO_READ)
            wr.opcode = RNIC_WR_RDMA_READ;
        if (i == NO_ATOMIC) {
            wr.opcode = RNIC_WR_ATOMIC_FETCH_AND_ADD;
            wr.wr.atomic.remote_addr = va_of(AT);
            wr.wr.atomic.rkey = window.pub.rkey;
        }
        if (i == LKEY) { /* a window's key is none for the memory of work requests */
            wr.opcode = RNIC_WR_SEND;
            wr.sg_list[0] = (struct rnic_sge){va_of(AT), 8, window.pub.rkey};
            post(&p.b, wr);
        } else {
            post(&p.a, wr);
        }
        fabric_settle(&p.f);
        if (i == LKEY)
            WANT_ERR(p.b.send_cq, 1, LOC_PROT_ERR, SGE_BAD_LKEY);
        else
            WANT_ERR(p.a.send_cq, 1, REM_ACCESS_ERR, NAK_ACCESS);
        CHECK(p.b.mem[AT] == 0xEE && p.b.mem[AT - 1] == 0xEE && p.b.mem[AT + LONG] == 0xEE);
        scene_close();
    }
}

/* Type 2B is for the queue pair that it was bound through, also where another one is of the same protection domain. */
static void a_window_of_type_2_serves_its_queue_pair_alone(void) {
    for (int type = RNIC_MW_TYPE_1; type <= RNIC_MW_TYPE_2; type++) {
        uint8_t *ptr;
        scene_open(type, &(struct options){0});
        struct rnic_qp_cap cap = {4, 4, 1, 1, 0};
        struct qp *other = fabric_qp(p.b.node, &cap, p.b.send_cq, p.b.recv_cq);
        bound(WRITABLE);
        int ve = qp_remote(other, window.pub.rkey, va_of(AT), 8, WRITABLE, &ptr);
        CHECK_EQ(ve, type == RNIC_MW_TYPE_1 ? 0 : RNIC_VE_WINDOW_QP);
        CHECK_EQ(qp_remote(p.b.qp, window.pub.rkey, va_of(AT), 8, WRITABLE, &ptr), 0);
        CHECK(ptr == p.b.mem + AT);
        CHECK(!mw_invalidable(&p.b.node->nic.mrs, &other->pub, window.pub.rkey, &ve));
        CHECK_EQ(ve, type == RNIC_MW_TYPE_1 ? RNIC_VE_WINDOW_TYPE : RNIC_VE_WINDOW_QP);
        window.pub.pd = &p.b.node->other_pd.pub;
        CHECK_EQ(qp_remote(p.b.qp, window.pub.rkey, va_of(AT), 8, WRITABLE, &ptr), RNIC_VE_RKEY_PD);
        window.pub.pd = &p.b.node->pd.pub;
        fabric_destroy(other);
        scene_close();
    }
}

/* ---------------------------------------------------------------- binds */

static void each_bind_takes_the_place_of_the_last_with_a_new_key(void) {
    OPEN(TYPE_1, 0);
    for (uint64_t i = 0; i < 300; i++) { /* the tag wraps */
        uint32_t old = window.pub.rkey;
        post(&p.b, bind_wr(i, i * 8, 8 + i, WRITABLE));
        fabric_settle(&p.f);
        WANT(p.b.send_cq, i, SUCCESS);
        CHECK_EQ(window.pub.rkey, (old & ~0xFFu) | ((old + 1) & 0xFF));
        CHECK_EQ(window.entry.pub.rkey, window.pub.rkey);
        CHECK_EQ(window.entry.pub.length, 8 + i);
        CHECK(!mr_find(&p.b.node->nic.mrs, old));
        CHECK(region->windows == &window && !window.link[OF_REGION].next);
    }
    scene_close();
}

static void a_bind_that_the_region_does_not_take_is_MW_BIND_ERR(void) {
    enum { NO_MW_BIND, NO_LOCAL_WRITE, BEYOND, BEFORE, PD, REGION_GONE, WINDOW_GONE, EMPTY, TWICE_BOUND, CASES };
    static const struct {
        uint32_t mr_access;
        int vendor;
    } cases[CASES] = {[NO_MW_BIND] = {ALL_ACCESS, RNIC_VE_BIND_ACCESS},
                      [NO_LOCAL_WRITE] = {RNIC_ACCESS_MW_BIND | RNIC_ACCESS_REMOTE_READ, RNIC_VE_BIND_ACCESS},
                      [BEYOND] = {BINDABLE, RNIC_VE_BIND_BOUNDS},
                      [BEFORE] = {BINDABLE, RNIC_VE_BIND_BOUNDS},
                      [PD] = {BINDABLE, RNIC_VE_BIND_PD},
                      [REGION_GONE] = {BINDABLE, RNIC_VE_BIND_REGION},
                      [WINDOW_GONE] = {BINDABLE, RNIC_VE_WINDOW_GONE},
                      [EMPTY] = {BINDABLE, RNIC_VE_BIND_BOUNDS},
                      [TWICE_BOUND] = {BINDABLE, RNIC_VE_WINDOW_BOUND}};
    for (int i = 0; i < CASES; i++) {
        check_note("case %d", i);
        OPEN(TYPE_2, .lazy = 1);
        struct pd *pd = i == PD ? &p.b.node->other_pd : &p.b.node->pd;
        struct mr *mr = fabric_mr(p.b.node, pd, p.b.mem + AT, LONG, cases[i].mr_access);
        struct rnic_send_wr wr = bind_wr(2, AT, LONG, WRITABLE);
        wr.bind_mw.bind_info.mr = &mr->pub;
        if (i == BEYOND)
            wr.bind_mw.bind_info.length++;
        if (i == BEFORE)
            wr.bind_mw.bind_info.addr--;
        if (i == EMPTY)
            wr.bind_mw.bind_info.length = 0;
        post_write(&p.b, 1, 0, 0, 3000);
        if (i == TWICE_BOUND) {
            post(&p.b, bind_wr(4, AT, LONG, WRITABLE));
            wr.bind_mw.rkey = next_key();
        }
        post(&p.b, wr);
        post_send(&p.b, 3, 0, 8);
        if (i == REGION_GONE)
            mr_remove(&p.b.node->nic.mrs, mr);
        if (i == WINDOW_GONE)
            mw_remove(&p.b.node->nic.mrs, &window);
        fabric_settle(&p.f);
        WANT(p.b.send_cq, 1, SUCCESS);
        if (i == TWICE_BOUND)
            WANT(p.b.send_cq, 4, SUCCESS);
        want_err(p.b.send_cq, 2, RNIC_WC_MW_BIND_ERR, cases[i].vendor, __FILE__, __LINE__);
        WANT_ERR(p.b.send_cq, 3, WR_FLUSH_ERR, FLUSHED);
        CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
        CHECK(window.mr == (i == TWICE_BOUND ? region : NULL));
        CHECK(!mr->windows);
        if (i == REGION_GONE)
            free(mr);
        else
            fabric_drop_mr(p.b.node, mr);
        if (i == WINDOW_GONE)
            CHECK_EQ(mw_insert(&p.b.node->nic.mrs, &window), 0);
        scene_close();
    }
}

/* All that a request needs to reach the bytes; and nothing of it stays when the window is free again. */
static void a_window_says_where_its_bytes_are_while_it_is_bound(void) {
    static uint64_t serial;
    OPEN(TYPE_2, 0);
    for (int kind = MR_PLAIN; kind <= MR_NULL; kind++) {
        struct mw_binding b = {window.pub.rkey, 9, region->pub.lkey, WRITABLE, va_of(AT), LONG};
        const struct mr *entry = &window.entry;
        check_note("kind %d", kind);
        region->kind = (enum mr_kind)kind;
        region->fd = 77;
        region->is = &serial;
        region->was = 5;
        region->shift = 16;
        CHECK_EQ(mw_bind(&p.b.node->nic.mrs, &p.b.qp->pub, &p.b.qp->windows, &b), 0);
        CHECK(entry->kind == region->kind && entry->access == WRITABLE);
        CHECK(entry->pub.iova == va_of(AT) && entry->pub.length == LONG && entry->shift == 16);
        CHECK(entry->fd == 77 && entry->is == &serial && entry->was == 5);
        CHECK(window.qp == &p.b.qp->pub && p.b.qp->windows == &window && region->windows == &window);
        mw_unbind(&window);
        CHECK(entry->kind == MR_PLAIN && !entry->access);
        CHECK(!entry->pub.iova && !entry->pub.length && !entry->shift);
        CHECK(!window.mr && !window.qp && !p.b.qp->windows && !region->windows);
        mw_unbind(&window); /* again */
        /* nothing can be done to these at once */
        b.access |= RNIC_ACCESS_REMOTE_ATOMIC;
        CHECK_EQ(mw_bind(&p.b.node->nic.mrs, &p.b.qp->pub, &p.b.qp->windows, &b),
                 kind == MR_DMABUF || kind == MR_NULL ? RNIC_VE_BIND_ACCESS : 0);
        mw_unbind(&window);
    }
    scene_close();
}

/* Whoever posts is told at once; here the domains are looked at when it is done. */
static void a_window_of_another_domain_is_not_bound(void) {
    struct mw *of_qp = NULL;
    OPEN(TYPE_2, 0);
    const struct mw_binding b = {window.pub.rkey, 1, region->pub.lkey, WRITABLE, va_of(AT), LONG};
    window.pub.pd = &p.b.node->other_pd.pub;
    CHECK_EQ(mw_bind(&p.b.node->nic.mrs, &p.b.qp->pub, &of_qp, &b), RNIC_VE_BIND_PD);
    CHECK(!window.mr && !of_qp);
    window.pub.pd = &p.b.node->pd.pub;
    CHECK_EQ(mw_bind(&p.b.node->nic.mrs, &p.b.qp->pub, &of_qp, &b), 0);
    CHECK(window.mr == region && of_qp == &window);
    mw_unbind(&window);
    scene_close();
}

static void there_are_so_many_windows_and_no_more(void) {
    struct mw one = {.pub = {.pd = &p.b.node->pd.pub, .type = RNIC_MW_TYPE_1}};
    struct mr_table *t = &p.b.node->nic.mrs;
    OPEN(TYPE_2, 0);
    uint32_t windows = t->windows, count = t->count;
    t->windows = MW_MAX;
    CHECK_EQ(mw_insert(t, &one), -12);
    CHECK_EQ(t->windows, MW_MAX);
    t->windows = MW_MAX - 1;
    CHECK_EQ(mw_insert(t, &one), 0);
    CHECK_EQ(t->windows, MW_MAX);
    mw_remove(t, &one);
    CHECK_EQ(t->windows, MW_MAX - 1);
    t->windows = 0;
    t->count = (1u << 22) + 1; /* regions, as many as there may be */
    CHECK_EQ(mw_insert(t, &one), -12);
    CHECK_EQ(t->windows, 0);
    t->windows = windows;
    t->count = count;
    scene_close();
}

static void a_bind_that_cannot_be_meant_is_not_posted(void) {
    OPEN(TYPE_2, 0);
    struct rnic_sge sge = SGE(&p.b, 0, 8);
    struct rnic_send_wr wr = bind_wr(1, AT, LONG, WRITABLE);
    wr.bind_mw.mw = NULL;
    CHECK_EQ(try_post(&p.b, wr), -22);
    wr = bind_wr(1, AT, LONG, RNIC_ACCESS_MW_BIND);
    CHECK_EQ(try_post(&p.b, wr), -22);
    wr = bind_wr(1, AT, LONG, WRITABLE);
    wr.bind_mw.bind_info.mr = NULL;
    CHECK_EQ(try_post(&p.b, wr), -22);
    wr = bind_wr(1, AT, LONG, WRITABLE);
    wr.bind_mw.rkey ^= 0x100;
    CHECK_EQ(try_post(&p.b, wr), -22);
    wr = bind_wr(1, AT, LONG, WRITABLE);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    CHECK_EQ(try_post(&p.b, wr), -22);
    wr = bind_wr(1, AT, LONG, WRITABLE);
    wr.send_flags |= RNIC_SEND_INLINE;
    CHECK_EQ(try_post(&p.b, wr), -22);
    WANT_NONE(p.b.send_cq);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_RTS);
    scene_close();
}

/* ---------------------------------------------------------------- invalidation */

static void local_invalidate_frees_the_window_for_the_next_bind(void) {
    OPEN(TYPE_2, 0);
    for (int i = 0; i < 3; i++) {
        bound(WRITABLE);
        CHECK(window.qp == &p.b.qp->pub && p.b.qp->windows == &window);
        post(&p.b, invalidate_wr(1, RNIC_WR_LOCAL_INV, window.pub.rkey));
        fabric_settle(&p.f);
        CHECK_EQ(WANT(p.b.send_cq, 1, SUCCESS).opcode, RNIC_WCO_LOCAL_INV);
        CHECK(!window.mr && !window.qp && !p.b.qp->windows && !region->windows);
    }
    write_through(2, va_of(AT), 8);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 2, REM_ACCESS_ERR, NAK_ACCESS);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_QP_ACCESS_ERR);
    scene_close();
}

enum key { WRONG_TAG, NOBODYS, REGIONS, TYPE_1_WINDOWS, OTHERS, KEYS };

/* A key that the queue pair of b may not invalidate. */
static uint32_t bad_key(enum key key) {
    bound(WRITABLE);
    if (key == OTHERS)
        window.pub.pd = &p.b.node->other_pd.pub;
    return key == WRONG_TAG ? window.pub.rkey + 1
           : key == NOBODYS ? window.pub.rkey ^ 0x5A5A5A00
           : key == REGIONS ? region->pub.rkey
                            : window.pub.rkey;
}

static const int bad_vendor[KEYS] = {[WRONG_TAG] = RNIC_VE_WINDOW_GONE,
                                     [NOBODYS] = RNIC_VE_WINDOW_GONE,
                                     [REGIONS] = RNIC_VE_INVALIDATE_REGION,
                                     [TYPE_1_WINDOWS] = RNIC_VE_WINDOW_TYPE,
                                     [OTHERS] = RNIC_VE_RKEY_PD};

static void local_invalidate_of_another_key_is_LOC_QP_OP_ERR(void) {
    for (int i = 0; i < KEYS; i++) {
        check_note("case %d", i);
        scene_open(i == TYPE_1_WINDOWS ? RNIC_MW_TYPE_1 : RNIC_MW_TYPE_2, &(struct options){0});
        post(&p.b, invalidate_wr(1, RNIC_WR_LOCAL_INV, bad_key(i)));
        fabric_settle(&p.f);
        want_err(p.b.send_cq, 1, RNIC_WC_LOC_QP_OP_ERR, bad_vendor[i], __FILE__, __LINE__);
        CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
        CHECK(window.mr == region);
        window.pub.pd = &p.b.node->pd.pub;
        scene_close();
    }
}

static void post_send_inv(uint64_t id, uint32_t n, uint32_t key) {
    struct rnic_send_wr wr = invalidate_wr(id, RNIC_WR_SEND_WITH_INV, key);
    struct rnic_sge sge = SGE(&p.a, 0, n);
    wr.sg_list = &sge;
    wr.num_sge = 1;
    post(&p.a, wr);
}

static void a_send_with_invalidate_takes_the_key_away(void) {
    static const uint32_t sizes[] = {0, 1, 256, 257, 2000};
    OPEN(TYPE_2, .mtu = RNIC_MTU_256);
    for (uint64_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bound(WRITABLE);
        uint32_t key = window.pub.rkey, n = sizes[i];
        fill(p.a.mem, n, i);
        post_recv(&p.b, i, 8192, 4096);
        post_send_inv(100 + i, n, key);
        fabric_settle(&p.f);
        CHECK_EQ(WANT(p.a.send_cq, 100 + i, SUCCESS).opcode, RNIC_WCO_SEND);
        struct rnic_wc wc = WANT(p.b.recv_cq, i, SUCCESS);
        CHECK_EQ(wc.wc_flags, RNIC_WCF_WITH_INV);
        CHECK_EQ(wc.invalidated_rkey, key);
        CHECK_EQ(wc.byte_len, n);
        CHECK(filled(p.b.mem + 8192, n, i));
        CHECK(!window.mr && !region->windows && !p.b.qp->windows);
    }
    CHECK_EQ(fabric_count(&p.f, p.a.node, 0, ROCE_RC_SEND_ONLY_WITH_INV), 3);
    CHECK_EQ(fabric_count(&p.f, p.a.node, 0, ROCE_RC_SEND_LAST_WITH_INV), 2);
    scene_close();
}

static void a_send_that_may_not_invalidate_is_an_access_error(void) {
    for (int i = 0; i < KEYS; i++) {
        check_note("case %d", i);
        scene_open(i == TYPE_1_WINDOWS ? RNIC_MW_TYPE_1 : RNIC_MW_TYPE_2, &(struct options){0});
        uint32_t key = bad_key(i);
        memset(p.b.mem + 8192, 0xEE, 100);
        post_recv(&p.b, 1, 8192, 4096);
        post_send_inv(2, 100, key);
        fabric_settle(&p.f);
        WANT_ERR(p.a.send_cq, 2, REM_ACCESS_ERR, NAK_ACCESS);
        want_err(p.b.recv_cq, 1, RNIC_WC_REM_INV_REQ_ERR, bad_vendor[i], __FILE__, __LINE__);
        CHECK_EQ(take_event(&p.b), RNIC_EVENT_QP_ACCESS_ERR);
        CHECK_EQ(p.b.mem[8192], 0xEE); /* checked before anything takes effect */
        CHECK(window.mr == region);
        window.pub.pd = &p.b.node->pd.pub;
        scene_close();
    }
}

static void a_send_with_invalidate_waits_for_a_receive(void) {
    OPEN(TYPE_2, .min_rnr_timer = 1);
    bound(WRITABLE);
    post_send_inv(1, 10, window.pub.rkey);
    fabric_run(&p.f, p.f.now + MS);
    CHECK(window.mr == region);
    post_recv(&p.b, 2, 8192, 4096);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK_EQ(WANT(p.b.recv_cq, 2, SUCCESS).invalidated_rkey, window.pub.rkey);
    CHECK(!window.mr);
    scene_close();
}

static enum verdict lose_first_ack(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    uint32_t *lost = arg;
    (void)nth;
    return from == p.b.node && bth_opcode(bth) == ROCE_RC_ACK && (*lost)++ == 0 ? LOSE : PASS;
}

/* The window is bound anew, with the same key, before the repetition comes: that is answered, not carried out again. */
static void a_duplicate_does_not_invalidate_again(void) {
    uint32_t lost = 0;
    OPEN(TYPE_2, 0);
    bound(WRITABLE);
    uint32_t key = window.pub.rkey;
    p.f.judge = lose_first_ack;
    p.f.judge_arg = &lost;
    post_recv(&p.b, 1, 8192, 4096);
    post_send_inv(2, 10, key);
    fabric_run(&p.f, p.f.now + 100 * US);
    WANT(p.b.recv_cq, 1, SUCCESS);
    WANT_NONE(p.a.send_cq);
    CHECK(!window.mr);
    struct rnic_send_wr again = bind_wr(3, AT, LONG, WRITABLE);
    again.bind_mw.rkey = key;
    post(&p.b, again);
    fabric_settle(&p.f);
    WANT(p.b.send_cq, 3, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    CHECK(COUNTER(&p.b, duplicate_requests) > 0);
    CHECK(window.mr == region && window.entry.pub.rkey == key);
    scene_close();
}

/* ---------------------------------------------------------------- order */

/* WRITE through the window, SEND with invalidate, WRITE through the window: the first arrives, the second takes the key
 * away, the third fails; and the other way round for what the window's own side posts. */
static void everything_has_its_turn(void) {
    OPEN(TYPE_2, .mtu = RNIC_MTU_256, .lazy = 1);
    bound(WRITABLE);
    fill(p.a.mem, LONG, 5);
    post_recv(&p.b, 1, 8192, 4096);
    write_through(2, va_of(AT), LONG);
    post_send_inv(3, 600, window.pub.rkey);
    write_through(4, va_of(AT), 8);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT(p.a.send_cq, 3, SUCCESS);
    WANT_ERR(p.a.send_cq, 4, REM_ACCESS_ERR, NAK_ACCESS);
    CHECK(filled(p.b.mem + AT, LONG, 5));
    WANT(p.b.recv_cq, 1, SUCCESS);
    scene_close();
}

/* A READ is answered after what follows it has been executed, unless that is fenced (IBA 10.8.3.3). */
static void a_fenced_invalidation_waits_for_the_read_before_it(void) {
    OPEN(TYPE_2, .mtu = RNIC_MTU_256, .lazy = 1, .budget = 1, .pause = 10 * US);
    bound(RNIC_ACCESS_REMOTE_READ);
    fill(p.b.mem + AT, LONG, 4);
    post_recv(&p.b, 1, 8192, 4096);
    post(&p.a, (struct rnic_send_wr){.wr_id = 2,
                                     .opcode = RNIC_WR_RDMA_READ,
                                     SIGNALED,
                                     SGL(SGE(&p.a, 0, LONG)),
                                     .wr.rdma = {va_of(AT), window.pub.rkey}});
    struct rnic_send_wr wr = invalidate_wr(3, RNIC_WR_SEND_WITH_INV, window.pub.rkey);
    wr.send_flags |= RNIC_SEND_FENCE;
    post(&p.a, wr);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 2, SUCCESS);
    WANT(p.a.send_cq, 3, SUCCESS);
    CHECK(filled(p.a.mem, LONG, 4));
    CHECK_EQ(WANT(p.b.recv_cq, 1, SUCCESS).byte_len, 0);
    CHECK(!window.mr);
    scene_close();
}

/* A window that goes while READ responses are under way ends them with an access error. */
static void a_read_through_a_window_that_goes_is_refused(void) {
    OPEN(TYPE_2, .mtu = RNIC_MTU_256, .budget = 1, .pause = 10 * US);
    bound(RNIC_ACCESS_REMOTE_READ);
    post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_READ,
                                     SIGNALED,
                                     SGL(SGE(&p.a, 0, LONG)),
                                     .wr.rdma = {va_of(AT), window.pub.rkey}});
    for (int i = 0; i < 1000 && !fabric_count(&p.f, p.b.node, 0, ROCE_RC_READ_RESP_FIRST); i++)
        fabric_run(&p.f, p.f.now + US);
    mw_unbind(&window);
    fabric_settle(&p.f);
    WANT_ERR(p.a.send_cq, 1, REM_ACCESS_ERR, NAK_ACCESS);
    CHECK_EQ(take_event(&p.b), RNIC_EVENT_QP_ACCESS_ERR);
    scene_close();
}

/* Local requests complete in their place among those that wait for answers, signaled or not. */
static void local_requests_complete_in_order(void) {
    OPEN(TYPE_2, .mtu = RNIC_MTU_256, .bytes = 1 << 17);
    for (int round = 0; round < 2; round++) {
        post_write(&p.b, 1, 0, 0, 5000);
        post_bind(2, WRITABLE);
        post(&p.b, invalidate_wr(3, RNIC_WR_LOCAL_INV, window.pub.rkey));
        post_bind(4, WRITABLE);
        post_read(&p.b, 5, 0, 0, 3000);
        struct rnic_send_wr fenced = invalidate_wr(6, RNIC_WR_LOCAL_INV, window.pub.rkey);
        fenced.send_flags |= RNIC_SEND_FENCE;
        post(&p.b, fenced);
        CHECK(window.mr == region); /* the READ is under way, and the fence waits for it */
        WANT_NONE(p.b.send_cq);
        fabric_settle(&p.f);
        for (uint64_t id = 1; id <= 6; id++)
            WANT(p.b.send_cq, id, SUCCESS);
        CHECK(!window.mr);
        CHECK_EQ(rc_of(p.b.qp)->req.locals, 0);
    }
    scene_close();
}

/* The ACK of an unsignaled request lets a local one behind it complete: it is asked for. */
static void a_local_request_behind_a_silent_one_completes_soon(void) {
    OPEN(TYPE_2, 0);
    uint64_t start = p.f.now;
    post(&p.b, (struct rnic_send_wr){.wr_id = 1, .opcode = RNIC_WR_RDMA_WRITE, REMOTE(&p.a, 0), SGL(SGE(&p.b, 0, 8))});
    post_bind(2, WRITABLE);
    fabric_run(&p.f, start + SEC);
    WANT(p.b.send_cq, 2, SUCCESS);
    CHECK_EQ(COUNTER(&p.b, probes_sent), 0);
    scene_close();
}

static void unreliable_connections_bind_too(void) {
    scene_open(RNIC_MW_TYPE_2, &(struct options){.type = RNIC_QPT_UC, .mtu = RNIC_MTU_256});
    fill(p.a.mem, LONG, 9);
    for (int i = 0; i < 3; i++) {
        bound(WRITABLE);
        memset(p.b.mem + AT, 0, LONG);
        write_through(1, va_of(AT), LONG);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, SUCCESS);
        CHECK(filled(p.b.mem + AT, LONG, 9));
        post_write(&p.b, 2, 0, 8192, 1000);
        post(&p.b, invalidate_wr(3, RNIC_WR_LOCAL_INV, window.pub.rkey));
        post_write(&p.b, 4, 0, 8192, 1000);
        fabric_settle(&p.f);
        for (uint64_t id = 2; id <= 4; id++)
            WANT(p.b.send_cq, id, SUCCESS);
    }
    write_through(5, va_of(AT), 8);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 5, SUCCESS);
    CHECK_EQ(COUNTER(&p.b, drop_access), 1);
    CHECK(try_post(&p.b, invalidate_wr(6, RNIC_WR_SEND_WITH_INV, 1)) == -22);
    post(&p.b, invalidate_wr(7, RNIC_WR_LOCAL_INV, 1));
    fabric_settle(&p.f);
    WANT_ERR(p.b.send_cq, 7, LOC_QP_OP_ERR, WINDOW_GONE);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_SQE);
    scene_close();
}

/* ---------------------------------------------------------------- a bad wire */

/* Each round binds, tells the peer by SEND, is written to through the window and loses it by SEND with invalidate; in
 * between both ends move bytes.  Whatever the wire does, each happens once. */
static void round_trip(uint64_t round) {
    uint32_t n = 1 + (uint32_t)(round * 7919 % LONG);
    post_recv(&p.a, round, 16384, 64);
    post_write(&p.b, 1, 20000, 20000, 900);
    struct rnic_send_wr b = bind_wr(2, AT, LONG, WRITABLE);
    b.send_flags = round & 1 ? RNIC_SEND_SIGNALED : 0;
    post(&p.b, b);
    post_send(&p.b, 3, 0, 16);
    fabric_settle(&p.f);
    WANT(p.b.send_cq, 1, SUCCESS);
    if (round & 1)
        WANT(p.b.send_cq, 2, SUCCESS);
    WANT(p.b.send_cq, 3, SUCCESS);
    WANT(p.a.recv_cq, round, SUCCESS);
    fill(p.a.mem, n, round);
    post_recv(&p.b, round, 8192, 1024);
    write_through(4, va_of(AT), n);
    post_send_inv(5, n, window.pub.rkey);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 4, SUCCESS);
    WANT(p.a.send_cq, 5, SUCCESS);
    CHECK_EQ(WANT(p.b.recv_cq, round, SUCCESS).invalidated_rkey, window.pub.rkey);
    CHECK(filled(p.b.mem + AT, n, round) && filled(p.b.mem + 8192, n, round));
    CHECK(!window.mr && !region->windows);
}

static void on_a_bad_wire_everything_happens_once(void) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        check_note("seed %llu", (unsigned long long)seed);
        OPEN(TYPE_2, .mtu = RNIC_MTU_256, .timeout = 10, .quiet = true);
        struct rnic_fault fault = {.seed = seed,
                                   .loss = 50000,
                                   .duplicate = 100000,
                                   .reorder = 100000,
                                   .reorder_gap = 2,
                                   .delay_ns = 50 * US,
                                   .delay = 50000};
        fault_set(&p.a.node->fault, &fault);
        fault.seed += 1000;
        fault_set(&p.b.node->fault, &fault);
        for (uint64_t round = 0; round < 20; round++)
            round_trip(round);
        scene_close();
    }
}

/* ---------------------------------------------------------------- ends */

static void a_queue_pair_that_is_reset_leaves_its_windows_unbound(void) {
    for (int type = RNIC_MW_TYPE_1; type <= RNIC_MW_TYPE_2; type++) {
        scene_open(type, &(struct options){0});
        bound(WRITABLE);
        CHECK_EQ(move(p.b.qp, RNIC_QPS_ERR), 0);
        CHECK(window.mr == region);
        CHECK_EQ(move(p.b.qp, RNIC_QPS_RESET), 0);
        CHECK(window.mr == (type == RNIC_MW_TYPE_1 ? region : NULL));
        CHECK(!p.b.qp->windows);
        scene_close();
    }
}

static void many_windows_come_and_go(void) {
    enum { MANY = 1000 };
    struct mw *many = calloc(MANY, sizeof *many);
    struct mr_table *t = &p.b.node->nic.mrs;
    OPEN(TYPE_2, 0);
    for (uint32_t i = 0; i < MANY; i++) {
        many[i].pub = window.pub;
        CHECK_EQ(mw_insert(t, &many[i]), 0);
        struct mw_binding b = {many[i].pub.rkey, i, region->pub.lkey, WRITABLE, va_of(i), 1};
        CHECK_EQ(mw_bind(t, &p.b.qp->pub, &p.b.qp->windows, &b), 0);
        CHECK_EQ(many[i].entry.pub.rkey & 0xFF, i & 0xFF);
    }
    for (uint32_t i = 0; i < MANY; i += 2)
        mw_unbind(&many[i * 7 % MANY]);
    for (uint32_t i = 0; i < MANY; i += 3)
        mw_remove(t, &many[i]);
    mw_unbind_all(&p.b.qp->windows);
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK(!many[i].mr);
        if (i % 3)
            mw_remove(t, &many[i]);
    }
    scene_close();
    free(many);
}

int main(void) {
    RUN(every_operation_reaches_its_bytes_and_no_others);
    RUN(a_zero_based_window_is_named_from_0_on);
    RUN(a_window_reaches_bytes_as_its_region_does);
    RUN(what_the_window_does_not_grant_is_an_access_error);
    RUN(a_window_of_type_2_serves_its_queue_pair_alone);
    RUN(each_bind_takes_the_place_of_the_last_with_a_new_key);
    RUN(a_bind_that_the_region_does_not_take_is_MW_BIND_ERR);
    RUN(a_window_says_where_its_bytes_are_while_it_is_bound);
    RUN(a_window_of_another_domain_is_not_bound);
    RUN(there_are_so_many_windows_and_no_more);
    RUN(a_bind_that_cannot_be_meant_is_not_posted);
    RUN(local_invalidate_frees_the_window_for_the_next_bind);
    RUN(local_invalidate_of_another_key_is_LOC_QP_OP_ERR);
    RUN(a_send_with_invalidate_takes_the_key_away);
    RUN(a_send_that_may_not_invalidate_is_an_access_error);
    RUN(a_send_with_invalidate_waits_for_a_receive);
    RUN(a_duplicate_does_not_invalidate_again);
    RUN(everything_has_its_turn);
    RUN(a_fenced_invalidation_waits_for_the_read_before_it);
    RUN(a_read_through_a_window_that_goes_is_refused);
    RUN(local_requests_complete_in_order);
    RUN(a_local_request_behind_a_silent_one_completes_soon);
    RUN(unreliable_connections_bind_too);
    RUN(on_a_bad_wire_everything_happens_once);
    RUN(a_queue_pair_that_is_reset_leaves_its_windows_unbound);
    RUN(many_windows_come_and_go);
    return check_done();
}
