/* SPDX-License-Identifier: Apache-2.0 */
#include "link/udp/steerprog.h"

#include <linux/filter.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "link/udp/port.h"
#include "wire/bth.h"
#include "wire/mad.h"

#define NOBODY 0xFFFFu
#define MAD_AT (BTH_BYTES + DETH_BYTES)
#define HEAD 18       /* instructions ahead of the spreading */
#define BLOCK 32u     /* rows that are looked through one by one */
#define MOST_ROWS 1024u
#define LEAST_ROWS 64u
#define MOST (HEAD + 2 * STEERPROG_SPREAD + 3 + 2 * MOST_ROWS + 2 * (MOST_ROWS / BLOCK) + 1)

struct row {
    uint32_t slot, index;
};

/* A request of the CM names a service, and who offers that is not known here: any member can hand it on.  A different one
 * each time, so that a repeated request does not meet a stopped member again. */
static uint32_t build_spread(const uint16_t *first_slot, const uint64_t *silent, struct sock_filter *f) {
    uint32_t live[STEERPROG_SPREAD], count = 0, n = 0;
    for (uint32_t i = 0; i < SLOT_COUNT && count < STEERPROG_SPREAD; i++) {
        if (first_slot[i] != NOBODY && !(silent[i / 64] >> (i % 64) & 1)) {
            live[count++] = i;
        }
    }
    if (count > 0) {
        f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM));
        f[n++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, i, 0, 1);
        f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, live[i]);
    }
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX); /* nobody is known: by hash */
    return n;
}

/* Rows by slot, in blocks: whoever comes to a block that ends below its slot goes on to the next one. */
static uint32_t build_rows(const struct row *rows, uint32_t count, struct sock_filter *f) {
    uint32_t n = 0;
    for (uint32_t at = 0; at < count; at += BLOCK) {
        uint32_t in = count - at < BLOCK ? count - at : BLOCK;
        f[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, rows[at + in - 1].slot, (uint8_t)(2 * in + 1), 0);
        for (uint32_t i = at; i < at + in; i++) {
            f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, rows[i].slot, 0, 1);
            f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, rows[i].index);
        }
        f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX); /* no such member: by hash */
    }
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
    return n;
}

/* The kernel runs it on the UDP payload.  A load beyond a packet's end returns 0: short packets go to index 0.  Other
 * messages of the CM have the slot in the communication id, as packets have it in the QPN. */
static void build_head(uint32_t spread, struct sock_filter *f) {
    const struct sock_filter head[HEAD] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0), /* the opcode */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PORT_PROBE_OPCODE, 0, 2),
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 2), /* a probe names the index */
        BPF_STMT(BPF_RET | BPF_A, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4), /* the destination QPN, and 8 bits ahead of it */
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xFFFFFF),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, QPN_GSI, 2, 0),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, QPN_INDEX_BITS),
        BPF_STMT(BPF_JMP | BPF_JA, HEAD - 9 + spread), /* to the rows */
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, MAD_AT + MAD_ATTRIBUTE),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CM_REQ, HEAD - 11, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CM_SIDR_REQ, HEAD - 12, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CM_SIDR_REP, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, MAD_AT + MAD_LOCAL_ID),
        BPF_STMT(BPF_JMP | BPF_JA, 1),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, MAD_AT + MAD_REMOTE_ID),
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 32 - SLOT_BITS),
        BPF_STMT(BPF_JMP | BPF_JA, spread),
    };
    memcpy(f, head, sizeof head);
}

void steerprog_attach(int fd, const uint16_t *index_of, const uint16_t *first_slot, const uint64_t *silent) {
    struct sock_filter *filter = malloc(MOST * sizeof *filter + MOST_ROWS * sizeof(struct row));
    if (!filter)
        return;
    struct row *rows = (struct row *)(filter + MOST);
    uint32_t count = 0, spread = build_spread(first_slot, silent, filter + HEAD);
    build_head(spread, filter);
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        if (index_of[slot] != NOBODY) {
            rows[count++] = (struct row){slot, index_of[slot]};
        }
    }
    for (;; count /= 2) { /* net.core.optmem_max is 20 KiB here and there */
        uint32_t n = HEAD + spread + build_rows(rows, count, filter + HEAD + spread);
        struct sock_fprog program;
        memset(&program, 0, sizeof program); /* its padding, too: the kernel is given all of it */
        program.len = (unsigned short)n;
        program.filter = filter;
        if (!setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) || count < LEAST_ROWS) {
            break;
        }
    }
    free(filter);
}
