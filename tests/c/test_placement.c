/* SPDX-License-Identifier: Apache-2.0
 *
 * ATOMIC WRITE and FLUSH on virtual time (IBA annex A19): what they do, what they refuse, that they are done once.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "check.h"
#include "fabric.h"
#include "mem/persist.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define BOTH (RNIC_FLUSH_GLOBAL | RNIC_FLUSH_PERSISTENT)
#define FLUSHABLE (ALL_ACCESS | RNIC_ACCESS_FLUSH_GLOBAL | RNIC_ACCESS_FLUSH_PERSISTENT)

static struct pair p;

#define OPEN(...) open_pair(&(struct options){.mtu = RNIC_MTU_256, .access = FLUSHABLE, __VA_ARGS__})

static void open_pair(const struct options *o) {
    pair_open_options(&p, o);
    p.a.mr->access = p.b.mr->access = FLUSHABLE;
}

static struct rnic_send_wr flush_of(uint64_t id, uint64_t at, uint32_t n, uint8_t type, uint8_t level) {
    return (struct rnic_send_wr){
        .wr_id = id,
        .opcode = RNIC_WR_FLUSH,
        .send_flags = RNIC_SEND_SIGNALED,
        .wr.flush = {(uintptr_t)p.b.mem + at, n, p.b.mr->pub.rkey, type, level},
    };
}

static void post_flush(uint64_t id, uint64_t at, uint32_t n, uint8_t type, uint8_t level) {
    post(&p.a, flush_of(id, at, n, type, level));
}

static void post_atomic_write(uint64_t id, uint64_t at, uint64_t to, uint32_t flags) {
    post(&p.a, (struct rnic_send_wr){.wr_id = id,
                                     .opcode = RNIC_WR_ATOMIC_WRITE,
                                     .send_flags = RNIC_SEND_SIGNALED | flags,
                                     REMOTE(&p.b, to),
                                     SGL(SGE(&p.a, at, 8))});
}

/* ---------------------------------------------------------------- a kernel that takes notes */

static struct {
    int calls, flags, fails; /* fails: errno of its answer */
    uintptr_t from, to;
} synced;

int msync(void *at, size_t n, int flags) {
    synced.calls++;
    synced.flags = flags;
    synced.from = (uintptr_t)at;
    synced.to = (uintptr_t)at + n;
    errno = synced.fails;
    return errno ? -1 : (int)syscall(SYS_msync, at, n, flags);
}

static long file_system; /* that a file lies on; 0: as it is */

int statfs(const char *path, struct statfs *fs) {
    int rc = (int)syscall(SYS_statfs, path, fs);
    if (file_system)
        fs->f_type = file_system;
    return rc;
}

static const char *maps; /* what /proc/self/maps is to say; NULL: what it says */

FILE *fopen(const char *path, const char *mode) {
    CHECK(!strcmp(path, "/proc/self/maps") && !strcmp(mode, "re"));
    return maps ? fmemopen((void *)(uintptr_t)maps, strlen(maps), "r") : fdopen(open(path, O_RDONLY | O_CLOEXEC), "r");
}

/* ---------------------------------------------------------------- what they do */

static void an_atomic_write_stores_eight_bytes(void) {
    OPEN(0);
    fill(p.a.mem, 64, 1);
    memset(p.b.mem, 0xEE, 64);
    post_atomic_write(1, 8, 16, 0);
    post_atomic_write(2, 24, 32, RNIC_SEND_INLINE);
    memset(p.a.mem + 24, 0, 8); /* an inline one has been copied */
    fabric_settle(&p.f);
    CHECK_EQ(WANT(p.a.send_cq, 1, SUCCESS).opcode, RNIC_WCO_ATOMIC_WRITE);
    WANT(p.a.send_cq, 2, SUCCESS);
    uint8_t want[64], bytes[64];
    fill(bytes, 64, 1);
    memset(want, 0xEE, 64);
    memcpy(want + 16, bytes + 8, 8);
    memcpy(want + 32, bytes + 24, 8);
    CHECK(!memcmp(p.b.mem, want, 64));
    CHECK_EQ(fabric_count(&p.f, p.a.node, 1, ROCE_RC_ATOMIC_WRITE), 2);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 1, ROCE_RC_READ_RESP_ONLY), 2);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 1, -1), 2); /* and no ACK */
    pair_close_quietly(&p);
}

