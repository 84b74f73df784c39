/* SPDX-License-Identifier: Apache-2.0
 *
 * link/udp/steering.c: what a member of a group does not believe, and strangers on the wire.
 */
#include "link/udp/steering.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/address.h"
#include "check.h"
#include "group.h"
#include "names/abstract.h"
#include "names/slotmsg.h"

/* In the C library's place. */
ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t n) {
    return group_sendto(fd, data, length, flags, to, n);
}

/* ---------------------------------------------------------------- what is not believed */

/* As in steering.c. */
struct probe {
    uint8_t opcode, kind, index[2];
    uint32_t magic;
    uint16_t version, slot;
    uint32_t about;
    uint64_t nonce;
};

/* Has it been looked into? */
static bool counts(struct member *m, const struct probe *probe, uint32_t length, const struct sockaddr_in6 *src) {
    uint32_t before = m->port.steering->credits;
    uint8_t bytes[64] = {0};
    memcpy(bytes, probe, sizeof *probe);
    steering_probe_input(&m->port, bytes, length, src, group_now);
    return m->port.steering->credits == before - 1;
}

static void a_malformed_probe_counts_for_nothing(void) {
    group_of(2);
    struct member *m = &group_members[0];
    struct sockaddr_in6 own = group_addr, wrong;
    own.sin6_port = htons(ROCE_UDP_PORT);
    const struct probe good = {PORT_PROBE_OPCODE, 0, {0, 0}, SLOTMSG_MAGIC, SLOTMSG_VERSION, 3, 0, 1};
    struct probe bad = good;
    CHECK(counts(m, &good, sizeof good, &own));
    CHECK(!counts(m, &good, sizeof good - 1, &own) && !counts(m, &good, sizeof good + 1, &own));
    wrong = own, wrong.sin6_addr.s6_addr[15]++;
    CHECK(!counts(m, &good, sizeof good, &wrong));
    wrong = own, wrong.sin6_port++;
    CHECK(!counts(m, &good, sizeof good, &wrong));
    bad.magic++;
    CHECK(!counts(m, &bad, sizeof bad, &own));
    bad = good, bad.version++;
    CHECK(!counts(m, &bad, sizeof bad, &own));
    bad = good, bad.slot = SLOT_COUNT;
    CHECK(!counts(m, &bad, sizeof bad, &own));
    bad = good, bad.slot = SLOT_COUNT - 1;
    CHECK(counts(m, &bad, sizeof bad, &own));
    bad = good, bad.kind = 4;
    CHECK(!counts(m, &bad, sizeof bad, &own));
    bad = good, bad.kind = 2, bad.about = SLOT_COUNT; /* a MISSED slot that cannot be */
    CHECK(counts(m, &bad, sizeof bad, &own));
    for (uint32_t i = 0; i < SLOT_COUNT / 64; i++)
        CHECK_EQ(m->port.steering->suspects.bits[i], 0);
    group_end();
}

/* By one who is not there, by the second slot of a member, and by the last one who is left. */
static void a_leave_that_means_nobody_changes_nothing(void) {
    for (int n = 1; n <= 3; n += 2) {
        group_of(n);
        struct member *m = &group_members[n - 1];
        CHECK_EQ(slot_claim(&m->second, NULL), 0);
        CHECK_EQ(port_add_slot(&m->port, m->second.number), 0);
        group_run(1000 * MS);
        struct sockaddr_in6 own = group_addr;
        own.sin6_port = htons(ROCE_UDP_PORT);
        uint32_t nobody = 0;
        while (group_members[0].port.steering->map.index_of[nobody] != STEERING_NOBODY)
            nobody++;
        const uint32_t slots[] = {nobody, m->second.number, m->slot.number};
        for (int i = 0; i < (n == 1 ? 3 : 2); i++) {
            const struct probe leave = {PORT_PROBE_OPCODE,  3, {0, 0}, SLOTMSG_MAGIC, SLOTMSG_VERSION,
                                        (uint16_t)slots[i], 0, 1};
            CHECK(counts(&group_members[0], &leave, sizeof leave, &own));
            group_order(&group_members[0], n == 1 ? "0" : "0 1 2");
            group_map_is_whole(&group_members[0]);
        }
        group_end();
    }
}

static void so_many_probes_are_answered_in_20_ms(void) {
    group_of(1);
    struct member *m = &group_members[0];
    struct sockaddr_in6 own = group_addr;
    own.sin6_port = htons(ROCE_UDP_PORT);
    const struct probe probe = {PORT_PROBE_OPCODE, 0, {0, 0}, SLOTMSG_MAGIC, SLOTMSG_VERSION, 3, 0, 1};
    CHECK_EQ(m->port.steering->credits, 256);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 256; i++)
            CHECK(counts(m, &probe, sizeof probe, &own));
        CHECK(!counts(m, &probe, sizeof probe, &own));
        uint64_t refill = port_deadline(&m->port);
        CHECK(refill <= group_now + 20 * MS);
        group_run(20 * MS);
        CHECK_EQ(m->port.steering->credits, 256);
        CHECK_EQ(port_deadline(&m->port), NEVER);
    }
    group_end();
}

