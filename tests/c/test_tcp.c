/* SPDX-License-Identifier: Apache-2.0
 *
 * link/tcp: streams of real sockets on loopback, with a clock of the test's own.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "link/tcp/tcp.h"
#include "live.h"

#define SECOND 1000000000ull
#define LONG_MS 60000
#define BIG (32u << 20)

static struct tcp tcp;
static struct rnic_counters counters;
static uint64_t now;
static struct rnic_err err;
static struct qp *const some_qp = (struct qp *)(void *)&tcp; /* the link asks it nothing */
static uint8_t *bytes;

/* ---------------------------------------------------------------- both ends */

struct end {
    struct way way;
    int peer; /* the other end's socket */
};

/* mss: of both, 0: as it comes. */
static void connect_both(int *one, int *other, int mss) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, n) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &n) == 0);
    *one = socket(AF_INET, SOCK_STREAM, 0);
    if (mss)
        setsockopt(*one, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss);
    CHECK(connect(*one, (struct sockaddr *)&at, n) == 0);
    CHECK((*other = accept(listener, NULL, NULL)) >= 0);
    close(listener);
}

static void attach_with(struct end *e, struct rnic_stream_attr attr, int mss) {
    connect_both(&attr.fd, &e->peer, mss);
    CHECK_EQ(tcp_attach(&tcp, &e->way, some_qp, &attr, 0, &err), 0);
    tcp_move(&tcp, tcp_stream_of(&e->way), TCP_OPEN);
    tcp_watch(&tcp, tcp_stream_of(&e->way));
}

static void attach(struct end *e) { attach_with(e, (struct rnic_stream_attr){.line = -1}, 0); }

static void open_link(void) {
    now = SECOND;
    counters = (struct rnic_counters){0};
    tcp_init(&tcp);
    CHECK_EQ(tcp_open(&tcp, &counters, &now, &err), 0);
}

static void open_end(struct end *e) {
    open_link();
    attach(e);
}

static void close_all(struct end *e) {
    close(e->peer);
    tcp_close(&tcp);
}

static long write_some(struct end *e, size_t n) {
    const struct iovec pieces[] = {{bytes, n / 3}, {bytes + n / 3, n - n / 3}};
    return tcp.link.ops->write(&tcp.link, &e->way, pieces, 2);
}

static long read_some(struct end *e, void *to, size_t n) {
    const struct iovec piece = {to, n};
    return tcp_read(&tcp, tcp_stream_of(&e->way), &piece, 1);
}

static void release(struct end *e) { way_release(&e->way); }

static uint32_t told(int ms) {
    struct epoll_event e;
    return epoll_wait(tcp.epoll_fd, &e, 1, ms) == 1 ? e.events : 0;
}

/* Whether the peer gets these bytes, and the end behind them or not. */
static void peer_reads(struct end *e, size_t n, bool end) {
    uint8_t *got = malloc(n + 1);
    CHECK_EQ(recv(e->peer, got, n, MSG_WAITALL), n);
    CHECK(memcmp(got, bytes, n) == 0);
    CHECK_EQ(recv(e->peer, got, 1, end ? 0 : MSG_DONTWAIT), end ? 0 : -1);
    free(got);
}

/* ---------------------------------------------------------------- tests */

static void only_a_connected_tcp_socket_will_do(void) {
    struct way way = {0};
    int pair[2], before = check_descriptors();
    open_link();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    const int fds[] = {pair[0], socket(AF_INET, SOCK_DGRAM, 0), socket(AF_INET, SOCK_STREAM, 0), 12345};
    for (int i = 0; i < 4; i++) {
        const struct rnic_stream_attr attr = {.fd = fds[i], .line = -1};
        CHECK_EQ(tcp_attach(&tcp, &way, some_qp, &attr, 0, &err), -EINVAL);
        CHECK(strstr(err.text, i == 2 ? "not connected" : "not a TCP socket") && !way.held);
        CHECK_EQ(close(fds[i]), i == 3 ? -1 : 0);
    }
    close(pair[1]);
    tcp_close(&tcp);
    CHECK_EQ(check_descriptors(), before);
}

static void what_was_read_before_comes_first(void) {
    struct end e;
    uint8_t got[16] = {0};
    const struct iovec pieces[] = {{got, 2}, {got + 2, 1}};
    open_link();
    attach_with(&e, (struct rnic_stream_attr){.line = -1, .bytes = (const uint8_t *)"early", .nbytes = 5}, 0);
    CHECK_EQ(send(e.peer, "late", 4, 0), 4);
    CHECK_EQ(tcp_read(&tcp, tcp_stream_of(&e.way), pieces, 2), 3);
    CHECK_EQ(read_some(&e, got + 3, 13), 2);
    CHECK_EQ(read_some(&e, got + 5, 11), 4);
    CHECK(memcmp(got, "earlylate", 9) == 0);
    CHECK_EQ(read_some(&e, got, 1), -EAGAIN);
    close_all(&e);
}

