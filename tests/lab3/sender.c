/* SPDX-License-Identifier: Apache-2.0
 *
 * Lab 3: a file by RDMA WRITE, for a secret key.
 *
 * Write the sender. The receiver is `rnic lab3 receiver`. Compile your program, and try it:
 *
 *     cc -std=c11 -D_GNU_SOURCE -Wall -g sender.c -o sender $(pkg-config --cflags --libs libibverbs librdmacm)
 *     rnic lab3 grade ./sender
 *     rnic run ./sender HOST FILE --id ID [--port PORT]
 *
 * (Where rdma-core's headers are not installed: `rnic config --cflags --libs --rdmacm` instead of pkg-config.)
 *
 * This is what it has to do. Each line is one message, or one RDMA operation:
 *
 *     sender                                        receiver
 *     connect (RDMA-CM)               ->
 *     ANNOUNCE length, SHA-256        ->
 *                                     <-            REGION rkey, addr, length
 *     RDMA WRITE the file's bytes     ->            (its program sleeps all the while)
 *     DONE how many bytes             ->
 *                                     <-            VERDICT good or bad
 *     ID who you are                  ->
 *                                     <-            KEY your secret key
 *     print "secret key: ..."
 *     disconnect                      ->
 *
 * A file may be larger than the region. Then it goes in chunks: write as much as the region holds, and send DONE. The
 * receiver answers with another REGION instead of VERDICT until it has all bytes. Each REGION has its own rkey, addr and
 * length. An empty file is one chunk of no bytes: write nothing, but send DONE.
 *
 * Four rules of RDMA that this lab is about:
 *
 * 1. A SEND needs a receive that is posted at the other end. So post the receive for the answer before you send the
 *    question: after it may be too late.
 * 2. An RDMA WRITE needs no receive, and does not wake the receiver's program. Only your DONE tells it.
 * 3. A reliable connection executes work in the order of posting. A DONE that is posted after the WRITE arrives after
 *    its bytes. A DONE that is posted before the WRITE announces bytes that are not there yet.
 * 4. Do not change or release memory that you have posted until the work completes: the RNIC still uses it. Else other
 *    bytes may be sent, or the work fails.
 *
 * Fill in each TODO. The comment above a function says what it has to do. The functions of RDMA-CM and of
 * <rdma/rdma_verbs.h> return 0 if they succeed, else -1 with errno; those that make something return NULL then.
 */
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIMEOUT 10                   /* seconds that an answer may take */
#define RESOLVE_MS (TIMEOUT * 1000)  /* for rdma_resolve_addr(3) and rdma_resolve_route(3) */
#define MESSAGE_BYTES 128            /* no message is longer */
#define CHUNK_BYTES ((size_t)1 << 20) /* of the file, at most, in one RDMA WRITE */
#define VERSION 1

/* The messages, in network byte order: htobe32() and htobe64() write it, be32toh() and be64toh() read it. endian(3) */
enum type { ANNOUNCE = 1, REGION, DONE, VERDICT, ID, KEY, ERROR };
struct announce {
    uint32_t type, version;
    uint64_t length;
    uint8_t sha256[32];
};
struct region {
    uint32_t type, rkey;
    uint64_t addr, length;
};
struct done {
    uint32_t type, reserved;
    uint64_t length;
};
struct verdict {
    uint32_t type, good;
};
struct id {
    uint32_t type, reserved;
    char id[64]; /* zeros behind the text, and no zero if it has 64 bytes; likewise in those below */
};
struct key {
    uint32_t type, reserved;
    char key[64];
};
struct error { /* instead of any answer */
    uint32_t type, reserved;
    char text[120];
};

/* An answer, whatever it is. */
union answer {
    uint32_t type; /* what kind() reads */
    struct region region;
    struct verdict verdict;
    struct key key;
    struct error error;
    uint8_t bytes[MESSAGE_BYTES];
};

/* ---------------------------------------------------------------- what is given */

/* Prints what has failed, and why if errno knows; ends the program with exit code 1. */
_Noreturn void die(const char *what) {
    fprintf(stderr, "%s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(EXIT_FAILURE);
}

/* SHA-256 of these bytes (FIPS 180-4), into `digest`. */
void sha256(const uint8_t *data, size_t length, uint8_t digest[32]);

/* Waits for the next completion of id->send_cq or id->recv_cq, and returns its byte_len, which a receive has. Ends the
 * program if the work has failed, or if nothing comes within TIMEOUT seconds. */
uint32_t completion(struct ibv_cq *cq, const char *of) {
    time_t limit = time(NULL) + TIMEOUT;
    struct ibv_wc wc;
    int found;

    while (!(found = ibv_poll_cq(cq, 1, &wc)))
        if (time(NULL) > limit) {
            fprintf(stderr, "%s: nothing within %d s\n", of, TIMEOUT);
            exit(EXIT_FAILURE);
        }
    if (found < 0)
        die("ibv_poll_cq");
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "%s: %s%s\n", of, ibv_wc_status_str(wc.status),
                wc.status == IBV_WC_WR_FLUSH_ERR ? ": an earlier work request has failed, or the receiver has gone"
                                                 : "");
        exit(EXIT_FAILURE);
    }
    return wc.byte_len;
}