/* Who asks it instead of the first has not heard of the first: everything may be different. */
static void looks_at_all_are_ever_further_apart(void) {
    group_of(3);
    struct sockaddr_in6 own = group_addr;
    own.sin6_port = htons(ROCE_UDP_PORT);
    const struct probe join_instead = {
        PORT_PROBE_OPCODE, 1, {0, 1}, SLOTMSG_MAGIC, SLOTMSG_VERSION, (uint16_t)group_members[2].slot.number, 0, 1};
    group_listen_in(false);
    for (int i = 0; i < 800; i++) {
        CHECK(counts(&group_members[0], &join_instead, sizeof join_instead, &own));
        group_run(5 * MS);
    }
    group_has_said("3 P4-7 P0-3 43 P4-7 P0-3 123 P4-7 P0-3 283 P4-7 P0-3 603 P4-7 P0-3 1243 P4-7 P0-3 2243 P4-7 P0-3 "
                   "3243 P4-7 P0-3");
    group_order(&group_members[0], "0 1 2");
    group_end();
}

/* An answer to the look under way: is it taken down? */
static bool answers(struct member *m, uint32_t index, const uint32_t *slots, uint32_t length, uint64_t nonce) {
    struct slotmsg msg = {.type = SLOTMSG_PROBE_ANSWER, .length = length, .nonce = nonce, .index = index};
    uint16_t before = index < SLOT_COUNT ? m->port.steering->answered[index] : 0;
    steering_message(&m->port, &msg, (const uint8_t *)slots, group_now);
    return index < SLOT_COUNT && before == STEERING_NOBODY && m->port.steering->answered[index] != STEERING_NOBODY;
}

static void a_malformed_answer_counts_for_nothing(void) {
    uint32_t slots[STEERING_SLOTS + 1] = {0};
    group_of(1);
    struct member *m = &group_members[0];
    group_stop(0, 1);
    group_join();
    group_run_timers();
    group_members[0].stopped = false;
    group_read();
    group_now += 3 * MS;
    group_run_timers(); /* it looks at the indices 1 to 8, and nobody answers yet */
    uint64_t nonce = m->port.steering->nonce;
    CHECK_EQ(m->port.steering->phase, STEERING_LEARN);
    CHECK(!answers(m, 1, slots, 4, nonce + 1));
    CHECK(!answers(m, 1, slots, 0, nonce));
    CHECK(!answers(m, 1, slots, 5, nonce));
    CHECK(!answers(m, 1, slots, 4 * (STEERING_SLOTS + 1), nonce));
    slots[1] = SLOT_COUNT;
    CHECK(!answers(m, 1, slots, 8, nonce));
    CHECK(!answers(m, 0, slots, 4, nonce) && !answers(m, 9, slots, 4, nonce));
    CHECK(!answers(m, SLOT_COUNT, slots, 4, nonce) && !answers(m, UINT32_MAX, slots, 4, nonce));
    CHECK(answers(m, 8, slots, 4, nonce));
    CHECK_EQ(port_deadline(&m->port), group_now);
    slots[1] = SLOT_COUNT - 1;
    CHECK(answers(m, 1, slots, 4 * STEERING_SLOTS, nonce));
    CHECK_EQ(m->port.steering->found.index_of[SLOT_COUNT - 1], 1);
    slots[0] = 7;
    CHECK(!answers(m, 1, slots, 4, nonce)); /* the first counts */
    CHECK_EQ(m->port.steering->answered[1], 0);
    group_end();
}

/* A message of this user's, so of one that may be shown as this user: everybody whom a user namespace does not map. */
static void tell(const struct member *m, enum slotmsg_type type, uint64_t nonce) {
    struct slotmsg msg = {
        .magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = (uint16_t)type, .nonce = nonce, .dst = group_addr};
    struct iovec iov = {&msg, sizeof msg};
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, m->slot.number);
    CHECK_EQ(abstract_send(&name, &iov, 1), 0);
    group_read();
}

static void who_has_not_seen_the_question_gives_no_answer(void) {
    group_of(1);
    group_stop(0, 1);
    struct member *m = group_join(); /* nobody answers it */
    tell(m, SLOTMSG_WELCOME, 0);
    CHECK(!port_settled(&m->port));
    group_run_timers();
    uint64_t asks = port_deadline(&m->port);
    tell(m, SLOTMSG_HEARD, 0);
    CHECK_EQ(port_deadline(&m->port), asks);
    group_end();
}