static void a_full_socket_takes_a_part_and_tells_of_room(void) {
    struct end e;
    open_end(&e);
    long done = write_some(&e, BIG);
    CHECK(done > 0 && done < (long)BIG && tcp.full == 1 && counters.value[RNIC_CNT_tx_waits] == 1);
    CHECK_EQ(write_some(&e, BIG), 0);
    CHECK(!(told(0) & EPOLLOUT));
    peer_reads(&e, (size_t)done, false);
    CHECK(told(LONG_MS) & EPOLLOUT);
    tcp_has_room(&tcp, tcp_stream_of(&e.way));
    CHECK(tcp.full == 0 && told(0) == 0);
    CHECK_EQ(write_some(&e, 9), 9);
    peer_reads(&e, 9, false);
    close_all(&e);
}

static void behind_its_end_nothing_is_written_and_all_is_read(void) {
    struct end e;
    open_end(&e);
    CHECK_EQ(write_some(&e, 99), 99);
    tcp.link.ops->finish(&tcp.link, &e.way);
    CHECK_EQ(write_some(&e, 1), -EPIPE);
    peer_reads(&e, 99, true);
    uint8_t got[4];
    CHECK(send(e.peer, "back", 4, 0) == 4 && (told(LONG_MS) & EPOLLIN));
    CHECK_EQ(read_some(&e, got, 4), 4);
    shutdown(e.peer, SHUT_WR);
    CHECK(told(LONG_MS) & EPOLLIN);
    CHECK_EQ(read_some(&e, got, 4), 0);
    tcp_watch(&tcp, tcp_stream_of(&e.way));
    CHECK_EQ(told(0), 0); /* the end is told once */
    close_all(&e);
}

/* A socket that is closed with something unread in it resets the connection, and what it wrote is lost. */
static void whoever_leaves_is_heard_to_the_end(void) {
    struct end e;
    open_end(&e);
    CHECK_EQ(send(e.peer, "unread", 6, 0), 6);
    CHECK_EQ(write_some(&e, 100000), 100000);
    struct tcp_stream *s = tcp_stream_of(&e.way);
    release(&e);
    CHECK(told(LONG_MS) & EPOLLIN);
    CHECK_EQ(tcp_read(&tcp, s, NULL, 0), 6);
    tcp_sweep(&tcp, now);
    CHECK_EQ(tcp.count[TCP_LEAVES], 1);
    peer_reads(&e, 100000, true);
    close(e.peer);
    CHECK(told(LONG_MS) & EPOLLIN);
    CHECK_EQ(tcp_read(&tcp, s, NULL, 0), 0);
    tcp_sweep(&tcp, now);
    CHECK_EQ(tcp.count[TCP_LEAVES], 0);
    tcp_close(&tcp);
}

static void a_peer_that_does_not_close_has_its_time(void) {
    struct end e;
    int before = check_descriptors();
    open_end(&e);
    CHECK(tcp_deadline(&tcp) == UINT64_MAX);
    release(&e);
    tcp_sweep(&tcp, now);
    CHECK(tcp_deadline(&tcp) == now + SECOND);
    tcp_sweep(&tcp, now + SECOND - 1);
    CHECK_EQ(tcp.count[TCP_LEAVES], 1);
    tcp_sweep(&tcp, now + SECOND);
    CHECK_EQ(tcp.count[TCP_LEAVES], 0);
    close_all(&e);
    CHECK_EQ(check_descriptors(), before);
}

/* As a child has one until exec(), or whoever was given it: a socket that somebody has yet is not taken out by close(). */
static void a_stream_that_has_gone_tells_nothing_though_its_socket_is_somebodys(void) {
    struct end e;
    char got[4];
    open_end(&e);
    int copy = dup(tcp_stream_of(&e.way)->fd);
    release(&e);
    tcp_sweep(&tcp, now);
    tcp_sweep(&tcp, now + SECOND);
    CHECK_EQ(tcp.count[TCP_LEAVES], 0);
    CHECK_EQ(send(e.peer, "late", 4, 0), 4);
    CHECK_EQ(recv(copy, got, sizeof got, MSG_WAITALL | MSG_PEEK), 4);
    CHECK_EQ(told(0), 0);
    close(copy);
    close_all(&e);
}