static void a_flush_completes_behind_the_writes_before_it(void) {
    OPEN(.latency = MS);
    fill(p.a.mem, 3000, 2);
    post_write(&p.a, 1, 0, 100, 3000);
    post_flush(2, 100, 3000, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_RANGE);
    post_atomic_write(3, 0, 0, 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    struct rnic_wc wc = WANT(p.a.send_cq, 2, SUCCESS);
    CHECK_EQ(wc.opcode, RNIC_WCO_FLUSH);
    WANT(p.a.send_cq, 3, SUCCESS);
    CHECK(filled(p.b.mem + 100, 3000, 2));
    pair_close_quietly(&p);
}

static void a_flush_says_what_on_the_wire(void) {
    OPEN(0);
    post_flush(1, 64, 128, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_RANGE);
    post_flush(2, 1 << 30, 0, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_MR); /* the key alone counts */
    post_flush(3, 64, 0, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_RANGE);
    fabric_settle(&p.f);
    for (uint64_t id = 1; id <= 3; id++)
        WANT(p.a.send_cq, id, SUCCESS);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < p.f.logged; i++) {
        const struct record *r = &p.f.log[i];
        if (r->arrived || r->opcode != ROCE_RC_FLUSH)
            continue;
        CHECK_EQ(r->length, 0); /* no payload */
        CHECK(r->ackreq);
        CHECK_EQ(r->va, (uintptr_t)p.b.mem + (seen == 1 ? 1 << 30 : 64));
        seen++;
    }
    CHECK_EQ(seen, 3);
    pair_close_quietly(&p);
}

/* The file has the bytes when the FLUSH completes; that msync has asked the disk cannot be seen from here. */
static void a_persistent_flush_writes_the_file(void) {
    char name[] = "flush-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, 8192), 0);
    uint8_t *file = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), bytes[300];
    CHECK(file != MAP_FAILED);
    OPEN(0);
    struct mr *mr = fabric_mr(p.b.node, &p.b.node->pd, file, 8192, FLUSHABLE);
    fill(p.a.mem, 300, 3);
    post(&p.a, (struct rnic_send_wr){.wr_id = 1,
                                     .opcode = RNIC_WR_RDMA_WRITE,
                                     .send_flags = RNIC_SEND_SIGNALED,
                                     .wr.rdma = {(uintptr_t)file + 4000, mr->pub.rkey},
                                     SGL(SGE(&p.a, 0, 300))});
    struct rnic_send_wr wr = flush_of(2, 0, 300, BOTH, RNIC_FLUSH_RANGE);
    wr.wr.flush.remote_addr = (uintptr_t)file + 4000;
    wr.wr.flush.rkey = mr->pub.rkey;
    post(&p.a, wr);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    WANT(p.a.send_cq, 2, SUCCESS);
    CHECK_EQ(pread(fd, bytes, 300, 4000), 300);
    CHECK(filled(bytes, 300, 3));
    /* and when it cannot be done, the peer is told */
    munmap(file, 8192);
    wr.wr_id = 3;
    post(&p.a, wr);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 3, REM_OP_ERR);
    CHECK_EQ(p.b.qp->state, RNIC_QPS_ERR);
    fabric_drop_mr(p.b.node, mr);
    pair_close(&p);
    close(fd);
    unlink(name);
}

