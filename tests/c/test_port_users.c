/* SPDX-License-Identifier: Apache-2.0
 *
 * A port among strangers: processes of another user, programs that are not rnic, and messages of nobody.  As root there is a
 * second user, too.
 */
#include "world.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "names/abstract.h"
#include "names/slotmsg.h"

#define OTHER_UID 65534

static void test_second_user(void) {
    struct world w;
    world_open(&w);
    struct proc *a = world_spawn(&w, 0), *a2 = world_spawn(&w, 0), *b = world_spawn(&w, OTHER_UID);
    CHECK(b->open_rc == 0 && !b->bound && b->source_port != htons(ROCE_UDP_PORT));
    world_flow(&w, &b, 1, 100, "another user's process, all by forwarding", world_clock());
    CHECK(b->got_handed > 0 && b->direct == 0);
    uint16_t port = b->source_port;
    b->target = a->slot;
    world_order(b, SEND);
    WAIT_FOR(a->peer_port == port);
    world_flow(&w, &b, 1, 1000, "a second of forwarding", world_clock());
    uint64_t remaps = a->remaps + a2->remaps;
    struct proc *mine[2] = {a, a2};
    world_check_direct(&w, mine, 2, 500);
    world_flow(&w, &b, 1, 2000, "two seconds more", world_clock());
    printf("# the owners remapped %llu times in two seconds of forwarding\n",
           (unsigned long long)(a->remaps + a2->remaps - remaps));
    CHECK(a->remaps + a2->remaps - remaps < 12);
    world_end(a2, SIGKILL);
    uint64_t at = world_clock();
    world_end(a, SIGKILL);
    world_flow(&w, &b, 1, 200, "its owner killed", at);
    WAIT_FOR(b->bound);
    printf("# taken over after %.1f ms\n", (double)(b->bound_at - at) / 1e6);
    world_check_direct(&w, &b, 1, 1000);
    CHECK(b->source_port == port);
    struct proc *c = world_spawn(&w, 0);
    CHECK(c->open_rc == 0 && !c->bound);
    world_flow(&w, &c, 1, 100, "the first user again, behind the second", world_clock());
    CHECK(c->got_handed > 0);
    struct proc *b2 = world_spawn(&w, OTHER_UID);
    struct proc *theirs[2] = {b, b2};
    CHECK(b2->open_rc == 0 && b2->bound);
    world_flow(&w, theirs, 2, 200, "the second user's second process", world_clock());
    world_check_direct(&w, theirs, 2, 500);
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
    struct proc *p = world_spawn(&w, 0);
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
        CHECK(world_send_to(w.fds[0], &w.addr, data, length) == 0);
        if (i % 64 == 0) {
            world_sleep(1);
        }
    }
    world_sleep(20);
    CHECK(p->got_handed == 0);
    world_check_direct(&w, &p, 1, 100);
    if (getuid() == 0) {
        fflush(stdout);
        for (int k = 0; k < 2; k++) {
            pid_t pid = fork();
            if (pid == 0) {
                impostor(p->slot, &w.addr, k == 0 ? OTHER_UID : 0);
            }
            CHECK(waitpid(pid, NULL, 0) == pid);
            world_sleep(20);
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
        struct proc *p = world_spawn(&w, 0);
        CHECK(p->open_rc == -EADDRINUSE);
        CHECK(strstr(p->text, "squatter") != NULL && strstr(p->text, "4791") != NULL);
        if (i == 0) {
            printf("# %s\n", p->text);
        }
        if (i == 0 && getuid() == 0) {
            struct proc *q = world_spawn(&w, OTHER_UID);
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
    struct proc *p = world_spawn(&w, owner);
    CHECK(p->open_rc == 0 && p->bound);
    kill(p->pid, SIGSTOP);
    struct proc *q = world_spawn(&w, other);
    printf("# %s\n", q->text);
    snprintf(cure, sizeof cure, can_look ? "kill -CONT %d" : "stopped", (int)p->pid);
    CHECK(q->open_rc == -EADDRINUSE && strstr(q->text, cure) != NULL);
    CHECK(waitpid(q->pid, NULL, 0) == q->pid);
    q->pid = 0;
    world_close(&w);
    printf("ok - the error says what to do with an owner that is stopped\n");
}

int main(void) {
    setpgid(0, 0);
    (void)world_isolate();
    test_hostile_messages();
    test_foreign_holder();
    if (getuid() == 0) {
        test_second_user();
        test_stopped_owner(OTHER_UID, 0, true);
        test_stopped_owner(0, OTHER_UID, false);
    }
    return 0;
}
