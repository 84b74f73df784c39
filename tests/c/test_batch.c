/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets on their way out: which leave in one datagram, and what the kernel is told of each; and what it tells of those
 * that come in.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/address.h"
#include "check.h"
#include "link/udp/udp.h"
#include "link/udp/udpsock.h"
#include "live.h"
#include "wire/icrc.h"

#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#endif
#define LONG 1000u /* bytes of a packet */

/* ---------------------------------------------------------------- a kernel that takes notes */

struct note {
    int fd, segment, hops, tclass, error;
    uint32_t length, label; /* of the IPv6 header */
    union udp_address to;
};

static struct note notes[8];
static int taken, fails; /* fails: errno of what it refuses */

static void read_options(struct note *note, struct msghdr *msg) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c && msg->msg_controllen; c = CMSG_NXTHDR(msg, c)) {
        uint32_t value = 0;
        memcpy(&value, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0) < sizeof value ? sizeof(uint16_t) : sizeof value);
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_SEGMENT)
            note->segment = (int)value;
        else if (c->cmsg_level == (note->to.any.sa_family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6) &&
                 c->cmsg_type == (note->to.any.sa_family == AF_INET ? IP_TTL : IPV6_HOPLIMIT))
            note->hops = (int)value;
        else if (c->cmsg_type == (note->to.any.sa_family == AF_INET ? IP_TOS : IPV6_TCLASS))
            note->tclass = (int)value;
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_FLOWINFO)
            note->label = ntohl(value);
        else
            note->error = 1;
    }
}

