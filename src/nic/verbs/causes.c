/* SPDX-License-Identifier: Apache-2.0
 *
 * Why something has failed: the extension rnic.causes/1.
 */
#include "qp/why.h"
#include "verbs/verbs.h"

static bool is_it(const struct why *why, const struct rnic_wc *wc) {
    return why && why->wc.status == wc->status && why->wc.wr_id == wc->wr_id;
}

bool soft_cause_of(struct rnic_context *ctx, const struct rnic_wc *wc, struct rnic_cause *cause) {
    struct dev *dev = dev_of(ctx);
    if (dev_check_alive(dev, NULL))
        return false;
    dev_lock(dev);
    const struct qp *qp = wc->qp_num == QPN_GSI ? dev->host.gsi : qpn_find(&dev->host, wc->qp_num);
    bool known = qp && is_it(qp->why, wc);
    if (known)
        *cause = qp->why->cause;
    dev_unlock(dev);
    return known;
}

void soft_listen_causes(struct rnic_context *ctx, rnic_told *told, void *arg) {
    struct dev *dev = dev_of(ctx);
    if (dev_check_alive(dev, NULL))
        return;
    dev_lock(dev);
    dev->nic.told = dev->nic.events.told = told;
    dev->nic.told_arg = dev->nic.events.told_arg = arg;
    dev_unlock(dev);
}
