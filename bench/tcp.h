/* SPDX-License-Identifier: Apache-2.0
 *
 * TCP connections over loopback, whose messages go out at once.  What fails gives -1, with errno.
 */
#ifndef BENCH_TCP_H
#define BENCH_TCP_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

static inline struct sockaddr_in tcp_address(uint16_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline int tcp_at_once(int fd) {
    int one = 1;
    return fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) ? -1 : fd;
}

/* A listener, and its port. */
static inline int tcp_listen(uint16_t *port) {
    struct sockaddr_in addr = tcp_address(0);
    socklen_t n = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, n) || listen(fd, 1) ||
        getsockname(fd, (struct sockaddr *)&addr, &n))
        return -1;
    *port = ntohs(addr.sin_port);
    return fd;
}

static inline int tcp_connect(uint16_t port) {
    struct sockaddr_in addr = tcp_address(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof addr) ? -1 : tcp_at_once(fd);
}

/* The one that has connected; the listener is closed. */
static inline int tcp_accept(int listener) {
    int fd = accept(listener, NULL, NULL);
    close(listener);
    return tcp_at_once(fd);
}

#endif
