/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* unshare, struct ifreq */
#endif
#include "world.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/address.h"

#define SETTLE_FIRST 200   /* ms that a round of packets gets */
#define SETTLE_MOST 3200
#define SETTLE_LIMIT 600000 /* in all */
#define AT_ONCE 100        /* packets, for which any socket has room */

uint64_t world_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void world_sleep(unsigned ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* ---------------------------------------------------------------- one process of rnic */

void world_packet(uint8_t data[PACKET], uint32_t slot, uint64_t round) {
    memset(data, 0, PACKET);
    data[0] = 4;
    uint32_t qpn = slot << QPN_INDEX_BITS | 5;
    data[5] = (uint8_t)(qpn >> 16), data[6] = (uint8_t)(qpn >> 8), data[7] = (uint8_t)qpn;
    memcpy(data + 16, &round, sizeof round);
}

struct sockaddr_in6 world_loopback(void) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    a.sin6_addr.s6_addr[10] = a.sin6_addr.s6_addr[11] = 0xFF;
    a.sin6_addr.s6_addr[12] = 127, a.sin6_addr.s6_addr[15] = 1;
    return a;
}

int world_send_to(int fd, const struct sockaddr_in6 *addr, const void *data, size_t length) {
    struct sockaddr_in6 to = *addr;
    union address_native native;
    to.sin6_port = htons(ROCE_UDP_PORT);
    socklen_t n = address_to_native(&to, &native);
    return sendto(fd, data, length, 0, &native.any, n) == (ssize_t)length ? 0 : -errno;
}

static void count_direct(struct proc *me, const uint8_t *data) {
    uint64_t round = me->round;
    me->direct++;
    if (round != me->seen) {
        me->of_round = 0;
        me->seen = round;
    }
    me->of_round += memcmp(&round, data + 16, sizeof round) == 0;
}

