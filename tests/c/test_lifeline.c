/* SPDX-License-Identifier: Apache-2.0
 *
 * names/lifeline.c and slots: who watches a process learns of its death, and of nothing else.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* unshare */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "names/lifeline.h"
#include "names/slot.h"
#include "names/user.h"

#define SOON_MS 60000
#define MANY 200

static bool without_memory;

/* In the C library's place. */
void *realloc(void *p, size_t n) {
    static void *(*real)(void *, size_t);
    if (!real)
        real = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    return without_memory ? NULL : real(p, n);
}

/* What is drawn next; without: nothing is. */
static enum { AS_EVER, GIVEN, WITHOUT } random_numbers;
static uint32_t drawn;

ssize_t getrandom(void *to, size_t n, unsigned flags) {
    if (random_numbers == AS_EVER)
        return syscall(SYS_getrandom, to, n, flags);
    CHECK_EQ(n, sizeof drawn);
    *(uint32_t *)to = drawn;
    errno = EAGAIN;
    return random_numbers == GIVEN ? (ssize_t)n : -1;
}

/* Each time so much later that those who have gone are looked for. */
static uint64_t clock_ns;
static bool accept_later(struct lifeline *l) { return lifeline_accept(l, clock_ns += 200000000); }

static bool hangs_up(int fd, int ms) {
    struct pollfd p = {.fd = fd};
    return poll(&p, 1, ms) == 1 && (p.revents & POLLHUP);
}

/* A process that has a slot; it says which, and waits.  accepts: it takes in whoever watches. */
struct owner {
    pid_t pid;
    uint32_t slot;
};

static struct owner begin(bool accepts) {
    int way[2];
    struct owner o;
    CHECK_EQ(pipe(way), 0);
    o.pid = fork();
    if (o.pid == 0) {
        struct slot s;
        CHECK_EQ(slot_claim(&s, NULL), 0);
        CHECK_EQ(write(way[1], &s.number, sizeof s.number), sizeof s.number);
        for (;;) {
            struct pollfd p = {.fd = s.life.fd, .events = accepts ? POLLIN : 0};
            poll(&p, 1, -1);
            accept_later(&s.life);
        }
    }
    CHECK_EQ(read(way[0], &o.slot, sizeof o.slot), sizeof o.slot);
    close(way[0]);
    close(way[1]);
    return o;
}

static void end(struct owner o) {
    kill(o.pid, SIGKILL);
    CHECK_EQ(waitpid(o.pid, NULL, 0), o.pid);
}

static void death(bool accepts) {
    struct owner o = begin(accepts);
    int fd = slot_watch(o.slot);
    CHECK(fd >= 0);
    CHECK(!hangs_up(fd, 50));
    end(o);
    CHECK(hangs_up(fd, SOON_MS));
    close(fd);
    CHECK_EQ(slot_watch(o.slot), -ECONNREFUSED);
}

static void a_death_is_seen(void) { death(true); }
static void also_by_who_was_never_taken_in(void) { death(false); }

static void a_stopped_process_is_not_dead(void) {
    struct owner o = begin(true);
    int first = slot_watch(o.slot);
    kill(o.pid, SIGSTOP);
    CHECK_EQ(waitpid(o.pid, NULL, WUNTRACED), o.pid);
    int second = slot_watch(o.slot);
    CHECK(first >= 0 && second >= 0 && !hangs_up(first, 100) && !hangs_up(second, 0));
    end(o);
    CHECK(hangs_up(first, SOON_MS) && hangs_up(second, SOON_MS));
    close(first);
    close(second);
}

