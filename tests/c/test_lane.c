/* SPDX-License-Identifier: Apache-2.0
 *
 * link/lane/lane.c: both ends of a lane in one process, on a clock of the test's; who calls, what is said, and what is not
 * believed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "link/lane/lane.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "link/udp/udp.h"
#include "live.h"
#include "names/slot.h"
#include "names/slotmsg.h"
#include "names/user.h"
#include "scarce.h"
#include "wire/grh.h"

#define SECOND 1000000000ull
#define MEMORY (2 * sizeof(struct ring_shared))

static struct slot slots[2], further;
static struct lane_self self[2];
static struct lane *ends[2]; /* 0 asks, 1 answers */
static int listener = -1;
static uint64_t now;
static struct fault fault;
static struct rnic_counters counters;
static uint32_t emitted;
static struct lane_shared of_both;
static struct way way;

static void emit(struct link *link, const struct way *by, const uint8_t *bytes, uint32_t length) {
    (void)link, (void)by, (void)bytes;
    emitted += length;
}

static const struct link_ops emit_ops = {.emit = emit};
static struct link injected = {.ops = &emit_ops}; /* to which the injector lets packets go */

static struct in6_addr v4(uint8_t last) {
    struct in6_addr a = {{{[10] = 0xFF, [11] = 0xFF, [12] = 127, [15] = last}}};
    return a;
}

static void end(void) {
    for (int i = 0; i < 2; i++) {
        if (ends[i])
            lane_free(ends[i]);
        if (self[i].file >= 0)
            close(self[i].file);
        slot_release(&slots[i]);
        ends[i] = NULL;
    }
    if (listener >= 0)
        close(listener);
    listener = -1;
    fault_set(&fault, NULL);
}

static void begin(void) {
    if (listener >= 0)
        end(); /* of a test that has failed */
    now = 1000 * SECOND;
    memset(&counters, 0, sizeof counters);
    emitted = 0;
    of_both = (struct lane_shared){&fault, &counters, &now};
    way = (struct way){.link = &injected, .hop_limit = 7, .flow_label = 0x12345};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(slot_claim(&slots[i], NULL), 0);
        self[i] = (struct lane_self){.party = {.nslots = 1, .naddresses = 1, .slots = {slots[i].number}},
                                     .file = memfd_create("file", MFD_CLOEXEC)};
        self[i].party.addresses[0] = v4(1);
    }
    CHECK((listener = lane_listen(slots[1].number)) >= 0);
}

static void connect_both(void) {
    CHECK_EQ(lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now), 0);
    CHECK_EQ(ends[0]->state, LANE_ASKING);
    CHECK((ends[1] = lane_answer(listener, &of_both, now + 5)) != NULL);
    CHECK_EQ(ends[1]->state, LANE_CALLED);
    CHECK(lane_listen_to(ends[1], &self[1], LANE_ALL));
    CHECK_EQ(ends[1]->state, LANE_ANSWERED);
    CHECK(lane_listen_to(ends[0], &self[0], LANE_ALL));
    CHECK_EQ(ends[0]->state, LANE_UP);
    CHECK(lane_listen_to(ends[1], &self[1], LANE_ALL));
    CHECK_EQ(ends[1]->state, LANE_UP);
}

static void open_both(void) {
    begin();
    connect_both();
}

static bool same_file(int a, int b) {
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

static int open_descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Mappings of lanes' memory. */
static int mappings(void) {
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f))
        n += strstr(line, "rnic-lane") != NULL;
    fclose(f);
    return n;
}

/* A program may have closed its standard input, or does it meanwhile. */
static bool closes_0;
static unsigned without; /* flags that a file is made without */

int memfd_create(const char *name, unsigned flags) {
    if (closes_0)
        close(0);
    return (int)syscall(SYS_memfd_create, name, flags & ~without);
}

/* What the system lacks: errno of socket(2); and addresses, of which one interface has none at all. */
static int refuses;
static bool no_addresses;
static struct ifaddrs bare;

int socket(int family, int type, int protocol) {
    if (!refuses)
        return (int)syscall(SYS_socket, family, type, protocol);
    errno = refuses;
    return -1;
}

int getifaddrs(struct ifaddrs **all) {
    if (no_addresses || ((int (*)(struct ifaddrs **))dlsym(RTLD_NEXT, "getifaddrs"))(&bare.ifa_next))
        return -1;
    *all = &bare;
    return 0;
}

void freeifaddrs(struct ifaddrs *all) {
    CHECK(all == &bare);
    ((void (*)(struct ifaddrs *))dlsym(RTLD_NEXT, "freeifaddrs"))(bare.ifa_next);
}

/* ---------------------------------------------------------------- two that mean well */

