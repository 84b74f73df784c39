/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that wait do the device's work (extension rnic.drive/1), by turns: nobody's completion is lost, the device serves
 * its peers whatever its own program does, and waits end as they are told to.
 *
 * Limits are so long that only a hang meets them.  SECONDS_EACH says how long a test of many rounds runs; 1 by default.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "dev/dev.h"
#include "ext.h"
#include "live.h"

#define SEATS 4
#define ROUNDS 30
#define LAST 0xFF /* of a message: the thread may end */
#define SLOT 64   /* bytes of memory for each of a seat's messages */
#ifndef HANG_NS
#define HANG_NS 60000000000u
#endif
#define SHORT_NS 20000000 /* a wait that ends by its time */
#define TIMEOUT 18        /* of the peer, 1 s, */
#define RETRIES 7         /* so often: then nobody has served it */

enum by { BY_CQ, BY_CHANNEL };

static struct live here, there; /* the device whose program waits, and the peer */
static const struct rnic_ext_drive *drive;
static _Atomic bool stop;
static _Atomic int failures;

/* Threads cannot end a test; they say what is wrong, and the main thread looks. */
#define NEED(cond)                                                                                                     \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #cond);                                                          \
            atomic_fetch_add(&failures, 1);                                                                            \
            return NULL;                                                                                               \
        }                                                                                                              \
    } while (0)

static double seconds_each(void) {
    const char *given = getenv("SECONDS_EACH");
    return given ? atof(given) : 1;
}

static uint64_t hang(void) { return run_clock() + HANG_NS; }

static struct run *run_here(void) { return &dev_of(here.ctx)->run; }

