/* SPDX-License-Identifier: Apache-2.0
 *
 * ring_writer.c: puts records into a ring in the memory of a reader, which may be a RingReader of rnic. What is on the
 * wire: docs/patterns/ring.md.
 *
 *     ./ring_writer HOST PORT RECORDS
 *
 * The call has the writer's region as private data, the answer has the reader's. Record n has n * 37 bytes, modulo one
 * more than the longest has; byte i of it is n + i.
 */
#include "cm.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOARD 64
#define LEAST 256
#define MOST (1 << 20) /* bytes of a ring */
#define BELLS 4 /* receives for doorbells */
#define BELL 0x6c6c6562

enum { SEEN = 0, WANTED = 8, OWN = 16, COPY = 24, ASKED = 32 }; /* words of a board */
enum { SKIP = 0xffffffff, END = 0xfffffffe };                   /* instead of a length */

struct writer {
    struct end end;
    struct ibv_mr *mr;
    uint8_t *memory; /* our board, and behind it a copy of the ring, from which we WRITE */
    uint64_t size;   /* of the ring */
    uint64_t tail;   /* what we have put */
    uint64_t head;   /* what the reader has taken, as we saw it last */
    int posted;      /* requests that are not complete yet */
    int rung;        /* doorbells that have come since we slept */
    long slept;
};

/* A word is written by this program or by the device, so it is read anew each time. */
static uint64_t load(struct writer *w, int at) {
    return le64toh(__atomic_load_n((uint64_t *)(w->memory + at), __ATOMIC_ACQUIRE));
}

static void store(struct writer *w, int at, uint64_t value) {
    __atomic_store_n((uint64_t *)(w->memory + at), htole64(value), __ATOMIC_RELEASE);
}

static void store_length(struct writer *w, uint64_t at, uint32_t length) {
    length = htole32(length);
    memcpy(w->memory + BOARD + at, &length, sizeof length);
}

/* ---------------------------------------------------------------- requests and completions */

/* A doorbell takes a receive, and has no bytes. ibv_post_recv(3) */
static int receive_bell(struct writer *w) { return post_receive(w->end.id->qp, w->mr, w->memory, 0); }

/* Waits for a completion: of a doorbell, or of what we have posted. */
static int take(struct writer *w) {
    struct ibv_wc wc;

    if (next_completion(&w->end, &wc))
        return -1;
    if (wc.opcode & IBV_WC_RECV) {
        w->rung++;
        return receive_bell(w);
    }
    w->posted--;
    return 0;
}

static int wait_for_all(struct writer *w) {
    while (w->posted)
        if (take(w))
            return -1;
    return 0;
}

/* Bytes at `from` of our memory and at `to` of the reader's. ibv_post_send(3) */
static int post(struct writer *w, enum ibv_wr_opcode opcode, uint64_t from, uint64_t to, uint32_t length) {
    struct ibv_sge sge = {.addr = (uintptr_t)w->memory + from, .length = length, .lkey = w->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = length > 0, .opcode = opcode}, *bad;
    int error;

    wr.imm_data = htobe32(BELL);
    wr.wr.rdma.remote_addr = w->end.remote.addr + to;
    wr.wr.rdma.rkey = w->end.remote.rkey;
    error = ibv_post_send(w->end.id->qp, &wr, &bad);
    if (error)
        return failed_with("ibv_post_send", error);
    w->posted++;
    return 0;
}

static int write_there(struct writer *w, uint64_t from, uint64_t to, uint64_t length) {
    return length ? post(w, IBV_WR_RDMA_WRITE, from, to, (uint32_t)length) : 0;
}

/* ---------------------------------------------------------------- the two numbers */

/* The reader's number now, which never goes back, nor beyond ours. */
static int look(struct writer *w) {
    uint64_t found = load(w, SEEN);

    if (found < w->head || found > w->tail) {
        fprintf(stderr, "the reader says that it has taken %llu bytes\n", (unsigned long long)found);
        return -1;
    }
    w->head = found;
    return 0;
}

/* WRITEs what is new, then the new tail, and rings if the reader sleeps: in this order. */
static int publish(struct writer *w, uint64_t tail) {
    uint64_t begin = w->tail % w->size, length = tail - w->tail, wanted;
    uint64_t first = length < w->size - begin ? length : w->size - begin;

    w->tail = tail;
    store(w, OWN, tail);
    if (write_there(w, BOARD + begin, BOARD + begin, first) || write_there(w, BOARD, BOARD, length - first))
        return -1;
    if (write_there(w, OWN, SEEN, 8) || wait_for_all(w))
        return -1;
    wanted = load(w, WANTED);
    if (!wanted || tail < wanted)
        return 0;
    store(w, WANTED, 0);
    return post(w, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 0) || wait_for_all(w) ? -1 : 0;
}

