/* SPDX-License-Identifier: Apache-2.0
 *
 * Ports and slots, with real processes of one user on loopback.  Prints how long the group of sockets took to settle after
 * each change.
 */
#include "world.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MANY 150

static void test_slots(bool own) {
    struct slot a, b;
    CHECK(slot_claim(&a, NULL) == 0 && slot_claim(&b, NULL) == 0);
    CHECK(a.number != b.number && a.number < SLOT_COUNT && b.number < SLOT_COUNT);
    slot_release(&a);
    slot_release(&b);
    CHECK(a.fd == -1);
    if (!own) {
        printf("ok - slots are claimed once, and freed\n");
        return;
    }
    static struct slot all[SLOT_COUNT];
    static bool seen[SLOT_COUNT];
    struct rlimit most;
    CHECK(getrlimit(RLIMIT_NOFILE, &most) == 0);
    most.rlim_cur = most.rlim_max; /* two descriptors for each */
    CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0);
    for (unsigned i = 0; i < SLOT_COUNT; i++) {
        CHECK(slot_claim(&all[i], NULL) == 0 && !seen[all[i].number]);
        seen[all[i].number] = true;
    }
    struct rnic_err err;
    CHECK(slot_claim(&a, &err) == -EUSERS && strstr(err.text, "1024") != NULL);
    for (unsigned i = 0; i < SLOT_COUNT; i++) {
        slot_release(&all[i]);
    }
    printf("ok - slots are claimed once, all of them, and freed\n");
}

static void test_one_member(void) {
    struct world w;
    world_open(&w);
    struct proc *p = world_spawn(&w, 0);
    CHECK(p->open_rc == 0 && p->bound && p->source_port == htons(ROCE_UDP_PORT));
    world_flow(&w, &p, 1, 100, "one member", 0);
    world_check_direct(&w, &p, 1, 1000);
    CHECK(p->remaps >= 1);
    world_close(&w);
    printf("ok - one member gets its packets\n");
}

static void test_members(int n) {
    struct world w;
    struct proc *p[MAX_PROCS];
    world_open(&w);
    for (int i = 0; i < n; i++) {
        p[i] = world_spawn(&w, 0);
    }
    world_flow(&w, p, n, 300, "members joined", world_clock());
    world_check_direct(&w, p, n, 1000);
    world_sleep(100);
    world_check_direct(&w, p, n, 10);
    uint64_t remaps = 0;
    for (int i = 0; i < n; i++) {
        remaps += p[i]->remaps;
    }
    printf("# %d members: %llu remaps in all\n", n, (unsigned long long)remaps);
    world_close(&w);
    printf("ok - each of %d members gets its packets from the kernel\n", n);
}

/* An arrival costs the same however many are there: those that requests are spread over are looked at now and then, the
 * others never. */
static void test_many_members(void) {
    struct world w;
    struct proc *p[MANY];
    world_open(&w);
    for (int i = 0; i < MANY; i++) {
        p[i] = world_start(&w, 0);
        if (i % 16 == 15) {
            WAIT_FOR(p[i]->ready && p[i]->remaps > 0);
        }
    }
    for (int i = 0; i < MANY; i++) {
        WAIT_FOR(p[i]->remaps > 0);
    }
    world_settle(&w, p, MANY);
    uint64_t bystanders = 0;
    for (int i = MANY / 2; i < MANY; i++) {
        bystanders += p[i]->probes;
    }
    printf("# %d members: %llu messages to each of the later half\n", MANY,
           (unsigned long long)(bystanders / (MANY - MANY / 2)));
    CHECK(bystanders / (MANY - MANY / 2) < MANY / 4);
    struct proc *rest[8];
    for (int i = 0; i < 8; i++) {
        world_end(p[i * 10], i % 2 ? SIGKILL : 0);
        rest[i] = p[MANY - 1 - i];
    }
    world_settle(&w, rest, 8);
    world_close(&w);
    printf("ok - an arrival does not cost each of many members\n");
}

/* The sender does not wait for anybody: packets flow while members come. */
static void test_all_at_once(void) {
    struct world w;
    struct proc *p[8];
    world_open(&w);
    uint64_t at = world_clock();
    for (int i = 0; i < 4; i++) {
        p[i] = world_start(&w, 0);
    }
    for (int i = 0; i < 4; i++) {
        while (!p[i]->ready) {
            sched_yield();
        }
    }
    world_flow(&w, p, 4, 200, "four members started at once", at);
    world_check_direct(&w, p, 4, 1000);
    at = world_clock();
    for (int i = 4; i < 8; i++) {
        p[i] = world_start(&w, 0);
    }
    world_flow(&w, p, 4, 300, "four more started while packets flow", at);
    world_check_direct(&w, p, 8, 1000);
    world_close(&w);
    printf("ok - members that start at the same time find their order\n");
}

