/* SPDX-License-Identifier: Apache-2.0
 *
 * How many bytes a requester has in flight: the window halves with a loss that an answer shows and is quartered with one
 * that no answer shows, doubles a round trip up to half of what it was, and grows by a packet a round trip from there on.
 */
#include "check.h"
#include "fabric.h"
#include "roce/roce.h"
#include "wire/bth.h"

#define WINDOW (64u << 10)
#define FULL (256u + PACKET_COST) /* what a packet counts for */
#define LEAST (2 * FULL)

static struct pair p;
static int lost; /* PSN of a's to lose once, as a distance from its first; -1: none */

static enum verdict lose_one(void *arg, const struct node *from, uint32_t nth, const uint8_t *bth) {
    (void)arg;
    (void)nth;
    if (from != p.a.node || lost < 0 || bth_psn(bth) != psn_add(0x123456, lost))
        return PASS;
    lost = -1;
    return LOSE;
}

static uint32_t window(void) { return rc_of(p.a.qp)->req.window; }

static void open_and_lose(int psn) {
    pair_open(&p, .mtu = RNIC_MTU_256, .window = WINDOW, .bytes = 1 << 20, .quiet = true);
    lost = psn;
    p.f.judge = lose_one;
}

/* A message that is acknowledged packet by packet, or nearly so. */
static void write_packets(uint32_t n) {
    post_write(&p.a, 1, 0, 0, n * 256);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
}

static void without_a_loss_the_window_stays_open(void) {
    open_and_lose(-1);
    write_packets(1000);
    CHECK_EQ(window(), WINDOW);
    pair_close(&p);
}

static void a_loss_that_a_nak_shows_halves_the_window(void) {
    open_and_lose(0);
    post_write(&p.a, 1, 0, 0, 8 * 256);
    while (!COUNTER(&p.a, nak_seq_received))
        CHECK(fabric_step(&p.f, p.f.now + SEC));
    CHECK_EQ(window(), WINDOW / 2);
    CHECK_EQ(rc_of(p.a.qp)->req.threshold, WINDOW / 2);
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    CHECK_EQ(COUNTER(&p.a, timeouts), 0);
    pair_close(&p);
}

static void a_loss_that_nothing_shows_quarters_the_window(void) {
    open_and_lose(-1);
    fabric_silence(p.a.node);
    post_write(&p.a, 1, 0, 0, 10);
    while (!COUNTER(&p.a, timeouts))
        CHECK(fabric_step(&p.f, p.f.now + SEC));
    CHECK_EQ(window(), WINDOW / 4);
    p.f.judge = NULL;
    fabric_settle(&p.f);
    WANT(p.a.send_cq, 1, SUCCESS);
    pair_close(&p);
}

static void above_half_of_what_it_was_the_window_grows_by_a_packet_a_round_trip(void) {
    open_and_lose(0);
    write_packets(8);
    uint32_t before = window(), packets = before / FULL;
    CHECK(before >= WINDOW / 2 && before < WINDOW / 2 + 9 * FULL);
    write_packets(packets); /* a window full */
    CHECK(window() > before);
    CHECK(window() <= before + 2 * FULL);
    for (int i = 0; i < 4; i++)
        write_packets(4000);
    CHECK_EQ(window(), WINDOW);
    pair_close(&p);
}

static void below_it_the_window_doubles(void) {
    open_and_lose(-1);
    rc_of(p.a.qp)->req.window = 4 * FULL; /* as after losses one after the other */
    write_packets(4);
    CHECK(window() >= 8 * FULL);
    write_packets(8);
    CHECK(window() >= 16 * FULL);
    CHECK(window() < WINDOW);
    pair_close(&p);
}

int main(void) {
    RUN(without_a_loss_the_window_stays_open);
    RUN(a_loss_that_a_nak_shows_halves_the_window);
    RUN(a_loss_that_nothing_shows_quarters_the_window);
    RUN(above_half_of_what_it_was_the_window_grows_by_a_packet_a_round_trip);
    RUN(below_it_the_window_doubles);
    return check_done();
}