static void only_files_of_disks_are_persistent(void) {
    char name[] = "flush-XXXXXX";
    struct rnic_err err;
    int fd = mkstemp(name);
    int memory = memfd_create("test", 0);
    CHECK(fd >= 0 && memory >= 0);
    CHECK_EQ(ftruncate(fd, 8192) | ftruncate(memory, 4096), 0);
    uint8_t *file = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    uint8_t *copy = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
    uint8_t *mem = mmap(NULL, 4096, PROT_READ, MAP_SHARED, memory, 0);
    CHECK(file != MAP_FAILED && copy != MAP_FAILED && mem != MAP_FAILED);
    int before = check_descriptors();
    CHECK_EQ(mem_can_persist(file + 100, 8000, &err), 0);
    CHECK_EQ(check_descriptors(), before);
    static const long of_memory[] = {TMPFS_MAGIC, RAMFS_MAGIC, HUGETLBFS_MAGIC};
    for (int i = 0; i < 3; i++) {
        file_system = of_memory[i];
        CHECK(mem_can_persist(file, 8192, &err) < 0);
        CHECK(strstr(err.text, "not a file's on a disk"));
    }
    file_system = EXT4_SUPER_MAGIC;
    CHECK_EQ(mem_can_persist(file, 8192, &err), 0);
    file_system = 0;
    CHECK(mem_can_persist(copy, 8192, &err) < 0);
    CHECK(strstr(err.text, "is private memory"));
    CHECK(mem_can_persist(mem, 10, &err) < 0);
    CHECK(strstr(err.text, "not a file's on a disk"));
    CHECK(mem_can_persist(err.text, 10, NULL) < 0);
    munmap(file + 4096, 4096);
    CHECK_EQ(mem_can_persist(file, 4096, &err), 0);
    CHECK(mem_can_persist(file, 8192, &err) < 0);
    unlink(name); /* nobody can find it again */
    CHECK(mem_can_persist(file, 4096, &err) < 0);
    munmap(file, 4096);
    munmap(copy, 8192);
    munmap(mem, 4096);
    close(fd);
    close(memory);
}

/* All pages that the range touches, and no others. */
static void a_persistent_flush_is_of_whole_pages(void) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uint8_t *at = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct {
        uint64_t from, length;
        uint32_t type;
        int calls;
    } rows[] = {{0, 1, RNIC_FLUSH_PERSISTENT, 1}, {page - 1, 2, BOTH, 1}, {page, page, RNIC_FLUSH_PERSISTENT, 1},
                {page + 5, 2 * page, BOTH, 1},    {page, 0, BOTH, 0},     {page, 10, RNIC_FLUSH_GLOBAL, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        memset(&synced, 0, sizeof synced);
        CHECK_EQ(mem_flush(at + rows[i].from, rows[i].length, rows[i].type), 0);
        CHECK_EQ(synced.calls, rows[i].calls);
        if (!synced.calls)
            continue;
        CHECK_EQ(synced.flags, MS_SYNC);
        CHECK_EQ(synced.from, (uintptr_t)at + rows[i].from / page * page);
        CHECK_EQ(synced.to, (uintptr_t)at + rows[i].from + rows[i].length);
    }
    synced.fails = EIO;
    CHECK_EQ(mem_flush(at, 1, RNIC_FLUSH_PERSISTENT), -EIO);
    synced.fails = 0;
    munmap(at, 4 * page);
}

