/* SPDX-License-Identifier: Apache-2.0
 *
 * The host of a device is opened and closed, and gets a further slot.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "host/host.h"
#include "names/user.h"

void host_init(struct host *host, struct net *net) {
    host->nic = net->nic;
    host->run = net->run;
    host->net = net;
    host->here.doors_again = NEVER;
    host->here.bells_fd = -1;
    roles_init(host);
}

static int add_slot(struct host *host, struct rnic_err *err) {
    int rc = qpn_add_slot(host, err);
    if (!rc)
        lanes_open(host, host->nslots - 1);
    return rc;
}

int host_open(struct host *host, bool local, struct rnic_err *err) {
    host->local = local;
    host->nic->local_way = local ? lanes_link_to : NULL;
    host->nic->is_open = local ? user_may_look : NULL;
    host->nic->have_left = local ? lanes_have_left : NULL;
    host->nic->local_arg = host;
    host->buffer = malloc(HOST_BUFFER);
    if (!host->buffer)
        return fail(err, -ENOMEM, "no memory for what is handed on");
    host->here.bells_fd = epoll_create1(EPOLL_CLOEXEC);
    return host->here.bells_fd >= 0 ? add_slot(host, err) : fail(err, -errno, "epoll: %s", strerror(errno));
}

void host_free(struct host *host) {
    lanes_close(host);
    roles_abandon(host);
    qpn_free(host);
    outbox_free(host);
    free(host->buffer);
}

void host_abandon(struct host *host) {
    for (int i = 0; i < host->nslots; i++)
        slot_release(&host->slots[i]);
    listeners_abandon(host);
    roles_abandon(host);
    lanes_abandon(host);
}

/* Whoever may send to it learns of the slot before there is anything to send to. */
static int grow(struct host *host, struct rnic_err *err) {
    int rc = add_slot(host, err);
    if (!rc)
        rc = ports_add_slot(host->net, host->slots[host->nslots - 1].number);
    if (rc)
        return rc;
    engine_wake(host->run); /* it watches one more socket */
    lanes_tell(host);
    return 0;
}

int host_add_qp(struct host *host, struct qp *qp, struct rnic_err *err) {
    while (!qpn_take(host, qp)) {
        int rc = grow(host, err);
        if (rc)
            return rc;
    }
    return 0;
}
