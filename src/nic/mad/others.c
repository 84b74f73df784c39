/* SPDX-License-Identifier: Apache-2.0
 *
 * How a message gets to other contexts of the host: to one by its name, or to those that may want what names nobody.
 *
 * A REJ by a peer that never had an answer is such a message: it names no communication id of ours.  Its REQ came to any
 * process, so only the listeners know whose it was.  All of them get the REJ; those that never had the REQ drop it.  A
 * context with listeners gets its own by the same socket: the REQ may wait in another one, which is read before.
 */
#include <errno.h>

#include "mad/class.h"

enum found mads_hand_on(struct host *host, const struct abstract_name *to, const struct mad_message *m) {
    const struct slot_packet p = {
        .src = m->d->src, .length = m->n, .hops = m->d->hops, .tclass = m->d->tclass, .flow_label = m->d->flow_label};
    int rc = outbox_send(host, m->port, to, &p, m->in->pkt.bth, m->now);
    if (rc == -ECONNREFUSED)
        return NOBODY;
    if (rc)
        forward_count(host, rc, 1);
    return HANDED_ON;
}

static bool hand_to_role(struct host *host, enum role role, uint32_t number, const struct mad_message *m) {
    struct abstract_name name;
    if (strays_no_role(host, role, number, m->now))
        return false;
    listen_role_name(&name, role, host->net->netdev.ifindex, number);
    bool found = mads_hand_on(host, &name, m) == HANDED_ON;
    if (!found)
        strays_missed_role(host, role, number, m->now);
    return found;
}

enum found mads_to_one(struct mads *mads, const struct mad_message *m) {
    struct host *host = mads->host;
    for (uint32_t n = 0; !host->gsi && n < ROLE_NUMBERS; n++) {
        if (hand_to_role(host, ROLE_GSI, n, m))
            return HANDED_ON;
    }
    return OURS;
}

/* One packet makes many: not of what is damaged, and not at any rate. */
enum found mads_to_listeners(struct mads *mads, const struct mad_message *m) {
    struct host *host = mads->host;
    const struct slot *own = &host->roles[ROLE_LISTENS];
    bool may = strays_may_copy(host, m->now), own_too = false;
    uint32_t copies = 0;
    if (!incoming_icrc(host->net, m->in, m->d, m->n))
        return HANDED_ON;
    for (uint32_t n = 0; may && n < ROLE_NUMBERS; n++) {
        bool handed = hand_to_role(host, ROLE_LISTENS, n, m);
        own_too |= handed && own->fd >= 0 && own->number == n;
        copies += handed;
    }
    strays_copied(host, copies, m->now);
    return own_too || (copies && !host->gsi) ? HANDED_ON : OURS;
}