/* Of a range that several mappings cover each must be a file's; one that is not tells where it is. */
static void every_mapping_of_a_range_counts(void) {
    char name[] = "flush-XXXXXX", path[PATH_MAX], text[8 * PATH_MAX], want[64];
    struct rnic_err err;
    int fd = mkstemp(name);
    CHECK(fd >= 0 && realpath(name, path));
    snprintf(text, sizeof text,
             "no such line\n"
             "1000-2000 rw-s 00000000 fe:01 11 %s\n" /* too low */
             "10000-20000 r--s 00000000 fe:01 11                         %s\n"
             "20000-30000 rw-s 00000000 fe:01 11 %s\n"
             "20000-30000\n"
             "30000-40000 rw-p 00000000 fe:01 11 %s\n"
             "50000-60000 rw-s 00000000 fe:01 11 %s\n"
             "60000-70000 rw-s 00000000 00:00 0 \n"
             "70000-80000 rw-s 00000000 fe:01 11 /nowhere/at/all\n"
             "80000-90000 rw-s 00000000 fe:01 11 /tmp\n"
             "90000-a0000 rw-s\n",
             path, path, path, path, path);
    const struct {
        uintptr_t at;
        uint64_t length;
        uint64_t fault; /* its place; 0: there is none */
        const char *why;
    } rows[] = {
        {0x10000, 0x10000, 0, NULL},
        {0x10000, 0x20000, 0, NULL},
        {0x1FFFF, 2, 0, NULL},
        {0x2FFFF, 1, 0, NULL},
        {0x10000, 0, 0, NULL},
        {0x10000, 0x20001, 0x30000, "is private memory"},
        {0x30000, 1, 0x30000, "is private memory"},
        {0x40000, 1, 0x40000, "is not mapped"},
        {0x4FFFF, 2, 0x4FFFF, "is not mapped"},
        {0x0FFFF, 1, 0x0FFFF, "is not mapped"},
        {0x50000, 0x10001, 0x60000, "is not a file's"},
        {0x70000, 1, 0x70000, "is not a file's"},
        {0x80000, 1, 0x80000, "is not a file's"},
        {0x90000, 1, 0x90000, "is not mapped"},
    };
    maps = text;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        err.text[0] = 0;
        CHECK_EQ(mem_can_persist((void *)rows[i].at, rows[i].length, &err), rows[i].why ? -EOPNOTSUPP : 0);
        snprintf(want, sizeof want, "0x%llx %s", (unsigned long long)rows[i].fault, rows[i].why ? rows[i].why : "");
        CHECK(!rows[i].why || strstr(err.text, want));
    }
    maps = NULL;
    close(fd);
    unlink(name);
}

/* ---------------------------------------------------------------- what is refused */

static void what_cannot_be_is_refused_when_posted(void) {
    OPEN(0);
    struct rnic_send_wr wr = flush_of(1, 0, 8, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_RANGE);
    struct rnic_send_wr bad[] = {wr, wr, wr, wr, wr};
    bad[0].wr.flush.type = 0;
    bad[1].wr.flush.type = 4;
    bad[2].wr.flush.level = 2;
    bad[3].wr.flush.length = 0x80000000u;
    bad[4].num_sge = 1;
    bad[4].sg_list = &(struct rnic_sge)SGE(&p.a, 0, 8);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(try_post(&p.a, bad[i]) < 0);
    pair_close_quietly(&p);
}

static void an_atomic_write_has_eight_bytes(void) {
    OPEN(0);
    post(&p.a,
         (struct rnic_send_wr){.wr_id = 1, .opcode = RNIC_WR_ATOMIC_WRITE, REMOTE(&p.b, 0), SGL(SGE(&p.a, 0, 4))});
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, LOC_LEN_ERR);
    pair_close(&p);
}

static void they_are_not_sent_without_responder_resources(void) {
    for (int i = 0; i < 2; i++) {
        OPEN(.rd_atomic = NONE);
        if (i)
            post_flush(1, 0, 8, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_RANGE);
        else
            post_atomic_write(1, 0, 0, 0);
        fabric_settle(&p.f);
        WANT(p.a.send_cq, 1, LOC_QP_OP_ERR);
        pair_close(&p);
    }
}

static void bad_local_memory_is_found_before_anything_is_sent(void) {
    OPEN(0);
    struct rnic_sge sge = SGE(&p.a, 0, 8);
    sge.lkey ^= 0x100;
    post(&p.a, (struct rnic_send_wr){
                   .wr_id = 1, .opcode = RNIC_WR_ATOMIC_WRITE, REMOTE(&p.b, 0), .sg_list = &sge, .num_sge = 1});
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, LOC_PROT_ERR);
    CHECK_EQ(fabric_count(&p.f, p.a.node, 0, -1), 0);
    pair_close(&p);
}

