/* SPDX-License-Identifier: Apache-2.0
 *
 * Who makes progress: the engine leaves its sockets to an application that polls all the time, and to no other.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "dev/dev.h"
#include "live.h"
#include "names/abstract.h"

#define LOOKS 300

static struct rnic_context *ctx;
static const struct rnic_ops *ops;
static struct rnic_comp_channel *channel;
static struct rnic_cq *cq;

static void open_device(void) {
    struct rnic_err err = {0};
    if (rnic_soft.open("roce_lo", NULL, &ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    ops = ctx->ops;
    CHECK_EQ(ops->create_comp_channel(ctx, &channel, NULL), 0);
    CHECK_EQ(ops->create_cq(ctx, 16, channel, 0, NULL, &cq, NULL), 0);
}

static void close_device(void) {
    CHECK_EQ(ops->destroy_cq(cq, NULL), 0);
    CHECK_EQ(ops->destroy_comp_channel(channel, NULL), 0);
    CHECK_EQ(ops->close(ctx, NULL), 0);
}

static void nap(long ns) {
    const struct timespec t = {.tv_nsec = ns};
    nanosleep(&t, NULL);
}

static void look(void) {
    struct rnic_wc wc;
    CHECK_EQ(ops->poll_cq(cq, 1, &wc), 0);
}

static bool engine_stands_by(void) { return atomic_load(&dev_of(ctx)->run.disarmed); }

/* The engine may sleep already, until something comes. */
static void poll_until_it_stands_by(const struct rnic_ops *by, struct rnic_cq *queue, struct run *run) {
    struct rnic_wc wc;
    uint64_t limit = run_clock() + 60000000000u;
    for (uint32_t i = 1; !atomic_load(&run->disarmed); i++) {
        CHECK_EQ(by->poll_cq(queue, 1, &wc), 0);
        CHECK(run_clock() < limit);
        if (i % LOOKS == 0)
            engine_wake(run);
    }
}

static void test_an_application_that_polls_now_and_then_has_an_engine_at_work(void) {
    open_device();
    for (int i = 0; i < LOOKS; i++) {
        look();
        nap(100000);
        CHECK(!engine_stands_by());
    }
    close_device();
}

static void test_an_application_that_waits_for_events_has_an_engine_at_work(void) {
    open_device();
    for (int i = 0; i < LOOKS; i++) {
        CHECK_EQ(ops->req_notify_cq(cq, 0, NULL), 0);
        look();
        nap(50000);
        CHECK(!engine_stands_by());
    }
    close_device();
}

static void test_an_application_that_polls_all_the_time_has_the_sockets_to_itself(void) {
    open_device();
    poll_until_it_stands_by(ops, cq, &dev_of(ctx)->run);
    for (uint64_t limit = run_clock() + 60000000000u; engine_stands_by();) { /* until it does not */
        nap(100000);
        CHECK(run_clock() < limit);
    }
    close_device();
}

/* ---------------------------------------------------------------- a poll that takes long */

static pthread_t program;
static struct {
    uint64_t ended; /* the last one of the program's; */
    bool seen;      /* in it, the engine could see that it was under way */
} slow;

/* What comes takes longer than the time between two polls. */
static bool receive_much(void *owner, uint64_t now, bool everything) {
    const struct run *run = owner;
    (void)now;
    (void)everything;
    if (!pthread_equal(pthread_self(), program))
        return false;
    nap(100000);
    slow.seen = atomic_load(&run->polling);
    slow.ended = run_clock();
    return true;
}

static const struct source much = {.name = "much", .receive = receive_much};

static void add_source(struct run *run) {
    struct run_source *s = run->with.receive;
    while (s->is)
        s++;
    *s = (struct run_source){&much, run};
}

/* Else the engine would think that it does so now and then, and they would take turns. */
/* A source that never ends, and has 3 of something when it is noted. */
static int unread, passes; /* of this thread */

static bool receive_flood(void *owner, uint64_t now, bool all) {
    struct run *run = owner;
    (void)now, (void)all;
    run->more = true;
    unread -= unread > 0;
    passes += pthread_equal(pthread_self(), program);
    return true;
}

static void note_flood(void *owner) {
    (void)owner;
    unread = 3;
    passes = 0;
}

static bool has_reached_flood(const void *owner) {
    (void)owner;
    return !unread;
}

static const struct source flood = {
    .name = "flood", .receive = receive_flood, .note = note_flood, .has_reached = has_reached_flood};

