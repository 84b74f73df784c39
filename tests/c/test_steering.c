/* SPDX-License-Identifier: Apache-2.0
 *
 * link/udp/steering.c and link/udp/port.c: what members of a group say to each other when they come, go, and stop.
 */
#include "link/udp/steering.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "group.h"
#include "names/abstract.h"
#include "names/slotmsg.h"

/* In the C library's place. */
ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t n) {
    return group_sendto(fd, data, length, flags, to, n);
}

ssize_t getrandom(void *to, size_t n, unsigned flags) { return group_getrandom(to, n, flags); }

/* ---------------------------------------------------------------- who comes, goes, and stops */

static void each_of_twelve_is_reached(void) {
    group_of(12);
    group_all_are_reached();
    CHECK_EQ(group_strays(), 0);
    group_end();
}

static void nine_stopped_ones_ahead_do_not_make_a_newcomer_deaf(void) {
    group_of(12);
    group_stop(0, 9);
    struct member *newcomer = group_join();
    group_run(5000 * MS);
    CHECK(port_settled(&newcomer->port));
    group_all_are_reached();
    group_end();
}

static void nine_stopped_ones_without_a_program_do_not_either(void) {
    group_begin();
    for (int i = 0; i < 9; i++)
        group_join();
    group_stop(0, 9);
    struct member *newcomer = group_join();
    group_run(5000 * MS);
    CHECK(port_settled(&newcomer->port));
    CHECK(group_is_reached(newcomer));
    group_end();
}

static void the_others_go_on_when_one_is_killed(void) {
    group_of(4);
    group_kill(&group_members[1]);
    for (int i = 0; i < SENDERS; i++)
        group_send(i, group_members[3].slot.number); /* it has moved */
    group_run(1000 * MS);
    group_all_are_reached();
    group_end();
}

/* ---------------------------------------------------------------- word by word */

static void one_that_is_alone_looks_twice_as_there_was_no_program(void) {
    group_begin();
    group_listen_in(false);
    struct member *m = group_join();
    CHECK_EQ(port_deadline(&m->port), group_now);
    group_run(10000 * MS);
    group_has_said("0 J0 P0-7 P0-7 P1023 P0-1 250 J0 253 P1023 P0-7 P0-1");
    group_order(m, "0");
    group_map_is_whole(m);
    CHECK_EQ(port_deadline(&m->port), NEVER);
    CHECK_EQ(m->port.remaps, 1);
    group_end();
}

static void an_arrival_costs_one_look_behind_the_last(void) {
    group_of(3);
    group_listen_in(false);
    group_join();
    group_run(10000 * MS);
    group_has_said("0 J0 3 P4-10 P3-4 P1023 P0-3 253 J0 256 P4 P1023 P3");
    group_order(&group_members[0], "0 1 2 3");
    group_map_is_whole(&group_members[0]);
    CHECK_EQ(group_next_deadline(), NEVER);
    group_end();
}

static void arrivals_together_cost_one_look(void) {
    group_of(1);
    group_listen_in(false);
    for (int i = 0; i < 12; i++)
        group_join();
    group_run(10000 * MS);
    group_has_said("0 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 J0 3 P2-8 P1 P9-16 P1023 P0-6 4 P7-13 253 J0 J0 J0 J0 J0 J0 J0 "
                   "J0 J0 J0 J0 J0 256 P1023 P1-7 257 P8-13");
    group_order(&group_members[0], "0 1 2 3 4 5 6 7 8 9 10 11 12");
    group_map_is_whole(&group_members[0]);
    group_end();
}

static void a_second_slot_is_asked_for_where_its_member_is(void) {
    group_of(3);
    struct member *m = &group_members[1];
    struct rnic_err err;
    CHECK_EQ(slot_claim(&m->second, &err), 0);
    group_listen_in(false);
    CHECK_EQ(port_add_slot(&m->port, m->second.number), 0);
    CHECK_EQ(port_deadline(&m->port), 0);
    group_run(10000 * MS);
    group_has_said("0 J0 3 P1023 P1-3 253 J0 256 P1023 P1-3");
    group_map_is_whole(&group_members[0]);
    CHECK(group_slot_is_reached(m, m->second.number));
    for (int i = 2; i < STEERING_SLOTS; i++)
        CHECK_EQ(port_add_slot(&m->port, m->second.number), 0);
    CHECK_EQ(port_add_slot(&m->port, 0), -ENOSPC);
    group_end();
}