/* Waits until something is so, which only a hang keeps from being. */
#define UNTIL(cond)                                                                                                    \
    do {                                                                                                               \
        for (uint64_t limit_ = hang(); !(cond); live_nap())                                                            \
            if (run_clock() > limit_)                                                                                  \
                check_fail(__FILE__, __LINE__, "never: %s", #cond);                                                    \
    } while (0)

/* ---------------------------------------------------------------- a seat: what one thread waits for */

struct seat {
    int index;
    enum by by;
    struct rnic_comp_channel *channel;
    struct rnic_cq *cq;
    struct rnic_qp *qp, *peer; /* that one's completions are in the peer's only queue */
    pthread_t thread;
    uint64_t until;
    int rc; /* of the wait */
    _Atomic bool ended;
    uint64_t ended_at;
    int got;
};

static struct seat seats[SEATS];

static void open_seat(struct seat *s, int index) {
    *s = (struct seat){.index = index, .by = index % 2 ? BY_CHANNEL : BY_CQ};
    CHECK_EQ(here.ops->create_comp_channel(here.ctx, &s->channel, NULL), 0);
    CHECK_EQ(here.ops->create_cq(here.ctx, 256, s->channel, 0, NULL, &s->cq, NULL), 0);
    struct rnic_qp_init_attr init = {
        .send_cq = s->cq, .recv_cq = s->cq, .cap = {64, 64, 1, 1, 0}, .qp_type = RNIC_QPT_RC, .sq_sig_all = 1};
    CHECK_EQ(here.ops->create_qp(here.pd, &init, &s->qp, NULL), 0);
    s->peer = live_qp(&there);
    live_join(&here, s->qp, &there, s->peer, TIMEOUT, RETRIES);
    live_post_recv(&here, s->qp, 0, (uint64_t)index * SLOT, 8);
}

static void close_seat(struct seat *s) {
    struct rnic_cq *cq;
    while (here.ops->get_cq_event(s->channel, &cq, NULL) == 0)
        CHECK_EQ(here.ops->ack_cq_events(cq, 1, NULL), 0);
    CHECK_EQ(here.ops->destroy_qp(s->qp, NULL), 0);
    CHECK_EQ(there.ops->destroy_qp(s->peer, NULL), 0);
    CHECK_EQ(here.ops->destroy_cq(s->cq, NULL), 0);
    CHECK_EQ(here.ops->destroy_comp_channel(s->channel, NULL), 0);
}

static void open_all(int local) {
    check_note(local > 0 ? "by shared memory" : "by the wire");
    atomic_store(&stop, false);
    atomic_store(&failures, 0);
    live_open(&here, local);
    live_open(&there, local);
    drive = rnic_extension(here.ctx, RNIC_EXT_DRIVE);
    CHECK(drive);
    for (int i = 0; i < SEATS; i++)
        open_seat(&seats[i], i);
}

static void close_all(void) {
    for (int i = 0; i < SEATS; i++)
        close_seat(&seats[i]);
    CHECK_EQ(atomic_load(&run_here()->inside), 0);
    live_close(&there);
    live_close(&here);
    CHECK_EQ(atomic_load(&failures), 0);
}

static int wait_once(struct seat *s, uint64_t until) {
    struct rnic_cq *const queues[] = {s->cq};
    return s->by == BY_CQ ? drive->wait_cq(queues, 1, s->channel->fd, until, false)
                          : drive->wait_channel(s->channel, until, false);
}

static bool take_events(struct seat *s) {
    struct rnic_cq *cq;
    while (here.ops->get_cq_event(s->channel, &cq, NULL) == 0)
        if (cq != s->cq || here.ops->ack_cq_events(cq, 1, NULL))
            return false;
    return true;
}

/* The next completion of a receive: 1; 0: the time has come; or what ended the wait. */
static int get(struct seat *s, uint64_t until) {
    struct rnic_wc wc;
    for (;;) {
        int n = here.ops->poll_cq(s->cq, 1, &wc);
        if (n < 0 || (n && wc.status != RNIC_WC_SUCCESS))
            return -EIO;
        if (n && wc.opcode == RNIC_WCO_RECV)
            return 1;
        if (n)
            continue;
        if (run_clock() >= until)
            return 0;
        if (s->by == BY_CHANNEL) {
            if (here.ops->req_notify_cq(s->cq, 0, NULL))
                return -EIO;
            if (drive->has(s->cq))
                continue;
        }
        int rc = wait_once(s, until);
        if (rc < 0)
            return rc;
        if (!take_events(s))
            return -EIO;
    }
}

static uint8_t *message_of(struct live *l, const struct seat *s) { return l->mem + (size_t)s->index * SLOT; }

static void say(const struct seat *s, uint8_t word) {
    message_of(&there, s)[0] = word;
    live_post(&there, s->peer, RNIC_WR_SEND, 0, (uint64_t)s->index * SLOT, 8, &here);
}

/* The peer's requests have been carried out, so many. */
static void served(int n) {
    for (int done = 0; done < n;) {
        struct rnic_wc wc = live_wait(&there);
        CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
        done += wc.opcode != RNIC_WCO_RECV;
    }
}

/* While the program makes no call, and nobody drives. */
static void peer_is_served(void) {
    _Atomic uint64_t *word = (_Atomic uint64_t *)(there.mem + LIVE_BYTES / 2);
    static uint64_t next;
    atomic_store(word, ++next);
    live_post(&there, seats[0].peer, RNIC_WR_RDMA_WRITE, 0, LIVE_BYTES / 2, 8, &here);
    served(1);
    atomic_store(word, 0);
    live_post(&there, seats[0].peer, RNIC_WR_RDMA_READ, 0, LIVE_BYTES / 2, 8, &here);
    served(1);
    CHECK_EQ(atomic_load(word), next);
}

/* ---------------------------------------------------------------- threads that take one message each */

static void *take_one(void *arg) {
    struct seat *s = arg;
    s->rc = get(s, s->until);
    s->ended_at = run_clock();
    atomic_store(&s->ended, true);
    return NULL;
}

static void start(struct seat *s, uint64_t until) {
    s->until = until;
    atomic_store(&s->ended, false);
    CHECK_EQ(pthread_create(&s->thread, NULL, take_one, s), 0);
}

static int join(struct seat *s) {
    CHECK_EQ(pthread_join(s->thread, NULL), 0);
    if (s->rc == 1)
        live_post_recv(&here, s->qp, 0, (uint64_t)s->index * SLOT, 8);
    return s->rc;
}

/* The first drives, the others wait for their turn. */
static void seat_in_order(int n, uint64_t until) {
    for (int i = 0; i < n; i++) {
        start(&seats[i], until);
        UNTIL(atomic_load(&run_here()->driven) && (int)atomic_load(&run_here()->inside) == i + 1);
    }
}

/* It leaves all to the thread that waits, for as long as that one does. */
static void engine_sleeps_for_long(void) {
    UNTIL(atomic_load(&run_here()->wakes_at) > run_clock() + 5 * ENGINE_LOOKS_NS);
}

static void both_ways(void (*test)(void)) {
    for (int local = -1; local <= 1; local += 2) {
        open_all(local);
        test();
        close_all();
    }
}

/* ---------------------------------------------------------------- changing hands */

/* Whoever gets a message leaves, and the next one drives. */
static void leave_one_by_one(void) {
    for (int round = 0; round < ROUNDS; round++) {
        int n = 2 + round % (SEATS - 1);
        seat_in_order(n, hang());
        for (int i = 0; i < n; i++) {
            int next = round % 2 ? n - 1 - i : i;
            say(&seats[next], 1);
            CHECK_EQ(join(&seats[next]), 1);
        }
        served(n);
    }
}

static void test_who_waits_next_drives_when_one_has_left(void) { both_ways(leave_one_by_one); }

/* Two leave at once: one of them, perhaps, when it was its turn.  Nobody drives then, and nobody has told the engine. */
static void two_leave_at_once(void) {
    for (int round = 0; round < ROUNDS; round++) {
        seat_in_order(2, hang());
        engine_sleeps_for_long();
        say(&seats[0], 1);
        say(&seats[1], 1);
        CHECK_EQ(join(&seats[0]), 1);
        CHECK_EQ(join(&seats[1]), 1);
        served(2);
        peer_is_served();
    }
}

static void test_the_device_works_on_when_all_have_left_at_once(void) { both_ways(two_leave_at_once); }

static void a_third_one_stays(void) {
    for (int round = 0; round < ROUNDS; round++) {
        seat_in_order(3, hang());
        engine_sleeps_for_long();
        say(&seats[0], 1);
        say(&seats[1], 1);
        CHECK_EQ(join(&seats[0]), 1);
        CHECK_EQ(join(&seats[1]), 1);
        say(&seats[2], 1);
        CHECK_EQ(join(&seats[2]), 1);
        served(3);
    }
}

static void test_who_waits_on_gets_its_message_when_two_have_left_at_once(void) { both_ways(a_third_one_stays); }

/* Another thread that polls takes what would have woken the one that drives. */
static void one_polls_beside(void) {
    struct rnic_wc wc;
    for (int round = 0; round < ROUNDS; round++) {
        seat_in_order(1, hang());
        if (round % 2)
            engine_sleeps_for_long();
        say(&seats[1], 1);
        for (uint64_t limit = hang(); here.ops->poll_cq(seats[1].cq, 1, &wc) != 1;)
            CHECK(run_clock() < limit);
        live_post_recv(&here, seats[1].qp, 0, SLOT, 8);
        say(&seats[0], 1);
        CHECK_EQ(join(&seats[0]), 1);
        served(2);
    }
}

static void test_who_drives_beside_a_thread_that_polls_hears_of_all(void) { both_ways(one_polls_beside); }

static uint64_t lost_here(void) {
    struct rnic_counters counters;
    CHECK_EQ(ext_stats(here.ctx)->query_counters(here.ctx, &counters, NULL), 0);
    return counters.value[RNIC_CNT_fault_lost];
}

/* It has gone to sleep before there was a time to wake at. */
static void a_packet_is_lost(void) {
    const struct rnic_ext_faults *faults = rnic_extension(here.ctx, RNIC_EXT_FAULTS);
    const struct rnic_fault fault = {.lose = {{.opcode = -1, .nth = 1, .count = 1}}};
    struct rnic_cq *const queues[] = {seats[1].cq};
    for (int round = 0; round < 2; round++) {
        struct rnic_wc wc;
        uint64_t lost = lost_here();
        seat_in_order(1, hang());
        CHECK_EQ(faults->set(here.ctx, &fault, NULL), 0);
        engine_sleeps_for_long();
        live_post(&here, seats[1].qp, RNIC_WR_RDMA_WRITE, 0, LIVE_BYTES / 2, 8, &there);
        for (uint64_t limit = hang(); !drive->has(seats[1].cq);) {
            CHECK(run_clock() < limit);
            CHECK(drive->wait_cq(queues, 1, seats[1].channel->fd, limit, false) >= 0 && take_events(&seats[1]));
        }
        CHECK_EQ(here.ops->poll_cq(seats[1].cq, 1, &wc), 1);
        CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
        CHECK_EQ(faults->set(here.ctx, NULL, NULL), 0);
        CHECK_EQ(lost_here(), lost + 1);
        say(&seats[0], 1);
        CHECK_EQ(join(&seats[0]), 1);
        served(1);
    }
}

static void test_a_time_that_another_threads_post_sets_is_not_overslept(void) { both_ways(a_packet_is_lost); }

static void leaves_by_its_time(void) {
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t until = run_clock() + SHORT_NS;
        int first = round % 2; /* who waits for long comes first, or second */
        start(&seats[first], first ? until : hang());
        start(&seats[!first], first ? hang() : until);
        CHECK_EQ(join(&seats[1]), 0);
        CHECK(seats[1].ended_at >= until);
        say(&seats[0], 1);
        CHECK_EQ(join(&seats[0]), 1);
        served(1);
    }
}