static void two_of_one_user_know_each_other(void) {
    bool trusted = user_is_ours(getuid()); /* unless it is nobody, in a namespace that maps nobody */
    open_both();
    for (int i = 0; i < 2; i++) {
        struct lane *l = ends[i];
        CHECK(l->trusted == trusted && l->uid == getuid() && l->pid == getpid());
        CHECK_EQ(l->since, now + (i ? 5 : 0));
        CHECK(!memcmp(&l->peer, &self[!i].party, sizeof l->peer));
        CHECK(trusted ? same_file(l->file, self[!i].file) && l->file != self[!i].file : l->file == -1);
        CHECK(!trusted || fcntl(l->file, F_GETFD) == FD_CLOEXEC);
        CHECK_EQ(fcntl(l->fd, F_GETFD), FD_CLOEXEC);
        CHECK(fcntl(l->fd, F_GETFL) & O_NONBLOCK);
        CHECK(!lane_listen_to(l, &self[i], LANE_ALL));
        CHECK_EQ(l->state, LANE_UP);
    }
    CHECK(lane_answer(listener, &of_both, now) == NULL);
    end();
}

/* Whatever he says of himself. */
static void another_user_is_known_by_his_number(void) {
    enum { OTHER = 65534 };
    int status = -1;
    if (getuid() != 0) {
        printf("# not root\n");
        return;
    }
    begin();
    pid_t child = fork();
    if (child == 0)
        _exit(setresuid(OTHER, OTHER, OTHER) || lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now));
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK((ends[1] = lane_answer(listener, &of_both, now)) != NULL);
    CHECK(ends[1]->uid == OTHER && ends[1]->pid == child && !ends[1]->trusted);
    CHECK(lane_owns(ends[1], slots[0].number) == LANE_NO);
    end();
}

static void descriptor_0_is_one_as_any_other(void) {
    int kept = fcntl(0, F_DUPFD_CLOEXEC, 3);
    for (int of_memory = 0; of_memory < 2; of_memory++) {
        check_note("of memory %d", of_memory);
        if (fcntl(0, F_GETFD) < 0)
            CHECK_EQ(open("/dev/null", O_RDONLY), 0);
        begin();
        if (!of_memory)
            close(0);
        closes_0 = of_memory;
        int rc = lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now);
        closes_0 = false;
        CHECK_EQ(rc, 0);
        CHECK((ends[1] = lane_answer(listener, &of_both, now)) != NULL);
        CHECK_EQ(ends[of_memory]->fd, 0); /* what the memory had is free again, and the answer's */
        lane_free(ends[of_memory]);
        CHECK(fcntl(0, F_GETFD) < 0);
        CHECK(lane_owns(ends[!of_memory], slots[1].number) == LANE_YES);
        CHECK(fcntl(0, F_GETFD) < 0);
        ends[of_memory] = NULL;
        end();
    }
    if (kept >= 0) {
        CHECK_EQ(dup2(kept, 0), 0);
        close(kept);
    }
}

/* Both those that come and those that go. */
static void descriptors_that_are_passed_may_be_0(void) {
    int kept = fcntl(0, F_DUPFD_CLOEXEC, 3);
    bool trusted = user_is_ours(getuid());
    begin();
    CHECK_EQ(lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now), 0);
    CHECK((ends[1] = lane_answer(listener, &of_both, now)) != NULL);
    close(0);
    CHECK(lane_listen_to(ends[1], &self[1], LANE_ALL)); /* the memory, which is mapped and closed */
    CHECK(fcntl(0, F_GETFD) < 0);
    CHECK(lane_listen_to(ends[0], &self[0], LANE_ALL)); /* the file, which stays */
    CHECK(!trusted || (ends[0]->file == 0 && same_file(0, self[1].file)));
    lane_free(ends[0]);
    ends[0] = NULL;
    CHECK(fcntl(0, F_GETFD) < 0);
    end();
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(dup2(kept, 0), 0);
        begin();
        CHECK_EQ(dup2(self[i].file, 0), 0);
        close(self[i].file);
        self[i].file = 0;
        connect_both();
        CHECK(!trusted || same_file(ends[!i]->file, 0));
        end();
    }
    CHECK_EQ(dup2(kept, 0), 0);
    close(kept);
}

static void who_has_no_file_gives_none(void) {
    begin();
    for (int i = 0; i < 2; i++) {
        close(self[i].file);
        self[i].file = -1;
    }
    connect_both();
    CHECK(ends[0]->file == -1 && ends[1]->file == -1);
    end();
}

static void a_lane_gives_back_all_that_it_has(void) {
    begin();
    int before = open_descriptors(), mapped = mappings();
    connect_both();
    CHECK_EQ(open_descriptors(), before + (user_is_ours(getuid()) ? 4 : 2)); /* two ends, two files */
    CHECK_EQ(mappings(), mapped + 2);
    for (int i = 0; i < 2; i++) {
        lane_free(ends[i]);
        ends[i] = NULL;
    }
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(mappings(), mapped);
    end();
}

/* Memory that could be cut off under the peer is not offered. */
static void a_file_that_cannot_be_sealed_is_given_back(void) {
    begin();
    int before = open_descriptors();
    without = MFD_ALLOW_SEALING;
    int rc = lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now);
    without = 0;
    CHECK_EQ(rc, -EPERM);
    CHECK_EQ(open_descriptors(), before);
    ends[0] = NULL;
    end();
}