static void add_to(struct run_source *list, struct run *run) {
    while (list->is)
        list++;
    *list = (struct run_source){&flood, run};
}

static void test_what_is_taken_before_an_end_is_what_was_there(void) {
    open_device();
    struct run *run = &dev_of(ctx)->run;
    program = pthread_self();
    dev_lock(dev_of(ctx));
    add_to(run->with.receive, run);
    add_to(run->with.note, run);
    add_to(run->with.has_reached, run);
    progress_take(run);
    int took = passes;
    CHECK(!unread);
    for (struct run_source *s = run->with.receive; s->is; s++) /* it is the last one */
        s->is = s->is == &flood ? NULL : s->is;
    dev_unlock(dev_of(ctx));
    close_device();
    CHECK(took >= 1 && took <= 3); /* the engine may have taken some */
}

static void test_an_application_whose_polls_take_long_polls_all_the_time(void) {
    open_device();
    struct run *run = &dev_of(ctx)->run;
    program = pthread_self();
    dev_lock(dev_of(ctx));
    add_source(run);
    dev_unlock(dev_of(ctx));
    for (uint64_t limit = run_clock() + 60000000000u; !slow.seen || atomic_load(&run->polls_at) < slow.ended;) {
        slow.seen = false;
        look();
        CHECK(run_clock() < limit);
    }
    CHECK(!atomic_load(&run->polling));
    close_device();
}

static uint32_t skipped(struct run *run) { return atomic_load((_Atomic uint32_t *)&run->skipped); }

/* Else it would wait for the lock at each look, and whoever has it would have to wake it. */
static void test_a_look_leaves_the_lock_to_an_application_that_polls_now_and_then_not(void) {
    open_device();
    struct run *run = &dev_of(ctx)->run;
    dev_lock(dev_of(ctx));
    atomic_store(&run->polls_at, UINT64_MAX); /* as if it polled without end */
    engine_wake(run);
    dev_unlock(dev_of(ctx));
    for (int most = 0; most < 15;) {
        dev_lock(dev_of(ctx));
        for (uint64_t limit = run_clock() + 60000000000u; engine_stands_by() && (int)skipped(run) < 15;) {
            atomic_store(&run->left_until, run_clock() - 1000000); /* looks stay frequent, and fifteen are skipped */
            CHECK(run_clock() < limit);
        }
        most = (int)skipped(run);
        dev_unlock(dev_of(ctx));
    }
    for (uint64_t limit = run_clock() + 60000000000u; skipped(run);)
        CHECK(run_clock() < limit);
    atomic_store(&run->polls_at, 0);
    close_device();
}

/* ---------------------------------------------------------------- threads that are always inside verbs */

#define HANG_S 120

static bool written(const struct live *l) { return atomic_load((_Atomic uint8_t *)&l->mem[63]) == 1; }

/* As if, whenever one has had the lock, another one waited for it. polls: the program looks for progress itself. */
static void write_beside_verbs(bool polls) {
    struct live from, to;
    struct rnic_wc wc;
    live_open(&from, -1);
    live_open(&to, -1);
    struct rnic_qp *qp = live_qp(&from), *peer = live_qp(&to);
    live_join(&from, qp, &to, peer, 14, 7);
    from.mem[63] = 1;
    atomic_fetch_add(&dev_of(from.ctx)->run.waiting, 1);
    live_post(&from, qp, RNIC_WR_RDMA_WRITE, 1, 0, 64, &to);
    double until = live_seconds() + HANG_S;
    while (polls ? from.ops->poll_cq(from.cq, 1, &wc) != 1 : !written(&to))
        CHECK(live_seconds() < until);
    atomic_fetch_sub(&dev_of(from.ctx)->run.waiting, 1);
    CHECK(written(&to));
    CHECK_EQ(from.ops->destroy_qp(qp, NULL), 0);
    CHECK_EQ(to.ops->destroy_qp(peer, NULL), 0);
    live_close(&from);
    live_close(&to);
}