static void the_next_owner_of_a_slot_is_another(void) {
    struct slot a = {.fd = -1}, b = {.fd = -1};
    CHECK_EQ(slot_claim(&a, NULL), 0);
    uint32_t number = a.number;
    int before = slot_watch(number);
    slot_release(&a);
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, number);
    b.fd = abstract_open(&name);
    CHECK(b.fd >= 0);
    CHECK_EQ(lifeline_open(&b.life, &name), 0);
    int after = slot_watch(number);
    CHECK(hangs_up(before, 0) && after >= 0 && !hangs_up(after, 0));
    slot_release(&b);
    CHECK(hangs_up(after, 0));
    close(before);
    close(after);
}

/* From a number on that is drawn; early at boot the process' stands for it. */
static void a_slot_is_the_first_one_that_is_free(void) {
    struct slot s[3], early;
    random_numbers = GIVEN;
    drawn = 7 * SLOT_COUNT - 2;
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(slot_claim(&s[i], NULL), 0);
        CHECK_EQ(s[i].number, (SLOT_COUNT - 2 + i) % SLOT_COUNT);
    }
    for (uint32_t i = 0; i < 3; i++)
        slot_release(&s[i]);
    random_numbers = WITHOUT;
    CHECK_EQ(slot_claim(&early, NULL), 0);
    CHECK_EQ(early.number, (uint32_t)getpid() % SLOT_COUNT);
    slot_release(&early);
    random_numbers = AS_EVER;
}

static void a_slot_whose_lifeline_is_somebody_elses_is_left_alone(void) {
    struct slot s;
    struct lifeline foreign[SLOT_COUNT];
    for (uint32_t i = 0; i < SLOT_COUNT; i += 2) {
        struct abstract_name name;
        abstract_name(&name, SLOT_NAME, i);
        CHECK_EQ(lifeline_open(&foreign[i], &name), 0);
    }
    for (int i = 0; i < 32; i++) {
        CHECK_EQ(slot_claim(&s, NULL), 0);
        CHECK_EQ(s.number % 2, 1);
        slot_release(&s);
    }
    for (uint32_t i = 0; i < SLOT_COUNT; i += 2)
        lifeline_close(&foreign[i]);
}

static void who_stops_watching_is_let_go(void) {
    struct slot s;
    CHECK_EQ(slot_claim(&s, NULL), 0);
    int stays = slot_watch(s.number), before = check_descriptors();
    for (int i = 0; i < MANY; i++) {
        int fd = slot_watch(s.number);
        CHECK(fd >= 0 && accept_later(&s.life));
        close(fd);
    }
    CHECK(s.life.count < 64);
    CHECK(check_descriptors() < before + 64);
    CHECK(!hangs_up(stays, 0));
    slot_release(&s);
    CHECK(hangs_up(stays, 0));
    close(stays);
}

static void without_memory_the_kernel_keeps_who_watches(void) {
    struct slot s;
    CHECK_EQ(slot_claim(&s, NULL), 0);
    int fd = slot_watch(s.number);
    without_memory = true;
    bool taken = accept_later(&s.life);
    without_memory = false;
    CHECK(!taken && s.life.count == 0);
    CHECK(!hangs_up(fd, 0));
    CHECK(accept_later(&s.life) && s.life.count == 1);
    slot_release(&s);
    CHECK(hangs_up(fd, 0));
    close(fd);
}

static void all_who_watch_see_the_end(void) {
    enum { FEW = 3 };
    struct slot s;
    int before = check_descriptors(), fds[FEW];
    CHECK_EQ(slot_claim(&s, NULL), 0);
    for (int i = 0; i < FEW; i++)
        CHECK((fds[i] = slot_watch(s.number)) >= 0);
    CHECK(accept_later(&s.life));
    CHECK_EQ(s.life.count, FEW);
    CHECK_EQ(s.life.strangers, user_is_ours(getuid()) ? 0 : FEW);
    slot_release(&s);
    for (int i = 0; i < FEW; i++) {
        CHECK(hangs_up(fds[i], 0));
        close(fds[i]);
    }
    CHECK_EQ(check_descriptors(), before);
}

