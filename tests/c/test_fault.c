/* SPDX-License-Identifier: Apache-2.0
 *
 * link/fault.c by itself: what each fault does to a stream of numbered packets, exactly.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "check.h"
#include "link/fault.h"
#include "scarce.h"

#define MANY 100000

static struct fault fault;
static struct rnic_counters counters;
static struct way way, leaves; /* as it leaves */

static struct { /* what has come out */
    uint32_t number[4 * MANY];
    uint32_t n, flipped;
    uint64_t now, at[4 * MANY];
} out;

static void emit(struct link *link, const struct way *to, const uint8_t *bytes, uint32_t length) {
    CHECK(link == leaves.link && !memcmp(to, &leaves, sizeof leaves));
    CHECK_EQ(length, 20);
    uint32_t bits = 0;
    for (int i = 8; i < 20; i++)
        bits += (uint32_t)__builtin_popcount(bytes[i] ^ (uint8_t)i);
    out.flipped += bits;
    out.at[out.n] = out.now;
    out.number[out.n++] = get_be32(bytes + 4);
}

static const struct link_ops ops = {.emit = emit};
static struct link wire = {.ops = &ops};

static void start(const struct rnic_fault *cfg) {
    way.link = &wire;
    memset(&counters, 0, sizeof counters);
    out.n = out.flipped = 0;
    out.now = 1000;
    leaves = way;
    fault_set(&fault, cfg);
}

static void push(uint8_t opcode, uint32_t number) {
    uint8_t bytes[20] = {opcode};
    put_be32(bytes + 4, number);
    for (int i = 8; i < 20; i++)
        bytes[i] = (uint8_t)i;
    fault_send(&fault, &counters, &way, bytes, sizeof bytes, out.now);
}

static void stream(uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        push(4, i);
}

static void end(void) {
    fault_set(&fault, NULL);
    CHECK(!fault.held && !fault.on);
}

static int packets;

static void count_packets(struct link *link, const struct way *to, const uint8_t *bytes, uint32_t length) {
    (void)link, (void)to, (void)bytes, (void)length;
    packets++;
}

static const struct link_ops counting_ops = {.emit = count_packets};

static void near(uint64_t got, uint64_t want) { CHECK(got > want - want / 10 && got < want + want / 10); }

#define COUNT_OF(name) counters.value[RNIC_CNT_##name]

static void without_faults_everything_passes(void) {
    start(&(struct rnic_fault){0});
    stream(1000);
    CHECK_EQ(out.n, 1000);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ(out.number[i], i);
    end();
}

static void loss_has_its_rate(void) {
    start(&(struct rnic_fault){.seed = 1, .loss = 50000});
    stream(MANY);
    near(COUNT_OF(fault_lost), MANY / 20);
    CHECK_EQ(out.n + COUNT_OF(fault_lost), MANY);
    end();
    start(&(struct rnic_fault){.seed = 1, .loss = 1000000});
    stream(1000);
    CHECK_EQ(out.n, 0);
    end();
}

static void a_seed_repeats_a_run(void) {
    static uint32_t first[4 * MANY];
    const struct rnic_fault cfg = {.seed = 7, .loss = 100000, .duplicate = 100000, .reorder = 100000, .reorder_gap = 3};
    start(&cfg);
    stream(10000);
    uint32_t n = out.n;
    memcpy(first, out.number, n * sizeof *first);
    end();
    start(&cfg);
    stream(10000);
    CHECK_EQ(out.n, n);
    CHECK(!memcmp(first, out.number, n * sizeof *first));
    end();
    struct rnic_fault other = cfg;
    other.seed++;
    start(&other);
    stream(10000);
    CHECK(out.n != n || memcmp(first, out.number, n * sizeof *first));
    end();
}

static void duplicates_come_at_once(void) {
    start(&(struct rnic_fault){.seed = 3, .duplicate = 200000});
    stream(MANY);
    near(COUNT_OF(fault_duplicated), MANY / 5);
    CHECK_EQ(out.n, MANY + COUNT_OF(fault_duplicated));
    for (uint32_t i = 1; i < out.n; i++)
        CHECK(out.number[i] - out.number[i - 1] <= 1);
    end();
}