/* It polls for the completion of its own request, and then its memory: what comes there is not left lying again and again. */
static void test_a_program_that_polls_its_memory_has_an_engine_at_work(void) {
    struct live from, to;
    live_open(&from, -1); /* its memory is reached by packets alone */
    live_open(&to, -1);
    struct run *run = &dev_of(to.ctx)->run;
    struct rnic_qp *qp = live_qp(&from), *peer = live_qp(&to);
    live_join(&from, qp, &to, peer, 14, 7);
    double until = live_seconds() + HANG_S;
    for (uint8_t i = 1; !atomic_load(&run->left_until); i++) {
        poll_until_it_stands_by(to.ops, to.cq, run);
        from.mem[63] = i;
        live_post(&from, qp, RNIC_WR_RDMA_WRITE, 1, 0, 64, &to);
        while (atomic_load((_Atomic uint8_t *)&to.mem[63]) != i)
            CHECK(live_seconds() < until);
        CHECK_EQ(live_wait(&from).status, RNIC_WC_SUCCESS);
    }
    CHECK_EQ(from.ops->destroy_qp(qp, NULL), 0);
    CHECK_EQ(to.ops->destroy_qp(peer, NULL), 0);
    live_close(&from);
    live_close(&to);
}

static void test_the_engine_goes_on_beside_threads_inside_verbs(void) { write_beside_verbs(false); }

static void test_a_program_that_polls_goes_on_beside_threads_inside_verbs(void) { write_beside_verbs(true); }

#define CROWD 200

/* Whoever asks for lanes and hangs up all the time would keep everybody from the lock. */
static void test_a_crowd_at_the_door_is_let_in_in_parts(void) {
    open_device();
    struct dev *dev = dev_of(ctx);
    struct abstract_name name;
    abstract_name(&name, "rnic/1/lane/%u", dev->host.slots[0].number);
    dev_lock(dev);
    for (int i = 0; i < CROWD; i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK_EQ(connect(fd, (const struct sockaddr *)&name.un, name.length), 0);
        close(fd);
    }
    uint64_t before = dev->host.here.numbers;
    doors_source.receive_rare(&dev->host, run_clock());
    CHECK(dev->host.here.numbers > before && dev->host.here.numbers < before + CROWD);
    for (int i = 0; i < CROWD && dev->host.here.numbers < before + CROWD; i++)
        doors_source.receive_rare(&dev->host, run_clock());
    CHECK_EQ(dev->host.here.numbers, before + CROWD);
    CHECK_EQ(dev->host.here.count, 0);
    dev_unlock(dev);
    close_device();
}

/* More than a look takes in: of datagrams, which hold 64 packets each at most, and of a lane. */
#define MANY 200
#define PATIENT 22 /* 17 s, and no retry: only time that a test makes up is over */

struct many {
    struct live a, b;
    struct rnic_qp *from[MANY], *to[MANY];
};

static uint64_t counted(const struct live *l, int counter) { return dev_of(l->ctx)->nic.counters.value[counter]; }

static void await(const struct live *l, int counter, uint64_t value) {
    for (double until = live_seconds() + HANG_S; counted(l, counter) < value;) {
        CHECK(live_seconds() < until);
        live_nap();
    }
    dev_lock(dev_of(l->ctx)); /* what was counted in a pass has left at its end */
    dev_unlock(dev_of(l->ctx));
}

static void post_receives(struct many *m) {
    for (int i = 0; i < MANY; i++)
        live_post_recv(&m->b, m->to[i], 1, 0, 8);
}

static void post_sends(struct many *m) {
    for (int i = 0; i < MANY; i++)
        live_post(&m->a, m->from[i], RNIC_WR_SEND, 2, 0, 8, &m->b);
}

static void check_all_sent(struct many *m) {
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(live_wait(&m->a).status, RNIC_WC_SUCCESS);
        CHECK_EQ(live_wait(&m->b).status, RNIC_WC_SUCCESS);
    }
}

static void open_many(struct many *m, int local) {
    live_open(&m->a, local);
    live_open(&m->b, local);
    for (int i = 0; i < MANY; i++) {
        m->from[i] = live_qp(&m->a);
        m->to[i] = live_qp(&m->b);
        live_join(&m->a, m->from[i], &m->b, m->to[i], PATIENT, 0);
    }
    post_receives(m);
    post_sends(m); /* which finds the way */
    check_all_sent(m);
}

static void close_many(struct many *m) {
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(m->a.ops->destroy_qp(m->from[i], NULL), 0);
        CHECK_EQ(m->b.ops->destroy_qp(m->to[i], NULL), 0);
    }
    live_close(&m->a);
    live_close(&m->b);
}

