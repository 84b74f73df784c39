/* SPDX-License-Identifier: Apache-2.0
 *
 * An object is destroyed by one thread while another one has an event of it, or takes or acknowledges one: destroying waits
 * until that event is acknowledged, and until then the object can be used.
 *
 * The provider's functions that give and acknowledge an event are replaced by some that start the other thread.
 */
#include <semaphore.h>
#include <time.h>

#include "check.h"
#include "lib.h"

#define MEANWHILE_MS 20 /* in which a thread that does not wait has destroyed the object */
#define PATIENCE 60     /* seconds that only a hang takes */

enum moment { NEVER, GIVEN, ACKNOWLEDGED }; /* at the device: it refuses to destroy the object in between */

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_srq *srq;
static const struct rnic_ops *real;

static enum moment moment;
static int (*destroy)(void); /* what the other thread does */
static pthread_t thread;
static sem_t destroyed;
static int result, early;

static void *run(void *arg) {
    (void)arg;
    result = destroy();
    sem_post(&destroyed);
    return NULL;
}

/* Whether the object is destroyed within so many milliseconds. */
static int is_destroyed(long ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (sem_timedwait(&destroyed, &until))
        if (errno != EINTR)
            return 0;
    sem_post(&destroyed);
    return 1;
}

static void meanwhile(enum moment now) {
    if (now != moment)
        return;
    CHECK_EQ(pthread_create(&thread, NULL, run, NULL), 0);
    early = is_destroyed(MEANWHILE_MS);
}

static int get_cq_event(struct rnic_comp_channel *channel, struct rnic_cq **cq, struct rnic_err *err) {
    int rc = real->get_cq_event(channel, cq, err);
    meanwhile(GIVEN);
    return rc;
}
static int ack_cq_events(struct rnic_cq *cq, unsigned n, struct rnic_err *err) {
    int rc = real->ack_cq_events(cq, n, err);
    meanwhile(ACKNOWLEDGED);
    return rc;
}
static int get_async_event(struct rnic_context *ctx, struct rnic_async_event *event, struct rnic_err *err) {
    int rc = real->get_async_event(ctx, event, err);
    meanwhile(GIVEN);
    return rc;
}
static int ack_async_event(struct rnic_context *ctx, const struct rnic_async_event *event, struct rnic_err *err) {
    int rc = real->ack_async_event(ctx, event, err);
    meanwhile(ACKNOWLEDGED);
    return rc;
}

static void open_device(void) {
    static struct rnic_ops slow;
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 1, .max_sge = 1}};
    CHECK(list && list[0]);
    context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    real = context_of(context)->ops;
    slow = *real;
    slow.get_cq_event = get_cq_event;
    slow.ack_cq_events = ack_cq_events;
    slow.get_async_event = get_async_event;
    slow.ack_async_event = ack_async_event;
    context_of(context)->ops = &slow;
    pd = ibv_alloc_pd(context);
    CHECK(pd);
    srq = ibv_create_srq(pd, &attr);
    CHECK(srq);
}

static void close_device(void) {
    CHECK_EQ(ibv_destroy_srq(srq), 0);
    CHECK_EQ(ibv_dealloc_pd(pd), 0);
    CHECK_EQ(ibv_close_device(context), 0);
}

/* A queue pair in ERR.  With a shared receive queue it has an event LAST_WQE_REACHED, else a flushed receive. */
static struct ibv_qp *failed_qp(struct ibv_cq *cq, struct ibv_srq *shared) {
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .srq = shared,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_recv_wr wr = {0}, *bad;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    if (!shared)
        CHECK_EQ(ibv_post_recv(qp, &wr, &bad), 0);
    attr.qp_state = IBV_QPS_ERR;
    CHECK_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
    return qp;
}

static struct ibv_cq *cq_to_destroy;
static struct ibv_qp *qp_to_destroy;
static int destroy_cq(void) { return ibv_destroy_cq(cq_to_destroy); }
static int destroy_qp(void) { return ibv_destroy_qp(qp_to_destroy); }

/* The event is taken; nobody has acknowledged it. */
static void check_it_waits(void) {
    CHECK(!early);
    if (moment == GIVEN)
        CHECK(!is_destroyed(MEANWHILE_MS));
}

static void check_it_ends(void) {
    CHECK(!early);
    CHECK(is_destroyed(1000 * PATIENCE));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(result, 0);
    CHECK_EQ(sem_destroy(&destroyed), 0);
}

