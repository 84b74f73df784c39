/* SPDX-License-Identifier: Apache-2.0
 *
 * Work for a connected pair, in both directions, of all operations, and the model that says what must come of it: each
 * operation has its own place in both memories, atomics work on words that only they touch.
 */
#ifndef RNIC_TESTS_LOAD_H
#define RNIC_TESTS_LOAD_H

#include "fabric.h"

#define LOAD_OPS 48
#define LOAD_WORDS 4

struct load_op {
    int opcode;
    uint32_t length, flags;
    bool silent;            /* unsignaled: that it is complete shows in a later completion */
    uint64_t place;         /* in all areas */
    uint64_t word;          /* atomics: which */
    uint64_t operand, swap; /* add, or compare and swap */
    uint64_t before;        /* atomics: what must be answered */
};

struct load { /* of one direction */
    struct end *from, *to;
    struct load_op op[LOAD_OPS];
    int ops, posted, done;
    int failed;   /* index of the operation that failed, -1 */
    int status;   /* how */
    int receives; /* that the operations need */
    int recv_op[LOAD_OPS];
    int recv_posted, recv_done;
    uint64_t word[LOAD_OPS + 1][LOAD_WORDS]; /* after n operations */
    uint64_t area;                           /* bytes of each of the areas */
    uint64_t seed;
};

struct loads {
    struct load ab, ba;
    struct rng rng;
    uint64_t started;
};

/* Makes work of that many operations, each of up to `longest` bytes; opens the pair with room for it. */
void loads_open(struct loads *l, struct pair *p, struct options *o, uint64_t seed, int ops, uint32_t longest);
/* The same with given operations from a to b. */
void loads_open_fixed(struct loads *l, struct pair *p, struct options *o, const struct load_op *op, int ops);
/* Lets it all happen; eager: everything is posted at once. */
void loads_run(struct loads *l, struct pair *p, bool eager);
/* Compares what happened with what had to. */
void loads_verify(const struct loads *l, struct pair *p);

#endif