/* From index 0 on, however far it had come, and again soon: a datagram may be lost. */
static void whoever_claims_another_slot_while_it_asks_begins_again(void) {
    group_of(3);
    struct member *m = &group_members[2];
    CHECK_EQ(slot_claim(&m->second, NULL), 0);
    CHECK_EQ(port_add_slot(&m->port, m->second.number), 0);
    group_stop(0, 2);
    group_listen_in(true);
    group_run(400 * MS);
    CHECK_EQ(port_add_slot(&m->port, m->second.number), 0);
    group_run(400 * MS);
    group_has_said("0 J0 30 J0 330 J1 400 J0 430 J0 730 J1");
    group_end();
}

static void who_leaves_says_so_and_the_last_takes_the_place(void) {
    group_of(4);
    group_listen_in(false);
    group_close(&group_members[1]);
    group_run(10000 * MS);
    group_has_said("0 L0");
    group_order(&group_members[0], "0 3 2");
    group_map_is_whole(&group_members[0]);
    group_all_are_reached();
    CHECK_EQ(group_strays(), 0);
    group_end();
}

/* A packet for one comes to another. */
static void stray(struct member *at, const struct member *to) {
    uint8_t data[64] = {4};
    uint32_t qpn = to->slot.number << QPN_INDEX_BITS | 5;
    data[5] = (uint8_t)(qpn >> 16), data[6] = (uint8_t)(qpn >> 8), data[7] = (uint8_t)qpn;
    CHECK_EQ(port_forward(&at->port, to->slot.number, &(struct slot_packet){.src = group_addr, .length = 64}, data,
                          group_now),
             0);
}

/* As the port of a program that has closed what it reads from may have it. */
static void take_descriptor_0(struct member *m) {
    int old = m->port.rx_fd;
    CHECK_EQ(m->port.tx_fd, old);
    CHECK_EQ(dup2(old, 0), 0);
    close(old);
    m->port.rx_fd = m->port.tx_fd = 0;
}

/* Another user's process asks whether rnic has the port. */
static bool answers_as_owner(struct member *m) {
    struct slotmsg query = {
        .magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = SLOTMSG_OWNER_QUERY, .dst = m->port.addr};
    struct abstract_name asker, to;
    abstract_name(&asker, "rnic/test/query/%d", (int)getpid());
    abstract_name(&to, SLOT_NAME, m->slot.number);
    int fd = abstract_open(&asker);
    CHECK(fd >= 0);
    CHECK_EQ(sendto(fd, &query, sizeof query, 0, (const struct sockaddr *)&to.un, to.length), (ssize_t)sizeof query);
    group_read();
    bool answered =
        recv(fd, &query, sizeof query, MSG_DONTWAIT) == (ssize_t)sizeof query && query.type == SLOTMSG_OWNER_ANSWER;
    close(fd);
    return answered;
}

static void who_has_descriptor_0_is_one_as_any_other(void) {
    int input = dup(0), shown = 0;
    socklen_t n = sizeof shown;
    group_of(3);
    struct sockaddr_in6 elsewhere = group_addr; /* 192.0.0.1, which is nobody's */
    struct port none;
    elsewhere.sin6_addr.s6_addr[12] = 192;
    close(0);
    CHECK_EQ(port_open(&none, &elsewhere, group_device, &group_members[0].slot, 0, group_now, NULL), -EADDRNOTAVAIL);
    CHECK(fcntl(0, F_GETFD) < 0);
    CHECK_EQ(dup2(input, 0), 0);
    struct member *m = group_join();
    take_descriptor_0(m);
    CHECK(!port_settled(&m->port));
    CHECK(answers_as_owner(m));
    port_show_headers(&m->port, true);
    CHECK_EQ(getsockopt(0, IPPROTO_IP, IP_RECVTTL, &shown, &n), 0);
    CHECK_EQ(shown, 1);
    group_run(1000 * MS);
    group_order(&group_members[0], "0 1 2 3");
    CHECK(port_settled(&m->port));
    group_close(&group_members[0]); /* it is the first now */
    group_falls_to = 3;
    group_run(1000 * MS);
    group_join();
    group_run(1000 * MS);
    group_order(m, "3 1 2 4");
    group_listen_in(false);
    group_close(m);
    group_run(1000 * MS);
    group_has_said("");
    group_falls_to = 1;
    group_all_are_reached();
    CHECK_EQ(dup2(input, 0), 0);
    m = group_join();
    take_descriptor_0(m);
    group_run(1000 * MS);
    group_listen_in(false);
    stray(m, &group_members[1]);
    group_run(1000 * MS);
    CHECK(group_has_asked("0 M0"));
    group_listen_in(false);
    group_close(m);
    group_run(1000 * MS);
    group_has_said("0 L0");
    dup2(input, 0);
    close(input);
    group_end();
}