static void a_name_is_taken_once(void) {
    struct lane *l;
    begin();
    int before = open_descriptors();
    CHECK_EQ(lane_listen(slots[1].number), -EADDRINUSE);
    CHECK_EQ(lane_ask(&l, slots[0].number, &self[0], &of_both, now), -ECONNREFUSED);
    CHECK_EQ(open_descriptors(), before);
    end();
}

/* ---------------------------------------------------------------- packets */

static void put_byte(struct lane *l, uint8_t value, uint32_t n) {
    uint32_t crc;
    uint8_t *at = l->link.ops->reserve(&l->link, &way, n, &crc);
    CHECK(at != NULL);
    memset(at, value, n);
    l->link.ops->commit(&l->link);
}

static struct ring_packet take(struct lane *l) {
    struct ring_packet p;
    CHECK_EQ(ring_peek(&l->in, &p), 1);
    ring_take(&l->in);
    return p;
}

static void packets_go_both_ways(void) {
    open_both();
    for (int i = 0; i < 2; i++) {
        put_byte(ends[i], (uint8_t)(3 + i), 100);
        CHECK(ends[i]->dirty);
        struct ring_packet p = take(ends[!i]);
        CHECK(p.length == 100 && p.kind == 0 && p.bytes[0] == 3 + i && p.bytes[99] == 3 + i);
    }
    CHECK_EQ(counters.value[RNIC_CNT_local_sent], 2);
    uint8_t bytes[8] = {9};
    CHECK(ends[0]->link.ops->put(&ends[0]->link, &way, bytes, sizeof bytes));
    ends[0]->link.ops->emit(&ends[0]->link, &way, bytes, sizeof bytes);
    CHECK(take(ends[1]).bytes[0] == 9 && take(ends[1]).length == 8);
    CHECK_EQ(counters.value[RNIC_CNT_local_sent], 4);
    end();
}

static void kinds_tell_of_marks_and_datagrams(void) {
    CHECK(LANE_MARKED == 1 && LANE_DATAGRAM == 2 && LANE_REFERS == 4 && LANE_CLASS_SHIFT == 8); /* between processes */
    open_both();
    way.traffic_class = 0xA0 | ECN_MARKED;
    put_byte(ends[0], 1, 20);
    CHECK_EQ(take(ends[1]).kind, LANE_MARKED);
    way.datagrams = true;
    put_byte(ends[0], 1, 20);
    CHECK_EQ(take(ends[1]).kind, LANE_MARKED | LANE_DATAGRAM | (0xA0 | ECN_MARKED) << LANE_CLASS_SHIFT);
    way.traffic_class = ECN_CAPABLE;
    put_byte(ends[0], 1, 20);
    CHECK_EQ(take(ends[1]).kind, LANE_DATAGRAM | ECN_CAPABLE << LANE_CLASS_SHIFT);
    end();
}

static void a_datagram_has_its_header_behind_it(void) {
    uint8_t want[GRH_BYTES];
    open_both();
    way.datagrams = true;
    way.src.sin6_addr = v4(1);
    way.dst.sin6_addr = v4(2);
    way.traffic_class = 0x20;
    for (uint8_t hops = 0; hops < 2; hops++) {
        way.hop_limit = hops;
        put_byte(ends[0], 5, 20);
        struct ring_packet p = take(ends[1]);
        CHECK_EQ(p.length, 20 + GRH_BYTES);
        grh_build(want, &way.src, &way.dst, 0x20, hops ? 1 : 64, 0x12345, 0, 24);
        CHECK(!memcmp(p.bytes + 20, want, sizeof want));
    }
    end();
}

static void a_packet_may_be_elsewhere_and_be_taken_back(void) {
    uint32_t crc;
    struct rnic_sge there = {0x1000, 77, 5};
    open_both();
    for (int i = 0; i < 2; i++) {
        uint8_t *at = ends[0]->link.ops->reserve(&ends[0]->link, &way, 100, &crc);
        CHECK(at != NULL);
        memset(at, 6, 16);
        ends[0]->dirty = false;
        ends[0]->link.ops->refer(&ends[0]->link, 16, &there, 42);
        CHECK(ends[0]->dirty);
    }
    CHECK_EQ(counters.value[RNIC_CNT_local_sent], 2);
    struct ring_packet p = take(ends[1]);
    CHECK(p.length == LANE_REFERRING && p.kind == LANE_REFERS && p.bytes[15] == 6);
    CHECK(!memcmp(p.bytes + 16, &there, sizeof there));
    ends[0]->link.ops->take_back(&ends[0]->link, 42);
    CHECK_EQ(take(ends[1]).kind, RING_VOID);
    end();
}