static void udp_packet(struct proc *me, struct port *p, const uint8_t *data, uint32_t length, uint32_t segment,
                       const struct sockaddr_in6 *src) {
    if (data[0] == PORT_PROBE_OPCODE) {
        me->probes++;
        port_probe_input(p, data, length, src, world_clock());
        return;
    }
    uint32_t slot = (uint32_t)(data[5] << 8 | data[6]) >> 6;
    me->peer_port = src->sin6_port;
    if (slot == me->slot || slot == me->slot2) {
        count_direct(me, data);
        if (length > me->big) {
            me->big = length;
            me->segment = segment;
        }
    } else if (port_forward(p, slot, &(struct slot_packet){.src = *src, .length = length, .segment = segment}, data,
                            world_clock()) == 0) {
        me->handed_on++;
        me->last_wrong = world_clock();
    } else {
        me->lost++;
        me->last_wrong = world_clock();
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
    while ((rc = port_slot_input(s, &p, 1, buffer, 65536, &pkt, world_clock())) >= 0) {
        if (rc == 1) {
            me->got_handed++;
            me->peer_port = pkt.src.sin6_port;
        }
    }
}

static void obey(struct proc *me, struct port *p, struct slot *second) {
    if (me->order == SEND) {
        uint8_t data[PACKET];
        world_packet(data, me->target, 0);
        CHECK(world_send_to(p->tx_fd, &p->addr, data, sizeof data) == 0);
    } else if (me->order == ADD_SLOT) {
        CHECK(slot_claim(second, NULL) == 0);
        CHECK(port_add_slot(p, second->number) == 0);
        me->slot2 = second->number;
    }
    me->order = RUN;
}

static int wait_input(const struct port *p, const struct slot *s, const struct slot *second, struct pollfd fds[3]) {
    uint64_t now = world_clock(), due = port_deadline(p);
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
        if (port_timer(p, world_clock())) {
            me->bound = p->rx_fd >= 0;
            me->bound_at = world_clock();
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
    struct rnic_err err = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (uid != 0) {
        CHECK(setuid(uid) == 0);
    }
    CHECK(slot_claim(&s, &err) == 0);
    me->slot = me->slot2 = s.number;
    me->open_rc = port_open(&p, addr, (int)if_nametoindex("lo"), &s, 0, world_clock(), &err);
    snprintf(me->text, sizeof me->text, "%s", err.text);
    if (me->open_rc == 0) {
        run_port(me, &p, &s);
        port_close(&p);
    }
    me->ready = true;
    slot_release(&s);
}

/* ---------------------------------------------------------------- the test's side */

void world_open_at(struct world *w, const struct sockaddr_in6 *addr) {
    *w = (struct world){.addr = *addr};
    for (int i = 0; i < SOCKETS; i++) {
        w->fds[i] = socket(address_is_v4(addr) ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        CHECK(w->fds[i] >= 0);
    }
    w->procs = mmap(NULL, sizeof *w->procs * MAX_PROCS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(w->procs != MAP_FAILED);
}

void world_open(struct world *w) {
    struct sockaddr_in6 addr = world_loopback();
    world_open_at(w, &addr);
}

struct proc *world_start(struct world *w, uid_t uid) {
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

struct proc *world_spawn(struct world *w, uid_t uid) {
    struct proc *me = world_start(w, uid);
    WAIT_FOR(me->ready);
    return me;
}

void world_end(struct proc *me, int sig) {
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

void world_order(struct proc *me, enum order what) {
    me->order = what;
    WAIT_FOR(me->order == RUN);
}

void world_close(struct world *w) {
    for (int i = 0; i < w->nprocs; i++) {
        if (w->procs[i].pid != 0) {
            kill(w->procs[i].pid, SIGCONT);
            world_end(&w->procs[i], 0);
        }
    }
    for (int i = 0; i < SOCKETS; i++) {
        close(w->fds[i]);
    }
    munmap(w->procs, sizeof *w->procs * MAX_PROCS);
}

static void world_send(struct world *w, uint32_t slot) {
    uint8_t data[PACKET];
    world_packet(data, slot, w->round);
    w->next = (w->next + 1) % SOCKETS;
    CHECK(world_send_to(w->fds[w->next], &w->addr, data, sizeof data) == 0);
}

struct totals world_totals(struct world *w) {
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

void world_flow(struct world *w, struct proc **to, int n, unsigned ms, const char *what, uint64_t since) {
    struct totals a = world_totals(w);
    uint64_t sent = 0, start = world_clock();
    for (int i = 0; world_clock() - start < ms * MS; i = (i + 1) % n) {
        world_send(w, to[i]->slot);
        sent++;
        uint64_t until = world_clock() + 50000;
        while (world_clock() < until) {
            sched_yield();
        }
    }
    world_sleep(20);
    struct totals b = world_totals(w);
    double settled = b.last_wrong > since ? (double)(b.last_wrong - since) / 1e6 : 0;
    long long direct = (long long)(b.direct - a.direct), handed = (long long)(b.got_handed - a.got_handed);
    printf("# %s: settled after %.1f ms; of %llu packets %lld direct, %lld forwarded, %lld not delivered\n", what,
           settled, (unsigned long long)sent, direct, handed, (long long)sent - direct - handed);
}

static void begin_round(struct world *w) {
    w->round++;
    for (int i = 0; i < w->nprocs; i++) {
        w->procs[i].round = w->round;
    }
}

static uint64_t came_of_round(const struct world *w) {
    uint64_t came = 0;
    for (int i = 0; i < w->nprocs; i++) {
        came += w->procs[i].seen == w->round ? w->procs[i].of_round : 0;
    }
    return came;
}

/* Sends a round of packets; did all of them come straight from the kernel, in so many ms? */
static bool round_is_direct(struct world *w, struct proc **to, int n, unsigned patience) {
    struct totals a = world_totals(w), b;
    uint64_t sent = (uint64_t)n * SOCKETS, wrong = 0;
    begin_round(w);
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < SOCKETS; k++) {
            world_send(w, to[i]->slot);
        }
    }
    for (unsigned t = 0; t < patience && wrong == 0 && came_of_round(w) < sent; t++) {
        world_sleep(1);
        b = world_totals(w);
        wrong = b.handed_on - a.handed_on + b.lost - a.lost;
    }
    return wrong == 0 && came_of_round(w) == sent;
}

/* What falls to a stopped member never comes, and on a busy machine anything takes its time: more each time. */
void world_settle(struct world *w, struct proc **to, int n) {
    uint64_t start = world_clock(), right_since = start;
    unsigned patience = SETTLE_FIRST;
    while (world_clock() - right_since < 50 * MS) {
        CHECK(world_clock() - start < SETTLE_LIMIT * MS);
        if (!round_is_direct(w, to, n, patience)) {
            world_sleep(5);
            right_since = world_clock();
            patience = patience < SETTLE_MOST ? 2 * patience : patience;
        }
        world_sleep(2);
    }
}

/* Sends count packets to each; did each come straight from the kernel? */
static bool each_is_direct(struct world *w, struct proc **to, int n, unsigned count) {
    struct totals a = world_totals(w), b;
    uint64_t before[MAX_PROCS];
    for (int i = 0; i < n; i++) {
        before[i] = to[i]->direct;
    }
    for (unsigned k = 0; k < count; k++) {
        for (int i = 0; i < n; i++) {
            world_send(w, to[i]->slot);
        }
        for (int i = 0; i < n && (k % AT_ONCE == AT_ONCE - 1 || k == count - 1); i++) {
            for (unsigned t = 0; t < SETTLE_MOST && to[i]->direct - before[i] != k + 1; t++) {
                world_sleep(1);
            }
            if (to[i]->direct - before[i] != k + 1) {
                return false;
            }
        }
    }
    b = world_totals(w);
    return b.handed_on == a.handed_on && b.lost == a.lost;
}

void world_check_direct(struct world *w, struct proc **to, int n, unsigned count) {
    uint64_t start = world_clock();
    do {
        CHECK(world_clock() - start < SETTLE_LIMIT * MS);
        world_settle(w, to, n);
    } while (!each_is_direct(w, to, n, count));
}

bool world_isolate(void) {
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