static void a_steward_that_leaves_attaches_what_will_be(void) {
    group_of(4);
    group_listen_in(false);
    group_close(&group_members[0]);
    group_falls_to = 1;
    group_run(10000 * MS);
    group_has_said("");
    group_all_are_reached();
    CHECK_EQ(group_strays(), 0);
    group_join();
    group_run(10000 * MS);
    group_has_said("10000 J0 P0-7 P1023 P0-4 10250 J0 10253 P1023 P3-4");
    group_order(&group_members[3], "3 1 2 4");
    group_map_is_whole(&group_members[3]);
    group_end();
}

/* A steward that has heard a newcomer, and goes before it has looked. */
static void newcomer_after(void (*goes)(struct member *)) {
    group_of(1);
    struct member *newcomer = group_join();
    group_run(1 * MS);
    CHECK(!port_settled(&newcomer->port));
    goes(&group_members[0]);
    group_falls_to = 1;
    group_run(100 * MS);
    CHECK(port_settled(&newcomer->port));
    group_end();
}

static void a_newcomer_that_the_steward_has_heard_is_found_soon_when_that_goes(void) {
    newcomer_after(group_close);
    newcomer_after(group_kill);
}

static void a_packet_that_went_astray_is_told_of_and_looked_into(void) {
    group_of(5);
    group_kill(&group_members[1]);
    group_listen_in(false);
    stray(&group_members[2], &group_members[4]);
    group_run(10000 * MS);
    group_has_said("0 M0 3 P1023 P4-7 P0-5");
    group_order(&group_members[0], "0 4 2 3");
    group_map_is_whole(&group_members[0]);
    group_all_are_reached();
    group_end();
}

static void a_steward_tells_itself_of_a_miss_once(void) {
    group_of(5);
    group_listen_in(true);
    stray(&group_members[0], &group_members[4]);
    group_run(10000 * MS);
    group_has_said("0 M0");
    group_end();
}

static void a_stopped_steward_is_replaced_by_the_next(void) {
    group_of(3);
    group_stop(0, 1);
    group_listen_in(false);
    group_join();
    group_run(600 * MS);
    group_has_said("0 J0 30 J0 330 J1 P0-7 331 P0 P4-7 333 P0 P4-7 337 P0 P4-7 345 P0 P4-7 360 J0 361 P8-15 362 P8-15 "
                   "364 P1023 P0-4 365 P1023 P0 P4 367 P1023 P0 P4 371 P1023 P0 P4 379 P1023 P0 P4");
    group_order(&group_members[1], "-? 1 2 3");
    group_map_is_whole(&group_members[1]);
    group_end();
}

static void a_stopped_member_keeps_its_place_and_is_asked_after(void) {
    group_of(4);
    group_stop(2, 3);
    group_join();
    group_run(5000 * MS);
    group_order(&group_members[0], "0 1 -2 3 4");
    group_map_is_whole(&group_members[0]);
    CHECK(group_members[4].port.steering->watching);
    group_members[2].stopped = false;
    group_run(10000 * MS);
    group_order(&group_members[0], "0 1 2 3 4");
    CHECK_EQ(group_next_deadline(), NEVER);
    group_end();
}

/* What falls to the stopped one tells nobody, so the newcomer has to know that there is one, though a packet that went
 * astray was looked into ahead of those that requests are spread over. */
