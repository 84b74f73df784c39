/* SPDX-License-Identifier: Apache-2.0
 *
 * credits_client.c: sends messages with credits to a server that sends them back, which may be a Channel of rnic. What
 * is on the wire: docs/endpoint-protocol.md, version 1, and its section "Over a bare queue pair".
 *
 *     ./credits_client HOST PORT MESSAGES
 *
 * Message n has n * 37 bytes, modulo one more than the longest has; byte i of it is n + i.
 */
#include "cm.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECEIVES 3 /* three at least; the queue pair takes one more, which is for what needs no credit */
#define POSTED (RECEIVES + 1)
#define SIZE 256   /* bytes of each, 64 at least */
#define LONGEST 3700
#define LEAST 2 /* credits that a CREDIT returns */

enum type { MESSAGE = 1, MORE, CREDIT, GOODBYE = 7, ABORT };

#define LAST 1   /* the flag of the SEND with which a message is complete */
#define TOTAL 8  /* bytes of a MESSAGE's length, ahead of its first payload */
#define VERSION 1

/* What every SEND but the hello begins with; big-endian. */
struct header {
    uint8_t type, flags;
    uint16_t credits;
    uint32_t id; /* the number of the message; of GOODBYE: how many there were */
};

struct hello {
    char magic[4];
    uint8_t version_min, version_max;
    uint16_t grants;
    uint32_t size;
    uint16_t receives, regions;
    uint64_t longest;
};

struct client {
    struct end end;
    struct ibv_mr *mr;
    uint8_t (*memory)[SIZE]; /* the receives, and behind them the SEND that is on its way */
    uint32_t size;           /* of the peer's receives */
    uint32_t longest;        /* message that the peer takes; LONGEST at most */
    int receives;            /* of the peer */
    int credits;             /* SENDs that we may post */
    int owed;                /* receives that we have posted again and not told */
    int next;                /* receive to complete: they do in their order */
    int sending;             /* a SEND is not complete yet */
    int ended, seen;         /* the peer's GOODBYE has come; and its last word: it has all */
    long went, came;         /* messages that were begun, and that are back */
    uint32_t rest;           /* bytes that are missing of the next one */
};

static uint32_t length_of(const struct client *c, long n) { return (uint32_t)((uint64_t)n * 37 % (c->longest + 1)); }

static int lie(const char *what) {
    fprintf(stderr, "the peer sent %s\n", what);
    return -1;
}

/* Its receive gives no credit. */
static int take_hello(struct client *c, const struct hello *h, uint32_t length) {
    if (length < sizeof *h || memcmp(h->magic, "rnEP", 4) || h->version_min > VERSION || h->version_max < VERSION)
        return lie("no hello of version 1");
    c->credits = c->receives = be16toh(h->receives);
    c->size = be32toh(h->size);
    c->longest = be64toh(h->longest) < LONGEST ? (uint32_t)be64toh(h->longest) : LONGEST;
    return c->receives < 3 || c->size < 64 ? lie("a hello with too few or too small receives") : 0;
}

/* A piece of the next message that comes back, which must be as it went. */
static int take_piece(struct client *c, const struct header *h, const uint8_t *bytes, uint32_t length) {
    uint32_t whole = length_of(c, c->came), at, i;
    uint64_t total;

    if (h->type == MESSAGE) {
        if (length < TOTAL || c->rest)
            return lie("a message without a length, or inside another one");
        memcpy(&total, bytes, TOTAL);
        if (be64toh(total) != whole)
            return lie("a message of another length than it got");
        bytes += TOTAL;
        length -= TOTAL;
        c->rest = whole;
    }
    if (be32toh(h->id) != (uint32_t)c->came || length > c->rest || (whole && !length) ||
        !(h->flags & LAST) != (length < c->rest))
        return lie("a piece that is not the next one");
    at = whole - c->rest;
    for (i = 0; i < length; i++)
        if (bytes[i] != (uint8_t)((uint32_t)c->came + at + i))
            return lie("another message than it got");
    c->rest -= length;
    c->came += !c->rest;
    return 0;
}

