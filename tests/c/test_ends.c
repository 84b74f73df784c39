/* SPDX-License-Identifier: Apache-2.0
 *
 * dev/ends.c: whoever has made streams hears of all that begin and end, in their order, also if nobody takes what is told.
 */
#include <poll.h>
#include <stdlib.h>

#include "check.h"
#include "dev/ends.h"

#define MANY 500

static struct nic nic;
static struct ends ends;
static struct qp *qps;

static void tell(uint32_t number, int end) {
    struct rnic_stream_event event = {.qp_num = number, .end = end};
    nic.stream_told(nic.stream_arg, &qps[number % MANY], &event);
}

/* As RTS does, and the first message of the peer, and ERR. */
static void begin_and_end(uint32_t number) {
    tell(number, RNIC_STREAM_READY);
    tell(number, RNIC_STREAM_FIN);
}

static bool is_readable(void) {
    struct pollfd p = {.fd = ends.fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void want(uint32_t number, int end) {
    struct rnic_stream_event event;
    CHECK(is_readable());
    CHECK(ends_take(&ends, &event));
    CHECK_EQ(event.qp_num, number);
    CHECK_EQ(event.end, end);
}

static void want_none(void) {
    struct rnic_stream_event event;
    CHECK(!is_readable());
    CHECK(!ends_take(&ends, &event));
}

static void open_ends(void) {
    qps = calloc(MANY, sizeof *qps);
    nic = (struct nic){0};
    CHECK_EQ(ends_open(&ends, &nic, NULL), 0);
}

static void close_ends(void) {
    ends_close(&ends);
    free(qps);
}

/* Room is made as queue pairs get their streams, wherever in the ring the first event is. */
static void none_is_lost_of_as_many_as_there_are(void) {
    for (uint32_t taken = 0; taken < 20; taken++) {
        check_note("%u taken", taken);
        open_ends();
        for (uint32_t i = 0; i < MANY; i++) {
            CHECK_EQ(ends_reserve(&ends, i + 1), 0);
            begin_and_end(i);
            if (i < taken)
                want(i / 2, i % 2 ? RNIC_STREAM_FIN : RNIC_STREAM_READY);
        }
        for (uint32_t i = taken; i < 2 * MANY; i++)
            want(i / 2, i % 2 ? RNIC_STREAM_FIN : RNIC_STREAM_READY);
        want_none();
        close_ends();
    }
}

/* A queue pair that begins anew, or goes, takes its events along: there are never more than two of each. */
static void who_begins_anew_needs_no_more_room(void) {
    enum { FEW = 8 };
    open_ends();
    CHECK_EQ(ends_reserve(&ends, FEW), 0);
    for (uint32_t i = 0; i < FEW; i++)
        begin_and_end(i);
    for (uint32_t lap = 0; lap < 5; lap++) {
        for (uint32_t i = 0; i < FEW; i++) {
            ends_forget(&ends, i);
            CHECK_EQ(ends_reserve(&ends, FEW), 0);
            begin_and_end(i);
        }
    }
    for (uint32_t i = 0; i < FEW; i++) {
        want(i, RNIC_STREAM_READY);
        want(i, RNIC_STREAM_FIN);
    }
    want_none();
    begin_and_end(0);
    ends_forget(&ends, 0);
    want_none();
    close_ends();
}

int main(void) {
    RUN(none_is_lost_of_as_many_as_there_are);
    RUN(who_begins_anew_needs_no_more_room);
    return check_done();
}