static void what_is_too_long_has_no_room(void) {
    uint32_t crc;
    open_both();
    uint32_t most = sizeof ends[0]->aside;
    CHECK(ends[0]->link.ops->reserve(&ends[0]->link, &way, most + 1, &crc) == NULL && !ends[0]->link.full);
    CHECK(ends[0]->link.ops->reserve(&ends[0]->link, &way, most, &crc) != NULL);
    CHECK_EQ(ends[0]->reserved, most);
    way.datagrams = true;
    CHECK(ends[0]->link.ops->reserve(&ends[0]->link, &way, most - GRH_BYTES + 1, &crc) == NULL);
    CHECK(ends[0]->link.ops->reserve(&ends[0]->link, &way, most - GRH_BYTES, &crc) != NULL);
    end();
}

/* Fills the ring. */
static uint32_t fill(struct lane *l) {
    uint32_t crc, n = 0;
    while (l->link.ops->reserve(&l->link, &way, 16, &crc)) {
        l->link.ops->commit(&l->link);
        n++;
    }
    return n;
}

static void a_full_ring_holds_its_writer_until_there_is_room(void) {
    uint8_t bytes[16] = {0};
    open_both();
    CHECK_EQ(fill(ends[0]), RING_CELLS);
    CHECK(ends[0]->link.full && !lane_unstick(ends[0]) && ends[0]->link.full);
    CHECK(!ends[0]->link.ops->put(&ends[0]->link, &way, bytes, sizeof bytes));
    ends[0]->link.ops->emit(&ends[0]->link, &way, bytes, sizeof bytes);
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 1);
    CHECK_EQ(counters.value[RNIC_CNT_local_sent], RING_CELLS);
    for (uint32_t i = 0; i < RING_CELLS; i++)
        (void)take(ends[1]);
    lane_taken(ends[1]);
    char byte;
    CHECK(recv(ends[0]->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1); /* it is told */
    CHECK(!lane_listen_to(ends[0], &self[0], LANE_ALL) && ends[0]->state == LANE_UP);
    CHECK(lane_unstick(ends[0]) && !ends[0]->link.full);
    CHECK(fill(ends[0]) > 0);
    end();
}

static void a_reader_that_sleeps_is_woken_once(void) {
    char byte;
    open_both();
    put_byte(ends[0], 1, 16);
    lane_flush(ends[0]);
    CHECK(!ends[0]->dirty);
    CHECK(recv(ends[1]->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0); /* it does not sleep */
    (void)take(ends[1]);
    lane_taken(ends[1]);
    CHECK(recv(ends[0]->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0); /* nor is anybody waiting for room */
    CHECK(ring_may_sleep(&ends[1]->in));
    put_byte(ends[0], 1, 16);
    lane_flush(ends[0]);
    CHECK(!lane_listen_to(ends[1], &self[1], LANE_ALL) && ends[1]->state == LANE_UP);
    CHECK(recv(ends[1]->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0);
    end();
}

static void the_injector_gets_packets_that_lie_aside(void) {
    struct rnic_fault cfg = {.seed = 1};
    uint8_t header[GRH_BYTES];
    uint32_t crc;
    open_both();
    fault_set(&fault, &cfg);
    CHECK(ends[0]->link.ops->reserve(&ends[0]->link, &way, 30, &crc) == ends[0]->aside);
    ends[0]->link.ops->commit(&ends[0]->link);
    CHECK_EQ(emitted, 30);
    way.datagrams = true;
    CHECK(ends[0]->link.ops->reserve(&ends[0]->link, &way, 30, &crc) == ends[0]->aside);
    memset(ends[0]->aside, 0, 100);
    ends[0]->link.ops->commit(&ends[0]->link);
    CHECK_EQ(emitted, 60 + GRH_BYTES);
    grh_build(header, &way.src, &way.dst, 0, 7, 0x12345, 0, 34);
    CHECK(!memcmp(ends[0]->aside + 30, header, sizeof header));
    CHECK_EQ(counters.value[RNIC_CNT_local_sent], 0);
    fault_set(&fault, NULL);
    way.datagrams = false;
    CHECK_EQ(fill(ends[0]), RING_CELLS);
    ends[0]->link.full = false;
    fault_set(&fault, &cfg);
    CHECK(ends[0]->link.ops->reserve(&ends[0]->link, &way, 30, &crc) == NULL && ends[0]->link.full);
    end();
}

static void what_the_injector_lets_go_is_in_the_ring(void) {
    static const uint8_t bytes[3] = {7, 8, 9};
    open_both();
    way.link = &ends[0]->link;
    way.link->ops->emit(way.link, &way, bytes, sizeof bytes);
    struct ring_packet got;
    CHECK_EQ(ring_peek(&ends[1]->in, &got), 1);
    CHECK_EQ(got.length, sizeof bytes);
    CHECK(!memcmp(got.bytes, bytes, sizeof bytes));
    CHECK(ends[0]->dirty);
    end();
}

/* ---------------------------------------------------------------- the end */

static void what_goes_to_one_that_has_gone_is_lost(void) {
    uint32_t crc;
    struct rnic_sge there = {0};
    open_both();
    ends[0]->link.full = true;
    lane_hang_up(ends[0]);
    CHECK(ends[0]->state == LANE_DOWN && ends[0]->fd == -1 && !ends[0]->link.full);
    CHECK(ends[0]->link.ops->reserve(&ends[0]->link, &way, 30, &crc) == ends[0]->aside);
    ends[0]->link.ops->commit(&ends[0]->link);
    ends[0]->link.ops->refer(&ends[0]->link, 16, &there, 42);
    ends[0]->link.ops->take_back(&ends[0]->link, 42);
    CHECK(ends[0]->link.ops->put(&ends[0]->link, &way, ends[0]->aside, 8));
    CHECK_EQ(counters.value[RNIC_CNT_local_sent], 0);
    ends[0]->link.ops->emit(&ends[0]->link, &way, ends[0]->aside, 8);
    CHECK_EQ(counters.value[RNIC_CNT_tx_errors], 1);
    lane_flush(ends[0]);
    CHECK(lane_unstick(ends[0]));
    CHECK(!lane_listen_to(ends[0], &self[0], LANE_ALL));
    lane_tell(ends[0], &self[0]);
    lane_tell(ends[1], &self[1]); /* which does not know yet; no signal comes of it */
    CHECK(lane_listen_to(ends[1], &self[1], LANE_ALL));
    CHECK(ends[1]->state == LANE_DOWN && ends[1]->fd == -1);
    end();
}

static void who_goes_without_having_read_has_gone_as_well(void) {
    open_both();
    lane_tell(ends[1], &self[1]);
    lane_hang_up(ends[0]);
    CHECK(lane_listen_to(ends[1], &self[1], LANE_ALL));
    CHECK_EQ(ends[1]->state, LANE_DOWN);
    end();
}

/* ---------------------------------------------------------------- who one is */

static void who_has_called_is_told_by_the_welcome(void) {
    char byte;
    begin();
    CHECK_EQ(lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now), 0);
    CHECK((ends[1] = lane_answer(listener, &of_both, now)) != NULL);
    lane_tell(ends[1], &self[1]);
    CHECK(recv(ends[0]->fd, &byte, 1, MSG_DONTWAIT) < 0);
    end();
}

static void who_becomes_more_says_so(void) {
    open_both();
    CHECK_EQ(slot_claim(&further, NULL), 0);
    self[0].party.slots[self[0].party.nslots++] = further.number;
    self[0].party.addresses[self[0].party.naddresses++] = v4(1);
    lane_tell(ends[0], &self[0]);
    CHECK(!lane_listen_to(ends[1], &self[1], LANE_ALL));
    CHECK(!memcmp(&ends[1]->peer, &self[0].party, sizeof self[0].party));
    slot_release(&further);
    end();
}

static bool has_ipv6(void) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0)
        close(fd);
    return has;
}

