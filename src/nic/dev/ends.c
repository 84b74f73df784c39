/* SPDX-License-Identifier: Apache-2.0 */
#include "dev/ends.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fail.h"
#include "link/tcp/tcp.h"

#define LEAST 16

static struct rnic_stream_event *at(const struct ends *ends, uint32_t i) {
    return &ends->ring[(ends->first + i) % ends->room];
}

/* By syscall(): the C library's functions are points of cancellation. */
static void show(const struct ends *ends) {
    uint64_t one = 1;
    if (syscall(SYS_write, ends->fd, &one, sizeof one) < 0)
        return; /* the counter is full: cannot be */
}

static void hide(const struct ends *ends) {
    uint64_t any;
    if (syscall(SYS_read, ends->fd, &any, sizeof any) < 0)
        return; /* nothing has been shown: cannot be */
}

/* There is room: a queue pair has a beginning and an end at most, until ends_forget(), and whoever gave it its stream has
 * reserved these. */
static void put(void *arg, struct qp *qp, const struct rnic_stream_event *event) {
    struct ends *ends = arg;
    if (event->end != RNIC_STREAM_READY && tcp_tell(&qp->way, event))
        return;
    if (ends->count == ends->room)
        return; /* cannot be */
    *at(ends, ends->count) = *event;
    if (ends->count++ == 0)
        show(ends);
}

int ends_open(struct ends *ends, struct nic *nic, struct rnic_err *err) {
    *ends = (struct ends){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (ends->fd < 0)
        return fail(err, -errno, "no descriptor for the ends of streams");
    nic->stream_told = put;
    nic->stream_arg = ends;
    return 0;
}

void ends_close(struct ends *ends) {
    ends_abandon(ends);
    free(ends->ring);
    *ends = (struct ends){.fd = -1};
}

void ends_abandon(struct ends *ends) {
    if (ends->fd >= 0)
        close(ends->fd);
}

int ends_reserve(struct ends *ends, uint32_t qps) {
    uint32_t room = ends->room ? ends->room : LEAST;
    qps *= 2; /* a beginning and an end */
    if (qps <= ends->room)
        return 0;
    while (room < qps)
        room *= 2;
    struct rnic_stream_event *ring = malloc(room * sizeof *ring);
    if (!ring)
        return -ENOMEM;
    for (uint32_t i = 0; i < ends->count; i++)
        ring[i] = *at(ends, i);
    free(ends->ring);
    ends->ring = ring;
    ends->room = room;
    ends->first = 0;
    return 0;
}

void ends_forget(struct ends *ends, uint32_t qp_num) {
    uint32_t kept = 0, n = ends->count;
    for (uint32_t i = 0; i < n; i++) {
        if (at(ends, i)->qp_num != qp_num)
            *at(ends, kept++) = *at(ends, i);
    }
    ends->count = kept;
    if (n && !kept)
        hide(ends);
}

bool ends_take(struct ends *ends, struct rnic_stream_event *event) {
    if (!ends->count)
        return false;
    *event = *at(ends, 0);
    ends->first = (ends->first + 1) % ends->room;
    if (--ends->count == 0)
        hide(ends);
    return true;
}
