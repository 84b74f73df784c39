/* SPDX-License-Identifier: Apache-2.0
 *
 * Ports and slots, with real processes on loopback.  As root in a network namespace of its own, and then with a second
 * user, too.  Prints how long the group of sockets took to settle after each change.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* unshare, struct ifreq */
#endif
#include "link/port.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "link/abstract.h"
#include "link/address.h"
#include "link/slotmsg.h"

#define MS 1000000ull
#define OTHER_UID 65534
#define MAX_PROCS 200
#define MANY 150
#define PACKET 64 /* bytes of a test packet; its serial number stands at 16 */

static uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_ms(unsigned ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            printf("not ok - %s:%d: %s\n", __func__, __LINE__, #cond);                                                 \
            fflush(stdout);                                                                                            \
            kill(0, SIGKILL);                                                                                          \
        }                                                                                                              \
    } while (0)

/* What other processes bring about: a busy machine gets ten seconds for it. */
#define WAIT_FOR(cond)                                                                                                 \
    do {                                                                                                               \
        for (int wait_i = 0; wait_i < 10000 && !(cond); wait_i++) {                                                    \
            sleep_ms(1);                                                                                               \
        }                                                                                                              \
        CHECK(cond);                                                                                                   \
    } while (0)

/* ---------------------------------------------------------------- one process of rnic */

enum order { RUN, LEAVE, SEND, ADD_SLOT };

/* Shared with the test; each field is written by the process, but for those that are marked. */
struct proc {
    volatile enum order order; /* the test's; the process sets it to RUN when it is done */
    volatile uint32_t target;  /* the test's: slot to SEND to */
    volatile bool ready;
    volatile int open_rc;
    volatile uint32_t slot, slot2;
    volatile bool bound;
    volatile uint16_t source_port, peer_port; /* of what it sends; of what came last; network order */
    volatile uint64_t direct, handed_on, got_handed,
        lost;                         /* packets: from the kernel; forwarded; by forwarding; neither */
    volatile uint64_t last_wrong;     /* when one was handed on, ns */
    volatile uint64_t bound_at;       /* when the port was taken over, ns */
    volatile uint64_t remaps, probes; /* probes: messages of the steering */
    volatile uint32_t big, segment;   /* the largest datagram, and its GRO segment */
    char text[256];
    pid_t pid; /* the test's */
};

static void make_packet(uint8_t data[PACKET], uint32_t slot, uint64_t serial) {
    memset(data, 0, PACKET);
    data[0] = 4;
    uint32_t qpn = slot << QPN_INDEX_BITS | 5;
    data[5] = (uint8_t)(qpn >> 16), data[6] = (uint8_t)(qpn >> 8), data[7] = (uint8_t)qpn;
    memcpy(data + 16, &serial, sizeof serial);
}

static struct sockaddr_in6 loopback(void) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    a.sin6_addr.s6_addr[10] = a.sin6_addr.s6_addr[11] = 0xFF;
    a.sin6_addr.s6_addr[12] = 127, a.sin6_addr.s6_addr[15] = 1;
    return a;
}

static int send_to_port(int fd, const struct sockaddr_in6 *addr, const void *data, size_t length) {
    struct sockaddr_in6 to = *addr;
    union address_native native;
    to.sin6_port = htons(ROCE_UDP_PORT);
    socklen_t n = address_to_native(&to, &native);
    return sendto(fd, data, length, 0, &native.any, n) == (ssize_t)length ? 0 : -errno;
}

static void udp_packet(struct proc *me, struct port *p, const uint8_t *data, uint32_t length, uint32_t segment,
                       const struct sockaddr_in6 *src) {
    if (data[0] == PORT_PROBE_OPCODE) {
        me->probes++;
        port_probe_input(p, data, length, src, clock_ns());
        return;
    }
    uint32_t slot = (uint32_t)(data[5] << 8 | data[6]) >> 6;
    me->peer_port = src->sin6_port;
    if (slot == me->slot || slot == me->slot2) {
        me->direct++;
        if (length > me->big) {
            me->big = length;
            me->segment = segment;
        }
    } else if (port_forward(p, slot, &(struct slot_packet){.src = *src, .length = length, .segment = segment}, data,
                            clock_ns()) == 0) {
        me->handed_on++;
        me->last_wrong = clock_ns();
    } else {
        me->lost++;
        me->last_wrong = clock_ns();
    }
}