static void a_reordered_packet_leaves_behind_so_many_others(void) {
    for (uint32_t gap = 0; gap < 5; gap++) {
        start(&(struct rnic_fault){.seed = 4, .reorder = 10000, .reorder_gap = gap});
        stream(MANY);
        near(COUNT_OF(fault_reordered), MANY / 100);
        uint32_t held = 0;
        for (const struct held_packet *h = fault.held; h; h = h->next)
            held++;
        CHECK_EQ(out.n + held, MANY);
        uint32_t exact = 0;
        for (uint32_t i = 1; i + 1 < out.n; i++) /* n comes after n + gap (alone) */
            exact += out.number[i] + (gap ? gap : 1) == out.number[i - 1];
        CHECK(exact > COUNT_OF(fault_reordered) * 8 / 10);
        end();
    }
    /* nothing follows: it leaves by time */
    start(&(struct rnic_fault){.reorder = 1000000});
    push(4, 1);
    CHECK_EQ(out.n, 0);
    uint64_t due = fault_deadline(&fault);
    CHECK(due > out.now && due <= out.now + 10000000);
    fault_release(&fault, due - 1);
    CHECK_EQ(out.n, 0);
    fault_release(&fault, due);
    CHECK_EQ(out.n, 1);
    CHECK(fault_deadline(&fault) == UINT64_MAX);
    end();
}

static void a_delayed_packet_leaves_after_its_time(void) {
    start(&(struct rnic_fault){.seed = 5, .delay = 100000, .delay_ns = 500});
    for (uint32_t i = 0; i < MANY + 50; i++) {
        if (i < MANY)
            push(4, i);
        out.now += 10;
        fault_release(&fault, out.now);
    }
    near(COUNT_OF(fault_delayed), MANY / 10);
    CHECK_EQ(out.n, MANY);
    uint32_t late = 0;
    for (uint32_t i = 0; i < out.n; i++) {
        uint64_t took = out.at[i] - (1000 + 10ull * out.number[i]);
        CHECK(took == 0 || took == 500);
        late += took == 500;
    }
    CHECK_EQ(late, COUNT_OF(fault_delayed));
    end();
}

/* What cannot be held back passes. */
static void without_memory_nothing_is_delayed_or_reordered(void) {
    for (int delays = 0; delays < 2; delays++) {
        struct rnic_fault cfg = {.seed = 1, .delay_ns = 5};
        *(delays ? &cfg.delay : &cfg.reorder) = 1000000;
        start(&cfg);
        without_memory = true;
        stream(10);
        without_memory = false;
        CHECK_EQ(out.n, 10);
        CHECK_EQ(COUNT_OF(fault_delayed) + COUNT_OF(fault_reordered), 0);
        end();
    }
}

static void a_flip_is_one_bit(void) {
    start(&(struct rnic_fault){.seed = 6, .flip = 100000});
    stream(MANY);
    near(COUNT_OF(fault_flipped), MANY / 10);
    CHECK_EQ(out.n, MANY);
    near(out.flipped, MANY / 10 * 12 / 20); /* those in the 12 bytes that emit() looks at */
    end();
}

/* No ICRC would tell of it there: so the packet is lost, whatever its length, and those that wait for one go. */
static void what_is_flipped_in_shared_memory_is_lost(void) {
    static uint8_t longest[8193] = {4};
    static struct link lane = {.ops = &counting_ops, .bare = true}, counting = {.ops = &counting_ops};
    start(&(struct rnic_fault){.reorder = 1000000});
    push(4, 1);
    fault.cfg = (struct rnic_fault){.flip = 1000000};
    way.link = &lane;
    push(4, 2);
    CHECK_EQ(COUNT_OF(fault_flipped), 1);
    CHECK_EQ(out.n, 1);
    CHECK_EQ(out.number[0], 1);
    fault_send(&fault, &counters, &way, longest, sizeof longest, out.now);
    CHECK_EQ(COUNT_OF(fault_flipped), 2);
    CHECK_EQ(packets, 0);
    way.link = &counting; /* on a wire this is more than any packet has */
    fault_send(&fault, &counters, &way, longest, sizeof longest, out.now);
    CHECK_EQ(COUNT_OF(fault_flipped), 2);
    CHECK_EQ(packets, 1);
    fault_send(&fault, &counters, &way, longest, sizeof longest - 1, out.now);
    CHECK_EQ(COUNT_OF(fault_flipped), 3);
    CHECK_EQ(packets, 2);
    end();
}

