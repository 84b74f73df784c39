/* SPDX-License-Identifier: Apache-2.0
 *
 * The port's P_Key table (IBA 10.9.1, 14.2.5.7).  There is no subnet manager here: who opens the device fills it.
 */
#include <errno.h>
#include <string.h>

#include "base/fail.h"
#include "net/net.h"

static int check(const uint16_t *pkeys, uint32_t n, struct rnic_err *err) {
    if (n < 1 || n > PKEYS)
        return fail(err, -EINVAL, "%u P_Keys; the table takes 1 to %d", n, PKEYS);
    for (uint32_t i = 0; i < n; i++) {
        if (pkeys[i] && !(pkeys[i] & 0x7FFF))
            return fail(err, -EINVAL, "P_Key 0x%04x names no partition: its lower 15 bits are 0 (IBA 10.9.1)",
                        pkeys[i]);
        for (uint32_t k = 0; k < i; k++) {
            if (pkeys[i] && pkeys[k] == pkeys[i])
                return fail(err, -EINVAL, "P_Key 0x%04x is given twice", pkeys[i]);
        }
    }
    return 0;
}

static void fill(struct net *net, const uint16_t *pkeys, uint32_t n) {
    memset(net->nic->ib.pkeys, 0, sizeof net->nic->ib.pkeys);
    memcpy(net->nic->ib.pkeys, pkeys, n * sizeof *pkeys);
}

int pkeys_init(struct net *net, const struct rnic_open_attr *attr, struct rnic_err *err) {
    static const uint16_t standard = 0xFFFF;
    const uint16_t *pkeys = attr->num_pkeys ? attr->pkeys : &standard;
    uint32_t n = attr->num_pkeys ? attr->num_pkeys : 1;
    int rc = check(pkeys, n, err);
    if (!rc)
        fill(net, pkeys, n);
    return rc;
}

int pkeys_set(struct net *net, const uint16_t *pkeys, uint32_t n, struct rnic_err *err) {
    struct rnic_async_event e = {.event_type = RNIC_EVENT_PKEY_CHANGE, .port_num = 1};
    uint16_t before[PKEYS];
    int rc = check(pkeys, n, err);
    if (rc)
        return rc;
    memcpy(before, net->nic->ib.pkeys, sizeof before);
    fill(net, pkeys, n);
    net->calls->repartitioned(net->owner);
    if (memcmp(before, net->nic->ib.pkeys, sizeof before))
        event_push(&net->nic->events, &e);
    return 0;
}
