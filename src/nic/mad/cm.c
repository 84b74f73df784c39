/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of the communication manager say themselves whose they are: a request by its service, everything else by the
 * communication id of whoever it is for, which has the slot of its process in its upper bits.  So a busy interpreter delays
 * nobody's handshake but its own.
 */
#include <errno.h>

#include "base/address.h"
#include "base/bytes.h"
#include "mad/class.h"
#include "names/listen.h"
#include "roce/partition.h"

#define COMM_ID_INDEX_BITS (32 - SLOT_BITS)

/* ---------------------------------------------------------------- whose message is it */

/* To the listener of that address, or of all addresses, that another process has; or this one, of those of the host. */
static enum found hand_to_listener(struct host *host, uint64_t service_id, enum listen_scope scope,
                                   const struct mad_message *m) {
    const struct stray_name key = {.service_id = service_id, .port = m->port, .scope = scope};
    struct abstract_name name;
    if (strays_no_name(host, &key, m->now))
        return NOBODY;
    if (scope == LISTEN_ADDRESS)
        listen_name(&name, service_id, &m->port->addr);
    else
        listen_any_name(&name, service_id, address_is_v4(&m->port->addr),
                        scope == LISTEN_NETDEV ? host->net->netdev.ifindex : 0);
    enum found found = mads_hand_on(host, &name, m);
    if (found == NOBODY)
        strays_missed_name(host, &key, m->now);
    return found;
}

/* The exact address goes before the wildcard, whoever has them. */
static enum found find_listener(struct host *host, uint64_t service_id, const struct mad_message *m) {
    if (listeners_have(host, service_id, m->port, true))
        return OURS;
    enum found found = hand_to_listener(host, service_id, LISTEN_ADDRESS, m);
    if (found != NOBODY)
        return found;
    if (listeners_have(host, service_id, m->port, false))
        return OURS;
    found = hand_to_listener(host, service_id, LISTEN_NETDEV, m);
    return found != NOBODY ? found : hand_to_listener(host, service_id, LISTEN_HOST, m);
}

static enum found hand_to_slot(struct host *host, uint32_t slot, const struct mad_message *m) {
    struct abstract_name name;
    if (strays_no_slot(host, slot, m->now))
        return NOBODY;
    abstract_name(&name, SLOT_NAME, slot);
    enum found found = mads_hand_on(host, &name, m);
    if (found == NOBODY)
        strays_missed_slot(host, slot, m->now);
    else
        floods_handed_on(host, slot, m->now);
    return found;
}

static enum found find_slot(struct host *host, uint32_t comm_id, const struct mad_message *m) {
    uint32_t slot = comm_id >> COMM_ID_INDEX_BITS;
    if (qpn_is_ours(host, slot))
        return OURS;
    enum found found = hand_to_slot(host, slot, m);
    if (found == NOBODY)
        forward_count(host, -ECONNREFUSED, 1);
    return found;
}

/* ---------------------------------------------------------------- it is for nobody */

static void answer(struct mads *mads, const struct mad_message *m, bool refusal) {
    struct host *host = mads->host;
    uint64_t *count = host->nic->counters.value;
    uint8_t mad[MAD_BYTES];
    int index = pkey_find(host->nic, bth_pkey(m->in->pkt.bth));
    if (index < 0)
        count[RNIC_CNT_drop_bad_pkey]++;
    if (index < 0 || !mad_answer(mad, m->in->pkt.payload) || !incoming_icrc(host->net, m->in, m->d, m->n))
        return;
    if (refusal && !floods_admit(host, &m->d->src, m->now))
        return;
    if (!strays_may_answer(host, m->now)) {
        count[RNIC_CNT_drop_unanswered]++;
        return;
    }
    count[RNIC_CNT_cm_refused] += refusal;
    mads_answer(mads, m, host->nic->ib.pkeys[index], mad);
}

/* ---------------------------------------------------------------- the class */

/* For a connection, or for the queue pair of a service. */
static bool asks(const uint8_t mad[MAD_BYTES]) { return mad_address(mad).target == MAD_FOR_SERVICE; }

static enum found find(struct mads *mads, const struct mad_address *to, const struct mad_message *m) {
    if (to->target == MAD_FOR_SERVICE)
        return find_listener(mads->host, to->service_id, m);
    if (to->target == MAD_FOR_ID && to->comm_id)
        return find_slot(mads->host, to->comm_id, m);
    if (to->target == MAD_FOR_ID && get_be16(m->in->pkt.payload + MAD_ATTRIBUTE) == CM_REJ)
        return mads_to_listeners(mads, m); /* by a peer that never had an answer */
    return mads_to_one(mads, m);
}

static bool elsewhere(struct mads *mads, const struct mad_message *m) {
    struct mad_address to = mad_address(m->in->pkt.payload);
    enum found found = find(mads, &to, m);
    if (found == NOBODY)
        answer(mads, m, to.target == MAD_FOR_SERVICE);
    return found != OURS;
}

const struct mad_class cm_class = {.number = CM_CLASS, .asks = asks, .elsewhere = elsewhere};