static void test_a_wait_ends_by_its_time_and_not_before(void) { both_ways(leaves_by_its_time); }

static void test_a_time_that_is_over_is_not_waited_for(void) {
    open_all(-1);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(wait_once(&seats[i], 0), 0);
        CHECK_EQ(wait_once(&seats[i], run_clock()), 0);
    }
    close_all();
}

/* ---------------------------------------------------------------- many threads, and others beside them */

static void *answer(void *arg) {
    struct seat *s = arg;
    for (;;) {
        NEED(get(s, hang()) == 1);
        uint8_t said = *message_of(&here, s);
        live_post_recv(&here, s->qp, 0, (uint64_t)s->index * SLOT, 8);
        live_post(&here, s->qp, RNIC_WR_SEND, 0, (uint64_t)s->index * SLOT, 8, &there);
        s->got++;
        if (said == LAST)
            return NULL;
    }
}

/* Objects of its own, on the same device, that come and go. */
static void *disturb(void *arg) {
    (void)arg;
    const struct rnic_ops *ops = here.ops;
    static uint8_t memory[4096];
    for (uint32_t i = 0; !atomic_load(&stop); i++) {
        struct rnic_comp_channel *channel;
        struct rnic_cq *cq;
        struct rnic_qp *qp;
        struct rnic_mr *mr;
        struct rnic_wc wc;
        NEED(ops->create_comp_channel(here.ctx, &channel, NULL) == 0);
        NEED(ops->create_cq(here.ctx, 16, channel, 0, NULL, &cq, NULL) == 0);
        struct rnic_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = RNIC_QPT_RC};
        NEED(ops->create_qp(here.pd, &init, &qp, NULL) == 0);
        NEED(ops->reg_mr(here.pd, memory, sizeof memory, 0xF, &mr, NULL) == 0);
        NEED(ops->req_notify_cq(cq, 0, NULL) == 0);
        for (uint32_t look = 0; look < i % 50; look++)
            NEED(ops->poll_cq(cq, 1, &wc) == 0);
        struct rnic_cq *const queues[] = {cq};
        NEED(i % 3 || drive->wait_cq(queues, 1, channel->fd, run_clock() + i % 7 * 100000, i % 2) == 0);
        NEED(i % 5 || drive->wait_channel(channel, run_clock() + i % 4 * 100000, i % 2) == 0);
        NEED(ops->destroy_qp(qp, NULL) == 0 && ops->dereg_mr(mr, NULL) == 0);
        NEED(ops->destroy_cq(cq, NULL) == 0 && ops->destroy_comp_channel(channel, NULL) == 0);
        usleep(i % 4 * 200);
    }
    return NULL;
}

