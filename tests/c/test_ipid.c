/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernel puts into IP headers, against what the ICRC is computed for.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "link/udp/port.h"
#include "live.h"

#define IP 14u /* behind the Ethernet header */
#define HEADERS (IP + 20 + 8)

/* ---------------------------------------------------------------- a kernel that writes other headers */

static int looks, lies_at; /* which look is answered with other bytes, from 1 on */
static uint8_t lie_at, lie;
static bool shows_nothing;
static ssize_t cut;      /* bytes that are shown of a frame; 0: all */
static ssize_t shown[3]; /* bytes of the frame at each look */

/* In the C library's place: the link looks at what it has sent by it. */
ssize_t recvmsg(int fd, struct msghdr *msg, int flags) {
    ssize_t n = syscall(SYS_recvmsg, fd, msg, flags);
    if (!(flags & MSG_ERRQUEUE))
        return n;
    uint8_t *frame = msg->msg_iov->iov_base;
    shown[++looks] = n;
    n = cut && n > 0 ? cut : n;
    if (looks == lies_at && n > (ssize_t)(IP + lie_at))
        frame[IP + lie_at] ^= lie;
    errno = shows_nothing ? EAGAIN : errno;
    return shows_nothing ? -1 : n;
}

/* ---------------------------------------------------------------- */

static struct port port;
static struct rnic_err err;

static int check(int at, uint8_t byte, uint8_t change) {
    looks = 0;
    lies_at = at, lie_at = byte, lie = change;
    err.text[0] = 0;
    int before = check_descriptors(), rc = port_check_ids(&port, &err);
    CHECK_EQ(check_descriptors(), before);
    return rc;
}

static void begin(bool gso) {
    port = (struct port){.gso = gso};
    port.addr.sin6_family = AF_INET6;
    port.addr.sin6_addr.s6_addr[10] = port.addr.sin6_addr.s6_addr[11] = 0xFF;
    port.addr.sin6_addr.s6_addr[12] = 127, port.addr.sin6_addr.s6_addr[15] = 1;
    shows_nothing = false;
}

/* A kernel that shows none of its headers cannot be judged. */
static bool is_shown(void) {
    begin(false);
    return check(0, 0, 0) != -ENODATA;
}

static void this_kernel_is_as_others(void) {
    begin(true);
    CHECK_EQ(check(0, 0, 0), 0);
    CHECK_EQ(looks, 2);
    CHECK_EQ(shown[2], 2 * shown[1] - (ssize_t)HEADERS); /* one datagram, then a batch of two */
    CHECK_EQ(err.text[0], 0);
}

static void another_identification_is_told(void) {
    for (int look = 1; look <= 2; look++) {
        check_note("look %d", look);
        begin(true);
        CHECK_EQ(check(look, 4, 1), -EPROTO);
        CHECK(strstr(err.text, "identification 256 and flags 0x4000"));
        CHECK(strstr(err.text, look == 1 ? "a datagram" : "a UDP_SEGMENT batch"));
        CHECK_EQ(check(look, 5, 7), -EPROTO);
        CHECK(strstr(err.text, "identification 7 and"));
        CHECK_EQ(looks, look);
    }
}

static void other_flags_are_told(void) {
    begin(false);
    CHECK_EQ(check(1, 6, 0x40), -EPROTO);
    CHECK(strstr(err.text, "flags 0x0000"));
    CHECK_EQ(check(1, 7, 1), -EPROTO);
    CHECK(strstr(err.text, "flags 0x4001"));
}

static void without_offload_nothing_is_sent_in_batches(void) {
    begin(false);
    CHECK_EQ(check(2, 4, 1), 0);
    CHECK_EQ(looks, 1);
}

static void the_header_of_ip_is_enough(void) {
    begin(true);
    cut = HEADERS - 8;
    int whole = check(0, 0, 0);
    cut--;
    int short_ = check(0, 0, 0);
    cut = 0;
    CHECK_EQ(whole, 0);
    CHECK_EQ(short_, -ENODATA);
}

static void what_is_not_shown_is_not_judged(void) {
    begin(true);
    shows_nothing = true;
    CHECK_EQ(check(0, 0, 0), -ENODATA);
    shows_nothing = false;
    CHECK_EQ(check(1, 0, 1), -ENODATA); /* no header of IPv4, or one with options */
    port.addr.sin6_addr.s6_addr[15] = 77, port.addr.sin6_addr.s6_addr[12] = 192; /* nobody's address */
    CHECK_EQ(check(0, 0, 0), -ENODATA);
    CHECK(strstr(err.text, "UDP socket"));
}

static void ipv6_has_no_identification(void) {
    begin(true);
    port.addr.sin6_addr.s6_addr[10] = 0;
    CHECK_EQ(check(1, 4, 1), 0);
    CHECK_EQ(looks, 0);
}

int main(void) {
    live_isolate();
    if (is_shown()) {
        RUN(this_kernel_is_as_others);
        RUN(another_identification_is_told);
        RUN(other_flags_are_told);
        RUN(without_offload_nothing_is_sent_in_batches);
        RUN(the_header_of_ip_is_enough);
    }
    RUN(what_is_not_shown_is_not_judged);
    RUN(ipv6_has_no_identification);
    return check_done();
}