static void an_address_that_this_host_has_not_is_left_out(void) {
    if (!has_ipv6()) {
        printf("# no ::1 here\n");
        return;
    }
    begin();
    struct in6_addr strange = {{{0x20, 1, [15] = 9}}}, six = IN6ADDR_LOOPBACK_INIT;
    self[0].party.addresses[0] = strange;
    self[0].party.addresses[1] = v4(1);
    self[0].party.addresses[2] = strange;
    self[0].party.addresses[3] = six;
    self[0].party.naddresses = 4;
    connect_both();
    CHECK_EQ(ends[1]->peer.naddresses, 2);
    struct in6_addr first = v4(1), other = v4(2);
    CHECK(lane_is_to(ends[1], &first) && lane_is_to(ends[1], &six));
    CHECK(!lane_is_to(ends[1], &other) && !lane_is_to(ends[1], &strange));
    ends[1]->peer.addresses[0] = strange; /* as if it had gone since */
    ends[1]->peer.addresses[2] = first;   /* behind those that it says it has */
    lane_look_again(ends[1]);
    CHECK_EQ(ends[1]->peer.naddresses, 1);
    CHECK(lane_is_to(ends[1], &six) && !lane_is_to(ends[1], &strange));
    ends[1]->trusted = false;
    lane_look_again(ends[1]);
    CHECK(lane_is_to(ends[1], &six));
    end();
}

static void a_stranger_says_who_it_is_16_times_in_16_seconds(void) {
    open_both();
    ends[1]->trusted = false;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 16; i++) {
            lane_tell(ends[0], &self[0]);
            (void)lane_listen_to(ends[1], &self[1], LANE_ALL);
            CHECK_EQ(ends[1]->state, LANE_UP);
        }
        now += 16 * SECOND + 1;
    }
    now -= 16 * SECOND + 1;
    now += 16 * SECOND; /* not quite */
    lane_tell(ends[0], &self[0]);
    CHECK(lane_listen_to(ends[1], &self[1], LANE_ALL));
    CHECK_EQ(ends[1]->state, LANE_DOWN);
    end();
}