/* The second GOODBYE is the last word: the peer has all that we have sent. */
static int take_goodbye(struct client *c, const struct header *h) {
    if (be32toh(h->id) != (uint32_t)(c->ended ? c->went : c->came))
        return lie("a GOODBYE with a wrong number");
    c->seen = c->ended;
    c->ended = 1;
    return 0;
}

static int take_in(struct client *c, const uint8_t *memory, uint32_t length) {
    const uint8_t *body = memory + sizeof(struct header);
    struct header h;
    int wrong = 0;

    if (!c->receives) /* its first SEND */
        return take_hello(c, (const struct hello *)memory, length);
    if (length < sizeof h)
        return lie("less than a header");
    memcpy(&h, memory, sizeof h);
    length -= (uint32_t)sizeof h;
    switch (h.type) {
    case MESSAGE:
    case MORE:
        wrong = take_piece(c, &h, body, length);
        break;
    case CREDIT:
        break;
    case GOODBYE:
        wrong = take_goodbye(c, &h);
        break;
    case ABORT:
        fprintf(stderr, "the peer ends the channel: %.*s\n", (int)length, (const char *)body);
        return -1;
    default:
        return lie("a type that is not known, or that nobody asked for");
    }
    c->owed++;
    c->credits += be16toh(h.credits);
    return wrong ? wrong : c->credits > c->receives ? lie("more credits than it has receives") : 0;
}

static int receive(struct client *c, int number) { return post_receive(c->end.id->qp, c->mr, c->memory[number], SIZE); }

/* Waits for a completion: of a SEND of ours, or of a receive, which is posted again behind its reading. */
static int take(struct client *c) {
    struct ibv_wc wc;
    int number = c->next;

    if (next_completion(&c->end, &wc))
        return -1;
    if (!(wc.opcode & IBV_WC_RECV)) {
        c->sending = 0;
        return 0;
    }
    if (take_in(c, c->memory[number], wc.byte_len) || receive(c, number))
        return -1;
    c->next = (number + 1) % POSTED;
    return 0;
}