static void udp_input(struct proc *me, struct port *p, uint8_t *buffer) {
    for (int i = 0; i < 32; i++) {
        union address_native from;
        union {
            char bytes[64];
            struct cmsghdr align;
        } control;
        struct iovec iov = {buffer, 65536};
        struct msghdr mh = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &iov, .msg_iovlen = 1};
        mh.msg_control = &control;
        mh.msg_controllen = sizeof control;
        ssize_t n = recvmsg(p->rx_fd, &mh, MSG_DONTWAIT);
        if (n < 8) {
            return;
        }
        int segment = 0;
        struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
        if (c != NULL && c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
            memcpy(&segment, CMSG_DATA(c), sizeof segment);
        }
        struct sockaddr_in6 src;
        address_from_native(&from, &src);
        udp_packet(me, p, buffer, (uint32_t)n, (uint32_t)segment, &src);
    }
}

static void slot_input(struct proc *me, const struct slot *s, struct port *p, uint8_t *buffer) {
    struct slot_packet pkt;
    int rc;
    while ((rc = port_slot_input(s, &p, 1, buffer, 65536, &pkt, clock_ns())) >= 0) {
        if (rc == 1) {
            me->got_handed++;
            me->peer_port = pkt.src.sin6_port;
        }
    }
}

static void obey(struct proc *me, struct port *p, struct slot *second) {
    if (me->order == SEND) {
        uint8_t data[PACKET];
        make_packet(data, me->target, 0);
        CHECK(send_to_port(p->tx_fd, &p->addr, data, sizeof data) == 0);
    } else if (me->order == ADD_SLOT) {
        CHECK(slot_claim(second, NULL) == 0);
        CHECK(port_add_slot(p, second->number) == 0);
        me->slot2 = second->number;
    }
    me->order = RUN;
}

static int wait_input(const struct port *p, const struct slot *s, const struct slot *second, struct pollfd fds[3]) {
    uint64_t now = clock_ns(), due = port_deadline(p);
    uint64_t ns = due <= now ? 0 : due - now < 2 * MS ? due - now : 2 * MS; /* orders are looked for every 2 ms */
    struct timespec t = {.tv_nsec = (long)ns};
    fds[0] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = p->rx_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = second->fd, .events = POLLIN};
    return ppoll(fds, 3, &t, NULL);
}

static void run_port(struct proc *me, struct port *p, struct slot *s) {
    static uint8_t buffer[65536];
    struct slot second = {.fd = -1};
    me->bound = p->rx_fd >= 0;
    me->source_port = p->addr.sin6_port;
    me->ready = true;
    while (me->order != LEAVE) {
        struct pollfd fds[3];
        if (wait_input(p, s, &second, fds) > 0) {
            slot_input(me, s, p, buffer);
            if (second.fd >= 0) {
                slot_input(me, &second, p, buffer);
            }
            if (p->rx_fd >= 0) {
                udp_input(me, p, buffer);
            }
        }
        if (port_timer(p, clock_ns())) {
            me->bound = p->rx_fd >= 0;
            me->bound_at = clock_ns();
            me->source_port = p->addr.sin6_port;
        }
        me->remaps = p->remaps;
        if (me->order != RUN && me->order != LEAVE) {
            obey(me, p, &second);
        }
    }
    slot_release(&second);
}

static void run_proc(struct proc *me, const struct sockaddr_in6 *addr, uid_t uid) {
    struct slot s = {.fd = -1};
    struct port p;
    struct rnic_err err = {""};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (uid != 0) {
        CHECK(setuid(uid) == 0);
    }
    CHECK(slot_claim(&s, &err) == 0);
    me->slot = me->slot2 = s.number;
    me->open_rc = port_open(&p, addr, (int)if_nametoindex("lo"), &s, 0, clock_ns(), &err);
    snprintf(me->text, sizeof me->text, "%s", err.text);
    if (me->open_rc == 0) {
        run_port(me, &p, &s);
        port_close(&p);
    }
    me->ready = true;
    slot_release(&s);
}

