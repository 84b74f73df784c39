/* SPDX-License-Identifier: Apache-2.0
 *
 * How much is used up of what the environment has made smaller (struct device_kind has what there is).
 */
#include <errno.h>

#include "base/fail.h"
#include "verbs/verbs.h"

int verbs_check_room(const struct dev *dev, enum object_kind kind, struct rnic_err *err) {
    const struct rnic_device_attr *own = &dev->kind->attr;
    const struct {
        const char *name;
        int most, own;
    } rows[] = {[KIND_PD] = {"protection domains", dev->attr.max_pd, own->max_pd},
                [KIND_CQ] = {"completion queues", dev->attr.max_cq, own->max_cq},
                [KIND_QP] = {"queue pairs", dev->attr.max_qp, own->max_qp},
                [KIND_MR] = {"memory regions", dev->attr.max_mr, own->max_mr},
                [KIND_SRQ] = {"shared receive queues", dev->attr.max_srq, own->max_srq},
                [KIND_MW] = {"memory windows", dev->attr.max_mw, own->max_mw},
                [KIND_AH] = {"address handles", dev->attr.max_ah, own->max_ah}};
    if (rows[kind].most == rows[kind].own)
        return 0;
    int n = kind == KIND_QP ? dev->objects.qps : dev->objects.of[kind].count;
    return n < rows[kind].most
               ? 0
               : fail(err, -ENOMEM, "there are %d %s, all that the device has", rows[kind].most, rows[kind].name);
}
