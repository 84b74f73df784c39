/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of link/udp/steering.c and link/udp/port.c: many members of a group in one process, on the kernel's loopback and a clock
 * of the test's.  Whoever is stopped is not asked to do anything; time goes on when nothing is left to be read.
 */
#ifndef RNIC_TESTS_GROUP_H
#define RNIC_TESTS_GROUP_H

#include <sys/socket.h>

#include "link/udp/port.h"
#include "names/slot.h"

#define MS 1000000ull
#define NEVER UINT64_MAX
#define MEMBERS 64
#define SENDERS 5 /* the kernel's hash differs by source port */

struct member {
    struct slot slot, second;
    struct port port;
    bool open, stopped;
    uint32_t direct, wrong, forwarded; /* packets: from the kernel for us, for others, and handed on to us */
    uint32_t empty;                    /* datagrams without a byte */
    uint32_t probes;                   /* messages of the steering by UDP */
};

extern struct member group_members[MEMBERS]; /* in the order in which they came */
extern struct sockaddr_in6 group_addr;
extern int group_device; /* whose address it is */
extern uint64_t group_now;
extern int group_falls_to; /* the member that gets probes beyond the group's end */

/* Ahead of all tests: a network and one processor, so that what is sent to lo arrives in its order. */
void group_isolate(void);

/* A new group on the loopback, or at that address of group_device; whoever was left of the last one goes. */
void group_begin(void);
void group_begin_at(struct sockaddr_in6 at);
void group_of(int n); /* of so many members that know each other */
void group_end(void);

struct member *group_join(void);
void group_close(struct member *m);
void group_kill(struct member *m); /* as a signal does it */
void group_stop(int from, int to);

/* Until nobody who runs has anything to read; what is due now; all of so long a time. */
void group_read(void);
void group_run_timers(void);
void group_run(uint64_t ns);
uint64_t group_next_deadline(void); /* of those who run */

/* A packet for a slot, from one of SENDERS addresses. */
void group_send(int sender, uint32_t slot);
uint32_t group_strays(void); /* packets that have come to the wrong member */
/* Does the kernel give it what is for it? */
bool group_is_reached(struct member *m);
bool group_slot_is_reached(struct member *m, uint32_t slot);
void group_all_are_reached(void);

/* The test program's sendto() is this: by it the steering speaks. */
ssize_t group_sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t n);
/* Likewise getrandom(): the first member has slot 0, the second the last one there is. */
ssize_t group_getrandom(void *to, size_t n, unsigned flags);
/* From now on what is said is written down; `only`: of the steward's looks, which wait for stopped members, nothing. */
void group_listen_in(bool only);
/* "250 J0": after 250 ms a JOIN to index 0; P: PROBE, M: MISSED, L: LEAVE; P0-7: eight of them, in this order. */
void group_has_said(const char *want);
bool group_has_asked(const char *words); /* among other things */

/* The order that a member has learnt: as the numbers of who is where, silent ones with a minus, strangers as '?'. */
void group_order(const struct member *m, const char *want);
/* Does a map say no more than it should: of who is in it, all slots, and of others nothing? */
void group_map_is_whole(const struct member *m);

#endif
