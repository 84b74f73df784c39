/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pair 1 on a host of many processes.  A packet for it reaches any of them; the communication manager's messages
 * say themselves whose they are: a request by its service, everything else by the communication id of whoever it is for,
 * which has the slot of its process in its upper bits.  So a busy interpreter delays nobody's handshake but its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "dev/verbs.h"
#include "link/address.h"
#include "link/listen.h"
#include "roce/roce.h"
#include "wire/bth.h"
#include "wire/icrc.h"
#include "wire/mad.h"

#define COMM_ID_INDEX_BITS (32 - SLOT_BITS)
#define FAMILIES 2 /* names that one listener can have */
#define HOPS 64

struct listener {
    struct rnic_listener pub;
    struct listener *next;
    uint64_t service_id;
    struct slot name[FAMILIES]; /* fd -1: not this one */
    bool any[FAMILIES];         /* the wildcard of IPv4, of IPv6 */
    bool hold;                  /* it has the lifeline of its name and no more: to others nobody listens */
    bool exact;                 /* else: of this address alone, which the device has, or had */
    struct sockaddr_in6 addr;
};

enum { V4, V6 };

/* ---------------------------------------------------------------- who listens */

static bool is_any(const uint8_t gid[16], bool *v4) {
    static const uint8_t any4[16] = {[10] = 0xFF, [11] = 0xFF}, any6[16];
    *v4 = !memcmp(gid, any4, sizeof any4);
    return *v4 || !memcmp(gid, any6, sizeof any6);
}

static void own_name(const struct dev *dev, const struct listener *l, int family, struct abstract_name *out) {
    if (l->any[family])
        listen_any_name(out, l->service_id, family == V4, dev->net.ifindex);
    else
        listen_name(out, l->service_id, &l->addr);
}

/* Does somebody listen who would share requests with it: the wildcard of an address, or an address of the wildcard? */
static bool overlaps(const struct dev *dev, const struct listener *l) {
    struct abstract_name name;
    for (int i = 0; i < dev->net.ngids; i++) {
        int family = address_is_v4(&dev->ports[i].addr) ? V4 : V6;
        if (!l->any[family] || !dev->ports[i].steering)
            continue;
        listen_name(&name, l->service_id, &dev->ports[i].addr);
        if (listen_taken(&name))
            return true;
    }
    if (!l->exact)
        return false;
    listen_any_name(&name, l->service_id, address_is_v4(&l->addr), dev->net.ifindex);
    return listen_taken(&name);
}

static void close_names(struct listener *l) {
    for (int i = 0; i < FAMILIES; i++)
        slot_release(&l->name[i]);
}

/* First the names, then the look at the others: of two that come at once at least one sees the other. */
static int take_names(struct dev *dev, struct listener *l, bool reuse) {
    for (int i = 0; i < FAMILIES; i++) {
        struct abstract_name name;
        bool exact = l->exact && address_is_v4(&l->addr) == (i == V4);
        if (!l->any[i] && !exact)
            continue;
        own_name(dev, l, i, &name);
        if (!l->hold)
            l->name[i].fd = listen_open(&name);
        int rc = l->hold || l->name[i].fd >= 0 ? lifeline_open(&l->name[i].life, &name) : l->name[i].fd;
        if (rc)
            return rc;
    }
    return !reuse && overlaps(dev, l) ? -EADDRINUSE : 0;
}

static int find_gid(const struct dev *dev, const uint8_t gid[16]) {
    for (int i = 0; i < dev->net.ngids; i++) {
        if (dev->ports[i].steering && !memcmp(&dev->ports[i].addr.sin6_addr, gid, 16))
            return i;
    }
    return -1;
}

static int set_address(const struct dev *dev, struct listener *l, const union rnic_gid *addr, uint32_t flags,
                       struct rnic_err *err) {
    bool v4;
    if (is_any(addr->raw, &v4)) {
        l->any[V4] = v4 || !(flags & RNIC_LISTEN_AFONLY);
        l->any[V6] = !v4;
        return 0;
    }
    int index = find_gid(dev, addr->raw);
    if (index < 0)
        return fail(err, -EADDRNOTAVAIL, "the address is not in the GID table of %s", dev->net.name);
    l->exact = true;
    l->addr = dev->ports[index].addr;
    return 0;
}

static struct listener **list_of(struct dev *dev, const struct listener *l) {
    return l->hold ? &dev->holders : &dev->listeners;
}

static void enter(struct dev *dev, struct listener *l) {
    l->next = *list_of(dev, l);
    *list_of(dev, l) = l;
    for (int i = 0; i < FAMILIES; i++) {
        if (l->name[i].fd < 0)
            continue;
        engine_watch(dev, l->name[i].fd);
        engine_watch(dev, l->name[i].life.fd);
    }
}