/* Each row: the peer's rights and what is asked for; nothing is changed there. */
static void the_peer_refuses_what_it_does_not_grant(void) {
    enum { AW, FLUSH };
    static const struct {
        int what;
        uint32_t qp_access, mr_access;
        uint64_t at;
        uint8_t type, level;
        int status;
    } rows[] = {
        {AW, FLUSHABLE & ~RNIC_ACCESS_REMOTE_WRITE, FLUSHABLE, 0, 0, 0, RNIC_WC_REM_INV_REQ_ERR},
        {AW, FLUSHABLE, FLUSHABLE & ~RNIC_ACCESS_REMOTE_WRITE, 0, 0, 0, RNIC_WC_REM_ACCESS_ERR},
        {AW, FLUSHABLE, FLUSHABLE, 65536, 0, 0, RNIC_WC_REM_ACCESS_ERR},
        {AW, FLUSHABLE, FLUSHABLE, 4, 0, 0, RNIC_WC_REM_INV_REQ_ERR},                       /* not aligned */
        {AW, RNIC_ACCESS_REMOTE_WRITE, RNIC_ACCESS_REMOTE_WRITE, 8, 0, 0, RNIC_WC_SUCCESS}, /* that is enough */
        {FLUSH, FLUSHABLE & ~RNIC_ACCESS_FLUSH_GLOBAL, FLUSHABLE, 0, RNIC_FLUSH_GLOBAL, 0, RNIC_WC_REM_INV_REQ_ERR},
        {FLUSH, FLUSHABLE, FLUSHABLE & ~RNIC_ACCESS_FLUSH_GLOBAL, 0, RNIC_FLUSH_GLOBAL, 0, RNIC_WC_REM_ACCESS_ERR},
        {FLUSH, FLUSHABLE, ALL_ACCESS | RNIC_ACCESS_FLUSH_GLOBAL, 0, BOTH, 0, RNIC_WC_REM_ACCESS_ERR},
        {FLUSH, ALL_ACCESS | RNIC_ACCESS_FLUSH_GLOBAL, FLUSHABLE, 0, BOTH, RNIC_FLUSH_MR, RNIC_WC_REM_INV_REQ_ERR},
        {FLUSH, FLUSHABLE, FLUSHABLE, 65536 - 4, RNIC_FLUSH_GLOBAL, 0, RNIC_WC_REM_ACCESS_ERR},
        {FLUSH, RNIC_ACCESS_FLUSH_GLOBAL, RNIC_ACCESS_FLUSH_GLOBAL, 0, RNIC_FLUSH_GLOBAL, 0, RNIC_WC_SUCCESS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        OPEN(0);
        p.b.qp->attr.qp_access_flags = rows[i].qp_access;
        p.b.mr->access = rows[i].mr_access;
        memset(p.a.mem, 0xAA, 8);
        if (rows[i].what == AW)
            post_atomic_write(1, 0, rows[i].at, 0);
        else
            post_flush(1, rows[i].at, 8, rows[i].type, rows[i].level);
        fabric_settle(&p.f);
        CHECK_EQ(TAKE(p.a.send_cq).status, rows[i].status);
        bool ok = rows[i].status == RNIC_WC_SUCCESS, access = rows[i].status == RNIC_WC_REM_ACCESS_ERR;
        CHECK_EQ(take_event(&p.b), ok ? -1 : access ? RNIC_EVENT_QP_ACCESS_ERR : RNIC_EVENT_QP_REQ_ERR);
        CHECK_EQ(p.b.mem[0] | p.b.mem[4], 0);
        pair_close(&p);
    }
    OPEN(0); /* a key that is nobody's, also for no bytes */
    struct rnic_send_wr wr = flush_of(1, 0, 0, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_RANGE);
    wr.wr.flush.rkey ^= 0x4200;
    post(&p.a, wr);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, REM_ACCESS_ERR);
    pair_close(&p);
}

/* ---------------------------------------------------------------- hostile packets */

static void inject(uint8_t opcode, uint32_t reth_bytes, uint32_t feth, uint32_t payload) {
    const struct roce_opcode *row = roce_opcode(opcode);
    uint8_t bytes[128] = {0};
    bth_set_opcode(bytes, opcode);
    bth_set_m(bytes, 1);
    bth_set_pkey(bytes, 0xFFFF);
    bth_set_dqpn(bytes, p.b.qp->pub.qp_num);
    bth_set_psn(bytes, 0x123456);
    reth_set_va(bytes + row->reth, (uintptr_t)p.b.mem);
    reth_set_rkey(bytes + row->reth, p.b.mr->pub.rkey);
    reth_set_len(bytes + row->reth, reth_bytes);
    if (row->feth)
        put_be32(bytes + row->feth, feth);
    struct way way = {.src = p.a.node->addr, .dst = p.b.node->addr};
    fabric_inject(p.a.node, &way, bytes, row->header + payload);
    fabric_settle(&p.f);
}

