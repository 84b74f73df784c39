/* SPDX-License-Identifier: Apache-2.0
 *
 * Two ends of src/msg over a fabric, on virtual time.
 */
#ifndef RNIC_TESTS_TALK_H
#define RNIC_TESTS_TALK_H

#include "fabric.h"
#include "msg/machine.h"

#define MEMORY (1 << 20) /* of each end; the machine has less than the first half of it */

struct how { /* 0: the default */
    uint32_t receives, receive_size, send_size, regions;
    uint64_t max_message, backlog, announce;
    int64_t idle;
    int version;
    uint32_t capabilities;
    bool quick; /* the device has a quick way */
};

struct side { /* an end as its program has it */
    struct end *end;
    struct msg *m;
    struct rnic_context ctx;
    const uint64_t *asked; /* the tag that a call asks for; NULL: none */
    int objects;           /* that the machine has asked for and not dropped */
    uint64_t most_memory;  /* of one object; 0: no limit */
    uint64_t room;         /* of the object that was made or has grown last */
    int grown;             /* objects have, so often */
    int refused;           /* calls of reg_mr that fail from now on */
    int kept;              /* calls of dereg_mr that are refused from now on */
    int fixed;             /* calls of rereg_mr likewise */
    struct rnic_mr *late;  /* the region that this has left */
    int regions;           /* that the machine has registered and not deregistered */
    unsigned quick_posts;  /* work requests that were to go the quick way */
    bool full;             /* the send queue takes nothing, */
    int takes;             /* after so many work requests */
    uint32_t flags;        /* of the one that it took last */
    int signaled;          /* SENDs that were, so far */
    bool overrun;          /* the completion queues are, */
    struct rnic_cq *well;  /* but for this one */
};

extern struct pair p;
extern struct side a, b;

uint8_t *bytes_of(uint64_t n, uint64_t seed);
/* Sends a message of a seed's bytes; its memory, to be freed once the message has left it. */
uint8_t *say(struct side *s, uint64_t n, uint64_t tag, uint64_t seed, int want);
void hear(struct side *s, const uint64_t *tag, uint64_t n, uint64_t seed);

void talk_open(struct side *s, struct end *e, const struct how *h); /* its receives are posted, nobody has greeted it */
void talk_greet(struct side *s, const struct how *of_the_peer);
void talk_open_both(const struct how *of_a, const struct how *of_b);
int talk_pump(struct side *s);
void talk_settle(void);  /* until nothing is left to happen */
void talk_goodbye(void); /* both say it, and hear it */
void talk_close(void);

#endif