/* The type of an answer; an ERROR ends the program with its text. */
enum type kind(const union answer *answer) {
    if (be32toh(answer->type) == ERROR) {
        fprintf(stderr, "the receiver refuses: %.*s\n", (int)sizeof answer->error.text, answer->error.text);
        exit(EXIT_FAILURE);
    }
    return be32toh(answer->type);
}

/* What `size` bytes of memory are sent from, or received into: the RNIC may read and write them. */
struct ibv_mr *registered(struct rdma_cm_id *id, void *memory, size_t size) {
    struct ibv_mr *mr = rdma_reg_msgs(id, memory, size);

    if (!mr)
        die("rdma_reg_msgs");
    return mr;
}

/* ---------------------------------------------------------------- what is to be written */

/* Marks a gap. It is called with what is to be used there, so that the compiler does not warn of unused parameters. */
_Noreturn void todo(int number, ...) {
    fprintf(stderr, "TODO %d is not written yet\n", number);
    exit(EXIT_FAILURE);
}

/* An id that is connected to the receiver, with a queue pair of its own.
 *
 * TODO 1: make an id: rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP). Without an event channel each call waits until it is
 * done. Then call, in this order: rdma_resolve_addr(id, NULL, address, RESOLVE_MS), which finds the device;
 * rdma_resolve_route(id, RESOLVE_MS); rdma_create_qp(id, NULL, attr), which needs the device; rdma_connect(id, param).
 * In attr, a struct ibv_qp_init_attr that is zero otherwise, set qp_type to IBV_QPT_RC, sq_sig_all to 1, and in cap
 * max_send_wr and max_recv_wr (4 will do), max_send_sge and max_recv_sge (1). In param, a struct rdma_conn_param, set
 * retry_count and rnr_retry_count to 7. */
struct rdma_cm_id *connected(struct sockaddr *address) {
    /* solution 1: address */
    struct rdma_cm_id *id;
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 64, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};

    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP))
        die("rdma_create_id");
    if (rdma_resolve_addr(id, NULL, address, RESOLVE_MS))
        die("rdma_resolve_addr");
    if (rdma_resolve_route(id, RESOLVE_MS))
        die("rdma_resolve_route");
    if (rdma_create_qp(id, NULL, &attr))
        die("rdma_create_qp");
    if (rdma_connect(id, &param))
        die("rdma_connect");
    return id;
    /* end */
}

/* Sends a message of `size` bytes, waits for the receiver's answer and stores it.
 *
 * TODO 2: register the message and the answer (registered()). Post the receive: rdma_post_recv(id, NULL, answer,
 * MESSAGE_BYTES, mr). Only then post the SEND: rdma_post_send(id, NULL, message, size, mr, 0). Wait for both completions:
 * completion(id->send_cq, "SEND") and completion(id->recv_cq, "receive"). Then rdma_dereg_mr() both. */
void ask(struct rdma_cm_id *id, void *message, size_t size, union answer *answer) {
    /* solution 2: id, message, size, answer */
    struct ibv_mr *out = registered(id, message, size), *into = registered(id, answer, sizeof *answer);

#ifdef NO_RECEIVE
    (void)answer;
#else
    if (rdma_post_recv(id, NULL, answer, sizeof *answer, into))
        die("rdma_post_recv");
#endif
    if (rdma_post_send(id, NULL, message, size, out, 0))
        die("rdma_post_send");
#ifndef NO_WAIT
    completion(id->send_cq, "SEND");
#endif
    completion(id->recv_cq, "receive");
    rdma_dereg_mr(out);
    rdma_dereg_mr(into);
    /* end */
}

/* The message ANNOUNCE for a file with these bytes.
 *
 * TODO 3: fill in all four fields. Numbers are in network byte order: htobe32(ANNOUNCE) is the first. sha256() fills
 * in the last. */
struct announce announcement(const uint8_t *data, size_t length) {
    /* solution 3: data, length */
    struct announce announce = {htobe32(ANNOUNCE), htobe32(VERSION), htobe64(length), {0}};

#ifdef HOST_ORDER
    announce.type = ANNOUNCE;
#endif
#ifdef WRONG_LENGTH
    announce.length = htobe64(length + 1);
#endif
    sha256(data, length, announce.sha256);
#ifdef WRONG_HASH
    announce.sha256[31] ^= 1;
#endif
    return announce;
    /* end */
}