static void wake(struct lane *l) {
    atomic_store(&l->out.mem->asleep, 1);
    l->dirty = true;
    lane_flush(l);
}

/* Once for each sleep, and for each wait for room. */
static void a_stranger_wakes_nobody_who_has_not_asked_for_it(void) {
    for (int trusted = 1; trusted >= 0; trusted--) {
        open_both();
        ends[1]->trusted = trusted;
        for (int i = 0; i < 3; i++) {
            CHECK(ring_may_sleep(&ends[1]->in) && ring_has_room(&ends[1]->out));
            wake(ends[0]);
            CHECK(!lane_listen_to(ends[1], &self[1], LANE_ALL));
            wake(ends[0]);
            CHECK(!lane_listen_to(ends[1], &self[1], LANE_ALL));
        }
        wake(ends[0]);
        CHECK_EQ(lane_listen_to(ends[1], &self[1], LANE_ALL), !trusted);
        CHECK_EQ(ends[1]->state, trusted ? LANE_UP : LANE_DOWN);
        end();
    }
}

static void a_slot_is_its_owners(void) {
    open_both();
    CHECK_EQ(lane_owns(ends[0], slots[0].number), LANE_YES);
    struct abstract_name beyond;
    struct lifeline life;
    abstract_name(&beyond, SLOT_NAME, SLOT_COUNT);
    CHECK_EQ(lifeline_open(&life, &beyond), 0);
    CHECK_EQ(lane_owns(ends[0], SLOT_COUNT), LANE_NO); /* there is no such slot, whoever says so */
    lifeline_close(&life);
    CHECK_EQ(lane_owns(ends[0], UINT32_MAX), LANE_NO);
    uint32_t nobodys = 0;
    while (nobodys == slots[0].number || nobodys == slots[1].number)
        nobodys++;
    CHECK_EQ(lane_owns(ends[0], nobodys), LANE_NO);
    pid_t pid = ends[0]->pid;
    ends[0]->pid++;
    CHECK_EQ(lane_owns(ends[0], slots[0].number), LANE_NO);
    ends[0]->pid = pid;
    ends[0]->uid++;
    CHECK_EQ(lane_owns(ends[0], slots[0].number), LANE_NO);
    end();
}

static void what_the_system_lacks_is_no_answer(void) {
    static const struct {
        int error;
        enum lane_answer answer;
    } rows[] = {{EMFILE, LANE_CANNOT_TELL}, {ENFILE, LANE_CANNOT_TELL}, {ENOBUFS, LANE_CANNOT_TELL},
                {ENOMEM, LANE_CANNOT_TELL}, {EAGAIN, LANE_CANNOT_TELL}, {ECONNREFUSED, LANE_NO},
                {EACCES, LANE_NO}};
    open_both();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("row %zu", i);
        refuses = rows[i].error;
        enum lane_answer answer = lane_owns(ends[0], slots[0].number);
        refuses = 0;
        CHECK_EQ(answer, rows[i].answer);
    }
    end();
}

/* So what it says of its addresses counts, though the system lacks what a slot's owner is found by. */
static void of_a_slot_that_is_known_nobody_is_asked_again(void) {
    open_both();
    CHECK_EQ(ends[1]->peer.naddresses, 1);
    self[0].party.naddresses = 0;
    lane_tell(ends[0], &self[0]);
    refuses = ENOBUFS;
    (void)lane_listen_to(ends[1], &self[1], LANE_ALL);
    refuses = 0;
    CHECK_EQ(ends[1]->state, LANE_UP);
    CHECK_EQ(ends[1]->peer.naddresses, 0);
    end();
}

static void without_descriptors_nobody_can_tell(void) {
    struct rlimit before, none = {0};
    open_both();
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none.rlim_max = before.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum lane_answer answer = lane_owns(ends[0], slots[0].number);
    int fd = lane_listen(slots[0].number);
    lane_tell(ends[0], &self[0]);
    bool changed = lane_listen_to(ends[1], &self[1], LANE_ALL); /* what was known stays true */
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(answer, LANE_CANNOT_TELL);
    CHECK_EQ(fd, -EMFILE);
    CHECK(!changed && ends[1]->state == LANE_UP);
    end();
}

static void without_memory_there_is_no_lane_and_nothing_is_left_of_it(void) {
    struct rlimit files, short_files = {0};
    begin();
    int before = open_descriptors();
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &files), 0);
    short_files.rlim_max = files.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &short_files), 0);
    int too_long = lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &files), 0);
    CHECK_EQ(too_long, -EFBIG);
    CHECK_EQ(open_descriptors(), before);
    without_memory = true;
    int rc = lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now);
    without_memory = false;
    CHECK_EQ(rc, -ENOMEM);
    CHECK_EQ(open_descriptors(), before);
    struct lane *gone = lane_answer(listener, &of_both, now); /* that one has called */
    CHECK(gone);
    lane_free(gone);
    CHECK_EQ(lane_ask(&ends[0], slots[1].number, &self[0], &of_both, now), 0);
    before = open_descriptors();
    without_memory = true;
    ends[1] = lane_answer(listener, &of_both, now);
    without_memory = false;
    CHECK(!ends[1]);
    CHECK_EQ(open_descriptors(), before);
    end();
}