static void ask(struct seat *s, uint8_t word) {
    live_post_recv(&there, s->peer, (uint64_t)s->index, LIVE_BYTES / 4 + (uint64_t)s->index * SLOT, 8);
    say(s, word);
}

/* So many answers, and what was sent for them. */
static void answered(int n) {
    for (int left = 2 * n; left; left--) {
        CHECK_EQ(atomic_load(&failures), 0);
        CHECK_EQ(live_wait(&there).status, RNIC_WC_SUCCESS);
    }
}

static int talk(void) {
    double limit = live_seconds() + seconds_each() / 2;
    int asked = 0;
    for (uint32_t round = 1; live_seconds() < limit; round++) {
        int n = 0;
        for (int i = 0; i < SEATS; i++)
            if (round % 16 >> i & 1) {
                ask(&seats[i], 1);
                n++;
            }
        answered(n);
        asked += n;
        if (round % 40 == 0)
            usleep(30000); /* the engine takes over, or falls asleep */
    }
    return asked;
}

static void many_threads(int others) {
    pthread_t other[2];
    for (int i = 0; i < SEATS; i++)
        CHECK_EQ(pthread_create(&seats[i].thread, NULL, answer, &seats[i]), 0);
    for (int i = 0; i < others; i++)
        CHECK_EQ(pthread_create(&other[i], NULL, disturb, NULL), 0);
    int asked = talk(), got = 0;
    for (int i = 0; i < SEATS; i++)
        ask(&seats[i], LAST);
    answered(SEATS);
    atomic_store(&stop, true);
    for (int i = 0; i < others; i++)
        CHECK_EQ(pthread_join(other[i], NULL), 0);
    for (int i = 0; i < SEATS; i++) {
        CHECK_EQ(pthread_join(seats[i].thread, NULL), 0);
        got += seats[i].got;
    }
    CHECK(asked > 0);
    CHECK_EQ(got, asked + SEATS);
}