/* ---------------------------------------------------------------- the test's side */

#define SOCKETS 7

struct world {
    struct proc *procs; /* MAX_PROCS, shared */
    struct sockaddr_in6 addr;
    int nprocs;
    int fds[SOCKETS]; /* the test's, to send packets from: the kernel's hash differs by source port */
    int next;
};

static void world_open_at(struct world *w, const struct sockaddr_in6 *addr) {
    *w = (struct world){.addr = *addr};
    for (int i = 0; i < SOCKETS; i++) {
        w->fds[i] = socket(address_is_v4(addr) ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        CHECK(w->fds[i] >= 0);
    }
    w->procs = mmap(NULL, sizeof *w->procs * MAX_PROCS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(w->procs != MAP_FAILED);
}

static void world_open(struct world *w) {
    struct sockaddr_in6 addr = loopback();
    world_open_at(w, &addr);
}

static struct proc *start(struct world *w, uid_t uid) {
    CHECK(w->nprocs < MAX_PROCS);
    struct proc *me = &w->procs[w->nprocs++];
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        for (int i = 0; i < SOCKETS; i++) {
            close(w->fds[i]);
        }
        run_proc(me, &w->addr, uid);
        _exit(0);
    }
    me->pid = pid;
    return me;
}

static struct proc *spawn(struct world *w, uid_t uid) {
    struct proc *me = start(w, uid);
    WAIT_FOR(me->ready);
    return me;
}

static void end(struct proc *me, int sig) {
    if (sig != 0) {
        kill(me->pid, sig);
    } else {
        me->order = LEAVE;
    }
    int status;
    CHECK(waitpid(me->pid, &status, 0) == me->pid);
    CHECK(sig != 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    me->pid = 0;
}

static void order(struct proc *me, enum order what) {
    me->order = what;
    WAIT_FOR(me->order == RUN);
}

static void world_close(struct world *w) {
    for (int i = 0; i < w->nprocs; i++) {
        if (w->procs[i].pid != 0) {
            kill(w->procs[i].pid, SIGCONT);
            end(&w->procs[i], 0);
        }
    }
    for (int i = 0; i < SOCKETS; i++) {
        close(w->fds[i]);
    }
    munmap(w->procs, sizeof *w->procs * MAX_PROCS);
}

static void send_packet(struct world *w, uint32_t slot) {
    uint8_t data[PACKET];
    make_packet(data, slot, 0);
    w->next = (w->next + 1) % SOCKETS;
    CHECK(send_to_port(w->fds[w->next], &w->addr, data, sizeof data) == 0);
}

struct totals {
    uint64_t direct, handed_on, got_handed, lost, last_wrong;
};

static struct totals totals(struct world *w) {
    struct totals t = {0};
    for (int i = 0; i < w->nprocs; i++) {
        const struct proc *me = &w->procs[i];
        t.direct += me->direct;
        t.handed_on += me->handed_on;
        t.got_handed += me->got_handed;
        t.lost += me->lost;
        t.last_wrong = me->last_wrong > t.last_wrong ? me->last_wrong : t.last_wrong;
    }
    return t;
}

/* Sends to each slot in turn for so long, a packet every 50 us; then prints when the last one went astray, and how many
 * of them went where. */
static void flow(struct world *w, struct proc **to, int n, unsigned ms, const char *what, uint64_t since) {
    struct totals a = totals(w);
    uint64_t sent = 0, start = clock_ns();
    for (int i = 0; clock_ns() - start < ms * MS; i = (i + 1) % n) {
        send_packet(w, to[i]->slot);
        sent++;
        uint64_t until = clock_ns() + 50000;
        while (clock_ns() < until) {
            sched_yield();
        }
    }
    sleep_ms(20);
    struct totals b = totals(w);
    double settled = b.last_wrong > since ? (double)(b.last_wrong - since) / 1e6 : 0;
    long long direct = (long long)(b.direct - a.direct), handed = (long long)(b.got_handed - a.got_handed);
    printf("# %s: settled after %.1f ms; of %llu packets %lld direct, %lld forwarded, %lld not delivered\n", what,
           settled, (unsigned long long)sent, direct, handed, (long long)sent - direct - handed);
}

/* Sends a round of packets; did all of them come straight from the kernel? */
static bool round_is_direct(struct world *w, struct proc **to, int n) {
    struct totals a = totals(w), b;
    uint64_t sent = (uint64_t)n * SOCKETS, wrong;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < SOCKETS; k++) {
            send_packet(w, to[i]->slot);
        }
    }
    for (int t = 0; t < 200; t++) {
        b = totals(w);
        wrong = b.handed_on - a.handed_on + b.lost - a.lost;
        if (wrong > 0 || b.direct - a.direct == sent) {
            break;
        }
        sleep_ms(1);
    }
    return wrong == 0 && b.direct - a.direct == sent;
}