static void headers_that_cannot_be_are_refused(void) {
    static const struct {
        uint8_t opcode;
        uint32_t reth_bytes, feth, payload;
        int state;
    } rows[] = {
        {ROCE_RC_ATOMIC_WRITE, 8, 0, 8, RNIC_QPS_RTS},
        {ROCE_RC_ATOMIC_WRITE, 4, 0, 4, RNIC_QPS_ERR},
        {ROCE_RC_ATOMIC_WRITE, 16, 0, 16, RNIC_QPS_ERR},
        {ROCE_RC_ATOMIC_WRITE, 8, 0, 0, RNIC_QPS_ERR},
        {ROCE_RC_ATOMIC_WRITE, 0, 0, 0, RNIC_QPS_ERR},
        {ROCE_RC_ATOMIC_WRITE, 8, 0, 16, RNIC_QPS_ERR},
        {ROCE_RC_FLUSH, 8, 0x01, 0, RNIC_QPS_RTS},
        {ROCE_RC_FLUSH, 8, 0xFFFFFFC1, 0, RNIC_QPS_RTS}, /* reserved bits are not looked at */
        {ROCE_RC_FLUSH, 8, 0x11, 0, RNIC_QPS_RTS},
        {ROCE_RC_FLUSH, 8, 0x01, 8, RNIC_QPS_ERR}, /* payload */
        {ROCE_RC_FLUSH, 8, 0x00, 0, RNIC_QPS_ERR}, /* no type */
        {ROCE_RC_FLUSH, 8, 0x05, 0, RNIC_QPS_ERR}, /* an unknown one */
        {ROCE_RC_FLUSH, 8, 0x21, 0, RNIC_QPS_ERR}, /* an unknown level */
        {ROCE_RC_FLUSH, 0xFFFFFFFF, 0x01, 0, RNIC_QPS_ERR},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        OPEN(0);
        inject(rows[i].opcode, rows[i].reth_bytes, rows[i].feth, rows[i].payload);
        CHECK_EQ(p.b.qp->state, rows[i].state);
        if (rows[i].state == RNIC_QPS_ERR)
            CHECK_EQ(COUNTER(&p.b, nak_remote_sent), 1);
        pair_close(&p);
    }
}

static void more_than_the_peer_has_room_for_are_an_invalid_request(void) {
    OPEN(.rd_atomic = 4, .dest_rd_atomic = NONE);
    post_atomic_write(1, 0, 0, 0);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, REM_INV_REQ_ERR);
    pair_close(&p);
}

/* ---------------------------------------------------------------- loss, duplication, order */

/* What a peer has seen between two ATOMIC WRITEs to one place must not come back with a repetition of the first. */
static void a_duplicate_is_answered_and_not_executed_again(void) {
    OPEN(.latency = 100 * US);
    uint64_t mine = 77;
    memset(p.a.mem, 1, 8);
    post_atomic_write(1, 0, 0, 0);
    fabric_run(&p.f, p.f.now + 150 * US); /* executed, not answered yet */
    CHECK_EQ(p.b.mem[0], 1);
    memcpy(p.b.mem, &mine, 8); /* the peer's program goes on */
    inject(ROCE_RC_ATOMIC_WRITE, 8, 0, 8);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK(!memcmp(p.b.mem, &mine, 8));
    CHECK_EQ(COUNTER(&p.b, duplicate_requests), 1);
    CHECK_EQ(fabric_count(&p.f, p.b.node, 0, ROCE_RC_READ_RESP_ONLY), 2);
    inject(ROCE_RC_FLUSH, 8, 0x01, 0); /* of another kind: nothing that was saved */
    CHECK_EQ(COUNTER(&p.b, drop_duplicate), 1);
    pair_close_quietly(&p);
}