static void test_kill(void) {
    struct world w;
    struct proc *p[4];
    world_open(&w);
    for (int i = 0; i < 4; i++) {
        p[i] = world_spawn(&w, 0);
    }
    world_flow(&w, p, 4, 200, "before the kill", world_clock());
    uint64_t at = world_clock();
    world_end(p[1], SIGKILL);
    struct proc *rest[3] = {p[0], p[2], p[3]};
    world_flow(&w, rest, 3, 300, "member 1 of 4 killed", at);
    world_check_direct(&w, rest, 3, 1000);
    at = world_clock();
    world_end(p[0], 0);
    world_flow(&w, rest + 1, 2, 300, "member 0 of 3 closed", at);
    world_check_direct(&w, rest + 1, 2, 1000);
    world_close(&w);
    printf("ok - the others go on when a member is killed, and when one closes\n");
}

/* The member that remapped last knows the order and arranges for its own absence. */
static void test_close_of_last_mapper(void) {
    struct world w;
    struct proc *p[3];
    world_open(&w);
    p[0] = world_spawn(&w, 0);
    world_sleep(50);
    for (int i = 1; i < 3; i++) {
        p[i] = world_spawn(&w, 0);
        world_sleep(50);
    }
    world_settle(&w, p, 3);
    bool knows = p[2]->remaps > 0 && p[0]->remaps == 1 && p[1]->remaps == 1; /* as it is unless the machine is busy */
    struct totals a = world_totals(&w);
    world_end(p[2], 0);
    world_check_direct(&w, p, 2, 100);
    CHECK(!knows || world_totals(&w).handed_on == a.handed_on);
    world_close(&w);
    printf("ok - a clean close leaves the right order\n");
}

static void test_stopped(void) {
    struct world w;
    struct proc *p[4];
    world_open(&w);
    for (int i = 0; i < 3; i++) {
        p[i] = world_spawn(&w, 0);
    }
    world_flow(&w, p, 3, 200, "before the stop", world_clock());
    kill(p[1]->pid, SIGSTOP);
    struct proc *rest[3] = {p[0], p[2]};
    world_check_direct(&w, rest, 2, 1000);
    p[3] = world_spawn(&w, 0);
    rest[2] = p[3];
    uint64_t at = world_clock();
    world_flow(&w, rest, 3, 300, "a member joined while another is stopped", at);
    world_check_direct(&w, rest, 3, 1000);
    world_end(p[0], SIGKILL);
    at = world_clock();
    world_flow(&w, rest + 1, 2, 300, "a member killed while another is stopped", at);
    world_check_direct(&w, rest + 1, 2, 1000);
    at = world_clock();
    kill(p[1]->pid, SIGCONT);
    world_flow(&w, p + 1, 3, 1500, "the stopped one goes on", at);
    world_check_direct(&w, p + 1, 3, 1000);
    world_close(&w);
    printf("ok - a stopped member holds nobody up\n");
}

/* What falls to a stopped member is lost, and makes no forward that would tell of a wrong order. */
static void test_stopped_around(void) {
    enum { STOPPED = 6 };
    struct world w;
    struct proc *p[STOPPED + 2];
    world_open(&w);
    for (int i = 0; i <= STOPPED; i++) {
        p[i] = world_spawn(&w, 0);
    }
    world_settle(&w, p, STOPPED + 1);
    for (int i = 1; i <= STOPPED; i++) {
        kill(p[i]->pid, SIGSTOP);
    }
    p[STOPPED + 1] = world_spawn(&w, 0);
    world_check_direct(&w, p + STOPPED + 1, 1, 100);
    world_end(p[0], SIGKILL);
    world_check_direct(&w, p + STOPPED + 1, 1, 100);
    world_close(&w);
    printf("ok - a kill is noticed with nobody but stopped members around\n");
}

/* None of those that a newcomer asks answers. */
static void test_stopped_first(void) {
    enum { STOPPED = 9, ALL = 12 };
    struct world w;
    struct proc *p[ALL + 1];
    world_open(&w);
    for (int i = 0; i < ALL; i++) {
        p[i] = world_spawn(&w, 0);
    }
    world_settle(&w, p, ALL);
    for (int i = 0; i < STOPPED; i++) {
        kill(p[i]->pid, SIGSTOP);
    }
    p[ALL] = world_spawn(&w, 0);
    world_check_direct(&w, p + STOPPED, ALL + 1 - STOPPED, 100);
    world_close(&w);
    printf("ok - a newcomer gets its packets though nine are stopped ahead of it\n");
}