/* Sleeps until the reader's number is more than `value`: says so first, and then asks whether it is already. */
static int sleep_beyond(struct writer *w, uint64_t value) {
    while (!look(w) && w->head <= value) {
        store(w, ASKED, value + 1);
        if (write_there(w, ASKED, WANTED, 8) || post(w, IBV_WR_RDMA_READ, COPY, OWN, 8) || wait_for_all(w))
            return -1;
        if (load(w, COPY) > value) /* the WRITE of it is on its way */
            continue;
        w->slept++;
        if (!w->rung && take(w))
            return -1;
        w->rung = 0;
    }
    return w->head > value ? 0 : -1;
}

/* ---------------------------------------------------------------- records */

/* Waits for room for so many bytes. */
static int need(struct writer *w, uint64_t bytes) {
    return w->tail + bytes > w->size ? sleep_beyond(w, w->tail + bytes - w->size - 1) : 0;
}

/* Puts record n: at the beginning of the ring, if it does not fit before the end. */
static int put(struct writer *w, long n) {
    uint32_t length = (uint32_t)((uint64_t)n * 37 % (w->size / 2 - 4 + 1)), i;
    uint64_t bytes = (4 + (uint64_t)length + 7) & ~7ULL, at = w->tail % w->size,
             skipped = bytes > w->size - at ? w->size - at : 0;

    if (need(w, skipped + bytes))
        return -1;
    if (skipped) {
        store_length(w, at, SKIP);
        at = 0;
    }
    store_length(w, at, length);
    for (i = 0; i < length; i++)
        w->memory[BOARD + at + 4 + i] = (uint8_t)(n + i);
    return publish(w, w->tail + skipped + bytes);
}

/* Says that no record follows, and waits until the reader has taken all. */
static int finish(struct writer *w) {
    if (need(w, 8))
        return -1;
    store_length(w, w->tail % w->size, END);
    return publish(w, w->tail + 8) || sleep_beyond(w, w->tail - 1) ? -1 : 0;
}

/* ---------------------------------------------------------------- the connection */

/* Of our board and of the largest ring: the call tells where it is, before the answer tells how much is used. */
static int make_memory(struct writer *w) {
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

    if (!(w->memory = calloc(1, BOARD + MOST)))
        return failed("calloc");
    w->mr = ibv_reg_mr(w->end.pd, w->memory, BOARD + MOST, access);
    return w->mr ? 0 : failed("ibv_reg_mr");
}

/* Calls: each end tells the other where its memory is. rdma_connect(3) */
static int call(struct writer *w) {
    struct region ours = {htobe64((uintptr_t)w->memory), htobe32(w->mr->rkey), htobe32(BOARD)}, theirs;
    struct rdma_conn_param param = {.private_data = &ours,
                                    .private_data_len = sizeof ours,
                                    .initiator_depth = 1,
                                    .responder_resources = 1,
                                    .retry_count = 7,
                                    .rnr_retry_count = 7};

    if (rdma_connect(w->end.id, &param))
        return failed("rdma_connect");
    if (expect(&w->end, RDMA_CM_EVENT_ESTABLISHED, &theirs, sizeof theirs, NULL))
        return -1;
    w->end.remote.addr = be64toh(theirs.addr);
    w->end.remote.rkey = be32toh(theirs.rkey);
    w->size = (uint64_t)be32toh(theirs.length) - BOARD;
    if (w->size >= LEAST && w->size <= MOST && !(w->size & (w->size - 1)))
        return 0;
    fprintf(stderr, "the reader's memory is no ring, or a ring of more than %d bytes\n", MOST);
    return -1;
}

static int run(struct writer *w, const char *host, const char *port, long records) {
    if (make_channel(&w->end) || resolve(&w->end, host, port) || make_queue_pair(&w->end) || make_memory(w))
        return -1;
    for (int i = 0; i < BELLS; i++)
        if (receive_bell(w))
            return -1;
    if (call(w))
        return -1;
    for (long n = 0; n < records; n++)
        if (put(w, n))
            return -1;
    if (finish(w) || hang_up(&w->end))
        return -1;
    printf("%ld records put, slept %ld times\n", records, w->slept);
    return 0;
}

int main(int argc, char **argv) {
    struct writer writer = {0};
    long records = argc == 4 ? number(argv[3], 1000000000) : -1;
    int status;

    if (records < 0) {
        fprintf(stderr, "usage: %s HOST PORT RECORDS\n", argv[0]);
        return 2;
    }
    status = run(&writer, argv[1], argv[2], records);
    if (writer.end.id && writer.end.id->qp)
        rdma_destroy_qp(writer.end.id); /* before its memory goes */
    if (writer.mr && ibv_dereg_mr(writer.mr))
        status = failed("ibv_dereg_mr");
    free(writer.memory);
    return release(&writer.end) || status ? EXIT_FAILURE : EXIT_SUCCESS;
}