/* A busy machine may take longer than the flows above last: waits until packets have come right for 50 ms. */
static void settle(struct world *w, struct proc **to, int n) {
    uint64_t start = clock_ns(), right_since = start;
    while (clock_ns() - right_since < 50 * MS) {
        CHECK(clock_ns() - start < 20000 * MS);
        if (!round_is_direct(w, to, n)) {
            sleep_ms(5);
            right_since = clock_ns();
        }
        sleep_ms(2);
    }
}

/* Sends count packets to each, paced to what a socket buffer holds: all must come straight from the kernel. */
static void check_direct(struct world *w, struct proc **to, int n, unsigned count) {
    settle(w, to, n);
    struct totals a = totals(w);
    uint64_t before[MAX_PROCS];
    for (int i = 0; i < n; i++) {
        before[i] = to[i]->direct;
    }
    for (unsigned k = 0; k < count; k++) {
        for (int i = 0; i < n; i++) {
            send_packet(w, to[i]->slot);
        }
        if (k % 100 == 99) {
            sleep_ms(2);
        }
    }
    for (int i = 0; i < n; i++) {
        WAIT_FOR(to[i]->direct - before[i] == count);
    }
    struct totals b = totals(w);
    CHECK(b.handed_on == a.handed_on && b.lost == a.lost);
}

/* ---------------------------------------------------------------- tests */

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
    struct proc *p = spawn(&w, 0);
    CHECK(p->open_rc == 0 && p->bound && p->source_port == htons(ROCE_UDP_PORT));
    flow(&w, &p, 1, 100, "one member", 0);
    check_direct(&w, &p, 1, 1000);
    CHECK(p->remaps >= 1);
    world_close(&w);
    printf("ok - one member gets its packets\n");
}

static void test_members(int n) {
    struct world w;
    struct proc *p[MAX_PROCS];
    world_open(&w);
    for (int i = 0; i < n; i++) {
        p[i] = spawn(&w, 0);
    }
    flow(&w, p, n, 300, "members joined", clock_ns());
    check_direct(&w, p, n, 1000);
    sleep_ms(100);
    check_direct(&w, p, n, 10);
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
        p[i] = start(&w, 0);
        if (i % 16 == 15) {
            WAIT_FOR(p[i]->ready && p[i]->remaps > 0);
        }
    }
    for (int i = 0; i < MANY; i++) {
        WAIT_FOR(p[i]->remaps > 0);
    }
    settle(&w, p, MANY);
    uint64_t bystanders = 0;
    for (int i = MANY / 2; i < MANY; i++) {
        bystanders += p[i]->probes;
    }
    printf("# %d members: %llu messages to each of the later half\n", MANY,
           (unsigned long long)(bystanders / (MANY - MANY / 2)));
    CHECK(bystanders / (MANY - MANY / 2) < MANY / 4);
    struct proc *rest[8];
    for (int i = 0; i < 8; i++) {
        end(p[i * 10], i % 2 ? SIGKILL : 0);
        rest[i] = p[MANY - 1 - i];
    }
    settle(&w, rest, 8);
    world_close(&w);
    printf("ok - an arrival does not cost each of many members\n");
}