/* As a congested router does it, to packets that say that their sender would slow down. */
static void a_mark_is_put_where_it_may_be(void) {
    static const uint8_t classes[][2] = {{0, 0}, {1, 1}, {2, 3}, {3, 3}, {0x68, 0x68}, {0x6A, 0x6B}, {0x6B, 0x6B}};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        for (uint32_t marks = 0; marks < 2; marks++) {
            way.traffic_class = classes[i][0];
            start(&(struct rnic_fault){.seed = 1, .loss = 1, .mark = marks * 1000000});
            leaves.traffic_class = classes[i][marks];
            stream(10);
            CHECK_EQ(out.n, 10);
            CHECK_EQ(COUNT_OF(fault_marked), leaves.traffic_class != way.traffic_class ? 10 : 0);
            end();
        }
    }
    way.traffic_class = 0;
}

static void rules_lose_the_nth_of_an_opcode(void) {
    struct rnic_fault cfg = {.seed = 1};
    cfg.lose[0].opcode = 17;
    cfg.lose[0].nth = 3;
    cfg.lose[1].opcode = -1;
    cfg.lose[1].nth = 10;
    cfg.lose[1].count = 2;
    start(&cfg);
    for (uint32_t i = 0; i < 20; i++)
        push(i % 2 ? 17 : 4, i); /* the third 17 is number 5; the tenth and eleventh of all are 9 and 10 */
    CHECK_EQ(COUNT_OF(fault_lost), 3);
    CHECK_EQ(out.n, 17);
    for (uint32_t i = 0; i < out.n; i++)
        CHECK(out.number[i] != 5 && out.number[i] != 9 && out.number[i] != 10);
    end();
}

static bool leads_to(const struct way *w, const void *slot) { return w->dst_slot == *(const uint32_t *)slot; }

static bool leads_by(const struct way *w, const void *link) { return w->link == link; }

static void what_is_held_goes_with_its_port(void) {
    const uint32_t gone = 1, other = 2;
    start(&(struct rnic_fault){.delay = 1000000, .delay_ns = 5});
    for (uint32_t i = 0; i < 10; i++) {
        way.dst_slot = i % 2 ? gone : other;
        push(4, i);
    }
    fault_forget(&fault, leads_to, &gone);
    way.dst_slot = other;
    leaves = way;
    fault_release(&fault, out.now + 5);
    CHECK_EQ(out.n, 5);
    for (uint32_t i = 0; i < 5; i++)
        CHECK_EQ(out.number[i], 2 * i);
    way.dst_slot = 0;
    end();
}

static void and_with_its_way_in_shared_memory(void) {
    struct link lanes[2] = {{.ops = &ops, .bare = true}, {.ops = &ops, .bare = true}};
    start(&(struct rnic_fault){.delay = 1000000, .delay_ns = 5});
    for (uint32_t i = 0; i < 10; i++) {
        way.link = &lanes[i % 2];
        push(4, i);
    }
    fault_forget(&fault, leads_by, &lanes[0]);
    leaves = way;
    fault_release(&fault, out.now + 5);
    CHECK_EQ(out.n, 5);
    for (uint32_t i = 0; i < 5; i++)
        CHECK_EQ(out.number[i], 2 * i + 1);
    end();
}

int main(void) {
    RUN(without_faults_everything_passes);
    RUN(loss_has_its_rate);
    RUN(a_seed_repeats_a_run);
    RUN(duplicates_come_at_once);
    RUN(a_reordered_packet_leaves_behind_so_many_others);
    RUN(a_delayed_packet_leaves_after_its_time);
    RUN(without_memory_nothing_is_delayed_or_reordered);
    RUN(a_flip_is_one_bit);
    RUN(what_is_flipped_in_shared_memory_is_lost);
    RUN(a_mark_is_put_where_it_may_be);
    RUN(rules_lose_the_nth_of_an_opcode);
    RUN(what_is_held_goes_with_its_port);
    RUN(and_with_its_way_in_shared_memory);
    return check_done();
}