static void a_newcomer_knows_of_a_stopped_one_when_the_steward_is_killed(void) {
    group_of(2);
    group_join();
    group_run(30 * MS);
    group_stop(1, 2);
    struct member *m = group_join();
    group_run(30 * MS);
    stray(&group_members[2], m);
    group_run(5000 * MS);
    group_order(&group_members[0], "0 -1 2 3");
    CHECK(m->port.steering->watching);
    group_kill(&group_members[0]); /* the newcomer takes its place */
    group_falls_to = 1;
    group_run(5000 * MS);
    CHECK(group_is_reached(m));
    group_end();
}

/* Each of two that nobody heard is a steward of its own; the first knows nothing of the second, which came later. */
static void two_that_see_to_it_themselves_do_not_undo_each_other(void) {
    group_of(12);
    group_stop(0, 9);
    stray(&group_members[9], &group_members[10]);
    group_run(4000 * MS);
    group_order(&group_members[9], "-? -? -? -? -? -? -? -? -? 9 10 11");
    struct member *m = group_join();
    group_run(2600 * MS);
    group_order(m, "-? -? -? -? -? -? -? -? -? 9 10 11 12");
    for (int i = 0; i < 40; i++) {
        group_run(50 * MS);
        CHECK(group_is_reached(m));
    }
    group_order(&group_members[9], "-? -? -? -? -? -? -? -? -? 9 10 11 12");
    group_end();
}

static void who_is_not_heard_asks_eight_and_then_sees_to_it(void) {
    group_of(12);
    group_stop(0, 9);
    group_listen_in(false);
    group_join();
    group_run(2700 * MS);
    group_has_said("0 J0 30 J0 330 J1 630 J2 930 J3 1230 J4 1530 J5 1830 J6 2130 J7 2430 P0-7 2431 P0-7 2433 P0-7 2437 "
                   "P0-7 2445 P0-7 2460 J0 2461 P0-7 2462 P0-7 2464 P0-7 2468 P0-7 2476 P0-7 2490 J0 2492 P8-15 2493 "
                   "P8 P13-15 2495 P8 P13-15 2499 P8 P13-15 2507 P8 P13-15 2523 P16-23 2524 P16-23 2526 P1023 P0-6 "
                   "2527 P7-13 P1023 2528 P0-7 2530 P8 P13 P1023 P0-4 2534 P5-8 P13 P1023 P0-1 2542 P2-8 P13");
    group_order(&group_members[12], "-? -? -? -? -? -? -? -? -? 9 10 11 12");
    group_end();
}

static void what_is_beyond_the_end_may_fall_to_the_last(void) {
    group_of(3);
    group_falls_to = 2;
    group_listen_in(false);
    group_join();
    group_falls_to = 3;
    group_run(10000 * MS);
    group_has_said("0 J0 3 P4-10 P3-4 P1023 P0-3 253 J0 256 P4 P1023 P3-7 P0-3");
    group_order(&group_members[0], "0 1 2 3");
    group_end();
}

static void a_stopped_member_keeps_all_its_slots(void) {
    group_of(4);
    CHECK_EQ(slot_claim(&group_members[2].second, NULL), 0);
    CHECK_EQ(port_add_slot(&group_members[2].port, group_members[2].second.number), 0);
    group_run(1000 * MS);
    group_stop(2, 3);
    group_kill(&group_members[1]); /* the last one takes its place */
    group_listen_in(false);
    stray(&group_members[3], &group_members[2]);
    group_run(2000 * MS);
    group_has_said("0 M0 3 P1023 P2-4 4 P2 6 P2 10 P2 18 P2 34 P3-7 P0-2 35 P2 37 P2 41 P2 49 P2 1065 P3 P1023 P0-2 "
                   "1066 P2 1068 P2 1072 P2 1080 P2");
    group_order(&group_members[0], "0 3 -2");
    group_map_is_whole(&group_members[0]);
    group_members[2].stopped = false;
    group_run(10000 * MS);
    group_order(&group_members[0], "0 3 2");
    group_map_is_whole(&group_members[0]);
    CHECK_EQ(group_next_deadline(), NEVER);
    group_end();
}