static void descriptor_0_is_one_as_any_other(void) {
    struct abstract_name name;
    struct lifeline life;
    int kept = fcntl(0, F_DUPFD_CLOEXEC, 3);
    abstract_name(&name, "rnic/test/zero");
    close(0);
    CHECK_EQ(lifeline_open(&life, &name), 0);
    CHECK_EQ(life.fd, 0);
    int fd = lifeline_watch(&name);
    CHECK(accept_later(&life));
    CHECK_EQ(life.count, 1);
    lifeline_close(&life);
    CHECK(fcntl(0, F_GETFD) < 0);
    CHECK(hangs_up(fd, 0));
    close(fd);
    if (kept >= 0)
        CHECK_EQ(dup2(kept, 0), 0);
    close(kept);
}

/* Whoever connects and hangs up all the time would keep the owner, who has a lock then, for ever. */
static void a_crowd_is_looked_at_in_parts(void) {
    struct slot s;
    CHECK_EQ(slot_claim(&s, NULL), 0);
    for (int i = 0; i < MANY; i++) {
        int fd = slot_watch(s.number);
        CHECK(fd >= 0);
        close(fd);
    }
    struct pollfd crowd = {.fd = s.life.fd, .events = POLLIN};
    CHECK(accept_later(&s.life));
    CHECK_EQ(poll(&crowd, 1, 0), 1);
    for (int i = 0; i < MANY && poll(&crowd, 1, 0); i++)
        CHECK(accept_later(&s.life));
    CHECK_EQ(poll(&crowd, 1, 0), 0);
    slot_release(&s);
}

static void of_those_who_stay_so_many_are_taken_in_at_once(void) {
    enum { AT_ONCE = 64 };
    struct slot s;
    int fds[AT_ONCE + 1];
    CHECK_EQ(slot_claim(&s, NULL), 0);
    for (int i = 0; i <= AT_ONCE; i++)
        CHECK((fds[i] = slot_watch(s.number)) >= 0);
    struct pollfd crowd = {.fd = s.life.fd, .events = POLLIN};
    (void)accept_later(&s.life);
    CHECK_EQ(s.life.count, AT_ONCE);
    CHECK_EQ(poll(&crowd, 1, 0), 1);
    slot_release(&s);
    for (int i = 0; i <= AT_ONCE; i++)
        close(fds[i]);
}

/* A slot has two names: one descriptor is not enough for it. */
static void without_descriptors_there_is_no_slot(void) {
    struct rlimit before, few;
    struct slot s;
    struct rnic_err err;
    int lowest = dup(0), open = check_descriptors() - 1, rc[2];
    close(lowest);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    for (int left = 0; left < 2; left++) {
        few.rlim_cur = (rlim_t)(lowest + left);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        rc[left] = slot_claim(&s, &err);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
        CHECK_EQ(rc[left], -EMFILE);
        CHECK(strstr(err.text, "no unix socket for a slot"));
        CHECK(s.fd < 0 && s.life.fd < 0);
        CHECK_EQ(check_descriptors(), open);
    }
}

static void without_descriptors_the_kernel_keeps_who_watches(void) {
    struct slot s;
    struct rlimit before, none;
    CHECK_EQ(slot_claim(&s, NULL), 0);
    int fd = slot_watch(s.number);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK(!accept_later(&s.life));
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK(!hangs_up(fd, 0));
    slot_release(&s);
    CHECK(hangs_up(fd, 0));
    close(fd);
}

/* Another user's process that watches as often as it can. */
static void watch_as_nobody(uint32_t slot, int in, int out) {
    int fds[MANY];
    CHECK_EQ(setuid(65534), 0);
    for (int i = 0; i < MANY; i++)
        fds[i] = slot_watch(slot);
    char c = 0;
    CHECK_EQ(write(out, &c, 1), 1);
    CHECK_EQ(read(in, &c, 1), 1);
    for (int i = 0; i < MANY; i++)
        c += fds[i] >= 0 && hangs_up(fds[i], 0);
    CHECK_EQ(write(out, &c, 1), 1);
    _exit(0);
}