/* The sender does not wait for anybody: packets flow while members come. */
static void test_all_at_once(void) {
    struct world w;
    struct proc *p[8];
    world_open(&w);
    uint64_t at = clock_ns();
    for (int i = 0; i < 4; i++) {
        p[i] = start(&w, 0);
    }
    for (int i = 0; i < 4; i++) {
        while (!p[i]->ready) {
            sched_yield();
        }
    }
    flow(&w, p, 4, 200, "four members started at once", at);
    check_direct(&w, p, 4, 1000);
    at = clock_ns();
    for (int i = 4; i < 8; i++) {
        p[i] = start(&w, 0);
    }
    flow(&w, p, 4, 300, "four more started while packets flow", at);
    check_direct(&w, p, 8, 1000);
    world_close(&w);
    printf("ok - members that start at the same time find their order\n");
}

static void test_kill(void) {
    struct world w;
    struct proc *p[4];
    world_open(&w);
    for (int i = 0; i < 4; i++) {
        p[i] = spawn(&w, 0);
    }
    flow(&w, p, 4, 200, "before the kill", clock_ns());
    uint64_t at = clock_ns();
    end(p[1], SIGKILL);
    struct proc *rest[3] = {p[0], p[2], p[3]};
    flow(&w, rest, 3, 300, "member 1 of 4 killed", at);
    check_direct(&w, rest, 3, 1000);
    at = clock_ns();
    end(p[0], 0);
    flow(&w, rest + 1, 2, 300, "member 0 of 3 closed", at);
    check_direct(&w, rest + 1, 2, 1000);
    world_close(&w);
    printf("ok - the others go on when a member is killed, and when one closes\n");
}

/* The member that remapped last knows the order and arranges for its own absence. */
static void test_close_of_last_mapper(void) {
    struct world w;
    struct proc *p[3];
    world_open(&w);
    p[0] = spawn(&w, 0);
    sleep_ms(50);
    for (int i = 1; i < 3; i++) {
        p[i] = spawn(&w, 0);
        sleep_ms(50);
    }
    settle(&w, p, 3);
    bool knows = p[2]->remaps > 0 && p[0]->remaps == 1 && p[1]->remaps == 1; /* as it is unless the machine is busy */
    struct totals a = totals(&w);
    end(p[2], 0);
    check_direct(&w, p, 2, 100);
    CHECK(!knows || totals(&w).handed_on == a.handed_on);
    world_close(&w);
    printf("ok - a clean close leaves the right order\n");
}

static void test_stopped(void) {
    struct world w;
    struct proc *p[4];
    world_open(&w);
    for (int i = 0; i < 3; i++) {
        p[i] = spawn(&w, 0);
    }
    flow(&w, p, 3, 200, "before the stop", clock_ns());
    kill(p[1]->pid, SIGSTOP);
    struct proc *rest[3] = {p[0], p[2]};
    check_direct(&w, rest, 2, 1000);
    p[3] = spawn(&w, 0);
    rest[2] = p[3];
    uint64_t at = clock_ns();
    flow(&w, rest, 3, 300, "a member joined while another is stopped", at);
    check_direct(&w, rest, 3, 1000);
    end(p[0], SIGKILL);
    at = clock_ns();
    flow(&w, rest + 1, 2, 300, "a member killed while another is stopped", at);
    check_direct(&w, rest + 1, 2, 1000);
    at = clock_ns();
    kill(p[1]->pid, SIGCONT);
    flow(&w, p + 1, 3, 1500, "the stopped one goes on", at);
    check_direct(&w, p + 1, 3, 1000);
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
        p[i] = spawn(&w, 0);
    }
    settle(&w, p, STOPPED + 1);
    for (int i = 1; i <= STOPPED; i++) {
        kill(p[i]->pid, SIGSTOP);
    }
    p[STOPPED + 1] = spawn(&w, 0);
    check_direct(&w, p + STOPPED + 1, 1, 100);
    end(p[0], SIGKILL);
    check_direct(&w, p + STOPPED + 1, 1, 100);
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
        p[i] = spawn(&w, 0);
    }
    settle(&w, p, ALL);
    for (int i = 0; i < STOPPED; i++) {
        kill(p[i]->pid, SIGSTOP);
    }
    p[ALL] = spawn(&w, 0);
    check_direct(&w, p + STOPPED, ALL + 1 - STOPPED, 100);
    world_close(&w);
    printf("ok - a newcomer gets its packets though nine are stopped ahead of it\n");
}

