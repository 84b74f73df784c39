/* SPDX-License-Identifier: Apache-2.0
 *
 * RNIC_EVENTS: [DEVICE:]EVENT[@TIME], with commas between them.
 */
#include <string.h>

#include "base/env.h"
#include "base/words.h"

/* What concerns a port or the device; port_down is how people call PORT_ERR. */
static const struct {
    const char *name;
    int type;
} known[] = {
    {"port_down", RNIC_EVENT_PORT_ERR},
    {"port_err", RNIC_EVENT_PORT_ERR},
    {"port_active", RNIC_EVENT_PORT_ACTIVE},
    {"device_fatal", RNIC_EVENT_DEVICE_FATAL},
    {"device_removal", RNIC_EVENT_DEVICE_FATAL}, /* RDMA-CM tells more: rnic.ucma */
    {"gid_change", RNIC_EVENT_GID_CHANGE},
    {"pkey_change", RNIC_EVENT_PKEY_CHANGE},
    {"lid_change", RNIC_EVENT_LID_CHANGE},
    {"sm_change", RNIC_EVENT_SM_CHANGE},
    {"client_reregister", RNIC_EVENT_CLIENT_REREGISTER},
};
#define KNOWN ((int)(sizeof known / sizeof *known))

static const char *event_name(int i) { return i < KNOWN ? known[i].name : NULL; }

static int parse_event(char *word, struct rnic_env_event *event, struct rnic_err *err) {
    char *time = word_cut(word, '@'), *name = word_cut(word, ':');
    *event = (struct rnic_env_event){0};
    if (name && !word_copy(event->device, sizeof event->device, word))
        return env_wrong(ENV_EVENTS, err, "no device has the name %s", word);
    if (!name)
        name = word;
    if (time && !word_time(time, &event->after_ns))
        return env_wrong(ENV_EVENTS, err, "%s is no time: 5s or 500ms, for example", time);
    for (int i = 0; i < KNOWN; i++) {
        event->event_type = known[i].type;
        if (!strcmp(name, known[i].name))
            return 0;
    }
    char names[NEAR];
    word_near(name, event_name, names);
    return env_wrong(ENV_EVENTS, err, "there is no event %s%s", name, names);
}

/* Keeps those of one time as they were written. */
static void insert(struct rnic_env_event *events, int n, const struct rnic_env_event *one) {
    for (; n && events[n - 1].after_ns > one->after_ns; n--)
        events[n] = events[n - 1];
    events[n] = *one;
}

int env_parse_events(const char *text, struct rnic_env_event events[RNIC_ENV_EVENTS], struct rnic_err *err) {
    char word[WORD];
    int n = 0;
    for (const char *at = text; at; n++) {
        struct rnic_env_event one;
        if (!word_next(&at, ',', word))
            return env_wrong(ENV_EVENTS, err, "an event is a name and a time, as port_down@5s");
        if (n == RNIC_ENV_EVENTS)
            return env_wrong(ENV_EVENTS, err, "there can be %d events", n);
        int rc = parse_event(word, &one, err);
        if (rc)
            return rc;
        insert(events, n, &one);
    }
    return n;
}

int rnic_env_events(struct rnic_env_event events[RNIC_ENV_EVENTS], struct rnic_err *err) {
    return env_parse_events(env_value(ENV_EVENTS), events, err);
}
