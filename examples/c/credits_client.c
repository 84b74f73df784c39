/* SPDX-License-Identifier: Apache-2.0
 *
 * credits_client.c: sends messages with credits to a server that sends them back, which may be a Channel of rnic. What
 * is on the wire: docs/patterns/credits.md.
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

#define RECEIVES 4 /* three at least: as many as the queue pair takes */
#define SIZE 256   /* bytes of each, 64 at least */
#define LONGEST 3700
#define LEAST 2 /* credits that a CREDIT returns */

enum kind { HELLO = 1, PIECE, CREDIT, END, SEEN, ABORT };

/* What every SEND begins with; little-endian. */
struct header {
    uint8_t kind, zero;
    uint16_t credits;
    uint32_t rest;
};

struct hello {
    char magic[4];
    uint16_t version, receives;
    uint32_t size, longest;
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
    int ended, seen;         /* the peer's END and SEEN have come */
    long came;               /* messages that are back */
    uint32_t rest;           /* bytes that are missing of the next one */
};

static uint32_t length_of(const struct client *c, long n) { return (uint32_t)((uint64_t)n * 37 % (c->longest + 1)); }

static int lie(const char *what) {
    fprintf(stderr, "the peer sent %s\n", what);
    return -1;
}

static int take_hello(struct client *c, const struct hello *h, uint32_t length) {
    if (length != sizeof *h || memcmp(h->magic, "rnCF", 4) || le16toh(h->version) != 1 || c->receives)
        return lie("no HELLO of version 1, or a second one");
    c->receives = le16toh(h->receives);
    c->size = le32toh(h->size);
    c->longest = le32toh(h->longest) < LONGEST ? le32toh(h->longest) : LONGEST;
    c->credits += c->receives - 1; /* our HELLO takes one */
    return c->receives < 3 || c->size < 64 ? lie("a HELLO with too few or too small receives") : 0;
}

/* A piece of the next message that comes back, which must be as it went. */
static int take_piece(struct client *c, uint32_t rest, const uint8_t *bytes, uint32_t length) {
    uint32_t whole = length_of(c, c->came), at = whole - rest, i;

    if (rest != (c->rest ? c->rest : whole) || length > rest || (rest && !length))
        return lie("a piece that is not the next one");
    for (i = 0; i < length; i++)
        if (bytes[i] != (uint8_t)((uint32_t)c->came + at + i))
            return lie("another message than it got");
    c->rest = rest - length;
    c->came += !c->rest;
    return 0;
}

static int take_in(struct client *c, const uint8_t *memory, uint32_t length) {
    const uint8_t *body = memory + sizeof(struct header);
    struct header h;
    int wrong = 0;

    if (length < sizeof h)
        return lie("less than a header");
    memcpy(&h, memory, sizeof h);
    length -= (uint32_t)sizeof h;
    if (!c->receives && h.kind != HELLO && h.kind != ABORT)
        return lie("something ahead of its HELLO");
    switch (h.kind) {
    case HELLO:
        wrong = take_hello(c, (const struct hello *)body, length);
        break;
    case PIECE:
        wrong = take_piece(c, le32toh(h.rest), body, length);
        break;
    case CREDIT:
        break;
    case END:
        c->ended = 1;
        break;
    case SEEN:
        c->seen = 1;
        break;
    case ABORT:
        fprintf(stderr, "the peer ends the channel: %.*s\n", (int)length, (const char *)body);
        return -1;
    default:
        return lie("a kind that is not known");
    }
    c->credits += le16toh(h.credits);
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
    c->next = (number + 1) % RECEIVES;
    c->owed++;
    return 0;
}

/* Posts a SEND, with all credits that are owed; its body is there already. ibv_post_send(3) */
static int post(struct client *c, enum kind kind, uint32_t rest, uint32_t length) {
    struct header h = {.kind = (uint8_t)kind, .credits = htole16((uint16_t)c->owed), .rest = htole32(rest)};
    uint8_t *memory = c->memory[RECEIVES];
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = sizeof h + length, .lkey = c->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    int error;

    memcpy(memory, &h, sizeof h);
    error = ibv_post_send(c->end.id->qp, &wr, &bad);
    if (error)
        return failed_with("ibv_post_send", error);
    c->credits--;
    c->owed = 0;
    c->sending = 1;
    return 0;
}

/* Waits until a SEND may go that is no CREDIT: those leave it a credit. Meanwhile, a CREDIT goes when it is due. */
static int may_send(struct client *c) {
    while (c->sending || c->credits < 2)
        if (!c->sending && c->credits && c->owed >= LEAST ? post(c, CREDIT, 0, 0) : take(c))
            return -1;
    return 0;
}

static int say_hello(struct client *c) {
    struct hello h = {"rnCF", htole16(1), htole16(RECEIVES), htole32(SIZE), htole32(LONGEST)};

    memcpy(c->memory[RECEIVES] + sizeof(struct header), &h, sizeof h);
    return post(c, HELLO, 0, sizeof h);
}

/* In pieces, each as long as the peer's receives and our memory allow. */
static int send_message_of(struct client *c, long n) {
    uint32_t rest = length_of(c, n), at = 0, most, length, i;

    do {
        if (may_send(c))
            return -1;
        most = (c->size < SIZE ? c->size : SIZE) - (uint32_t)sizeof(struct header);
        length = rest < most ? rest : most;
        for (i = 0; i < length; i++)
            c->memory[RECEIVES][sizeof(struct header) + i] = (uint8_t)((uint32_t)n + at + i);
        if (post(c, PIECE, rest, length))
            return -1;
        at += length;
        rest -= length;
    } while (rest);
    return 0;
}

/* Until so many messages are back, and `flag` is set. */
static int wait_for(struct client *c, long messages, const int *flag) {
    while (c->came < messages || !*flag)
        if (!c->sending && c->credits && c->owed >= LEAST ? post(c, CREDIT, 0, 0) : take(c))
            return -1;
    return 0;
}

/* END, the peer's END, SEEN, the peer's SEEN: then all has arrived, both ways. */
static int finish(struct client *c, long messages) {
    if (may_send(c) || post(c, END, 0, 0) || wait_for(c, messages, &c->ended))
        return -1;
    if (may_send(c) || post(c, SEEN, 0, 0) || wait_for(c, messages, &c->seen))
        return -1;
    while (c->sending)
        if (take(c))
            return -1;
    return 0;
}

static int run(struct client *c, const char *host, const char *port, long messages) {
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    const int yes = 1;

    if (make_channel(&c->end) || resolve(&c->end, host, port) || make_queue_pair(&c->end))
        return -1;
    if (!(c->memory = calloc(RECEIVES + 1, SIZE)))
        return failed("calloc");
    if (!(c->mr = ibv_reg_mr(c->end.pd, c->memory, (RECEIVES + 1) * SIZE, IBV_ACCESS_LOCAL_WRITE)))
        return failed("ibv_reg_mr");
    for (int i = 0; i < RECEIVES; i++) /* before the peer may send */
        if (receive(c, i))
            return -1;
    if (rdma_connect(c->end.id, &param))
        return failed("rdma_connect");
    c->credits = 1; /* for the HELLO */
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