static void test_join(void) {
    struct world w;
    struct proc *p[3];
    world_open(&w);
    p[0] = spawn(&w, 0);
    p[1] = spawn(&w, 0);
    flow(&w, p, 2, 100, "before the join", clock_ns());
    uint64_t at = clock_ns();
    p[2] = spawn(&w, 0);
    flow(&w, p, 3, 200, "a member joined", at);
    check_direct(&w, p, 3, 1000);
    order(p[1], ADD_SLOT);
    struct proc alias = *p[1];
    alias.slot = alias.slot2;
    struct proc *to = &alias;
    at = clock_ns();
    flow(&w, &to, 1, 200, "a member has claimed a second slot", at);
    settle(&w, &to, 1);
    world_close(&w);
    printf("ok - a new member, and a member's second slot, get their packets\n");
}

static void test_gso(void) {
    struct world w;
    struct proc *p[3];
    world_open(&w);
    for (int i = 0; i < 3; i++) {
        p[i] = spawn(&w, 0);
    }
    settle(&w, p, 3);
    enum { SEGMENT = 1024, COUNT = 20 };
    static uint8_t data[SEGMENT * COUNT];
    int segment = SEGMENT;
    CHECK(setsockopt(w.fds[0], SOL_UDP, UDP_SEGMENT, &segment, sizeof segment) == 0);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < COUNT; k++) {
            make_packet(data + k * SEGMENT, p[i]->slot, 0);
        }
        CHECK(send_to_port(w.fds[0], &w.addr, data, sizeof data) == 0);
    }
    for (int i = 0; i < 3; i++) {
        WAIT_FOR(p[i]->big == sizeof data && p[i]->segment == SEGMENT);
    }
    world_close(&w);
    printf("ok - a GSO datagram arrives whole at its member\n");
}

static void test_second_user(void) {
    struct world w;
    world_open(&w);
    struct proc *a = spawn(&w, 0), *a2 = spawn(&w, 0), *b = spawn(&w, OTHER_UID);
    CHECK(b->open_rc == 0 && !b->bound && b->source_port != htons(ROCE_UDP_PORT));
    flow(&w, &b, 1, 100, "another user's process, all by forwarding", clock_ns());
    CHECK(b->got_handed > 0 && b->direct == 0);
    uint16_t port = b->source_port;
    b->target = a->slot;
    order(b, SEND);
    WAIT_FOR(a->peer_port == port);
    flow(&w, &b, 1, 1000, "a second of forwarding", clock_ns());
    uint64_t remaps = a->remaps + a2->remaps;
    struct proc *mine[2] = {a, a2};
    check_direct(&w, mine, 2, 500);
    flow(&w, &b, 1, 2000, "two seconds more", clock_ns());
    printf("# the owners remapped %llu times in two seconds of forwarding\n",
           (unsigned long long)(a->remaps + a2->remaps - remaps));
    CHECK(a->remaps + a2->remaps - remaps < 12);
    end(a2, SIGKILL);
    uint64_t at = clock_ns();
    end(a, SIGKILL);
    flow(&w, &b, 1, 200, "its owner killed", at);
    WAIT_FOR(b->bound);
    printf("# taken over after %.1f ms\n", (double)(b->bound_at - at) / 1e6);
    check_direct(&w, &b, 1, 1000);
    CHECK(b->source_port == port);
    struct proc *c = spawn(&w, 0);
    CHECK(c->open_rc == 0 && !c->bound);
    flow(&w, &c, 1, 100, "the first user again, behind the second", clock_ns());
    CHECK(c->got_handed > 0);
    struct proc *b2 = spawn(&w, OTHER_UID);
    struct proc *theirs[2] = {b, b2};
    CHECK(b2->open_rc == 0 && b2->bound);
    flow(&w, theirs, 2, 200, "the second user's second process", clock_ns());
    check_direct(&w, theirs, 2, 500);
    world_close(&w);
    printf("ok - two users share an address by forwarding, and the port passes on\n");
}