static enum verdict lose_nth(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    const uint32_t *lost = arg;
    (void)bth;
    return nth == lost[from == p.b.node] ? LOSE : PASS;
}

static void post_all(void) {
    fill(p.a.mem, 2000, 4);
    post_write(&p.a, 1, 0, 0, 1000);
    post_flush(2, 0, 1000, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_RANGE);
    post_atomic_write(3, 1000, 1000, 0);
    post_read(&p.a, 4, 4096, 0, 1008);
    post_add(&p.a, 5, 8192, 1024, 7);
    post_atomic_write(6, 1008, 1008, 0);
    post_flush(7, 0, 0, RNIC_FLUSH_GLOBAL, RNIC_FLUSH_MR);
}

static void check_all(void) {
    uint8_t bytes[2000];
    uint64_t word;
    fill(bytes, 2000, 4);
    for (uint64_t id = 1; id <= 7; id++)
        WANT(p.a.send_cq, id, SUCCESS);
    CHECK(!memcmp(p.b.mem, bytes, 1000));
    CHECK(!memcmp(p.a.mem + 4096, bytes, 1008)); /* the READ saw the ATOMIC WRITE */
    memcpy(&word, p.a.mem + 8192, 8);
    CHECK_EQ(word, 0);
    memcpy(&word, p.b.mem + 1024, 8);
    CHECK_EQ(word, 7);
    CHECK(!memcmp(p.b.mem + 1008, bytes + 1008, 8));
    CHECK_EQ(COUNTER(&p.b, requests_executed), 4 + 6);
}

static void any_packet_may_be_lost(void) {
    enum { OUT = 10, BACK = 14 };
    for (uint32_t i = 0; i < OUT + BACK; i++) {
        check_note("packet %u", i);
        OPEN(0);
        uint32_t lost[2] = {i < OUT ? i : UINT32_MAX, i < OUT ? UINT32_MAX : i - OUT};
        p.f.judge = lose_nth;
        p.f.judge_arg = lost;
        post_all();
        fabric_settle(&p.f);
        check_all();
        pair_close_quietly(&p);
    }
}

static void loss_duplication_and_reordering_change_nothing(void) {
    uint32_t seeds = getenv("SEEDS") ? (uint32_t)atoi(getenv("SEEDS")) : 100;
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        check_note("seed %u", seed);
        OPEN(.rd_atomic = 1 + seed % 4, .timeout = 10);
        struct rnic_fault fault = {
            .seed = seed, .loss = 100000, .duplicate = 100000, .reorder = 100000, .reorder_gap = 2, .delay_ns = 50 * US};
        fault_set(&p.a.node->fault, &fault);
        fault.seed += 1000;
        fault_set(&p.b.node->fault, &fault);
        post_all();
        fabric_settle(&p.f);
        check_all();
        pair_close_quietly(&p);
    }
}

int main(void) {
    RUN(an_atomic_write_stores_eight_bytes);
    RUN(a_flush_completes_behind_the_writes_before_it);
    RUN(a_flush_says_what_on_the_wire);
    RUN(a_persistent_flush_writes_the_file);
    RUN(only_files_of_disks_are_persistent);
    RUN(a_persistent_flush_is_of_whole_pages);
    RUN(every_mapping_of_a_range_counts);
    RUN(what_cannot_be_is_refused_when_posted);
    RUN(an_atomic_write_has_eight_bytes);
    RUN(they_are_not_sent_without_responder_resources);
    RUN(bad_local_memory_is_found_before_anything_is_sent);
    RUN(the_peer_refuses_what_it_does_not_grant);
    RUN(headers_that_cannot_be_are_refused);
    RUN(more_than_the_peer_has_room_for_are_an_invalid_request);
    RUN(a_duplicate_is_answered_and_not_executed_again);
    RUN(any_packet_may_be_lost);
    RUN(loss_duplication_and_reordering_change_nothing);
    return check_done();
}