static void test_join(void) {
    struct world w;
    struct proc *p[3];
    world_open(&w);
    p[0] = world_spawn(&w, 0);
    p[1] = world_spawn(&w, 0);
    world_flow(&w, p, 2, 100, "before the join", world_clock());
    uint64_t at = world_clock();
    p[2] = world_spawn(&w, 0);
    world_flow(&w, p, 3, 200, "a member joined", at);
    world_check_direct(&w, p, 3, 1000);
    world_order(p[1], ADD_SLOT);
    struct proc alias = *p[1];
    alias.slot = alias.slot2;
    struct proc *to = &alias;
    at = world_clock();
    world_flow(&w, &to, 1, 200, "a member has claimed a second slot", at);
    world_settle(&w, &to, 1);
    world_close(&w);
    printf("ok - a new member, and a member's second slot, get their packets\n");
}

static void test_gso(void) {
    struct world w;
    struct proc *p[3];
    world_open(&w);
    for (int i = 0; i < 3; i++) {
        p[i] = world_spawn(&w, 0);
    }
    world_settle(&w, p, 3);
    enum { SEGMENT = 1024, COUNT = 20 };
    static uint8_t data[SEGMENT * COUNT];
    int segment = SEGMENT;
    CHECK(setsockopt(w.fds[0], SOL_UDP, UDP_SEGMENT, &segment, sizeof segment) == 0);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < COUNT; k++) {
            world_packet(data + k * SEGMENT, p[i]->slot, 0);
        }
        CHECK(world_send_to(w.fds[0], &w.addr, data, sizeof data) == 0);
    }
    for (int i = 0; i < 3; i++) {
        WAIT_FOR(p[i]->big == sizeof data && p[i]->segment == SEGMENT);
    }
    world_close(&w);
    printf("ok - a GSO datagram arrives whole at its member\n");
}

static void test_bad_address(void) {
    struct slot s;
    struct port p;
    struct rnic_err err;
    struct sockaddr_in6 a = world_loopback();
    a.sin6_addr.s6_addr[12] = 203, a.sin6_addr.s6_addr[14] = 113;
    CHECK(slot_claim(&s, NULL) == 0);
    CHECK(port_open(&p, &a, 1, &s, 0, world_clock(), &err) == -EADDRNOTAVAIL);
    CHECK(strstr(err.text, "203.0.113.1 is not an address of this host") != NULL);
    CHECK(port_open(&p, &a, 1, &s, 0, world_clock(), NULL) == -EADDRNOTAVAIL);
    slot_release(&s);
    printf("ok - an address that is not ours is named\n");
}

static void test_ids(void) {
    struct slot s;
    struct port p;
    struct rnic_err err = {0};
    struct sockaddr_in6 a = world_loopback();
    CHECK(slot_claim(&s, NULL) == 0);
    CHECK(port_open(&p, &a, 1, &s, 0, world_clock(), NULL) == 0);
    CHECK(p.gso && p.gro && p.rcvbuf > 0 && p.sndbuf > 0 && p.rx_fd == p.tx_fd);
    printf("# granted: rcvbuf %u, sndbuf %u\n", p.rcvbuf, p.sndbuf);
    int rc = port_check_ids(&p, &err);
    printf("# IP identification: %d %s\n", rc, err.text);
    CHECK(rc == 0 || rc == -ENODATA);
    port_close(&p);
    CHECK(port_open(&p, &a, 1, &s, 8192, world_clock(), NULL) == 0 && p.rcvbuf >= 8192 && p.rcvbuf <= 16384);
    port_abandon(&p);
    CHECK(p.rx_fd == -1);
    port_close(&p);
    port_close(&p);
    slot_release(&s);
    printf("ok - the kernel's IP headers are what the ICRC needs\n");
}

static void test_ipv6(void) {
    struct world w;
    struct proc *p[2];
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    world_open_at(&w, &addr);
    p[0] = world_spawn(&w, 0);
    p[1] = world_spawn(&w, 0);
    if (p[0]->open_rc == -EADDRNOTAVAIL || p[0]->open_rc == -EAFNOSUPPORT) {
        printf("ok - IPv6 # SKIP no ::1 here\n");
        return;
    }
    CHECK(p[0]->open_rc == 0 && p[1]->open_rc == 0);
    world_flow(&w, p, 2, 100, "two members on ::1", world_clock());
    world_check_direct(&w, p, 2, 1000);
    world_close(&w);
    printf("ok - the same over IPv6\n");
}

int main(void) {
    setpgid(0, 0);
    bool own = world_isolate();
    test_slots(own);
    test_bad_address();
    test_one_member();
    test_members(4);
    test_members(12);
    test_many_members();
    test_join();
    test_all_at_once();
    test_kill();
    test_close_of_last_mapper();
    test_stopped();
    test_stopped_around();
    test_stopped_first();
    test_gso();
    test_ids();
    test_ipv6();
    return 0;
}