/* A process that is no member of anything but has the nerve to forward. */
static void impostor(uint32_t slot, const struct sockaddr_in6 *addr, uid_t uid) {
    CHECK(setuid(uid) == 0);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct slotmsg msg = {.magic = SLOTMSG_MAGIC, .version = 1, .type = SLOTMSG_FORWARD, .src = *addr, .dst = *addr};
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, slot);
    char data[sizeof msg + PACKET] = {0};
    msg.dst.sin6_port = htons(ROCE_UDP_PORT);
    msg.length = PACKET;
    memcpy(data, &msg, sizeof msg);
    CHECK(sendto(fd, data, sizeof data, 0, (struct sockaddr *)&name.un, name.length) == (ssize_t)sizeof data);
    _exit(0);
}

static void test_hostile_messages(void) {
    struct world w;
    world_open(&w);
    struct proc *p = spawn(&w, 0);
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, p->slot);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint32_t seed = 1;
    for (int i = 0; i < 20000; i++) {
        struct slotmsg msg = {.magic = SLOTMSG_MAGIC, .version = 1, .type = (uint16_t)(i % 7), .dst = w.addr};
        uint8_t data[sizeof msg + 64];
        for (size_t k = 0; k < sizeof data; k++) {
            seed = seed * 1664525u + 1013904223u;
            data[k] = (uint8_t)(seed >> 24);
        }
        memcpy(data, &msg, i % 3 == 0 ? 8 : i % 3 == 1 ? sizeof msg : 0);
        size_t length = seed % (sizeof data + 1);
        while (sendto(fd, data, length, MSG_DONTWAIT, (struct sockaddr *)&name.un, name.length) < 0) {
            sched_yield();
        }
        CHECK(send_to_port(w.fds[0], &w.addr, data, length) == 0);
        if (i % 64 == 0) {
            sleep_ms(1);
        }
    }
    sleep_ms(20);
    CHECK(p->got_handed == 0);
    check_direct(&w, &p, 1, 100);
    if (getuid() == 0) {
        fflush(stdout);
        for (int k = 0; k < 2; k++) {
            pid_t pid = fork();
            if (pid == 0) {
                impostor(p->slot, &w.addr, k == 0 ? OTHER_UID : 0);
            }
            CHECK(waitpid(pid, NULL, 0) == pid);
            sleep_ms(20);
            WAIT_FOR(p->got_handed == (uint64_t)k);
        }
    }
    close(fd);
    world_close(&w);
    printf("ok - garbage and impostors' messages are dropped\n");
}

static void test_foreign_holder(void) {
    struct world w;
    world_open(&w);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    for (int i = 0; i < 3; i++) {
        int fds[2];
        CHECK(pipe(fds) == 0);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            struct sockaddr_in6 to = i == 2 ? any : w.addr;
            struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};
            v4.sin_addr.s_addr = htonl(i == 0 ? INADDR_LOOPBACK : INADDR_ANY);
            to.sin6_port = htons(ROCE_UDP_PORT);
            int fd = socket(i == 2 ? AF_INET6 : AF_INET, SOCK_DGRAM, 0);
            prctl(PR_SET_NAME, "squatter");
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            CHECK(bind(fd, i == 2 ? (void *)&to : (void *)&v4, i == 2 ? sizeof to : sizeof v4) == 0);
            CHECK(write(fds[1], "", 1) == 1);
            pause();
        }
        char byte;
        CHECK(read(fds[0], &byte, 1) == 1);
        struct proc *p = spawn(&w, 0);
        CHECK(p->open_rc == -EADDRINUSE);
        CHECK(strstr(p->text, "squatter") != NULL && strstr(p->text, "4791") != NULL);
        if (i == 0) {
            printf("# %s\n", p->text);
        }
        if (i == 0 && getuid() == 0) {
            struct proc *q = spawn(&w, OTHER_UID);
            CHECK(q->open_rc == -EADDRINUSE);
            printf("# %s\n", q->text);
        }
        kill(pid, SIGKILL);
        CHECK(waitpid(pid, NULL, 0) == pid);
        close(fds[0]);
        close(fds[1]);
    }
    for (int i = 0; i < w.nprocs; i++) {
        CHECK(waitpid(w.procs[i].pid, NULL, 0) == w.procs[i].pid);
        w.procs[i].pid = 0;
    }
    world_close(&w);
    printf("ok - the error names a foreign program that holds the port\n");
}