static void of_many_that_leave_some_are_closed_at_once(void) {
    enum { MANY = 300, MOST = 256 };
    static struct end ends[MANY];
    open_link();
    for (int i = 0; i < MANY; i++)
        attach(&ends[i]);
    for (int i = 0; i < MANY; i++)
        release(&ends[i]);
    tcp_sweep(&tcp, now);
    CHECK_EQ(tcp.count[TCP_LEAVES], MOST);
    for (int i = 0; i < MANY; i++)
        close(ends[i].peer);
    tcp_close(&tcp);
}

static void a_connection_that_breaks_is_found_by_a_write(void) {
    struct end e;
    const struct linger hard = {.l_onoff = 1};
    open_end(&e);
    setsockopt(e.peer, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(e.peer);
    CHECK(told(LONG_MS) & EPOLLERR);
    CHECK_EQ(write_some(&e, 1), -ECONNRESET);
    CHECK(tcp_stream_of(&e.way)->stage == TCP_BROKEN && tcp_stream_of(&e.way)->error == ECONNRESET);
    CHECK_EQ(write_some(&e, 1), -EPIPE);
    release(&e);
    tcp_sweep(&tcp, now);
    CHECK_EQ(tcp.count[TCP_LEAVES], 0);
    tcp_close(&tcp);
}

static uint32_t segment_of(struct end *e, uint32_t *mss) {
    socklen_t n = sizeof *mss;
    getsockopt(tcp_stream_of(&e->way)->fd, IPPROTO_TCP, TCP_MAXSEG, mss, &n);
    return tcp.link.ops->segment(&tcp.link, &e->way);
}

/* Of short ones it is one; of those that only a loopback has, as many as go together. */
static void a_segment_is_whole_ones_of_tcp(void) {
    struct end e;
    uint32_t mss = 0;
    open_link();
    attach_with(&e, (struct rnic_stream_attr){.line = -1}, 600);
    CHECK_EQ(segment_of(&e, &mss), mss);
    CHECK(mss > 500 && mss <= 600);
    close(e.peer);
    attach(&e);
    uint32_t found = segment_of(&e, &mss);
    CHECK(mss > 9216 && found <= 65535 && found % mss == 0 && found + mss > 65535);
    close_all(&e);
}

static void its_end_is_told_by_its_line_once(void) {
    struct end e;
    int line[2];
    const struct rnic_stream_event event = {.qp_num = 17, .error = ECONNRESET};
    struct rnic_stream_event got;
    open_link();
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line) == 0);
    attach_with(&e, (struct rnic_stream_attr){.line = line[0]}, 0);
    CHECK(tcp_tell(&e.way, &event) && !tcp_tell(&e.way, &event));
    CHECK_EQ(recv(line[1], &got, sizeof got, 0), sizeof got);
    CHECK(got.qp_num == 17 && got.error == ECONNRESET);
    CHECK_EQ(recv(line[1], &got, sizeof got, 0), 0);
    close(line[1]);
    close_all(&e);
}

/* The child closes its copies, and the connection is as before. */
static void a_forked_child_ends_nothing(void) {
    struct end e;
    int status;
    open_end(&e);
    pid_t child = fork();
    if (!child) {
        int before = check_descriptors();
        tcp_abandon(&tcp);
        _exit(before - check_descriptors());
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 2);
    CHECK_EQ(write_some(&e, 9), 9);
    peer_reads(&e, 9, false);
    close_all(&e);
}

/* ---------------------------------------------------------------- faults */

static void a_read_and_a_write_are_short_on_purpose(void) {
    struct end e;
    uint8_t got[64];
    const struct rnic_fault fault = {.chunk = 3, .seed = 1};
    open_end(&e);
    tcp_set_faults(&tcp, &fault, false);
    size_t all = 0;
    for (long done; all < 40; all += (size_t)done) {
        const struct iovec pieces[] = {{bytes + all, 1}, {bytes + all + 1, 39 - all}};
        done = tcp.link.ops->write(&tcp.link, &e.way, pieces, 2);
        CHECK(done >= 1 && done <= 3);
    }
    peer_reads(&e, 40, false);
    CHECK_EQ(send(e.peer, bytes, 40, 0), 40);
    CHECK(told(LONG_MS) & EPOLLIN);
    all = 0;
    for (long done; all < 40; all += (size_t)done) {
        const struct iovec pieces[] = {{got + all, 1}, {got + all + 1, 39 - all}};
        done = tcp_read(&tcp, tcp_stream_of(&e.way), pieces, 2);
        CHECK(done >= 1 && done <= 3);
    }
    CHECK(memcmp(got, bytes, 40) == 0);
    close_all(&e);
}