static void alone(void) { many_threads(0); }

static void with_others(void) { many_threads(2); }

static void test_each_of_many_threads_that_wait_gets_its_messages(void) { both_ways(alone); }

static void test_each_gets_its_messages_beside_threads_that_do_other_things(void) { both_ways(with_others); }

/* ---------------------------------------------------------------- while nobody drives */

static _Atomic int computed;

/* Waits for a message; then it computes until the peer says that it has been served meanwhile. */
static void *wait_and_compute(void *arg) {
    struct seat *s = arg;
    for (int round = 1; round <= ROUNDS; round++) {
        NEED(get(s, hang()) == 1);
        live_post_recv(&here, s->qp, 0, (uint64_t)s->index * SLOT, 8);
        for (uint64_t limit = hang(); atomic_load(&computed) < round;)
            NEED(run_clock() < limit);
    }
    return NULL;
}

static void serve_a_program_that_computes(void) {
    for (int i = 0; i < 2; i++) {
        atomic_store(&computed, 0);
        CHECK_EQ(pthread_create(&seats[i].thread, NULL, wait_and_compute, &seats[i]), 0);
        for (int round = 1; round <= ROUNDS; round++) {
            if (round % 10 == 0)
                engine_sleeps_for_long();
            say(&seats[i], 1);
            served(1);
            peer_is_served();
            atomic_store(&computed, round);
        }
        CHECK_EQ(pthread_join(seats[i].thread, NULL), 0);
    }
}

static void test_a_peer_is_served_while_the_program_computes(void) { both_ways(serve_a_program_that_computes); }

/* ---------------------------------------------------------------- a thread that waits for something else, too */

/* As a loop does: it sleeps on the device's descriptor and on its own channel's. */
static bool loop_once(struct seat *s, uint64_t limit) {
    while (!drive->settle(here.ctx))
        drive->look(here.ctx);
    struct pollfd fds[] = {{.fd = drive->descriptor(here.ctx), .events = POLLIN},
                           {.fd = s->channel->fd, .events = POLLIN}};
    uint64_t now = run_clock();
    if (drive->has(s->cq))
        return true;
    int n = poll(fds, 2, limit > now ? (int)((limit - now) / 1000000) : 0);
    if (fds[0].revents)
        drive->look(here.ctx);
    return n > 0 && take_events(s) && here.ops->req_notify_cq(s->cq, 0, NULL) == 0;
}

static void *loop(void *arg) {
    struct seat *s = arg;
    NEED(here.ops->req_notify_cq(s->cq, 0, NULL) == 0);
    for (bool goes_on = true; goes_on;) {
        struct rnic_wc wc;
        uint64_t limit = hang();
        while (here.ops->poll_cq(s->cq, 1, &wc) != 1 || wc.opcode != RNIC_WCO_RECV)
            NEED(loop_once(s, limit));
        goes_on = *message_of(&here, s) != LAST;
        live_post_recv(&here, s->qp, 0, (uint64_t)s->index * SLOT, 8);
        live_post(&here, s->qp, RNIC_WR_SEND, 0, (uint64_t)s->index * SLOT, 8, &there);
    }
    return NULL;
}

