/* SPDX-License-Identifier: Apache-2.0
 *
 * A message to queue pair 1, by its management class.
 */
#include "mad/class.h"

static const struct mad_class *const classes[] = {&cm_class};

void mads_init(struct mads *mads, struct host *host) { mads->host = host; }

/* As a manager sends it. */
static bool is_mad(const struct packet *pkt) {
    return pkt->length == MAD_BYTES && deth_qkey(pkt->bth + pkt->row->deth) == GSI_QKEY;
}

/* NULL: it is of no class that is known here. */
static const struct mad_class *class_of(const struct packet *pkt) {
    if (!is_mad(pkt))
        return NULL;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (classes[i]->number == pkt->payload[MAD_CLASS])
            return classes[i];
    }
    return NULL;
}

static bool elsewhere(struct mads *mads, const struct mad_class *class, const struct mad_message *m) {
    return class ? class->elsewhere(mads, m) : is_mad(&m->in->pkt) && mads_to_one(mads, m) != OURS;
}

/* Few of them are needed.  What is damaged uses up nobody's requests. */
bool mads_is_ours(struct mads *mads, const struct mad_message *m, bool handed_on, bool *checked) {
    struct host *host = mads->host;
    const struct mad_class *class = class_of(&m->in->pkt);
    bool asks = class && class->asks && class->asks(m->in->pkt.payload);
    host->nic->useless++;
    if (asks && !incoming_icrc(host->net, m->in, m->d, m->n))
        return false;
    if (!handed_on && elsewhere(mads, class, m))
        return false;
    *checked = asks;
    return !asks || floods_admit(host, &m->d->src, m->now);
}