/* In the C library's place: the link sends by it. */
/* It reads six arguments, however many there are. */
__attribute__((no_sanitize("address"))) long syscall(long number, ...) {
    long a[6];
    va_list ap;
    va_start(ap, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    if (number != SYS_sendto && number != SYS_sendmsg)
        return live_syscall(number, a);
    errno = fails;
    if (fails)
        return -1;
    struct msghdr plain = {.msg_name = (void *)a[4], .msg_namelen = (socklen_t)a[5]}, *msg = (struct msghdr *)a[1];
    struct note *note = &notes[taken++ % 8];
    *note = (struct note){.fd = (int)a[0], .hops = -1, .tclass = -1};
    note->length = (uint32_t)(number == SYS_sendto ? (size_t)a[2] : msg->msg_iov->iov_len);
    msg = number == SYS_sendto ? &plain : msg;
    memcpy(&note->to, msg->msg_name, msg->msg_namelen);
    read_options(note, msg);
    return (long)note->length;
}

/* ---------------------------------------------------------------- the sink */

static struct udp_tx tx;
static struct port port, other_port;
static struct fault fault;
static struct rnic_counters counters;
static struct way four, six;

static void begin(void) {
    memset(&counters, 0, sizeof counters);
    fault_set(&fault, NULL);
    static const uint64_t now;
    udp_tx_init(&tx, &fault, &counters, &now);
    port = (struct port){.gso = true, .tx_fd = 101, .tclass = 2};
    other_port = (struct port){.gso = true, .tx_fd = 102, .tclass = 2};
    six = (struct way){.link = &tx.link, .hop_limit = 64, .traffic_class = 2};
    udp_way(&six)->port = &port;
    six.src.sin6_family = six.dst.sin6_family = AF_INET6;
    six.dst.sin6_port = htons(4791);
    six.dst.sin6_addr.s6_addr[15] = six.src.sin6_addr.s6_addr[15] = 1;
    four = six;
    memset(&four.dst.sin6_addr.s6_addr[10], 0xFF, 2);
    memset(&four.src.sin6_addr.s6_addr[10], 0xFF, 2);
    four.dst.sin6_addr.s6_addr[12] = 127;
    taken = fails = 0;
}

/* The state of the CRC that the packet begins with. */
static uint32_t put(struct way *way, uint32_t n) {
    uint32_t crc = 0;
    uint8_t *at = tx.link.ops->reserve(&tx.link, way, n, &crc);
    CHECK(at);
    memset(at, 0xA5, n);
    tx.link.ops->commit(&tx.link);
    return crc;
}

static void packets_of_one_way_leave_together(void) {
    begin();
    struct way same = four;
    CHECK_EQ(put(&four, LONG), icrc_seed(&four.src, &four.dst, 0, LONG));
    CHECK_EQ(put(&same, LONG), icrc_seed(&four.src, &four.dst, 1, LONG));
    CHECK_EQ(put(&four, 10), icrc_seed(&four.src, &four.dst, 2, 10));
    udp_tx_flush(&tx);
    udp_tx_flush(&tx); /* of nothing */
    CHECK_EQ(taken, 1);
    CHECK_EQ(notes[0].length, 2 * LONG + 10);
    CHECK_EQ(notes[0].segment, LONG);
    CHECK_EQ(notes[0].to.v4.sin_addr.s_addr, htonl(0x7F000001));
    CHECK_EQ(notes[0].to.v4.sin_port, htons(4791));
    CHECK_EQ(counters.value[RNIC_CNT_tx_syscalls], 1);
    CHECK_EQ(port.handed, 2 * LONG + 10 + PORT_DATAGRAM_COST);
    same = six;
    CHECK_EQ(put(&six, LONG), put(&same, LONG)); /* IPv6 has no identification */
    udp_tx_flush(&tx);
    CHECK_EQ(taken, 2);
}

/* One after the other is unlike the first in one thing. */
static void packets_of_two_ways_leave_one_after_the_other(void) {
    enum { ADDRESS, SCOPE, HOPS, CLASS, LABEL, PORT, SLOT, CASES };
    for (int i = 0; i < CASES; i++) {
        check_note("case %d", i);
        begin();
        struct way unlike = six;
        unlike.dst.sin6_addr.s6_addr[15] += i == ADDRESS;
        unlike.dst.sin6_scope_id += i == SCOPE;
        unlike.hop_limit = (uint8_t)(unlike.hop_limit - (i == HOPS));
        unlike.traffic_class = (uint8_t)(unlike.traffic_class + (i == CLASS));
        unlike.flow_label += i == LABEL;
        unlike.dst_slot += i == SLOT;
        udp_way(&unlike)->port = i == PORT ? &other_port : &port;
        put(&six, LONG);
        put(&unlike, LONG);
        udp_tx_flush(&tx);
        CHECK_EQ(taken, 2);
        for (int n = 0; n < 2; n++) {
            const struct way *way = n ? &unlike : &six;
            CHECK_EQ(notes[n].length, LONG);
            CHECK_EQ(notes[n].segment, 0);
            CHECK(!memcmp(&notes[n].to.v6, &way->dst, sizeof way->dst));
            CHECK_EQ(notes[n].hops, n && i == HOPS ? 63 : -1);
            CHECK_EQ(notes[n].tclass, n && i == CLASS ? 3 : -1);
            CHECK_EQ(notes[n].label, n && i == LABEL);
            CHECK_EQ(notes[n].fd, n && i == PORT ? 102 : 101);
            CHECK_EQ(notes[n].error, 0);
        }
    }
}

/* The slot of a way may change, as its peer does, while packets of it are in the batch. */
static void packets_of_two_slots_leave_one_after_the_other(void) {
    begin();
    put(&six, LONG);
    six.dst_slot++;
    put(&six, LONG);
    udp_tx_flush(&tx);
    CHECK_EQ(taken, 2);
}

static void a_batch_has_packets_of_one_size_and_a_shorter_one_at_its_end(void) {
    static const uint32_t sizes[] = {500, 500, 501, 501, 500, 501, 1, 1};
    static const uint32_t lengths[] = {1000, 1502, 502, 1};
    begin();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        put(&four, sizes[i]);
    udp_tx_flush(&tx);
    CHECK_EQ(taken, 4);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(notes[i].length, lengths[i]);
}

static void a_batch_has_its_limits(void) {
    begin();
    for (int i = 0; i < 65; i++)
        put(&four, 16);
    udp_tx_flush(&tx);
    CHECK_EQ(taken, 2);
    CHECK_EQ(notes[0].length, 64 * 16);
    CHECK_EQ(notes[1].length, 16);
    begin();
    for (int i = 0; i < 8; i++) /* of which 7 are the longest datagram there is, to the byte */
        put(&four, UDP_MAX_PAYLOAD / 7);
    put(&four, UDP_MAX_PAYLOAD % 7);
    udp_tx_flush(&tx);
    CHECK_EQ(taken, 2);
    CHECK_EQ(notes[0].length, UDP_MAX_PAYLOAD / 7 * 7);
    begin();
    port.gso = false;
    put(&four, 16);
    put(&four, 16);
    udp_tx_flush(&tx);
    CHECK_EQ(taken, 2);
}

static void the_kernel_is_told_of_hops_and_class_alone_where_it_would_not_know(void) {
    static const struct {
        uint8_t hops, tclass;
        int says_hops, says_class;
    } rows[] = {{64, 2, -1, -1}, {0, 2, -1, -1}, {1, 0, 1, 0}, {255, 255, 255, 255}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin();
        struct way *both[] = {&four, &six};
        for (int n = 0; n < 2; n++) {
            both[n]->hop_limit = rows[i].hops;
            both[n]->traffic_class = rows[i].tclass;
            put(both[n], LONG);
            udp_tx_flush(&tx);
            CHECK_EQ(notes[n].hops, rows[i].says_hops);
            CHECK_EQ(notes[n].tclass, rows[i].says_class);
            CHECK_EQ(notes[n].label | (uint32_t)notes[n].error, 0);
        }
    }
}

static void what_the_kernel_refuses_is_counted_by_packets(void) {
    static const int errors[] = {EPERM, ENETUNREACH, EMSGSIZE},
                     counts[] = {RNIC_CNT_tx_forbidden, RNIC_CNT_tx_errors, RNIC_CNT_tx_too_long};
    for (int i = 0; i < 6; i++) {
        begin();
        fails = errors[i % 3];
        put(&four, LONG);
        put(&four, LONG);
        put(&four, i < 3 ? 1 : LONG); /* the last one may be shorter */
        udp_tx_flush(&tx);
        for (int k = 0; k < 3; k++)
            CHECK_EQ(counters.value[counts[k]], i % 3 == k ? 3 : 0);
        CHECK_EQ(port.handed, 0);
        CHECK_EQ(udp_tx_full(&tx), -1);
    }
}

static void what_is_in_the_batch_counts_as_written_for_its_port(void) {
    begin();
    CHECK_EQ(tx.link.ops->written(&tx.link, &four), 0);
    put(&four, LONG);
    CHECK_EQ(tx.link.ops->written(&tx.link, &four), LONG);
    struct way elsewhere = {.link = &tx.link};
    udp_way(&elsewhere)->port = &other_port;
    CHECK_EQ(tx.link.ops->written(&tx.link, &elsewhere), 0);
    udp_tx_flush(&tx);
    CHECK_EQ(tx.link.ops->written(&tx.link, &four), LONG + PORT_DATAGRAM_COST);
}

/* ---------------------------------------------------------------- in */

static int socket_of(bool v4, struct sockaddr_in6 *addr) {
    *addr = (struct sockaddr_in6){.sin6_family = AF_INET6};
    addr->sin6_addr.s6_addr[15] = 1;
    if (v4) {
        memset(&addr->sin6_addr.s6_addr[10], 0xFF, 2);
        addr->sin6_addr.s6_addr[12] = 127;
    }
    int fd = udpsock_open(addr);
    CHECK(fd >= 0);
    CHECK_EQ(udpsock_bind(fd, addr, 0), 0);
    addr->sin6_port = udpsock_port(fd);
    return fd;
}

/* One datagram with a header that is like no other; it is on its way for no time on lo. */
static void receive(bool v4, bool hops, bool tclass) {
    struct sockaddr_in6 from, to;
    union address_native native;
    struct udp_rx rx = {0};
    CHECK_EQ(udp_rx_init(&rx), 0);
    int sender = socket_of(v4, &from), receiver = socket_of(v4, &to);
    struct port p = {.rx_fd = receiver};
    CHECK(udpsock_set(sender, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TTL : IPV6_UNICAST_HOPS, 7));
    CHECK(udpsock_tclass(sender, v4, 0x28));
    udpsock_show_hops(receiver, v4, hops);
    udpsock_show_tclass(receiver, v4, tclass);
    CHECK_EQ(udp_receive(&rx, &p), 0);
    for (int i = 0; i < UDP_RX_DATAGRAMS; i++) /* of those that were there before */
        rx.datagram[i].hops = rx.datagram[i].tclass = rx.datagram[i].flow_label = 99;
    for (int i = 0; i < 5; i++) { /* one, or several at a time */
        socklen_t n = address_to_native(&to, &native);
        CHECK_EQ(sendto(sender, "abcdefgh", (size_t)(3 + i), 0, &native.any, n), 3 + i);
    }
    for (int taken_ = 0; taken_ < 5;) {
        struct pollfd wait = {receiver, POLLIN, 0};
        CHECK_EQ(poll(&wait, 1, 60000), 1);
        int n = udp_receive(&rx, &p);
        for (int i = 0; i < n; i++, taken_++) {
            const struct udp_datagram *d = &rx.datagram[i];
            CHECK(d->length == 3u + (unsigned)taken_ && d->segment == d->length);
            CHECK(!memcmp(d->bytes, "abcdefgh", d->length));
            CHECK(!memcmp(&d->src, &from, sizeof from));
            CHECK_EQ(d->hops, hops ? 7 : 0);
            CHECK_EQ(d->tclass, tclass ? 0x28 : 0);
            CHECK(!d->flow_label || (!v4 && hops)); /* Linux makes one up */
            CHECK(d->flow_label <= 0xFFFFF);
        }
    }
    p.rx_fd = -1; /* another process has the port */
    CHECK_EQ(udp_receive(&rx, &p), 0);
    udp_rx_free(&rx);
    close(sender);
    close(receiver);
}

static bool has_ipv6(void) {
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6};
    addr.sin6_addr.s6_addr[15] = 1;
    int fd = udpsock_open(&addr), rc = fd < 0 ? fd : udpsock_bind(fd, &addr, 0);
    if (fd >= 0)
        close(fd);
    return rc == 0;
}

static void what_comes_in_is_told_with_its_header_as_far_as_it_is_shown(void) {
    for (int i = 0; i < 8; i++) {
        check_note("case %d", i);
        if (i & 4 || has_ipv6())
            receive(i & 4, i & 2, i & 1);
    }
}

int main(void) {
    live_isolate();
    RUN(packets_of_one_way_leave_together);
    RUN(packets_of_two_ways_leave_one_after_the_other);
    RUN(packets_of_two_slots_leave_one_after_the_other);
    RUN(a_batch_has_packets_of_one_size_and_a_shorter_one_at_its_end);
    RUN(a_batch_has_its_limits);
    RUN(the_kernel_is_told_of_hops_and_class_alone_where_it_would_not_know);
    RUN(what_the_kernel_refuses_is_counted_by_packets);
    RUN(what_is_in_the_batch_counts_as_written_for_its_port);
    RUN(what_comes_in_is_told_with_its_header_as_far_as_it_is_shown);
    return check_done();
}