/* It would answer as rnic does, if it could. */
static void test_stopped_owner(uid_t owner, uid_t other, bool can_look) {
    struct world w;
    char cure[64];
    world_open(&w);
    struct proc *p = spawn(&w, owner);
    CHECK(p->open_rc == 0 && p->bound);
    kill(p->pid, SIGSTOP);
    struct proc *q = spawn(&w, other);
    printf("# %s\n", q->text);
    snprintf(cure, sizeof cure, can_look ? "kill -CONT %d" : "stopped", (int)p->pid);
    CHECK(q->open_rc == -EADDRINUSE && strstr(q->text, cure) != NULL);
    CHECK(waitpid(q->pid, NULL, 0) == q->pid);
    q->pid = 0;
    world_close(&w);
    printf("ok - the error says what to do with an owner that is stopped\n");
}

static void test_bad_address(void) {
    struct slot s;
    struct port p;
    struct rnic_err err;
    struct sockaddr_in6 a = loopback();
    a.sin6_addr.s6_addr[12] = 203, a.sin6_addr.s6_addr[14] = 113;
    CHECK(slot_claim(&s, NULL) == 0);
    CHECK(port_open(&p, &a, 1, &s, 0, clock_ns(), &err) == -EADDRNOTAVAIL);
    CHECK(strstr(err.text, "203.0.113.1") != NULL);
    CHECK(port_open(&p, &a, 1, &s, 0, clock_ns(), NULL) == -EADDRNOTAVAIL);
    slot_release(&s);
    printf("ok - an address that is not ours is named\n");
}

static void test_ids(void) {
    struct slot s;
    struct port p;
    struct rnic_err err = {""};
    struct sockaddr_in6 a = loopback();
    CHECK(slot_claim(&s, NULL) == 0);
    CHECK(port_open(&p, &a, 1, &s, 0, clock_ns(), NULL) == 0);
    CHECK(p.gso && p.gro && p.rcvbuf > 0 && p.sndbuf > 0 && p.rx_fd == p.tx_fd);
    printf("# granted: rcvbuf %u, sndbuf %u\n", p.rcvbuf, p.sndbuf);
    int rc = port_check_ids(&p, &err);
    printf("# IP identification: %d %s\n", rc, err.text);
    CHECK(rc == 0 || rc == -ENODATA);
    port_close(&p);
    CHECK(port_open(&p, &a, 1, &s, 8192, clock_ns(), NULL) == 0 && p.rcvbuf >= 8192 && p.rcvbuf <= 16384);
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
    p[0] = spawn(&w, 0);
    p[1] = spawn(&w, 0);
    if (p[0]->open_rc == -EADDRNOTAVAIL || p[0]->open_rc == -EAFNOSUPPORT) {
        printf("ok - IPv6 # SKIP no ::1 here\n");
        return;
    }
    CHECK(p[0]->open_rc == 0 && p[1]->open_rc == 0);
    flow(&w, p, 2, 100, "two members on ::1", clock_ns());
    check_direct(&w, p, 2, 1000);
    world_close(&w);
    printf("ok - the same over IPv6\n");
}

/* Root gets a namespace and keeps its users; others get one with a user namespace, where the system lets them. */
static bool own_namespace(void) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        printf("# no network namespace to be had: in this one\n");
        return false;
    }
    struct ifreq req = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(ioctl(fd, SIOCSIFFLAGS, &req) == 0);
    close(fd);
    return true;
}

int main(void) {
    setpgid(0, 0);
    bool own = own_namespace();
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
    test_hostile_messages();
    test_foreign_holder();
    if (getuid() == 0) {
        test_second_user();
        test_stopped_owner(OTHER_UID, 0, true);
        test_stopped_owner(0, OTHER_UID, false);
    }
    return 0;
}
