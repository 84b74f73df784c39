/* SPDX-License-Identifier: Apache-2.0
 *
 * Events that are raised on purpose, now or later: what a program does then can be tried without hardware that fails.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "dev/dev.h"

struct planned {
    struct planned *next; /* in the order of their times */
    uint64_t at;          /* CLOCK_MONOTONIC, ns */
    int event_type;       /* enum rnic_event_type */
};

static void hide(struct host *host, struct qp *qp) {
    if (host->nic->store)
        store_hide(host->nic->store, qp->record);
}

static void show(struct host *host, struct qp *qp) {
    if (host->nic->store)
        store_show(host->nic->store, qp->record);
}

/* Processes of this host reach memory by queue pairs without us: no more, or again. */
static void unplug(struct dev *dev, bool unplugged, uint64_t now) {
    qpn_each(&dev->host, unplugged ? hide : show);
    net_unplug(&dev->net, unplugged, now);
}

static void happen(struct dev *dev, int event_type, uint64_t now) {
    struct rnic_async_event event = {.event_type = event_type, .port_num = 1};
    switch (event_type) {
    case RNIC_EVENT_DEVICE_FATAL:
        device_fail(dev);
        break;
    case RNIC_EVENT_PORT_ERR:
    case RNIC_EVENT_PORT_ACTIVE:
        unplug(dev, event_type == RNIC_EVENT_PORT_ERR, now);
        break;
    default:
        event_push(&dev->nic.events, &event);
        break;
    }
}

static void timer(void *owner, uint64_t now) {
    struct dev *dev = owner;
    struct planned *first;
    while ((first = dev->planned) && first->at <= now) {
        dev->planned = first->next;
        if (!atomic_load(&dev->fatal))
            happen(dev, first->event_type, now);
        free(first);
    }
}

static uint64_t timer_at(const void *owner) {
    const struct dev *dev = owner;
    return dev->planned ? dev->planned->at : NEVER;
}

const struct source planned_source = {.name = "planned", .timer = timer, .timer_at = timer_at};

static int plan(struct dev *dev, int event_type, uint64_t at, struct rnic_err *err) {
    struct planned *one = malloc(sizeof *one), **place = &dev->planned;
    if (!one)
        return fail(err, -ENOMEM, "no memory for an event");
    while (*place && (*place)->at <= at)
        place = &(*place)->next;
    *one = (struct planned){*place, at, event_type};
    *place = one;
    return 0;
}

static bool can_be_raised(int event_type) {
    switch (event_type) {
    case RNIC_EVENT_DEVICE_FATAL:
    case RNIC_EVENT_PORT_ACTIVE:
    case RNIC_EVENT_PORT_ERR:
    case RNIC_EVENT_LID_CHANGE:
    case RNIC_EVENT_PKEY_CHANGE:
    case RNIC_EVENT_SM_CHANGE:
    case RNIC_EVENT_CLIENT_REREGISTER:
    case RNIC_EVENT_GID_CHANGE:
        return true;
    default:
        return false;
    }
}

int planned_raise(struct dev *dev, int event_type, uint64_t after, struct rnic_err *err) {
    if (!can_be_raised(event_type))
        return fail(err, -EINVAL, "event %d is not one of a port or of the device", event_type);
    if (after > NEVER / 2)
        return fail(err, -EINVAL, "the time is too long");
    dev_lock(dev);
    int rc = plan(dev, event_type, run_clock() + after, err);
    dev_unlock(dev);
    if (!rc)
        engine_wake(&dev->run);
    return rc;
}

void planned_free(struct dev *dev) {
    for (struct planned *one; (one = dev->planned);) {
        dev->planned = one->next;
        free(one);
    }
}

/* ---------------------------------------------------------------- those of the environment */

/* When the program opened its first device. */
static uint64_t beginning(uint64_t now) {
    static _Atomic uint64_t began;
    uint64_t none = 0;
    atomic_compare_exchange_strong(&began, &none, now);
    return atomic_load(&began);
}

/* What is over is a state, and tells nobody: a port that is down, but a device that has been reset works. */
int planned_open(struct dev *dev, struct rnic_err *err) {
    struct rnic_env_event events[RNIC_ENV_EVENTS];
    uint64_t now = run_clock(), began = beginning(now);
    int n = rnic_env_events(events, err), rc = n < 0 ? n : 0;
    bool down = false;
    for (int i = 0; !rc && i < n; i++) {
        uint64_t at = began + events[i].after_ns;
        if (*events[i].device && strcmp(events[i].device, dev->info.name))
            continue;
        if (at >= now)
            rc = plan(dev, events[i].event_type, at, err);
        else if (events[i].event_type == RNIC_EVENT_PORT_ERR || events[i].event_type == RNIC_EVENT_PORT_ACTIVE)
            down = events[i].event_type == RNIC_EVENT_PORT_ERR;
    }
    if (down)
        net_find_unplugged(&dev->net);
    return rc;
}