/* The sender gets no processor until all answers are there, and all timers over; or none after a first look. */
static void answers_that_wait_unread(int local) {
    static struct many m;
    open_many(&m, local);
    uint64_t sent = counted(&m.a, RNIC_CNT_requests_sent), acks = counted(&m.b, RNIC_CNT_acks_sent);
    struct dev *a = dev_of(m.a.ctx), *b = dev_of(m.b.ctx);
    CHECK((counted(&m.b, RNIC_CNT_local_sent) >= MANY) == (local > 0));
    post_receives(&m);
    dev_lock(b);
    post_sends(&m);
    await(&m.a, RNIC_CNT_requests_sent, sent + MANY);
    dev_lock(a);
    dev_unlock(b);
    await(&m.b, RNIC_CNT_acks_sent, acks + MANY);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* what was sent is in the socket a moment later */
    progress(&a->run, run_clock(), true);
    uint64_t late = run_clock() + 100000000000u;
    for (int i = 0; i < MANY; i++)
        progress(&a->run, late, true);
    CHECK_EQ(counted(&m.a, RNIC_CNT_timeouts), 0);
    dev_unlock(a);
    check_all_sent(&m);
    close_many(&m);
}

static void test_no_timer_counts_while_datagrams_wait_unread(void) { answers_that_wait_unread(-1); }

static void test_no_timer_counts_while_packets_of_a_lane_wait_unread(void) { answers_that_wait_unread(1); }

#define HELD_NS 20000000

/* How late it is, it finds out by waiting for the lock, as behind a thread that has no processor. */
static void test_an_engine_that_is_kept_waiting_remembers_it_for_a_while(void) {
    open_device();
    struct dev *dev = dev_of(ctx);
    uint64_t late = 0, until = 0;
    for (uint64_t limit = run_clock() + 60000000000u; late < HELD_NS / 2; late = engine_late(&dev->run, run_clock())) {
        CHECK(run_clock() < limit);
        dev_lock(dev);
        engine_wake(&dev->run);
        nap(HELD_NS);
        dev_unlock(dev);
        nap(HELD_NS / 10);
    }
    until = atomic_load(&dev->run.late_until);
    CHECK(engine_late(&dev->run, until - 1) >= HELD_NS / 2);
    CHECK_EQ(engine_late(&dev->run, until), 0);
    dev_lock(dev);
    progress(&dev->run, until - 1, false);
    CHECK(dev->nic.late >= HELD_NS / 2);
    dev_unlock(dev);
    close_device();
}

/* ns; 0: Linux before 6.12 does not tell.  thread: 0 is this one */
static uint64_t slice_of(pid_t thread) {
    uint64_t attr[6] = {0}; /* of sched_getattr(2): the runtime is the fourth */
    CHECK_EQ(syscall(SYS_sched_getattr, thread, attr, sizeof attr, 0), 0);
    return attr[3];
}

static pid_t engine_thread(void) {
    pid_t found = 0;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(threads)) && !found;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *comm = fopen(path, "r");
        if (comm && fgets(name, sizeof name, comm) && !strcmp(name, "rnic-engine\n"))
            found = atoi(e->d_name);
        if (comm)
            fclose(comm);
    }
    closedir(threads);
    return found;
}

/* So that it has a processor at once when something comes and programs spin. */
static void test_an_engine_has_shorter_slices_than_the_program(void) {
    open_device();
    for (uint64_t limit = run_clock() + 60000000000u; slice_of(0) && slice_of(engine_thread()) >= slice_of(0);) {
        CHECK(run_clock() < limit); /* it has not asked yet */
        nap(1000000);
    }
    close_device();
}

int main(void) {
    live_isolate();
    RUN(test_an_engine_has_shorter_slices_than_the_program);
    RUN(test_an_engine_that_is_kept_waiting_remembers_it_for_a_while);
    RUN(test_no_timer_counts_while_datagrams_wait_unread);
    RUN(test_no_timer_counts_while_packets_of_a_lane_wait_unread);
    RUN(test_an_application_that_polls_now_and_then_has_an_engine_at_work);
    RUN(test_an_application_that_waits_for_events_has_an_engine_at_work);
    RUN(test_an_application_that_polls_all_the_time_has_the_sockets_to_itself);
    RUN(test_what_is_taken_before_an_end_is_what_was_there);
    RUN(test_an_application_whose_polls_take_long_polls_all_the_time);
    RUN(test_a_look_leaves_the_lock_to_an_application_that_polls_now_and_then_not);
    RUN(test_a_program_that_polls_its_memory_has_an_engine_at_work);
    RUN(test_the_engine_goes_on_beside_threads_inside_verbs);
    RUN(test_a_program_that_polls_goes_on_beside_threads_inside_verbs);
    RUN(test_a_crowd_at_the_door_is_let_in_in_parts);
    return check_done();
}
