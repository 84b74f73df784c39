/* SPDX-License-Identifier: Apache-2.0 */
#include "qp/pace.h"

/* A kbit/s is a bit in a million nanoseconds. */
static uint64_t time_of(const struct pace *p, uint64_t bytes) { return bytes * 8000000 / p->rate; }

/* A burst is what goes without a pause: with the packet that ends it, it is not longer than max_burst_sz. */
void pace_set(struct pace *p, const struct rnic_qp_rate_limit_attr *attr, uint32_t mtu) {
    uint32_t typical = attr->typical_pkt_sz ? attr->typical_pkt_sz : mtu;
    uint32_t standard = 4 * typical > PACE_BURST ? 4 * typical : PACE_BURST;
    uint32_t burst = attr->max_burst_sz ? attr->max_burst_sz : standard;
    p->rate = attr->rate_limit;
    p->wait = 0;
    p->slack = p->rate && burst > typical ? time_of(p, burst - typical) : 0;
    p->paid_at = 0;
}

bool pace_allows(struct pace *p, uint64_t now) {
    p->wait = p->paid_at > now + p->slack ? p->paid_at - p->slack : 0;
    return !p->wait;
}

void pace_sent(struct pace *p, uint64_t bytes, uint64_t now) {
    p->paid_at = (p->paid_at > now ? p->paid_at : now) + time_of(p, bytes);
}