/* ---------------------------------------------------------------- what is not believed */

/* As in lane.c. */
struct message {
    uint32_t magic;
    uint16_t version, type;
    struct lane_party party;
};
enum { HELLO = 1, WELCOME, READY, WAKE, PARTY };

static struct message saying(uint16_t type) {
    return (struct message){.magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = type, .party = self[0].party};
}

static int memory(size_t bytes, unsigned seals) {
    int fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* Says it with a descriptor, unless that is -1, and gives that up. */
static void tell(int to, const struct message *m, size_t n, int pass) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {(void *)(uintptr_t)m, n};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    if (pass >= 0) {
        mh.msg_control = &control;
        mh.msg_controllen = sizeof control.bytes;
        *CMSG_FIRSTHDR(&mh) =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof pass), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&mh)), &pass, sizeof pass);
    }
    CHECK_EQ(sendmsg(to, &mh, MSG_NOSIGNAL), n);
    if (pass >= 0)
        close(pass);
}

/* Somebody calls, and says that: what becomes of the lane? */
static enum lane_state answer_to(const struct message *m, size_t n, int pass) {
    struct abstract_name name;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    abstract_name(&name, "rnic/1/lane/%u", slots[1].number);
    CHECK_EQ(connect(fd, (const struct sockaddr *)&name.un, name.length), 0);
    struct lane *l = lane_answer(listener, &of_both, now);
    CHECK(l != NULL);
    tell(fd, m, n, pass);
    (void)lane_listen_to(l, &self[1], LANE_ALL);
    enum lane_state state = l->state;
    lane_free(l);
    close(fd);
    return state;
}

#define SOUND memory(MEMORY, F_SEAL_SHRINK)
#define ALL sizeof(struct message)
#define HEAD offsetof(struct message, party)

/* Who is here already stays; who comes is not believed. */
static void without_a_list_of_addresses_nobody_can_tell(void) {
    struct lane_party was;
    open_both();
    was = ends[1]->peer;
    self[0].party.naddresses = 0;
    no_addresses = true;
    lane_tell(ends[0], &self[0]);
    bool changed = lane_listen_to(ends[1], &self[1], LANE_ALL);
    lane_look_again(ends[1]);
    struct message m = saying(HELLO);
    enum lane_state state = answer_to(&m, ALL, SOUND);
    no_addresses = false;
    CHECK(!changed && ends[1]->state == LANE_UP);
    CHECK(!memcmp(&ends[1]->peer, &was, sizeof was));
    CHECK_EQ(state, LANE_DOWN);
    end();
}

static void a_hello_that_is_wrong_is_hung_up_on(void) {
    begin();
    struct message m = saying(HELLO), bad = m;
    int before = open_descriptors();
    CHECK_EQ(answer_to(&m, ALL, SOUND), LANE_ANSWERED);
    CHECK_EQ(answer_to(&m, ALL, -1), LANE_DOWN);
    CHECK_EQ(answer_to(&m, ALL, memory(MEMORY, 0)), LANE_DOWN);
    CHECK_EQ(answer_to(&m, ALL, memory(MEMORY - 4096, F_SEAL_SHRINK)), LANE_DOWN);
    CHECK_EQ(answer_to(&m, ALL - 1, SOUND), LANE_DOWN);
    CHECK_EQ(answer_to(&m, HEAD, SOUND), LANE_DOWN);
    CHECK_EQ(answer_to(&m, HEAD - 1, SOUND), LANE_DOWN);
    bad.magic++;
    CHECK_EQ(answer_to(&bad, ALL, SOUND), LANE_DOWN);
    bad = m, bad.version++;
    CHECK_EQ(answer_to(&bad, ALL, SOUND), LANE_DOWN);
    CHECK_EQ(open_descriptors(), before);
    end();
}

static void a_party_that_is_wrong_is_hung_up_on(void) {
    begin();
    struct message m = saying(HELLO), bad = m;
    bad.party.nslots = 0;
    CHECK_EQ(answer_to(&bad, ALL, SOUND), LANE_DOWN);
    bad = m, bad.party.nslots = LANE_SLOTS + 1;
    CHECK_EQ(answer_to(&bad, ALL, SOUND), LANE_DOWN);
    bad = m, bad.party.naddresses = LANE_ADDRESSES + 1;
    CHECK_EQ(answer_to(&bad, ALL, SOUND), LANE_DOWN);
    bad = m, bad.party.slots[0] = SLOT_COUNT;
    CHECK_EQ(answer_to(&bad, ALL, SOUND), LANE_DOWN);
    bad = m, bad.party.slots[1] = SLOT_COUNT, bad.party.nslots = 2;
    CHECK_EQ(answer_to(&bad, ALL, SOUND), LANE_DOWN);
    for (uint32_t i = 0; i < LANE_SLOTS; i++)
        bad.party.slots[i] = m.party.slots[0];
    for (uint32_t i = 0; i < LANE_ADDRESSES; i++)
        bad.party.addresses[i] = m.party.addresses[0];
    bad.party.nslots = LANE_SLOTS, bad.party.naddresses = LANE_ADDRESSES;
    CHECK_EQ(answer_to(&bad, ALL, SOUND), LANE_ANSWERED);
    end();
}