int soft_cm_listen(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *addr, uint32_t flags,
                   struct rnic_listener **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_usable(dev, err);
    if (rc)
        return rc;
    struct listener *l = calloc(1, sizeof *l);
    if (!l)
        return fail(err, -ENOMEM, "no memory");
    static const struct slot none = {.fd = -1, .life.fd = -1};
    *l = (struct listener){.pub.ctx = ctx, .service_id = service_id, .name = {none, none}};
    l->hold = flags & RNIC_LISTEN_HOLD;
    dev_lock(dev);
    rc = set_address(dev, l, addr, flags, err);
    if (!rc) {
        rc = take_names(dev, l, flags & RNIC_LISTEN_REUSE);
        if (rc)
            fail(err, rc,
                 rc == -EADDRINUSE ? "somebody on this host has service 0x%llx already"
                                   : "no unix socket for service 0x%llx: %s",
                 (unsigned long long)service_id, strerror(-rc));
        else
            enter(dev, l);
    }
    dev_unlock(dev);
    if (rc) {
        close_names(l);
        free(l);
        return rc;
    }
    *out = &l->pub;
    return 0;
}

int soft_cm_unlisten(struct rnic_listener *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct listener *l = (struct listener *)pub, **at = list_of(dev, l);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    close_names(l);
    dev_unlock(dev);
    free(l);
    return 0;
}

int soft_cm_slot(struct rnic_context *ctx, uint32_t *slot, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc)
        *slot = dev->slots[0].number;
    return rc;
}

static int watching(int fd, int *out, struct rnic_err *err) {
    if (fd < 0)
        return fail(err, fd, fd == -ECONNREFUSED ? "nobody is there" : "no unix socket: %s", strerror(-fd));
    *out = fd;
    return 0;
}

int soft_cm_watch(struct rnic_context *ctx, uint32_t slot, int *fd, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(ctx), err);
    return rc ? rc : watching(slot_watch(slot), fd, err);
}

int soft_cm_watch_service(struct rnic_context *ctx, uint64_t service_id, const union rnic_gid *gid, int *fd,
                          struct rnic_err *err) {
    const struct dev *dev = dev_of(ctx);
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6};
    struct abstract_name name;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    memcpy(&addr.sin6_addr, gid->raw, sizeof gid->raw);
    listen_name(&name, service_id, &addr);
    int found = lifeline_watch(&name);
    if (found == -ECONNREFUSED) { /* nobody at that address: at all addresses? */
        listen_any_name(&name, service_id, address_is_v4(&addr), dev->net.ifindex);
        found = lifeline_watch(&name);
    }
    return watching(found, fd, err);
}

int gsi_listeners(const struct dev *dev) {
    int n = 0;
    for (const struct listener *l = dev->listeners; l; l = l->next)
        n++;
    for (const struct listener *l = dev->holders; l; l = l->next)
        n++;
    return n;
}

void gsi_abandon(struct dev *dev) {
    for (struct listener *l = dev->listeners; l; l = l->next)
        close_names(l);
    for (struct listener *l = dev->holders; l; l = l->next)
        close_names(l);
}

bool gsi_receive(struct dev *dev, uint64_t now) {
    bool any = false;
    for (struct listener *l = dev->listeners; l; l = l->next) {
        for (int i = 0; i < FAMILIES; i++) {
            if (l->name[i].fd < 0)
                continue;
            any |= progress_forwarded(dev, &l->name[i], now);
            engine_watchers(dev, &l->name[i]);
        }
    }
    return any;
}

/* ---------------------------------------------------------------- whose message is it */

/* The device's own listener: of that address (exact), or of all addresses of its family. */
static bool own_listener(const struct dev *dev, uint64_t service_id, const struct port *port, bool exact) {
    int family = address_is_v4(&port->addr) ? V4 : V6;
    for (const struct listener *l = dev->listeners; l; l = l->next) {
        bool match = exact ? l->exact && address_same(&l->addr, &port->addr) : l->any[family];
        if (l->service_id == service_id && match)
            return true;
    }
    return false;
}

enum found { NOBODY, OURS, HANDED_ON };

static enum found hand_on(struct dev *dev, struct port *port, const struct abstract_name *to,
                          const struct slot_packet *p, const uint8_t *bth, uint64_t now) {
    int rc = outbox_send(dev, port, to, p, bth, now);
    if (rc == -ECONNREFUSED)
        return NOBODY;
    if (rc)
        demux_count_forward(dev, rc, 1);
    return HANDED_ON;
}

/* To another process' listener of that address, or of all addresses. */
static enum found hand_to_listener(struct dev *dev, struct port *port, uint64_t service_id, bool any,
                                   const struct slot_packet *p, const uint8_t *bth, uint64_t now) {
    const struct stray_name key = {.service_id = service_id, .port = port, .any = any};
    struct abstract_name name;
    if (strays_no_name(dev, &key, now))
        return NOBODY;
    if (any)
        listen_any_name(&name, service_id, address_is_v4(&port->addr), dev->net.ifindex);
    else
        listen_name(&name, service_id, &port->addr);
    enum found found = hand_on(dev, port, &name, p, bth, now);
    if (found == NOBODY)
        strays_missed_name(dev, &key, now);
    return found;
}