static void a_stopped_member_that_takes_the_place_of_another_stays_a_stopped_one(void) {
    group_of(3);
    group_stop(2, 3);
    stray(&group_members[1], &group_members[2]);
    group_run(200 * MS);
    group_order(&group_members[0], "0 1 -2");
    group_close(&group_members[1]);
    group_read();
    group_order(&group_members[0], "0 -2");
    group_map_is_whole(&group_members[0]);
    group_join();
    group_run(200 * MS);
    group_order(&group_members[0], "0 -2 3");
    group_end();
}

static void a_stopped_member_that_has_moved_is_found_again(void) {
    group_of(5);
    group_stop(4, 5);
    group_kill(&group_members[1]);
    group_listen_in(false);
    stray(&group_members[2], &group_members[4]);
    group_run(3000 * MS);
    group_has_said("0 M0 3 P1023 P4-7 P0-5 4 P1 6 P1 10 P1 18 P1 1034 P2-4 P1023 P0-1 1035 P1 1037 P1 1041 P1 1049 P1 "
                   "2034 P2-4 P1023 P0-1 2035 P1 2037 P1 2041 P1 2049 P1");
    group_order(&group_members[0], "0 -1 2 3");
    group_members[4].stopped = false;
    group_listen_in(false);
    group_run(3000 * MS);
    group_has_said("34 P2-4 P1023 P0-7 P0-1");
    group_order(&group_members[0], "0 4 2 3");
    group_map_is_whole(&group_members[0]);
    group_end();
}

static void the_end_may_fall_to_a_stopped_member(void) {
    group_of(12);
    group_falls_to = 5;
    group_stop(5, 6);
    group_listen_in(false);
    group_join();
    group_run(400 * MS);
    group_has_said("0 J0 3 P13-19 P12 4 P13-19 6 P13-19 10 P13-19 18 P13-19 30 J0 34 P20-27 35 P20-27 37 P1023 P0-6 38 "
                   "P7-13 P1023 39 P5 P13 P1023 41 P5 P13 P1023 45 P5 P13 P1023 53 P5 P13 P1023 287 J0 290 P12-13 "
                   "P1023 291 P13 P1023 293 P13 P1023 297 P13 P1023 305 P13 P1023");
    group_order(&group_members[0], "0 1 2 3 4 -5 6 7 8 9 10 11 12");
    group_map_is_whole(&group_members[0]);
    group_end();
}

static void a_joiner_that_dies_is_looked_for_once(void) {
    group_of(3);
    group_falls_to = 1;
    group_stop(1, 2);
    struct member *m = group_join();
    group_run_timers();
    group_read();
    group_kill(m);
    group_listen_in(false);
    group_run(3000 * MS);
    CHECK(group_has_asked("P1016-1023")); /* it might be behind stopped ones, however many */
    group_order(&group_members[0], "0 -1 2");
    group_map_is_whole(&group_members[0]);
    CHECK_EQ(group_members[0].port.steering->look_interval, 40 * MS);
    group_end();
}

static void a_new_steward_looks_at_every_index(void) {
    group_of(30);
    group_kill(&group_members[0]); /* 29 is the first now */
    group_falls_to = 3;
    group_listen_in(false);
    group_join();
    group_run(2000 * MS);
    group_has_said("0 J0 P0-31 P1023 P0-6 1 P7-14 2 P15 P29-30 250 J0 253 P1023 P29-30");
    group_order(&group_members[29], "29 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 30");
    group_map_is_whole(&group_members[29]);
    group_end();
}

static void later_arrivals_do_not_put_off_the_look(void) {
    group_of(1);
    group_listen_in(false);
    group_join();
    group_run(2 * MS);
    group_join();
    group_run(100 * MS);
    group_has_said("0 J0 2 J0 3 P2-8 P1-3 P1023 P0-1");
    group_order(&group_members[0], "0 1 2");
    group_end();
}

/* Others may come meanwhile, so it waits for them as for the first. */
static void who_comes_during_a_look_is_looked_for_after_it(void) {
    group_of(4);
    group_stop(2, 3);
    group_listen_in(false);
    stray(&group_members[3], &group_members[2]);
    group_run(12 * MS);
    group_join();
    group_run(100 * MS);
    group_has_said("0 M0 3 P1023 P2-4 4 P2 6 P2 10 P2 12 J0 18 P2 37 P4-11 P1023 P0-5 38 P2 40 P2 44 P2 52 P2");
    group_order(&group_members[0], "0 1 -2 3 4");
    group_end();
}