static void two_loops_and_one_that_waits(void) {
    static void *(*const threads[])(void *) = {loop, loop, answer};
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&seats[i].thread, NULL, threads[i], &seats[i]), 0);
    for (int round = 0; round < 4 * ROUNDS; round++) {
        for (int i = 0; i < 3; i++)
            ask(&seats[i], 1);
        answered(3);
        ask(&seats[round % 3], 1);
        answered(1);
        usleep((unsigned)(round % 8) * 1000); /* the engine takes over after 5 */
    }
    for (int i = 0; i < 3; i++)
        ask(&seats[i], LAST);
    answered(3);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_join(seats[i].thread, NULL), 0);
}

static bool is_called(void) {
    struct pollfd fd = {.fd = run_here()->busy_fd, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

/* A thread that drives and a loop sleep on the same descriptor. If the loop read the call, the thread would sleep on. */
static void test_a_loop_leaves_a_call_to_the_thread_that_drives(void) {
    open_all(-1);
    struct run *run = run_here();
    for (int driven = 1; driven >= 0; driven--) {
        run_lock(run);
        atomic_store(&run->driven, driven);
        atomic_store(&run->drives_at, NEVER);
        drive_wake_for(run, 1);
        run_unlock(run);
        CHECK(is_called());
        drive_look(run);
        CHECK_EQ(is_called(), driven);
        run_lock(run);
        drive_answer(run);
        run_unlock(run);
        CHECK(!is_called());
    }
    close_all();
}

static void test_loops_that_sleep_on_the_devices_descriptor_miss_nothing(void) {
    both_ways(two_loops_and_one_that_waits);
}

/* It has settled, and sleeps on nothing but the descriptor: whoever sends by memory has to wake it. */
static void hears_of_what_comes(void) {
    for (int round = 0; round < ROUNDS; round++) {
        struct pollfd fd = {.fd = drive->descriptor(here.ctx), .events = POLLIN};
        struct rnic_wc wc;
        while (!drive->settle(here.ctx))
            drive->look(here.ctx);
        say(&seats[0], 1);
        for (uint64_t limit = hang(); !drive->has(seats[0].cq);) { /* the engine may take it, too */
            CHECK(run_clock() < limit);
            if (poll(&fd, 1, 1) > 0)
                drive->look(here.ctx);
        }
        CHECK_EQ(here.ops->poll_cq(seats[0].cq, 1, &wc), 1);
        live_post_recv(&here, seats[0].qp, 0, 0, 8);
        served(1);
    }
}

static void test_a_look_after_a_settled_sleep_finds_what_has_come(void) { both_ways(hears_of_what_comes); }

/* A thread lets others run and looks, and does not come back behind the message: the engine finds out, and serves the peer. */
static void lets_others_run_and_computes(void) {
    for (int round = 1; round <= ROUNDS; round++) {
        struct rnic_wc wc;
        say(&seats[0], 1);
        for (uint64_t limit = hang(); here.ops->poll_cq(seats[0].cq, 1, &wc) == 0;) {
            CHECK(run_clock() < limit);
            drive->give_way(here.ctx);
        }
        CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
        live_post_recv(&here, seats[0].qp, 0, 0, 8);
        served(1);
        peer_is_served();
    }
}

static void test_a_peer_is_served_behind_a_thread_that_has_let_others_run(void) {
    both_ways(lets_others_run_and_computes);
}

/* ---------------------------------------------------------------- events that another thread's pass raises */

static void raised_by_another(void) {
    struct seat *by_queue = &seats[0], *by_event = &seats[1];
    for (int round = 0; round < ROUNDS; round++) {
        struct seat *first = round % 2 ? by_queue : by_event, *second = round % 2 ? by_event : by_queue;
        start(first, hang());
        UNTIL(atomic_load(&run_here()->driven));
        start(second, hang());
        UNTIL(atomic_load(&run_here()->next));
        say(second, 1);
        CHECK_EQ(join(second), 1);
        CHECK(!atomic_load(&first->ended));
        say(first, 1);
        CHECK_EQ(join(first), 1);
        served(2);
    }
}

static void test_an_event_that_another_threads_pass_raises_is_heard(void) { both_ways(raised_by_another); }

/* ---------------------------------------------------------------- ends of waits */

static void ignore(int sig) { (void)sig; }

static void interrupt(struct seat *s) {
    while (!atomic_load(&s->ended)) {
        CHECK_EQ(pthread_kill(s->thread, SIGUSR1), 0);
        live_nap();
    }
    CHECK_EQ(join(s), -EINTR);
}

static void signals_come(void) {
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    for (int who = 0; who < 2; who++) { /* who drives, or who waits for its turn */
        seat_in_order(2, hang());
        interrupt(&seats[who]);
        say(&seats[!who], 1);
        CHECK_EQ(join(&seats[!who]), 1);
        served(1);
    }
    peer_is_served();
}

static void test_a_signal_ends_a_wait_in_both_roles(void) { both_ways(signals_come); }

#ifndef __SANITIZE_ADDRESS__
static void threads_are_cancelled(void) {
    for (int round = 0; round < 2 * ROUNDS; round++) {
        int who = round % 2;
        void *result;
        seat_in_order(2, hang());
        if (round % 6 < 2)
            engine_sleeps_for_long();
        CHECK_EQ(pthread_cancel(seats[who].thread), 0);
        CHECK_EQ(pthread_join(seats[who].thread, &result), 0);
        CHECK(result == PTHREAD_CANCELED);
        say(&seats[!who], 1);
        CHECK_EQ(join(&seats[!who]), 1);
        served(1);
        CHECK_EQ(atomic_load(&run_here()->inside), 0);
        CHECK(!atomic_load(&run_here()->next));
        CHECK(!atomic_load(&run_here()->driven));
        if (round % 6 < 2)
            peer_is_served();
    }
}

static void test_a_thread_that_is_cancelled_leaves_a_device_that_works(void) { both_ways(threads_are_cancelled); }
#endif

static void *wait_for_the_failure(void *arg) {
    struct seat *s = arg;
    uint64_t until = hang();
    while ((s->rc = wait_once(s, until)) >= 0)
        NEED(run_clock() < until);
    return NULL;
}

static void test_waits_end_when_the_device_fails(void) {
    const struct rnic_ext_events *events;
    for (int local = -1; local <= 1; local += 2) {
        open_all(local);
        events = rnic_extension(here.ctx, RNIC_EXT_EVENTS);
        for (int i = 0; i < SEATS; i++)
            CHECK_EQ(pthread_create(&seats[i].thread, NULL, wait_for_the_failure, &seats[i]), 0);
        UNTIL((int)atomic_load(&run_here()->inside) == SEATS);
        CHECK_EQ(events->raise(here.ctx, RNIC_EVENT_DEVICE_FATAL, 0, NULL), 0);
        for (int i = 0; i < SEATS; i++) {
            CHECK_EQ(pthread_join(seats[i].thread, NULL), 0);
            CHECK_EQ(seats[i].rc, -EAGAIN);
        }
        close_all();
    }
}

int main(void) {
    live_isolate();
    RUN(test_who_waits_next_drives_when_one_has_left);
    RUN(test_the_device_works_on_when_all_have_left_at_once);
    RUN(test_who_waits_on_gets_its_message_when_two_have_left_at_once);
    RUN(test_who_drives_beside_a_thread_that_polls_hears_of_all);
    RUN(test_a_time_that_another_threads_post_sets_is_not_overslept);
    RUN(test_a_wait_ends_by_its_time_and_not_before);
    RUN(test_a_time_that_is_over_is_not_waited_for);
    RUN(test_each_of_many_threads_that_wait_gets_its_messages);
    RUN(test_each_gets_its_messages_beside_threads_that_do_other_things);
    RUN(test_a_peer_is_served_while_the_program_computes);
    RUN(test_a_loop_leaves_a_call_to_the_thread_that_drives);
    RUN(test_loops_that_sleep_on_the_devices_descriptor_miss_nothing);
    RUN(test_a_look_after_a_settled_sleep_finds_what_has_come);
    RUN(test_a_peer_is_served_behind_a_thread_that_has_let_others_run);
    RUN(test_an_event_that_another_threads_pass_raises_is_heard);
    RUN(test_a_signal_ends_a_wait_in_both_roles);
#ifndef __SANITIZE_ADDRESS__ /* which takes the handlers of a cancelled thread for a mistake */
    RUN(test_a_thread_that_is_cancelled_leaves_a_device_that_works);
#endif
    RUN(test_waits_end_when_the_device_fails);
    return check_done();
}