/* The exact address goes before the wildcard, whoever has them. */
static enum found find_listener(struct dev *dev, struct port *port, uint64_t service_id, const struct slot_packet *p,
                                const uint8_t *bth, uint64_t now) {
    if (own_listener(dev, service_id, port, true))
        return OURS;
    enum found found = hand_to_listener(dev, port, service_id, false, p, bth, now);
    if (found != NOBODY)
        return found;
    if (own_listener(dev, service_id, port, false))
        return OURS;
    return hand_to_listener(dev, port, service_id, true, p, bth, now);
}

static enum found hand_to_slot(struct dev *dev, struct port *port, uint32_t slot, const struct slot_packet *p,
                               const uint8_t *bth, uint64_t now) {
    struct abstract_name name;
    if (strays_no_slot(dev, slot, now))
        return NOBODY;
    abstract_name(&name, SLOT_NAME, slot);
    enum found found = hand_on(dev, port, &name, p, bth, now);
    if (found == NOBODY)
        strays_missed_slot(dev, slot, now);
    else
        floods_handed_on(dev, slot, now);
    return found;
}

static enum found find_slot(struct dev *dev, struct port *port, uint32_t comm_id, const struct slot_packet *p,
                            const uint8_t *bth, uint64_t now) {
    uint32_t slot = comm_id >> COMM_ID_INDEX_BITS;
    if (comm_id == 0 || qpn_is_ours(dev, slot)) /* 0 is nobody's: a REJ by a peer that never had an answer */
        return OURS;
    enum found found = hand_to_slot(dev, port, slot, p, bth, now);
    if (found == NOBODY)
        demux_count_forward(dev, -ECONNREFUSED, 1);
    return found;
}

/* ---------------------------------------------------------------- it is for nobody */

static void send_mad(struct dev *dev, struct way *to, uint32_t dqpn, uint16_t pkey, const uint8_t mad[MAD_BYTES]) {
    struct datagram d = {.dqpn = dqpn, .sqpn = QPN_GSI, .qkey = GSI_QKEY, .psn = dev->gsi_psn};
    struct out out;
    udp_tx_flush(&dev->tx);
    if (!out_open_to(to, &out, ROCE_UD_SEND_ONLY, MAD_BYTES, d.dqpn, d.psn, pkey)) {
        dev->nic.counters.value[RNIC_CNT_tx_errors]++; /* the link is busy; its sender asks again */
        return;
    }
    out_deth(&out, &d);
    out_headers(&out);
    out.crc = crc32_copy(out.crc, out_payload(&out), mad, MAD_BYTES);
    dev->nic.counters.value[RNIC_CNT_tx_bytes] += out_close_to(&out);
    dev->nic.counters.value[RNIC_CNT_tx_packets]++;
    dev->gsi_psn = psn_add(dev->gsi_psn, 1);
    udp_tx_flush(&dev->tx);
}

static void answer(struct dev *dev, struct port *port, struct incoming *in, const struct udp_datagram *d, uint32_t n,
                   bool refusal, uint64_t now) {
    uint8_t mad[MAD_BYTES];
    int index = pkey_find(&dev->nic, bth_pkey(in->pkt.bth));
    if (index < 0)
        dev->nic.counters.value[RNIC_CNT_drop_bad_pkey]++;
    if (index < 0 || !mad_answer(mad, in->pkt.payload) || !demux_icrc(dev, in, d, n))
        return;
    if (refusal && !demux_may_ask(dev, d, now))
        return;
    if (!strays_may_answer(dev, now)) {
        dev->nic.counters.value[RNIC_CNT_drop_unanswered]++;
        return;
    }
    struct way to = {.link = dev->nic.wire, .src = port->addr, .dst = d->src, .port = port, .hop_limit = HOPS};
    to.dst.sin6_port = htons(ROCE_UDP_PORT);
    dev->nic.counters.value[RNIC_CNT_cm_refused] += refusal;
    send_mad(dev, &to, deth_source(&in->pkt), dev->nic.pkeys[index], mad);
}

bool gsi_is_request(const struct packet *pkt) {
    return pkt->length == MAD_BYTES && deth_qkey(pkt->bth + pkt->row->deth) == GSI_QKEY &&
           mad_address(pkt->payload).target == MAD_FOR_SERVICE;
}

bool gsi_elsewhere(struct dev *dev, struct port *port, struct incoming *in, const struct udp_datagram *d, uint32_t n,
                   uint64_t now) {
    const struct packet *pkt = &in->pkt;
    struct slot_packet p = {
        .src = d->src, .length = n, .hops = d->hops, .tclass = d->tclass, .flow_label = d->flow_label};
    if (pkt->length != MAD_BYTES || deth_qkey(pkt->bth + pkt->row->deth) != GSI_QKEY)
        return false;
    struct mad_address to = mad_address(pkt->payload);
    enum found found = OURS;
    if (to.target == MAD_FOR_ID)
        found = find_slot(dev, port, to.comm_id, &p, pkt->bth, now);
    else if (to.target == MAD_FOR_SERVICE)
        found = find_listener(dev, port, to.service_id, &p, pkt->bth, now);
    if (found == NOBODY)
        answer(dev, port, in, d, n, to.target == MAD_FOR_SERVICE, now);
    return found != OURS;
}
