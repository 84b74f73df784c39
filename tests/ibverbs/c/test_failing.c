/* SPDX-License-Identifier: Apache-2.0
 *
 * A device fails while threads wait for its events: all of them are woken, and so is whoever polls the descriptors.
 */
#include <poll.h>

#include "check.h"
#include "lib.h"
#include "nic_ext.h"

#define PATIENCE_MS 60000 /* that only a hang takes */

static struct ibv_context *context;
static struct ibv_comp_channel *channel;

static void open_device(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    channel = ibv_create_comp_channel(context);
    CHECK(channel);
}

static void close_device(void) {
    CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
    CHECK_EQ(ibv_close_device(context), 0);
}

static void fail_device(void) {
    const struct rnic_context *nic = context_of(context)->nic;
    const struct rnic_ext_events *events = rnic_extension(nic, RNIC_EXT_EVENTS);
    CHECK(events != NULL);
    CHECK_EQ(events->raise(context_of(context)->nic, RNIC_EVENT_DEVICE_FATAL, 20000000, NULL), 0);
}

/* Each returns how the wait has ended: an errno, or 0 after an event. */
static void *wait_for_completion(void *arg) {
    struct ibv_cq *cq;
    void *own;
    (void)arg;
    return (void *)(intptr_t)(ibv_get_cq_event(channel, &cq, &own) ? errno : 0);
}

static void *wait_for_event(void *arg) {
    struct ibv_async_event event;
    (void)arg;
    if (ibv_get_async_event(context, &event))
        return (void *)(intptr_t)errno;
    CHECK_EQ(event.event_type, IBV_EVENT_DEVICE_FATAL);
    ibv_ack_async_event(&event);
    return NULL;
}

static int end_of(pthread_t thread) {
    void *how;
    CHECK_EQ(pthread_join(thread, &how), 0);
    return (int)(intptr_t)how;
}

static void test_all_that_wait_are_woken(void) {
    pthread_t completion, event[2];
    open_device();
    CHECK_EQ(pthread_create(&completion, NULL, wait_for_completion, NULL), 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&event[i], NULL, wait_for_event, NULL), 0);
    fail_device();
    CHECK_EQ(end_of(completion), EIO);
    CHECK_EQ(end_of(event[0]) + end_of(event[1]), EIO); /* the other one has the event */
    close_device();
}

static void test_descriptors_stay_readable(void) {
    open_device();
    struct pollfd fds[] = {{.fd = channel->fd, .events = POLLIN}, {.fd = context->async_fd, .events = POLLIN}};
    fail_device();
    for (int i = 0; i < 2; i++)
        CHECK_EQ(poll(&fds[i], 1, PATIENCE_MS), 1);
    CHECK_EQ((intptr_t)wait_for_event(NULL), 0);
    CHECK_EQ((intptr_t)wait_for_event(NULL), EIO);
    CHECK_EQ(poll(fds, 2, 0), 2);
    close_device();
}

int main(void) {
    RUN(test_all_that_wait_are_woken);
    RUN(test_descriptors_stay_readable);
    return check_done();
}