static void completion_event(enum moment at) {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_wc wc;
    void *own;
    open_device();
    channel = ibv_create_comp_channel(context);
    cq_to_destroy = ibv_create_cq(context, 4, &own, channel, 0);
    CHECK(cq_to_destroy);
    CHECK_EQ(ibv_req_notify_cq(cq_to_destroy, 0), 0);
    CHECK_EQ(ibv_destroy_qp(failed_qp(cq_to_destroy, NULL)), 0);
    moment = at;
    destroy = destroy_cq;
    CHECK_EQ(sem_init(&destroyed, 0, 0), 0);
    CHECK_EQ(ibv_get_cq_event(channel, &cq, &own), 0);
    CHECK(cq == cq_to_destroy && own == &own);
    check_it_waits();
    CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
    CHECK_EQ(ibv_poll_cq(cq, 1, &wc), 0);
    ibv_ack_cq_events(cq, 1);
    check_it_ends();
    CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
    close_device();
}

static void asynchronous_event(enum moment at) {
    struct ibv_async_event event;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    struct ibv_cq *cq;
    open_device();
    cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    CHECK(cq);
    qp_to_destroy = failed_qp(cq, srq);
    moment = at;
    destroy = destroy_qp;
    CHECK_EQ(sem_init(&destroyed, 0, 0), 0);
    CHECK_EQ(ibv_get_async_event(context, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    CHECK(event.element.qp == qp_to_destroy);
    check_it_waits();
    CHECK_EQ(ibv_query_qp(qp_to_destroy, &attr, IBV_QP_STATE, &init), 0);
    ibv_ack_async_event(&event);
    check_it_ends();
    CHECK_EQ(ibv_destroy_cq(cq), 0);
    close_device();
}

static struct ibv_async_event limit_event(void) {
    struct ibv_async_event event;
    struct ibv_srq_attr limit = {.srq_limit = 1};
    CHECK_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
    CHECK_EQ(ibv_get_async_event(context, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(event.element.srq == srq);
    return event;
}

static struct ibv_srq *srq_to_destroy;
static int destroy_srq(void) { return ibv_destroy_srq(srq_to_destroy); }

static void test_shared_queue_is_used_until_its_event_is_acknowledged(void) {
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_async_event event;
    struct ibv_recv_wr wr = {0}, *bad;
    struct ibv_srq_attr attr;
    open_device();
    srq_to_destroy = srq;
    destroy = destroy_srq;
    moment = GIVEN;
    CHECK_EQ(sem_init(&destroyed, 0, 0), 0);
    event = limit_event();
    check_it_waits();
    CHECK_EQ(ibv_post_srq_recv(event.element.srq, &wr, &bad), 0);
    CHECK_EQ(ibv_query_srq(event.element.srq, &attr), 0);
    ibv_ack_async_event(&event);
    check_it_ends();
    srq = ibv_create_srq(pd, &init);
    close_device();
}

/* What refuses to be destroyed does so at once. */
static void test_queue_in_use_with_an_event_is_busy(void) {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    void *own;
    open_device();
    moment = NEVER;
    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 4, NULL, channel, 0);
    CHECK(cq);
    CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
    qp = failed_qp(cq, NULL);
    CHECK_EQ(ibv_get_cq_event(channel, &cq, &own), 0);
    CHECK_EQ(ibv_destroy_cq(cq), EBUSY);
    CHECK_EQ(ibv_destroy_qp(qp), 0);
    ibv_ack_cq_events(cq, 1);
    CHECK_EQ(ibv_destroy_cq(cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
    close_device();
}

static void test_device_is_closed_with_events_that_nobody_acknowledges(void) {
    struct ibv_comp_channel *channel;
    struct ibv_async_event event;
    struct ibv_cq *cq;
    void *own;
    open_device();
    moment = NEVER;
    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 4, NULL, channel, 0);
    CHECK(cq);
    CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
    failed_qp(cq, NULL);
    failed_qp(cq, srq);
    CHECK_EQ(ibv_get_cq_event(channel, &cq, &own), 0);
    CHECK_EQ(ibv_get_async_event(context, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    limit_event();
    CHECK_EQ(ibv_close_device(context), 0);
}

/* ---------------------------------------------------------------- programs that do it otherwise */

static void *destroy_srq_in_thread(void *arg) {
    ibv_destroy_srq(arg);
    return NULL;
}

static void test_a_thread_that_waits_is_cancelled_and_the_object_stays(void) {
    struct ibv_async_event event;
    pthread_t waits;
    void *end;
    open_device();
    moment = NEVER;
    event = limit_event();
    CHECK_EQ(pthread_create(&waits, NULL, destroy_srq_in_thread, srq), 0);
    CHECK_EQ(pthread_cancel(waits), 0);
    CHECK_EQ(pthread_join(waits, &end), 0);
    CHECK(end == PTHREAD_CANCELED);
    ibv_ack_async_event(&event);
    event = limit_event();
    ibv_ack_async_event(&event);
    close_device();
}

static void test_more_is_acknowledged_than_was_taken(void) {
    struct ibv_comp_channel *channel;
    struct ibv_async_event event;
    struct ibv_cq *cq;
    void *own;
    open_device();
    moment = NEVER;
    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 4, NULL, channel, 0);
    CHECK(cq);
    CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
    CHECK_EQ(ibv_destroy_qp(failed_qp(cq, NULL)), 0);
    CHECK_EQ(ibv_get_cq_event(channel, &cq, &own), 0);
    ibv_ack_cq_events(cq, 3);
    CHECK_EQ(ibv_destroy_cq(cq), 0);
    CHECK_EQ(ibv_destroy_comp_channel(channel), 0);
    event = limit_event();
    ibv_ack_async_event(&event);
    ibv_ack_async_event(&event);
    close_device();
}

/* ---------------------------------------------------------------- one context of the device, opened and imported */

static struct ibv_context *imported;

static void import_device(void) {
    moment = NEVER;
    imported = ibv_import_device(context->cmd_fd);
    CHECK(imported);
}

/* While a thread waits for one object's event, others are destroyed by the other context. */
static void test_an_event_is_taken_by_the_other_context(void) {
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct ibv_async_event event;
    open_device();
    import_device();
    srq_to_destroy = srq;
    destroy = destroy_srq;
    early = 0;
    CHECK_EQ(sem_init(&destroyed, 0, 0), 0);
    CHECK_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
    CHECK_EQ(ibv_get_async_event(imported, &event), 0);
    CHECK(event.element.srq == srq);
    CHECK_EQ(pthread_create(&thread, NULL, run, NULL), 0);
    for (int i = 0; i < 200; i++) {
        struct ibv_pd *other = ibv_alloc_pd(imported);
        struct ibv_srq *another = ibv_create_srq(other, &init);
        CHECK(another);
        CHECK_EQ(ibv_destroy_srq(another), 0);
        CHECK_EQ(ibv_dealloc_pd(other), 0);
    }
    CHECK(!is_destroyed(MEANWHILE_MS));
    ibv_ack_async_event(&event);
    check_it_ends();
    CHECK_EQ(ibv_close_device(imported), 0);
    srq = ibv_create_srq(pd, &init);
    close_device();
}

/* As with a kernel, they are there until the last of its owners has closed the context, and so are their events. */
static void test_what_a_closed_context_leaves_is_there_for_the_other_one(void) {
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct ibv_async_event event;
    open_device();
    import_device();
    struct ibv_srq *left = ibv_create_srq(ibv_alloc_pd(imported), &init);
    CHECK(left);
    CHECK_EQ(ibv_modify_srq(left, &limit, IBV_SRQ_LIMIT), 0);
    CHECK_EQ(ibv_close_device(imported), 0);
    CHECK_EQ(ibv_get_async_event(context, &event), 0);
    CHECK(event.element.srq == left);
    ibv_ack_async_event(&event);
    CHECK_EQ(ibv_destroy_srq(left), 0);
    close_device(); /* but for the protection domain */
}

static void test_queue_is_destroyed_when_its_event_is_given(void) { completion_event(GIVEN); }
static void test_queue_is_destroyed_when_the_device_has_forgotten_its_event(void) { completion_event(ACKNOWLEDGED); }
static void test_queue_pair_is_destroyed_when_its_event_is_given(void) { asynchronous_event(GIVEN); }
static void test_queue_pair_is_destroyed_when_the_device_has_forgotten_its_event(void) {
    asynchronous_event(ACKNOWLEDGED);
}

int main(void) {
    RUN(test_queue_is_destroyed_when_its_event_is_given);
    RUN(test_queue_is_destroyed_when_the_device_has_forgotten_its_event);
    RUN(test_queue_pair_is_destroyed_when_its_event_is_given);
    RUN(test_queue_pair_is_destroyed_when_the_device_has_forgotten_its_event);
    RUN(test_shared_queue_is_used_until_its_event_is_acknowledged);
    RUN(test_queue_in_use_with_an_event_is_busy);
    RUN(test_device_is_closed_with_events_that_nobody_acknowledges);
    RUN(test_a_thread_that_waits_is_cancelled_and_the_object_stays);
    RUN(test_more_is_acknowledged_than_was_taken);
    RUN(test_an_event_is_taken_by_the_other_context);
    RUN(test_what_a_closed_context_leaves_is_there_for_the_other_one);
    return check_done();
}