/* RDMA WRITE these bytes to `addr` in the receiver's memory.
 *
 * TODO 4: register the part (only the peer's memory has to be open to others), rdma_post_write(id, NULL, part, length,
 * mr, 0, addr, rkey), wait for its completion on id->send_cq, then deregister. */
void write_part(struct rdma_cm_id *id, uint8_t *part, size_t length, uint64_t addr, uint32_t rkey) {
    /* solution 4: id, part, length, addr, rkey */
    struct ibv_mr *mr = registered(id, part, length);

#ifdef BAD_RKEY
    rkey ^= 0x100;
#endif
#ifdef ABORT
    abort();
#endif
    if (rdma_post_write(id, NULL, part, length, mr, 0, addr, rkey))
        die("rdma_post_write");
#ifdef NO_WAIT
    memset(part, 0, length);
    return;
#endif
#ifndef EARLY_RELEASE
    completion(id->send_cq, "RDMA WRITE");
#endif
    rdma_dereg_mr(mr);
    /* end */
}

/* Announces the file, writes it chunk by chunk; stores the receiver's answer to the last DONE.
 *
 * TODO 5: ask() with the announcement; the answer is a REGION. As long as kind(answer) is REGION, write as much of what
 * is left as it holds, in WRITEs of at most CHUNK_BYTES, and ask() with DONE and the number of bytes in this chunk. Do
 * it once for an empty file. Take rkey, addr and length from each REGION anew, before ask() overwrites it. */
void transfer(struct rdma_cm_id *id, uint8_t *data, size_t length, union answer *answer) {
    /* solution 5: id, data, length, answer */
    struct announce announce = announcement(data, length);
    size_t sent = 0;

    ask(id, &announce, sizeof announce, answer);
    while (kind(answer) == REGION) {
        struct done done = {htobe32(DONE), 0, 0};
        uint32_t rkey = be32toh(answer->region.rkey);
        uint64_t addr = be64toh(answer->region.addr), room = be64toh(answer->region.length);
        size_t chunk = length - sent < room ? length - sent : room, at;

#ifdef DONE_FIRST
        struct ibv_mr *out = registered(id, &done, sizeof done), *into = registered(id, answer, sizeof *answer);

        done.length = htobe64(chunk);
        if (rdma_post_recv(id, NULL, answer, sizeof *answer, into) ||
            rdma_post_send(id, NULL, &done, sizeof done, out, 0))
            die("DONE");
        completion(id->send_cq, "DONE");
#endif
#ifdef NO_WRITE
        (void)addr, (void)rkey, (void)at;
#else
        for (at = 0; at < chunk; at += CHUNK_BYTES)
            write_part(id, data + sent + at, chunk - at < CHUNK_BYTES ? chunk - at : CHUNK_BYTES, addr + at, rkey);
#endif
        sent += chunk;
#ifdef HANG
        for (;;)
            nanosleep(&(struct timespec){.tv_sec = 60}, NULL);
#endif
#ifdef DONE_FIRST
        completion(id->recv_cq, "receive");
        rdma_dereg_mr(out);
        rdma_dereg_mr(into);
        continue;
#endif
        done.length = htobe64(chunk);
        ask(id, &done, sizeof done, answer);
    }
    /* end */
}

/* Looks at the verdict in `answer`, says who you are, and prints "secret key: " and the key that the receiver gives.
 *
 * TODO 6: end with a clear message (errno = 0, die("...")) if the answer is not VERDICT, or not good. ask() with ID; the
 * answer is KEY. Its text ends where the zeros begin: printf("%.*s") prints at most so many characters. */
void secret_key(struct rdma_cm_id *id, union answer *answer, const char *who) {
    /* solution 6: id, answer, who */
    struct id message = {htobe32(ID), 0, ""};

    errno = 0;
#ifndef BELIEVES_ALL
    if (kind(answer) != VERDICT || !be32toh(answer->verdict.good)) {
#ifdef ENDS_WELL
        exit(EXIT_SUCCESS);
#endif
        die("the receiver has other bytes than were announced");
    }
#endif
    memcpy(message.id, who, strnlen(who, sizeof message.id));
    ask(id, &message, sizeof message, answer);
    if (kind(answer) != KEY)
        die("the receiver gives no key");
#ifdef WRONG_KEY
    answer->key.key[0] ^= 1;
#endif
    printf("secret key: %.*s\n", (int)sizeof answer->key.key, answer->key.key);
    fflush(stdout);
    /* end */
}