static void what_comes_out_of_turn_is_hung_up_on(void) {
    static const struct {
        uint16_t type;
        enum lane_state when[4]; /* from: called, answered, asking, up */
    } cases[] = {
        {HELLO, {LANE_ANSWERED, LANE_DOWN, LANE_DOWN, LANE_DOWN}},
        {WELCOME, {LANE_DOWN, LANE_DOWN, LANE_UP, LANE_DOWN}},
        {READY, {LANE_DOWN, LANE_UP, LANE_DOWN, LANE_DOWN}},
        {WAKE, {LANE_CALLED, LANE_ANSWERED, LANE_ASKING, LANE_UP}},
        {PARTY, {LANE_DOWN, LANE_ANSWERED, LANE_DOWN, LANE_UP}},
        {6, {LANE_DOWN, LANE_DOWN, LANE_DOWN, LANE_DOWN}},
        {0, {LANE_DOWN, LANE_DOWN, LANE_DOWN, LANE_DOWN}},
    };
    static const enum lane_state from[4] = {LANE_CALLED, LANE_ANSWERED, LANE_ASKING, LANE_UP};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int k = 0; k < 4; k++) {
            open_both();
            struct message m = saying(cases[i].type);
            bool party = m.type == HELLO || m.type == WELCOME || m.type == PARTY;
            check_note("message %d in state %d", m.type, from[k]);
            ends[1]->state = from[k];
            tell(ends[0]->fd, &m, party ? ALL : HEAD, m.type == HELLO ? SOUND : -1);
            (void)lane_listen_to(ends[1], &self[1], LANE_ALL);
            CHECK_EQ(ends[1]->state, cases[i].when[k]);
            end();
        }
    }
    check_note("%s", "");
}

static void sixteen_messages_are_read_at_a_time(void) {
    open_both();
    struct message m = saying(WAKE);
    int left = 0;
    for (int i = 0; i < 40; i++)
        tell(ends[0]->fd, &m, HEAD, -1);
    CHECK(!lane_listen_to(ends[1], &self[1], LANE_ALL));
    while (recv(ends[1]->fd, &m, HEAD, MSG_DONTWAIT) > 0)
        left++;
    CHECK_EQ(left, 24);
    end();
}

int main(void) {
    live_isolate();
    RUN(two_of_one_user_know_each_other);
    RUN(another_user_is_known_by_his_number);
    RUN(descriptor_0_is_one_as_any_other);
    RUN(descriptors_that_are_passed_may_be_0);
    RUN(who_has_no_file_gives_none);
    RUN(a_lane_gives_back_all_that_it_has);
    RUN(a_file_that_cannot_be_sealed_is_given_back);
    RUN(a_name_is_taken_once);
    RUN(packets_go_both_ways);
    RUN(kinds_tell_of_marks_and_datagrams);
    RUN(a_datagram_has_its_header_behind_it);
    RUN(a_packet_may_be_elsewhere_and_be_taken_back);
    RUN(what_is_too_long_has_no_room);
    RUN(a_full_ring_holds_its_writer_until_there_is_room);
    RUN(a_reader_that_sleeps_is_woken_once);
    RUN(the_injector_gets_packets_that_lie_aside);
    RUN(what_the_injector_lets_go_is_in_the_ring);
    RUN(what_goes_to_one_that_has_gone_is_lost);
    RUN(who_goes_without_having_read_has_gone_as_well);
    RUN(who_has_called_is_told_by_the_welcome);
    RUN(who_becomes_more_says_so);
    RUN(an_address_that_this_host_has_not_is_left_out);
    RUN(a_stranger_says_who_it_is_16_times_in_16_seconds);
    RUN(a_stranger_wakes_nobody_who_has_not_asked_for_it);
    RUN(a_slot_is_its_owners);
    RUN(what_the_system_lacks_is_no_answer);
    RUN(of_a_slot_that_is_known_nobody_is_asked_again);
    RUN(without_descriptors_nobody_can_tell);
    RUN(without_memory_there_is_no_lane_and_nothing_is_left_of_it);
    RUN(without_a_list_of_addresses_nobody_can_tell);
    RUN(a_hello_that_is_wrong_is_hung_up_on);
    RUN(a_party_that_is_wrong_is_hung_up_on);
    RUN(what_comes_out_of_turn_is_hung_up_on);
    RUN(sixteen_messages_are_read_at_a_time);
    return check_done();
}
