/* SPDX-License-Identifier: Apache-2.0
 *
 * Address handles (IBA 11.2.2).
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "qp/ah.h"
#include "verbs/verbs.h"

int soft_create_ah(struct rnic_pd *pd, const struct rnic_ah_attr *attr, struct rnic_ah **out, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    int rc = dev_check_has(dev, HAS_DATAGRAMS, "address handles", err);
    if (rc)
        return rc;
    struct ah *ah = calloc(1, sizeof *ah);
    if (!ah)
        return fail(err, -ENOMEM, "no memory");
    ah->head = (struct ah_head){.pub = {pd->ctx, pd}, .users = 1};
    ah->attr = *attr;
    dev_lock(dev);
    ah_reap(&dev->nic);
    rc = verbs_check_room(dev, KIND_AH, err);
    if (!rc)
        rc = link_resolve(dev->nic.wire, attr, WAY_EACH, &ah->way, NULL, err);
    if (!rc) {
        object_enter(dev, KIND_AH, &ah->listed);
        ((struct pd *)pd)->ahs++;
        way_hold(&ah->way);
    }
    dev_unlock(dev);
    if (rc) {
        free(ah);
        return rc;
    }
    *out = &ah->head.pub;
    return 0;
}

int soft_query_ah(struct rnic_ah *pub, struct rnic_ah_attr *attr, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pub->ctx), err);
    if (!rc)
        *attr = ((const struct ah *)pub)->attr;
    return rc;
}

int soft_destroy_ah(struct rnic_ah *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct ah *ah = (struct ah *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    object_leave(dev, KIND_AH, &ah->listed);
    ((struct pd *)pub->pd)->ahs--;
    ah_destroy(&dev->nic, ah);
    dev_unlock(dev);
    return 0;
}
