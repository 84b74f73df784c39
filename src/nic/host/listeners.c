/* SPDX-License-Identifier: Apache-2.0
 *
 * Who listens: the services of this context, by names that other processes of the host find (names/listen.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/address.h"
#include "base/fail.h"
#include "host/host.h"
#include "names/listen.h"

#define FAMILIES 2 /* names that one listener can have */

struct listener {
    struct rnic_listener pub;
    struct listener *next;
    uint64_t service_id;
    struct slot name[FAMILIES]; /* fd -1: not this one */
    bool any[FAMILIES];         /* the wildcard of IPv4, of IPv6 */
    bool hold;                  /* it has the lifeline of its name and no more: to others nobody listens */
    bool exact;                 /* else: of this address alone, which the device has, or had */
    struct sockaddr_in6 addr;
};

enum { V4, V6 };

/* ---------------------------------------------------------------- who listens */

static bool is_any(const uint8_t gid[16], bool *v4) {
    static const uint8_t any4[16] = {[10] = 0xFF, [11] = 0xFF}, any6[16];
    *v4 = !memcmp(gid, any4, sizeof any4);
    return *v4 || !memcmp(gid, any6, sizeof any6);
}

static void own_name(const struct host *host, const struct listener *l, int family, struct abstract_name *out) {
    if (l->any[family])
        listen_any_name(out, l->service_id, family == V4, host->net->netdev.ifindex);
    else
        listen_name(out, l->service_id, &l->addr);
}

/* Does somebody listen who would share requests with it: a wildcard of the address, or an address of the wildcard? */
static bool overlaps(const struct host *host, const struct listener *l) {
    struct abstract_name name;
    for (int family = 0; family < FAMILIES; family++) {
        if (!l->any[family] && !(l->exact && address_is_v4(&l->addr) == (family == V4)))
            continue;
        listen_any_name(&name, l->service_id, family == V4, 0);
        if (listen_taken(&name))
            return true;
    }
    for (int i = 0; i < host->net->netdev.ngids; i++) {
        int family = address_is_v4(&host->net->ports[i].addr) ? V4 : V6;
        if (!l->any[family] || !host->net->ports[i].steering)
            continue;
        listen_name(&name, l->service_id, &host->net->ports[i].addr);
        if (listen_taken(&name))
            return true;
    }
    if (!l->exact)
        return false;
    listen_any_name(&name, l->service_id, address_is_v4(&l->addr), host->net->netdev.ifindex);
    return listen_taken(&name);
}

static void close_names(struct listener *l) {
    for (int i = 0; i < FAMILIES; i++)
        slot_release(&l->name[i]);
}

/* First the names, then the look at the others: of two that come at once at least one sees the other. */
static int take_names(struct host *host, struct listener *l, bool reuse) {
    for (int i = 0; i < FAMILIES; i++) {
        struct abstract_name name;
        bool exact = l->exact && address_is_v4(&l->addr) == (i == V4);
        if (!l->any[i] && !exact)
            continue;
        own_name(host, l, i, &name);
        if (!l->hold)
            l->name[i].fd = listen_open(&name);
        int rc = l->hold || l->name[i].fd >= 0 ? lifeline_open(&l->name[i].life, &name) : l->name[i].fd;
        if (rc)
            return rc;
    }
    return !reuse && overlaps(host, l) ? -EADDRINUSE : 0;
}

static int find_gid(const struct host *host, const uint8_t gid[16]) {
    for (int i = 0; i < host->net->netdev.ngids; i++) {
        if (host->net->ports[i].steering && !memcmp(&host->net->ports[i].addr.sin6_addr, gid, 16))
            return i;
    }
    return -1;
}

static int set_address(const struct host *host, struct listener *l, const union rnic_gid *addr, uint32_t flags,
                       struct rnic_err *err) {
    bool v4;
    if (is_any(addr->raw, &v4)) {
        l->any[V4] = v4 || !(flags & RNIC_LISTEN_AFONLY);
        l->any[V6] = !v4;
        return 0;
    }
    int index = find_gid(host, addr->raw);
    if (index < 0)
        return fail(err, -EADDRNOTAVAIL, "the address is not in the GID table of %s", host->net->netdev.name);
    l->exact = true;
    l->addr = host->net->ports[index].addr;
    return 0;
}

static struct listener **list_of(struct host *host, const struct listener *l) {
    return l->hold ? &host->holders : &host->listeners;
}

static void enter(struct host *host, struct listener *l) {
    l->next = *list_of(host, l);
    *list_of(host, l) = l;
    for (int i = 0; i < FAMILIES; i++) {
        if (l->name[i].fd < 0)
            continue;
        engine_watch(host->run, l->name[i].fd);
        engine_watch(host->run, l->name[i].life.fd);
    }
}

int listeners_open(struct host *host, struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *addr,
                   uint32_t flags, struct rnic_listener **out, struct rnic_err *err) {
    static const struct slot none = {.fd = -1, .life.fd = -1};
    struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return fail(err, -ENOMEM, "no memory");
    *l = (struct listener){.pub.ctx = ctx, .service_id = service_id, .name = {none, none}};
    l->hold = flags & RNIC_LISTEN_HOLD;
    int rc = set_address(host, l, addr, flags, err);
    if (!rc) {
        rc = take_names(host, l, flags & RNIC_LISTEN_REUSE);
        if (!rc && !l->hold)
            rc = roles_take(host, ROLE_LISTENS);
        if (rc)
            fail(err, rc,
                 rc == -EADDRINUSE ? "somebody on this host has service 0x%llx already"
                                   : "no unix socket for service 0x%llx: %s",
                 (unsigned long long)service_id, strerror(-rc));
    }
    if (rc) {
        close_names(l);
        free(l);
        return rc;
    }
    enter(host, l);
    *out = &l->pub;
    return 0;
}

void listeners_close(struct host *host, struct rnic_listener *pub) {
    struct listener *l = (struct listener *)pub, **at = list_of(host, l);
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    if (!host->listeners)
        roles_drop(host, ROLE_LISTENS);
    close_names(l);
    free(l);
}

void listeners_close_all(struct host *host) {
    while (host->listeners)
        listeners_close(host, &host->listeners->pub);
    while (host->holders)
        listeners_close(host, &host->holders->pub);
}

int listeners_count(const struct host *host) {
    int n = 0;
    for (const struct listener *l = host->listeners; l; l = l->next)
        n++;
    for (const struct listener *l = host->holders; l; l = l->next)
        n++;
    return n;
}

void listeners_abandon(struct host *host) {
    for (struct listener *l = host->listeners; l; l = l->next)
        close_names(l);
    for (struct listener *l = host->holders; l; l = l->next)
        close_names(l);
}

static bool receive(void *owner, uint64_t now) {
    struct host *host = owner;
    bool any = false;
    for (struct listener *l = host->listeners; l; l = l->next) {
        for (int i = 0; i < FAMILIES; i++) {
            if (l->name[i].fd < 0)
                continue;
            any |= forward_receive(host, &l->name[i], now);
            forward_watchers(host, &l->name[i], now);
        }
    }
    return any;
}

/* The device's own listener: of that address (exact), or of all addresses of its family. */
bool listeners_have(const struct host *host, uint64_t service_id, const struct port *port, bool exact) {
    int family = address_is_v4(&port->addr) ? V4 : V6;
    for (const struct listener *l = host->listeners; l; l = l->next) {
        bool match = exact ? l->exact && address_same(&l->addr, &port->addr) : l->any[family];
        if (l->service_id == service_id && match)
            return true;
    }
    return false;
}

const struct source listeners_source = {.name = "listeners", .receive_rare = receive};
