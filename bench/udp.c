/* SPDX-License-Identifier: Apache-2.0
 *
 * Bare UDP over loopback, what rnic's packets are made of: two processes, both spinning on non-blocking sockets.
 *
 *   udp pingpong [size=8] [tcp=0] [seconds=0.4]  half round trip of a message that comes back; tcp=1: over TCP
 *   udp stream [size=4096] [segment=4096] [gso=1] [seconds=0.4]
 *
 * A stream sends messages of `size` bytes in datagrams of `segment` bytes, as UDP_SEGMENT batches of at most 64 KiB or
 * (gso=0) one a system call, without any flow control; what the receiver was given counts.  One line of JSON on
 * standard output.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loops.h"
#include "tcp.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define MAX_DATAGRAM 65507
#define BATCH_SEGMENTS 64
#define BUFFER (4 << 20)
#define LIMIT (30 * SECOND)

/* Shared by the two processes. */
struct shared {
    _Atomic bool stop;
    _Atomic uint64_t bytes, datagrams;
};

static uint8_t buffer[1 << 21];

static void die(const char *what) {
    fprintf(stderr, "udp: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Two sockets connected to each other. */
static void open_pair(int fd[2]) {
    struct sockaddr_in addr[2];
    int size = BUFFER, one = 1;
    for (int i = 0; i < 2; i++) {
        socklen_t n = sizeof addr[i];
        addr[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fd[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        if (fd[i] < 0 || bind(fd[i], (struct sockaddr *)&addr[i], n) ||
            getsockname(fd[i], (struct sockaddr *)&addr[i], &n))
            die("socket");
        setsockopt(fd[i], SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
        setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        setsockopt(fd[i], SOL_UDP, UDP_GRO, &one, sizeof one);
    }
    for (int i = 0; i < 2; i++) {
        if (connect(fd[i], (struct sockaddr *)&addr[!i], sizeof addr[i]))
            die("connect");
    }
}

/* The same over TCP. */
static void open_tcp(int fd[2]) {
    uint16_t port;
    int listener = tcp_listen(&port);
    fd[0] = listener < 0 ? -1 : tcp_connect(port);
    fd[1] = fd[0] < 0 ? -1 : tcp_accept(listener);
    for (int i = 0; i < 2; i++) {
        if (fd[i] < 0 || fcntl(fd[i], F_SETFL, O_NONBLOCK))
            die("TCP");
    }
}

/* ---------------------------------------------------------------- ping-pong */

static void echo(int fd, struct shared *shared) {
    while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n > 0 && send(fd, buffer, (size_t)n, 0) < 0)
            die("send");
    }
}

static bool answered(int fd, uint64_t until) {
    while (recv(fd, buffer, sizeof buffer, 0) < 0) {
        if (now_ns() > until)
            return false;
    }
    return true;
}

static void pingpong(int fd, uint32_t size, uint64_t duration) {
    static struct perf_histogram samples;
    uint64_t start = now_ns(), warm = start + duration / 8, until = warm + duration;
    for (uint64_t now = start; now < until;) {
        if (send(fd, buffer, size, 0) < 0 || !answered(fd, start + LIMIT))
            die("ping-pong");
        uint64_t after = now_ns();
        if (now > warm)
            perf_sample(&samples, after - now);
        now = after;
    }
    double median = perf_percentile(&samples, 50) / 2e3, p99 = perf_percentile(&samples, 99) / 2e3;
    printf("{\"median_us\": %.3f, \"p99_us\": %.3f, \"samples\": %llu}\n", median, p99,
           (unsigned long long)samples.count);
}

/* ---------------------------------------------------------------- stream */

static void sink(int fd, struct shared *shared) {
    while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n <= 0)
            continue;
        atomic_fetch_add_explicit(&shared->bytes, (uint64_t)n, memory_order_relaxed);
        atomic_fetch_add_explicit(&shared->datagrams, 1, memory_order_relaxed);
    }
}

static uint64_t send_message(int fd, uint32_t size, uint32_t batch) {
    uint64_t sent = 0;
    for (uint32_t at = 0; at < size; at += batch) {
        ssize_t n = send(fd, buffer + at, size - at < batch ? size - at : batch, 0);
        sent += n > 0 ? (uint64_t)n : 0;
    }
    return sent;
}

static void stream(int fd, struct shared *shared, uint32_t size, uint32_t segment, bool gso, uint64_t duration) {
    uint32_t fits = MAX_DATAGRAM / segment, batch = segment * (fits < BATCH_SEGMENTS ? fits : BATCH_SEGMENTS);
    int bytes = (int)segment;
    if (gso && size > segment && setsockopt(fd, SOL_UDP, UDP_SEGMENT, &bytes, sizeof bytes))
        die("UDP_SEGMENT");
    uint64_t sent = 0, warm = now_ns() + duration / 8, now;
    while (now_ns() < warm)
        send_message(fd, size, gso ? batch : segment);
    uint64_t start = now_ns(), before = atomic_load(&shared->bytes);
    do {
        sent += send_message(fd, size, gso ? batch : segment);
        now = now_ns();
    } while (now < start + duration);
    double got = (double)(atomic_load(&shared->bytes) - before), seconds = (double)(now - start) / 1e9;
    printf("{\"gbytes_per_s\": %.4f, \"messages_per_s\": %.0f, \"sent_gbytes_per_s\": %.4f}\n", got / seconds / 1e9,
           got / size / seconds, (double)sent / seconds / 1e9);
}

int main(int argc, char **argv) {
    int fd[2];
    if (argc < 2)
        die("usage: udp pingpong|stream [name=value ...]");
    bool ping = !strcmp(argv[1], "pingpong");
    uint32_t size = option_number(argv, "size", ping ? 8 : 4096), segment = option_number(argv, "segment", 4096);
    uint64_t duration = option_ns(argv, "seconds", "0.4");
    if (size > sizeof buffer || !segment || segment > MAX_DATAGRAM || (ping && size > MAX_DATAGRAM))
        die("size");
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(buffer, 1, sizeof buffer);
    if (ping && option_number(argv, "tcp", 0))
        open_tcp(fd);
    else
        open_pair(fd);
    pid_t child = fork();
    if (child < 0 || shared == MAP_FAILED)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        (ping ? echo : sink)(fd[1], shared);
        _exit(0);
    }
    if (ping)
        pingpong(fd[0], size, duration);
    else
        stream(fd[0], shared, size, segment, option_number(argv, "gso", 1), duration);
    atomic_store(&shared->stop, true);
    return waitpid(child, NULL, 0) == child ? 0 : 1;
}