/* Two are enough to see that somebody's program is in place. */
static void a_new_steward_of_two_looks_once(void) {
    group_of(2);
    group_kill(&group_members[0]);
    group_falls_to = 1;
    group_listen_in(false);
    group_join();
    group_run(2000 * MS);
    group_has_said("0 J0 P0-7 P1023 P0-2 250 J0 253 P1023 P1-2");
    group_order(&group_members[1], "1 2");
    group_map_is_whole(&group_members[1]);
    group_end();
}

static void the_same_miss_is_told_of_ever_more_rarely(void) {
    group_of(2);
    struct member *m = &group_members[1];
    uint32_t elsewhere = 0;
    while (elsewhere == m->slot.number || elsewhere == group_members[0].slot.number)
        elsewhere++;
    group_listen_in(true);
    for (int i = 0; i < 700; i++) {
        steering_forwarded(&m->port, elsewhere, group_now);
        group_run(5 * MS);
    }
    group_has_said("0 M0 20 M0 60 M0 140 M0 300 M0 620 M0 1260 M0 1900 M0 2540 M0 3180 M0");
    steering_forwarded(&m->port, elsewhere + 3 < SLOT_COUNT ? elsewhere + 3 : 900, group_now);
    CHECK_EQ(m->port.steering->interval, 20 * MS); /* something new */
    group_end();
}

static void several_misses_are_told_of_one_after_the_other(void) {
    group_of(6);
    group_listen_in(true);
    for (int i = 2; i < 5; i++)
        steering_forwarded(&group_members[1].port, group_members[i].slot.number, group_now);
    CHECK_EQ(port_deadline(&group_members[1].port), group_now);
    group_run(500 * MS);
    group_has_said("0 M0 20 M0 40 M0");
    group_end();
}

static void misses_wait_for_the_welcome(void) {
    group_of(2);
    group_stop(0, 1);
    struct member *m = group_join();
    group_listen_in(true);
    group_run(10 * MS);
    steering_forwarded(&m->port, group_members[1].slot.number, group_now);
    group_run(1000 * MS);
    group_has_said("0 J0 30 J0 330 J1 J0 360 J0 364 M0 394 M0 694 M1 944 J0 974 J0");
    group_end();
}

static void those_that_requests_are_spread_over_are_checked_now_and_then(void) {
    group_of(20);
    group_listen_in(false);
    for (int i = 0; i < 4; i++) {
        group_join();
        group_run(30 * MS);
    }
    group_run(100 * MS);
    group_has_said("0 J0 3 P21-27 P20-21 P1023 P0-5 4 P6-13 5 P14-15 P20 30 J0 33 P21-28 60 J0 63 P29 P22-28 90 J0 93 "
                   "P29-30 P23-28 103 P1023 P0-6 104 P7-14 105 P15 P23-24");
    group_end();
}

static uint32_t silent_ones(void) {
    const struct steering_map *map = &group_members[0].port.steering->map;
    uint32_t n = 0;
    for (uint32_t i = 0; i < SLOT_COUNT / 64; i++)
        n += (uint32_t)__builtin_popcountll(map->silent[i]);
    return n;
}

/* More than can be asked in the time that a stopped one gets. */
static void sixty_that_arrive_together_come_to_rest(void) {
    group_of(1);
    for (int i = 1; i < 60; i++)
        group_join();
    group_run(20000 * MS);
    CHECK_EQ(silent_ones(), 0);
    CHECK_EQ(group_next_deadline(), NEVER);
    group_all_are_reached();
    group_end();
}

static void who_has_not_been_asked_is_not_silent(void) {
    group_of(25);
    for (int i = 0; i < 25; i++)
        group_join();
    group_run(140 * MS);
    group_join(); /* those that requests are spread over are due with the others' own asks */
    group_run(112 * MS);
    group_join();
    uint32_t most = 0;
    for (int i = 0; i < 100; i++) {
        group_run(1 * MS);
        most = silent_ones() > most ? silent_ones() : most;
    }
    CHECK_EQ(most, 0);
    group_end();
}

