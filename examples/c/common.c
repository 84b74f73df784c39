/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int failed_with(const char *call, int error) {
    fprintf(stderr, "%s: %s\n", call, strerror(error));
    return -1;
}

int failed(const char *call) { return failed_with(call, errno); }

int wait_readable(int fd, const char *what) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    int ready;

    do
        ready = poll(&one, 1, WAIT_SECONDS * 1000);
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        return failed("poll");
    if (ready)
        return 0;
    fprintf(stderr, "no %s within %d s\n", what, WAIT_SECONDS);
    return -1;
}

static double now(void) {
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

int check_completion(int found, const struct ibv_wc *wc) {
    if (found < 0)
        fprintf(stderr, "ibv_poll_cq failed\n");
    else if (wc->status != IBV_WC_SUCCESS)
        fprintf(stderr, "a work request ended with: %s\n", ibv_wc_status_str(wc->status));
    else
        return 0;
    return -1;
}

int wait_completion(struct ibv_cq *cq, struct ibv_wc *wc) {
    double limit = now() + WAIT_SECONDS;
    int found;

    while (!(found = ibv_poll_cq(cq, 1, wc)))
        if (now() > limit) {
            fprintf(stderr, "no completion within %d s\n", WAIT_SECONDS);
            return -1;
        }
    return check_completion(found, wc);
}

int post_receive(struct ibv_qp *qp, struct ibv_mr *mr, void *at, uint32_t length) {
    struct ibv_sge sge = {.addr = (uintptr_t)at, .length = length, .lkey = mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    int error = ibv_post_recv(qp, &wr, &bad);

    return error ? failed_with("ibv_post_recv", error) : 0;
}

long number(const char *text, long most) {
    char *end;
    long found = strtol(text, &end, 10);

    return *text && !*end && found >= 0 && found <= most ? found : -1;
}