static void it_stands_still_behind_so_many_bytes(void) {
    struct end e;
    uint8_t got[4];
    const struct rnic_fault fault = {.stall_after = 50};
    open_end(&e);
    tcp_set_faults(&tcp, &fault, false);
    CHECK_EQ(write_some(&e, 99), 50);
    CHECK_EQ(write_some(&e, 99), 0);
    CHECK_EQ(counters.value[RNIC_CNT_fault_stalled], 1);
    peer_reads(&e, 50, false);
    CHECK_EQ(send(e.peer, "back", 4, 0), 4);
    CHECK_EQ(read_some(&e, got, 4), -EAGAIN);
    CHECK_EQ(told(0), 0); /* nobody wakes for what is not read */
    tcp_set_faults(&tcp, NULL, false);
    CHECK(told(LONG_MS) & EPOLLIN);
    CHECK_EQ(read_some(&e, got, 4), 4);
    close_all(&e);
}

static void it_is_reset_behind_so_many_bytes(void) {
    struct end e;
    uint8_t got;
    const struct rnic_fault fault = {.reset_after = 50};
    open_end(&e);
    tcp_set_faults(&tcp, &fault, false);
    CHECK_EQ(write_some(&e, 99), 50);
    peer_reads(&e, 50, false);
    CHECK_EQ(write_some(&e, 99), -ECONNRESET);
    CHECK_EQ(counters.value[RNIC_CNT_fault_reset], 1);
    CHECK(recv(e.peer, &got, 1, 0) < 0 && errno == ECONNRESET);
    close_all(&e);
}

static void *reset_when_cancelled(void *arg) {
    struct end *e = arg;
    pthread_cancel(pthread_self());
    CHECK_EQ(write_some(e, 99), -ECONNRESET);
    return e;
}

/* Whoever writes has the device's lock. */
static void a_reset_is_no_point_of_cancellation(void) {
    struct end e;
    pthread_t thread;
    void *found = NULL;
    const struct rnic_fault fault = {.reset_after = 50};
    open_end(&e);
    tcp_set_faults(&tcp, &fault, false);
    CHECK_EQ(write_some(&e, 99), 50);
    CHECK(pthread_create(&thread, NULL, reset_when_cancelled, &e) == 0);
    CHECK(pthread_join(thread, &found) == 0 && found == &e);
    close_all(&e);
}

static void a_write_waits_for_its_time(void) {
    struct end e;
    const struct rnic_fault fault = {.delay = 1000000, .delay_ns = SECOND};
    open_end(&e);
    tcp_set_faults(&tcp, &fault, false);
    CHECK_EQ(write_some(&e, 9), 0);
    CHECK(tcp_deadline(&tcp) == now + SECOND && told(0) == 0);
    now += SECOND - 1;
    tcp_go_on(&tcp, now);
    CHECK_EQ(write_some(&e, 9), 0);
    now += 1;
    tcp_go_on(&tcp, now);
    CHECK(told(LONG_MS) & EPOLLOUT);
    CHECK_EQ(write_some(&e, 9), 9);
    peer_reads(&e, 9, false);
    CHECK_EQ(counters.value[RNIC_CNT_fault_delayed], 1);
    close_all(&e);
}

int main(void) {
    live_isolate();
    bytes = malloc(BIG);
    for (uint32_t i = 0; i < BIG; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    RUN(only_a_connected_tcp_socket_will_do);
    RUN(what_was_read_before_comes_first);
    RUN(a_full_socket_takes_a_part_and_tells_of_room);
    RUN(behind_its_end_nothing_is_written_and_all_is_read);
    RUN(whoever_leaves_is_heard_to_the_end);
    RUN(a_peer_that_does_not_close_has_its_time);
    RUN(a_stream_that_has_gone_tells_nothing_though_its_socket_is_somebodys);
    RUN(of_many_that_leave_some_are_closed_at_once);
    RUN(a_connection_that_breaks_is_found_by_a_write);
    RUN(a_segment_is_whole_ones_of_tcp);
    RUN(its_end_is_told_by_its_line_once);
    RUN(a_forked_child_ends_nothing);
    RUN(a_read_and_a_write_are_short_on_purpose);
    RUN(it_stands_still_behind_so_many_bytes);
    RUN(it_is_reset_behind_so_many_bytes);
    RUN(a_reset_is_no_point_of_cancellation);
    RUN(a_write_waits_for_its_time);
    free(bytes);
    return check_done();
}