static void newcomers_do_not_put_off_the_look_at_a_silent_one(void) {
    group_of(3);
    group_join();
    group_run(30 * MS);
    group_stop(1, 2);
    for (int i = 0; i < 10; i++) {
        group_join();
        group_run(450 * MS);
    }
    group_members[1].stopped = false;
    group_run(30000 * MS);
    group_order(&group_members[0], "0 1 2 3 4 5 6 7 8 9 10 11 12 13");
    CHECK_EQ(group_next_deadline(), NEVER);
    group_end();
}

static void a_silent_one_behind_the_first_sixteen_is_asked_again(void) {
    group_of(25);
    group_stop(20, 21);
    stray(&group_members[0], &group_members[20]);
    group_run(3000 * MS);
    CHECK_EQ(silent_ones(), 1);
    group_members[20].stopped = false;
    group_run(10000 * MS);
    CHECK_EQ(silent_ones(), 0);
    CHECK_EQ(group_next_deadline(), NEVER);
    group_end();
}

static void a_slot_that_comes_during_a_look_is_asked_for(void) {
    group_of(4);
    group_stop(2, 3);
    stray(&group_members[1], &group_members[2]);
    group_run(10 * MS);
    struct member *m = &group_members[1];
    CHECK_EQ(slot_claim(&m->second, NULL), 0);
    CHECK_EQ(port_add_slot(&m->port, m->second.number), 0);
    group_run(120 * MS);
    CHECK(!m->port.steering->joining);
    CHECK(group_slot_is_reached(m, m->second.number));
    group_end();
}

int main(void) {
    group_isolate();
    RUN(each_of_twelve_is_reached);
    RUN(nine_stopped_ones_ahead_do_not_make_a_newcomer_deaf);
    RUN(nine_stopped_ones_without_a_program_do_not_either);
    RUN(the_others_go_on_when_one_is_killed);
    RUN(one_that_is_alone_looks_twice_as_there_was_no_program);
    RUN(an_arrival_costs_one_look_behind_the_last);
    RUN(arrivals_together_cost_one_look);
    RUN(a_second_slot_is_asked_for_where_its_member_is);
    RUN(whoever_claims_another_slot_while_it_asks_begins_again);
    RUN(who_leaves_says_so_and_the_last_takes_the_place);
    RUN(who_has_descriptor_0_is_one_as_any_other);
    RUN(a_steward_that_leaves_attaches_what_will_be);
    RUN(a_newcomer_that_the_steward_has_heard_is_found_soon_when_that_goes);
    RUN(a_packet_that_went_astray_is_told_of_and_looked_into);
    RUN(a_steward_tells_itself_of_a_miss_once);
    RUN(a_stopped_steward_is_replaced_by_the_next);
    RUN(a_stopped_member_keeps_its_place_and_is_asked_after);
    RUN(a_newcomer_knows_of_a_stopped_one_when_the_steward_is_killed);
    RUN(two_that_see_to_it_themselves_do_not_undo_each_other);
    RUN(who_is_not_heard_asks_eight_and_then_sees_to_it);
    RUN(what_is_beyond_the_end_may_fall_to_the_last);
    RUN(a_stopped_member_keeps_all_its_slots);
    RUN(a_stopped_member_that_takes_the_place_of_another_stays_a_stopped_one);
    RUN(a_stopped_member_that_has_moved_is_found_again);
    RUN(the_end_may_fall_to_a_stopped_member);
    RUN(a_joiner_that_dies_is_looked_for_once);
    RUN(a_new_steward_looks_at_every_index);
    RUN(later_arrivals_do_not_put_off_the_look);
    RUN(who_comes_during_a_look_is_looked_for_after_it);
    RUN(a_new_steward_of_two_looks_once);
    RUN(the_same_miss_is_told_of_ever_more_rarely);
    RUN(several_misses_are_told_of_one_after_the_other);
    RUN(misses_wait_for_the_welcome);
    RUN(those_that_requests_are_spread_over_are_checked_now_and_then);
    RUN(sixty_that_arrive_together_come_to_rest);
    RUN(who_has_not_been_asked_is_not_silent);
    RUN(newcomers_do_not_put_off_the_look_at_a_silent_one);
    RUN(a_silent_one_behind_the_first_sixteen_is_asked_again);
    RUN(a_slot_that_comes_during_a_look_is_asked_for);
    return check_done();
}