/* Posts what is in our memory as a SEND. ibv_post_send(3) */
static int post_send(struct client *c, uint32_t length) {
    struct ibv_sge sge = {.addr = (uintptr_t)c->memory[POSTED], .length = length, .lkey = c->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    int error = ibv_post_send(c->end.id->qp, &wr, &bad);

    if (error)
        return failed_with("ibv_post_send", error);
    c->sending = 1;
    return 0;
}

/* Posts a SEND, with all credits that are owed; its body is there already. */
static int post(struct client *c, enum type type, int flags, uint32_t id, uint32_t length) {
    struct header h = {(uint8_t)type, (uint8_t)flags, htobe16((uint16_t)c->owed), htobe32(id)};

    memcpy(c->memory[POSTED], &h, sizeof h);
    c->credits--;
    c->owed = 0;
    return post_send(c, (uint32_t)sizeof h + length);
}

/* Waits until a SEND may go that is no CREDIT: those leave it a credit. Meanwhile, a CREDIT goes when it is due. */
static int may_send(struct client *c) {
    while (c->sending || c->credits < 2)
        if (!c->sending && c->credits && c->owed >= LEAST ? post(c, CREDIT, 0, 0, 0) : take(c))
            return -1;
    return 0;
}

static int say_hello(struct client *c) {
    struct hello h = {.magic = "rnEP",
                      .version_min = VERSION,
                      .version_max = VERSION,
                      .size = htobe32(SIZE),
                      .receives = htobe16(RECEIVES),
                      .longest = htobe64(LONGEST)};

    memcpy(c->memory[POSTED], &h, sizeof h);
    return post_send(c, sizeof h);
}

/* In pieces, each as long as the peer's receives and our memory allow. */
static int send_message_of(struct client *c, long n) {
    uint32_t whole = length_of(c, n), at = 0, begin, most, length, i;
    uint64_t total = htobe64(whole);

    c->went++;
    do {
        if (may_send(c))
            return -1;
        begin = (uint32_t)sizeof(struct header) + (at ? 0 : TOTAL);
        most = (c->size < SIZE ? c->size : SIZE) - begin;
        length = whole - at < most ? whole - at : most;
        memcpy(c->memory[POSTED] + sizeof(struct header), &total, TOTAL);
        for (i = 0; i < length; i++)
            c->memory[POSTED][begin + i] = (uint8_t)((uint32_t)n + at + i);
        if (post(c, at ? MORE : MESSAGE, at + length == whole ? LAST : 0, (uint32_t)n, length + (at ? 0 : TOTAL)))
            return -1;
        at += length;
    } while (at < whole);
    return 0;
}

/* Until so many messages are back, and `flag` is set. */
static int wait_for(struct client *c, long messages, const int *flag) {
    while (c->came < messages || !*flag)
        if (!c->sending && c->credits && c->owed >= LEAST ? post(c, CREDIT, 0, 0, 0) : take(c))
            return -1;
    return 0;
}

/* Until our SEND is acknowledged, or the peer says that it has all. */
static int wait_for_last(struct client *c) {
    while (c->sending && !c->seen)
        if (take(c))
            return -1;
    return 0;
}

/* Both say GOODBYE. Then our last word tells the peer that we have all, in case an acknowledgement was lost; it needs no
 * credit. An end that has the other's says none. */
static int finish(struct client *c, long messages) {
    if (may_send(c) || post(c, GOODBYE, 0, (uint32_t)c->went, 0) || wait_for(c, messages, &c->ended))
        return -1;
    if (wait_for_last(c) || (!c->seen && post(c, GOODBYE, 0, (uint32_t)c->came, 0)))
        return -1;
    return wait_for_last(c);
}

static int run(struct client *c, const char *host, const char *port, long messages) {
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    const int yes = 1;

    if (make_channel(&c->end) || resolve(&c->end, host, port) || make_queue_pair(&c->end))
        return -1;
    if (!(c->memory = calloc(POSTED + 1, SIZE)))
        return failed("calloc");
    if (!(c->mr = ibv_reg_mr(c->end.pd, c->memory, (POSTED + 1) * SIZE, IBV_ACCESS_LOCAL_WRITE)))
        return failed("ibv_reg_mr");
    for (int i = 0; i < POSTED; i++) /* before the peer may send */
        if (receive(c, i))
            return -1;
    if (rdma_connect(c->end.id, &param))
        return failed("rdma_connect");
    if (expect(&c->end, RDMA_CM_EVENT_ESTABLISHED, NULL, 0, NULL) || say_hello(c) || may_send(c))
        return -1;
    for (long n = 0; n < messages; n++)
        if (send_message_of(c, n) || wait_for(c, n - 8, &yes)) /* a few are on their way */
            return -1;
    if (finish(c, messages) || hang_up(&c->end))
        return -1;
    printf("%ld messages came back as they went\n", c->came);
    return 0;
}

int main(int argc, char **argv) {
    struct client client = {0};
    long messages = argc == 4 ? number(argv[3], 1000000000) : -1;
    int status;

    if (messages < 0) {
        fprintf(stderr, "usage: %s HOST PORT MESSAGES\n", argv[0]);
        return 2;
    }
    status = run(&client, argv[1], argv[2], messages);
    if (client.end.id && client.end.id->qp)
        rdma_destroy_qp(client.end.id); /* before its memory goes */
    if (client.mr && ibv_dereg_mr(client.mr))
        status = failed("ibv_dereg_mr");
    free(client.memory);
    return release(&client.end) || status ? EXIT_FAILURE : EXIT_SUCCESS;
}