static void other_users_take_a_bounded_share_of_descriptors(void) {
    if (geteuid() != 0) {
        printf("# not root: there is no other user to be\n");
        return;
    }
    struct slot s;
    int to[2], from[2];
    CHECK_EQ(slot_claim(&s, NULL), 0);
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    pid_t pid = fork();
    if (pid == 0)
        watch_as_nobody(s.number, to[0], from[1]);
    char c = 0;
    CHECK_EQ(read(from[0], &c, 1), 1);
    CHECK(!accept_later(&s.life));
    CHECK(!accept_later(&s.life));
    CHECK_EQ(s.life.count, LIFELINE_STRANGERS);
    int ours = slot_watch(s.number);
    CHECK(ours >= 0 && !hangs_up(ours, 0));
    CHECK_EQ(write(to[1], &c, 1), 1);
    CHECK_EQ(read(from[0], &c, 1), 1);
    CHECK_EQ(c, 0); /* nobody was told that we have died */
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < MANY && s.life.count != 1; i++) /* behind those that have gone without having been taken in */
        CHECK(accept_later(&s.life));
    CHECK_EQ(s.life.count, 1);
    slot_release(&s);
    CHECK(hangs_up(ours, 0));
    close(ours);
}

static void knock_as_nobody(uint32_t slot) {
    CHECK_EQ(setuid(65534), 0);
    for (int i = 0; i < 4 * MANY; i++)
        close(slot_watch(slot));
    _exit(0);
}

/* Takes in all that it may at this moment; how many there were of so many. */
static int let_in(struct slot *s, uint64_t now, int waiting) {
    struct pollfd crowd = {.fd = s->life.fd, .events = POLLIN};
    int left = 0;
    while (lifeline_accept(&s->life, now) && poll(&crowd, 1, 0))
        ;
    for (int fd; (fd = accept4(s->life.fd, NULL, NULL, SOCK_NONBLOCK)) >= 0; left++)
        close(fd);
    return waiting - left;
}

/* Another user connects and hangs up all the time: a moment has so many of these, and a second so many more. */
static void other_users_have_a_bounded_number_of_calls(void) {
    if (geteuid() != 0) {
        printf("# not root: there is no other user to be\n");
        return;
    }
    struct slot s;
    CHECK_EQ(slot_claim(&s, NULL), 0);
    for (int second = 0; second < 3; second++) {
        pid_t pid = fork();
        if (pid == 0)
            knock_as_nobody(s.number);
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
        int calls = let_in(&s, 1000000000ull + 100 * LIFELINE_CALL_NS * (uint64_t)second, 4 * MANY);
        CHECK_EQ(calls, second ? 100 : LIFELINE_CALLS);
    }
    slot_release(&s);
}

int main(void) {
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        printf("# no network namespace to be had: in this one\n");
    else
        RUN(a_slot_is_the_first_one_that_is_free);
    RUN(a_death_is_seen);
    RUN(also_by_who_was_never_taken_in);
    RUN(a_stopped_process_is_not_dead);
    RUN(the_next_owner_of_a_slot_is_another);
    RUN(a_slot_whose_lifeline_is_somebody_elses_is_left_alone);
    RUN(who_stops_watching_is_let_go);
    RUN(without_memory_the_kernel_keeps_who_watches);
    RUN(all_who_watch_see_the_end);
    RUN(descriptor_0_is_one_as_any_other);
    RUN(a_crowd_is_looked_at_in_parts);
    RUN(of_those_who_stay_so_many_are_taken_in_at_once);
    RUN(other_users_take_a_bounded_share_of_descriptors);
    RUN(other_users_have_a_bounded_number_of_calls);
    RUN(without_descriptors_the_kernel_keeps_who_watches);
    RUN(without_descriptors_there_is_no_slot);
    return check_done();
}
