/* SPDX-License-Identifier: Apache-2.0
 *
 * What this context is to the others of the host, by names (names/listen.h): a message to queue pair 1 that says neither
 * service nor communication id is handed to whoever may want it.
 */
#include <errno.h>

#include "host/host.h"

void roles_init(struct host *host) {
    for (int i = 0; i < ROLES; i++)
        host->roles[i] = (struct slot){.fd = -1, .life.fd = -1};
}

/* All names taken: then the others do not find it. */
int roles_take(struct host *host, enum role role) {
    struct slot *s = &host->roles[role];
    struct abstract_name name;
    int fd = -EADDRINUSE;
    if (s->fd >= 0)
        return 0;
    for (uint32_t n = 0; n < ROLE_NUMBERS && fd == -EADDRINUSE; n++) {
        listen_role_name(&name, role, host->net->netdev.ifindex, n);
        fd = listen_open(&name);
        s->number = n;
    }
    if (fd < 0)
        return fd == -EADDRINUSE ? 0 : fd;
    s->fd = fd;
    engine_watch(host->run, fd);
    return 0;
}

void roles_drop(struct host *host, enum role role) { slot_release(&host->roles[role]); }

void roles_abandon(struct host *host) {
    for (int i = 0; i < ROLES; i++)
        slot_release(&host->roles[i]);
}

/* After the sources of requests: what takes one back shall not come before it. */
static bool receive(void *owner, uint64_t now) {
    struct host *host = owner;
    bool any = false;
    for (int i = 0; i < ROLES; i++)
        any |= host->roles[i].fd >= 0 && forward_receive(host, &host->roles[i], now);
    return any;
}

const struct source roles_source = {.name = "roles", .receive_rare = receive};