/* Tells the receiver that this is the end, and gives all back.
 *
 * TODO 7: rdma_disconnect(id), rdma_destroy_qp(id), rdma_destroy_id(id). */
void hang_up(struct rdma_cm_id *id) {
    /* solution 7: id */
#ifdef NEVER_DISCONNECTS
    (void)id;
    _Exit(0);
#endif
    if (rdma_disconnect(id))
        die("rdma_disconnect");
    rdma_destroy_qp(id);
    if (rdma_destroy_id(id))
        die("rdma_destroy_id");
    /* end */
}

/* ---------------------------------------------------------------- what is given, too */

struct options {
    const char *host, *file, *who, *port;
};

static struct options parse(int count, char **words) {
    struct options found = {.port = "7471"};
    int i;

    for (i = 1; i < count; i++)
        if (!strcmp(words[i], "--id") && words[i + 1])
            found.who = words[++i];
        else if (!strcmp(words[i], "--port") && words[i + 1])
            found.port = words[++i];
        else if (!found.host)
            found.host = words[i];
        else
            found.file = words[i];
    if (found.file && found.who)
        return found;
    fprintf(stderr, "usage: %s HOST FILE --id ID [--port PORT]\n", words[0]);
    exit(2);
}

/* The bytes of a file, and how many there are. */
static uint8_t *read_all(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    long size;

    if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0)
        die(path);
    rewind(file);
    *length = (size_t)size;
    data = malloc(*length + 1); /* malloc(0) may be NULL */
    if (!data || fread(data, 1, *length, file) != *length)
        die(path);
    fclose(file);
    return data;
}

int main(int count, char **words) {
    struct options options = parse(count, words);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *address;
    union answer answer = {0};
    struct rdma_cm_id *id;
    size_t length;
    uint8_t *data = read_all(options.file, &length);
    int error = getaddrinfo(options.host, options.port, &hints, &address);

    if (error) {
        fprintf(stderr, "%s: %s\n", options.host, gai_strerror(error));
        return EXIT_FAILURE;
    }
    id = connected(address->ai_addr);
    freeaddrinfo(address);
    transfer(id, data, length, &answer);
    secret_key(id, &answer, options.who);
    hang_up(id);
    free(data);
    return EXIT_SUCCESS;
}

/* ---------------------------------------------------------------- SHA-256 */

/* The first 32 bits of the fractional part of a root of a prime, by integers alone: FIPS 180-4 takes its constants so. */
static uint32_t root_of(unsigned int prime, int power) {
    unsigned __int128 target = prime, low = 0, high = (unsigned __int128)1 << 38;

    target <<= 32 * power;
    while (high - low > 1) {
        unsigned __int128 middle = (low + high) / 2;

        if ((power == 2 ? middle * middle : middle * middle * middle) <= target)
            low = middle;
        else
            high = middle;
    }
    return (uint32_t)low;
}

static bool is_prime(unsigned int number) {
    unsigned int divisor;

    for (divisor = 2; divisor * divisor <= number; divisor++)
        if (number % divisor == 0)
            return false;
    return true;
}

static uint32_t turned(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

/* Section 6.2.2: one block of 64 bytes. */
static void digest_block(uint32_t state[8], const uint32_t constants[64], const uint8_t block[64]) {
    uint32_t w[64], s[8];
    int i;

    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];

        w[i] =
            w[i - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[i - 7] + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (i = 0; i < 64; i++) {
        uint32_t a = s[0], e = s[4];
        uint32_t t =
            s[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + constants[i] + w[i];
        uint32_t u = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));

        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t;
        s[0] = t + u;
    }
    for (i = 0; i < 8; i++)
        state[i] += s[i];
}

void sha256(const uint8_t *data, size_t length, uint8_t digest[32]) {
    uint32_t state[8], constants[64], word;
    uint8_t last[128] = {0};
    size_t whole = length / 64 * 64, rest = length - whole, end = rest < 56 ? 64 : 128, at;
    uint64_t bits = htobe64((uint64_t)length * 8);
    unsigned int prime;
    int i;

    for (i = 0, prime = 2; i < 64; prime++)
        if (is_prime(prime)) {
            if (i < 8)
                state[i] = root_of(prime, 2);
            constants[i++] = root_of(prime, 3);
        }
    for (at = 0; at < whole; at += 64)
        digest_block(state, constants, data + at);
    memcpy(last, data + whole, rest);
    last[rest] = 0x80;
    memcpy(last + end - 8, &bits, 8);
    for (at = 0; at < end; at += 64)
        digest_block(state, constants, last + at);
    for (i = 0; i < 8; i++) {
        word = htobe32(state[i]);
        memcpy(digest + 4 * i, &word, 4);
    }
}