/* ---------------------------------------------------------------- a wire, at whose other end anybody may be */

static bool raise_wire(int ctl, struct ifreq *req, struct sockaddr_in6 *own) {
    group_device = (int)if_nametoindex(req->ifr_name);
    struct in6_ifreq set = {.ifr6_addr = own->sin6_addr, .ifr6_prefixlen = 64, .ifr6_ifindex = group_device};
    own->sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&own->sin6_addr) ? (uint32_t)group_device : 0;
    req->ifr_flags = IFF_UP;
    return ioctl(ctl, SIOCSIFFLAGS, req) == 0 && ioctl(ctl, SIOCSIFADDR, &set) == 0;
}

/* A network device with the address, of which the test plays the wire. Its descriptor, or -1: not here. */
static int open_wire(struct sockaddr_in6 *own) {
    struct ifreq req = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC), ctl = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && ctl >= 0 && ioctl(fd, TUNSETIFF, &req) == 0 && raise_wire(ctl, &req, own);
    close(ctl);
    if (!good && fd >= 0)
        close(fd);
    return good ? fd : -1;
}

/* A packet that says it is from the group's own address and port. */
static void forge(int wire, const uint8_t *payload, size_t n) {
    uint8_t packet[128] = {0x60};
    struct ip6_hdr *ip = (struct ip6_hdr *)(void *)packet;
    struct udphdr *udp = (struct udphdr *)(void *)(ip + 1);
    ip->ip6_plen = udp->len = htons((uint16_t)(sizeof *udp + n));
    ip->ip6_nxt = IPPROTO_UDP;
    ip->ip6_hlim = 64;
    ip->ip6_src = ip->ip6_dst = group_addr.sin6_addr;
    udp->source = udp->dest = htons(ROCE_UDP_PORT); /* no checksum: RoCE needs none */
    memcpy(udp + 1, payload, n);
    CHECK_EQ(write(wire, packet, sizeof *ip + sizeof *udp + n), sizeof *ip + sizeof *udp + n);
}

static struct sockaddr_in6 address6(uint8_t first, uint8_t second) {
    return (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = {{{first, second, [15] = 1}}}};
}

/* Two members at an address of a device of ours. Its wire, or -1. */
static int two_with_a_wire(struct sockaddr_in6 own) {
    int wire = open_wire(&own);
    if (wire < 0) {
        printf("# no network device to be had\n");
        return -1;
    }
    group_begin_at(own);
    group_join();
    group_join();
    group_run(1000 * MS);
    group_all_are_reached();
    return wire;
}

static void nobody_on_the_wire_has_a_say_in_the_group(void) {
    int wire = two_with_a_wire(address6(0xFD, 0));
    if (wire < 0)
        return;
    uint32_t before = group_members[0].probes + group_members[1].probes, packets = group_strays();
    for (uint8_t kind = 0; kind < 5; kind++)
        forge(wire, (const uint8_t[32]){PORT_PROBE_OPCODE, kind}, 32);
    uint32_t nobodys = 0;
    while (nobodys == group_members[0].slot.number || nobodys == group_members[1].slot.number)
        nobodys++;
    forge(wire, (const uint8_t[32]){4, [5] = (uint8_t)(nobodys >> 2), (uint8_t)(nobodys << 6)}, 32);
    forge(wire, (const uint8_t[1]){0}, 0);
    group_read();
    CHECK_EQ(group_members[0].probes + group_members[1].probes, before);
    CHECK_EQ(group_members[0].empty + group_members[1].empty, 1);
    CHECK_EQ(group_strays(), packets + 1); /* a packet is as welcome as ever */
    group_end();
    close(wire);
}

static void members_at_a_link_local_address_hear_each_other(void) {
    int wire = two_with_a_wire(address6(0xFE, 0x80));
    if (wire < 0)
        return;
    CHECK(port_settled(&group_members[0].port) && port_settled(&group_members[1].port));
    group_end();
    close(wire);
}

int main(void) {
    group_isolate();
    RUN(a_malformed_probe_counts_for_nothing);
    RUN(a_leave_that_means_nobody_changes_nothing);
    RUN(so_many_probes_are_answered_in_20_ms);
    RUN(looks_at_all_are_ever_further_apart);
    RUN(a_malformed_answer_counts_for_nothing);
    RUN(who_has_not_seen_the_question_gives_no_answer);
    RUN(nobody_on_the_wire_has_a_say_in_the_group);
    RUN(members_at_a_link_local_address_hear_each_other);
    return check_done();
}
