/* SPDX-License-Identifier: Apache-2.0
 *
 * What the network tells (struct net_calls), and who of the device has to know.
 */
#include "dev/dev.h"
#include "raw/raw.h"

static void datagram(void *owner, struct port *port, const struct udp_datagram *d, bool handed_on, uint64_t now) {
    demux_datagram(owner, port, d, handed_on, now);
}

static void readdressed(void *owner) { lanes_tell(&((struct dev *)owner)->host); }

/* A queue pair's key is its entry's, whatever that is now (IBA 10.9.2). */
static void take_pkey(struct host *host, struct qp *qp) {
    if (qp->state != RNIC_QPS_RESET)
        qp->ib.pkey = host->nic->ib.pkeys[qp->attr.pkey_index];
}

static void repartitioned(void *owner) { qpn_each(&((struct dev *)owner)->host, take_pkey); }

/* ---------------------------------------------------------------- the netdev has gone */

static void end_qp(struct host *host, struct qp *qp) {
    if (qp->state == RNIC_QPS_RESET || qp->state == RNIC_QPS_ERR)
        return;
    qp_error(qp, -1); /* the device's event tells */
    sched_ready(host->run, qp);
}

static void end_work_queues(struct host *host, struct qp *qp) {
    (void)host;
    const struct rwq_table *table = qp->engine == &raw_ops ? raw_of(qp)->rss.table : NULL;
    for (uint32_t i = 0; table && i < table->size; i++)
        rwq_end(table->wq[i]);
}

void device_fail(struct dev *dev) {
    struct rnic_async_event e = {.event_type = RNIC_EVENT_DEVICE_FATAL};
    if (atomic_exchange(&dev->fatal, true))
        return;
    event_push(&dev->nic.events, &e);
    qpn_each(&dev->host, end_qp);
    if (dev->nic.raw)
        qpn_each(&dev->host, end_work_queues);
    net_fail(&dev->net);
    event_end(&dev->nic.events);
    drive_stop(&dev->run);
    for (struct listed *ch = dev->objects.of[KIND_CHANNEL].first; ch; ch = ch->next)
        sleepers_wake(&LISTED_IN(struct channel, listed, ch)->sleepers);
}

static void gone(void *owner) { device_fail(owner); }

const struct net_calls dev_calls = {
    .datagram = datagram,
    .readdressed = readdressed,
    .repartitioned = repartitioned,
    .gone = gone,
};
