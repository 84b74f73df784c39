/* SPDX-License-Identifier: Apache-2.0
 *
 * Floods: somebody sends so much that nobody needs that the device would do little but throw it away, and the socket would
 * drop what live queue pairs are sent.  What goes on so is muted: the kernel drops it (link/udp/sieve.h).  The few packets that
 * come through tell whether it still goes on.
 *
 * What nobody needs is counted in nic->useless: packets that are malformed, strange or for nobody, PSNs far from what a
 * peer can send, notifications of congestion that change nothing; and messages to queue pair 1, of which no host has to
 * send so many.  It is counted by address and by queue pair, and muted so as to leave alone whatever somebody may need:
 *
 *   most of it goes to                  muted is, of that address
 *   queue pair 1                        what goes there from that port; or from all ports but rnic's
 *   a queue pair that nobody has        what goes there
 *   a connected one, from the peer's    what goes there from other ports than the peer's
 *   a connected one, else               what goes there
 *   one of service UD                   what goes there from that port
 *   many                                what goes to none that lives, and not to queue pair 1
 *
 * Processes of one user share rnic's port: it is not the one that is muted where it is this host's or a peer's.  With an
 * alternate path the peer's ports are not known.
 *
 * A request for a connection makes the most work, so those that a source may make in a second are limited.
 */
#include "base/address.h"
#include "host/host.h"

#define WINDOW_NS 25000000ull
#define WAYS 4     /* places that a source may have in a table */
#define LIMIT 1024 /* packets of a window: 40,000 a second, which take a tenth of a processor */
#define MANAGED 4  /* packets that a message to queue pair 1, which a program has to read, is worth */
#define PATIENCE 4 /* windows: what was under way to a process that has gone ends by then */
#define MUTE_NS 1000000000ull
#define ALIVE_NS 2000000000ull
#define REQUESTS 1024u        /* that may come together */
#define REQUEST_NS 4000000ull /* 250 a second in the long run: each takes half a millisecond */
#define ANY 0u
#define RNIC_PORT htons(ROCE_UDP_PORT) /* of one user, on each address */

static uint32_t set_of(const struct in6_addr *from, uint32_t more) {
    uint64_t key = get_be64(from->s6_addr) * 31 + get_be64(from->s6_addr + 8) + more;
    return (uint32_t)(key * 0x9E3779B97F4A7C15ull >> 32) % (FLOOD_SOURCES / WAYS) * WAYS;
}

/* ---------------------------------------------------------------- who sends how much to whom */

static bool is_it(const struct flood_source *s, const struct in6_addr *from, uint32_t qpn) {
    return s->qpn == qpn && IN6_ARE_ADDR_EQUAL(&s->from, from);
}

/* Its place in the table, or that of whoever sends least of those that may be there. */
static struct flood_source *place_of(struct floods *f, const struct in6_addr *from, uint32_t qpn) {
    struct flood_source *set = &f->sources[set_of(from, qpn)], *least = set;
    for (uint32_t i = 0; i < WAYS; i++) {
        if (is_it(&set[i], from, qpn))
            return &set[i];
        least = set[i].count < least->count ? &set[i] : least;
    }
    return least;
}

/* If one port sends more than all others together, it is the one that is left. */
static void count_port(struct flood_source *s, uint16_t port, uint32_t n) {
    if (s->port == port) {
        s->votes += n;
    } else if (s->votes > n) {
        s->votes -= n;
    } else {
        s->port = port;
        s->votes = n - s->votes;
    }
}

/* Those that send most stay in the table; NULL: it has not come in yet. */
static const struct flood_source *count(struct floods *f, const struct in6_addr *from, uint32_t qpn, uint16_t port,
                                        uint32_t n) {
    struct flood_source *s = place_of(f, from, qpn);
    if (!is_it(s, from, qpn)) {
        if (s->count > n) {
            s->count -= n;
            return NULL;
        }
        *s = (struct flood_source){.from = *from, .qpn = qpn};
    }
    s->count += n;
    count_port(s, port, n);
    return s;
}

static void begin_window(struct floods *f, uint64_t now) {
    uint64_t took = now - f->since, least = took < 2 * WINDOW_NS ? LIMIT * took / WINDOW_NS : UINT64_MAX;
    for (uint32_t i = 0; i < FLOOD_SOURCES; i++) {
        struct flood_source *s = &f->sources[i];
        s->windows = s->count >= least ? s->windows + 1 : 0;
        s->count = s->votes = 0;
    }
    f->since = now;
    f->judged = false;
}

/* ---------------------------------------------------------------- who is to be left alone */

static bool lives(const struct qp *qp) { return qp->state >= RNIC_QPS_RTR && qp->state != RNIC_QPS_ERR; }

static bool leads(const struct way *way, const struct in6_addr *to) {
    return IN6_ARE_ADDR_EQUAL(&way->dst.sin6_addr, to);
}

static bool leads_by_alternate(const struct qp *qp, const struct in6_addr *to) {
    return qp->ib.alt_loaded && leads(&qp->ib.alt, to);
}

static bool is_connected(const struct qp *qp, const struct in6_addr *to) {
    return !(qp->ib.service & OPC_UD) && lives(qp) && (leads(&qp->way, to) || leads_by_alternate(qp, to));
}

static void spare(struct floods *f, uint32_t place) {
    if (f->rule.nspared < SIEVE_SPARED)
        f->rule.spared[f->rule.nspared++] = place;
    else
        f->many = true;
}

/* Port 0: from none yet. */
static void use_ports(struct sieve_rule *rule, const struct qp *qp) {
    for (size_t i = 0; i < sizeof qp->ib.heard / sizeof *qp->ib.heard; i++) {
        if (qp->ib.heard[i])
            sieve_uses(rule, qp->ib.heard[i]);
    }
}

static void look_at(struct host *host, struct qp *qp) {
    struct floods *f = &host->floods;
    bool peer = is_connected(qp, &f->rule.from);
    f->is_peer |= peer;
    if (peer)
        use_ports(&f->rule, qp);
    if (peer || (qp->ib.service & OPC_UD && lives(qp) && qp->pub.qp_num != QPN_GSI))
        spare(f, qp->pub.qp_num);
}

static void look_at_all(struct host *host) {
    host->floods.is_peer = host->floods.many = false;
    host->floods.rule.nspared = 0;
    qpn_each(host, look_at);
}

/* Those that somebody has sent to before, through this process.  One that was silent for long may have gone. */
static void look_at_slots(struct host *host, uint64_t now) {
    struct floods *f = &host->floods;
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        if (f->handed_on[slot] && now < f->handed_on[slot] + ALIVE_NS)
            spare(f, SIEVE_SLOT | slot);
    }
    for (uint32_t slot = 0; slot < SLOT_COUNT && !f->many; slot++) {
        if (!f->handed_on[slot] || now < f->handed_on[slot] + ALIVE_NS)
            continue;
        if (slot_taken(slot))
            spare(f, SIEVE_SLOT | slot);
        else
            f->handed_on[slot] = 0;
    }
}

static bool is_own(const struct host *host, const struct in6_addr *from) { return ports_find(host->net, from); }

/* ---------------------------------------------------------------- judgement: false: it is not muted */

/* Processes of one user share rnic's port: those of this host, or of a peer's, are left alone. */
static bool mute_port(struct host *host, uint16_t number) {
    struct floods *f = &host->floods;
    f->rule.port = number;
    return number && (number != RNIC_PORT || !(f->is_peer || is_own(host, &f->rule.from)));
}

/* The communication managers of one host's users have a port each. */
static bool mute_management(struct host *host, uint16_t number) {
    struct sieve_rule *rule = &host->floods.rule;
    if (number)
        return mute_port(host, number);
    rule->heard[0] = RNIC_PORT;
    return !is_own(host, &rule->from);
}

/* By the alternate path the peer may come from a port that is not known yet. */
static bool mute_forgers(struct floods *f, const struct qp *qp) {
    memcpy(f->rule.heard, qp->ib.heard, sizeof f->rule.heard);
    return f->rule.heard[0] && !leads_by_alternate(qp, &f->rule.from);
}

/* Those who share the port with us speak to each other from there, and name no queue pair (link/udp/steering.h). */
static void leave_members(struct host *host) {
    struct sieve_rule *rule = &host->floods.rule;
    rule->heard[0] = is_own(host, &rule->from) ? RNIC_PORT : 0;
}

static bool mute_one(struct host *host, const struct qp *qp, uint16_t number) {
    struct floods *f = &host->floods;
    if (qp && qp->ib.service & OPC_UD)
        return mute_port(host, number);
    if (qp && is_connected(qp, &f->rule.from))
        return mute_forgers(f, qp);
    leave_members(host);
    return true;
}

static bool mute_many(struct host *host) {
    leave_members(host);
    return !host->floods.many;
}

/* what: the address, the place, and the port that most of it comes from; 0: there is none. */
static void judge(struct host *host, struct port *port, const struct sieve_rule *what, uint64_t now) {
    struct floods *f = &host->floods;
    uint16_t number = what->port;
    uint32_t qpn = what->qpn;
    f->judged = true;
    f->rule = (struct sieve_rule){.from = what->from, .qpn = qpn, .until = now + MUTE_NS, .since = now};
    look_at_all(host);
    look_at_slots(host, now);
    if (f->rule.nspared > 0)
        sieve_uses(&f->rule, RNIC_PORT);
    bool may = qpn == ANY       ? mute_many(host)
               : qpn == QPN_GSI ? mute_management(host, number)
                                : mute_one(host, qpn_find(host, qpn), number);
    if (!may)
        return;
    port_mute(port, &f->rule);
    engine_wake_for(host->run, f->rule.until);
    host->nic->counters.value[RNIC_CNT_sources_muted]++;
}

/* Its time is short, and what comes through says that it goes on. */
static void judge_again(struct host *host, struct port *port, struct sieve_rule *rule, uint32_t n, uint64_t now) {
    if (now >= rule->since + WINDOW_NS) {
        rule->since = now;
        rule->passed = 0;
    }
    rule->passed += n;
    if (rule->passed >= LIMIT / SIEVE_PASSES && rule->until < now + MUTE_NS / 2 && !host->floods.judged) {
        struct sieve_rule what = *rule;
        judge(host, port, &what, now);
    }
}

static uint32_t packets(const struct udp_datagram *d) { return (d->length + d->segment - 1) / d->segment; }

/* Where all of its packets go; ANY: not to one place. */
static uint32_t place(const struct udp_datagram *d) {
    if (d->length < BTH_BYTES)
        return ANY;
    uint32_t qpn = bth_dqpn(d->bytes);
    for (uint32_t at = d->segment; at + BTH_BYTES <= d->length; at += d->segment) {
        if (bth_dqpn(d->bytes + at) != qpn)
            return ANY;
    }
    return qpn;
}

/* Is such a packet heard?  What another process was handed has set its time just now. */
static bool is_heard(const struct host *host, const struct udp_datagram *d, uint32_t qpn, uint64_t now) {
    if (qpn == QPN_GSI)
        return true;
    if (!qpn_is_ours(host, qpn_slot(qpn)))
        return qpn != QPN_SMI && host->floods.handed_on[qpn_slot(qpn)] == now;
    const struct qp *qp = qpn_find(host, qpn);
    return qp && ((qp->ib.service & OPC_UD && lives(qp)) ||
                  (is_connected(qp, &d->src.sin6_addr) && ib_hears_port(&qp->ib, d->src.sin6_port)));
}

/* Is some of it heard, and some for another one? */
static bool is_mixed(const struct host *host, const struct udp_datagram *d, uint64_t now) {
    bool heard = false;
    for (uint32_t at = 0; !heard && at + BTH_BYTES <= d->length; at += d->segment)
        heard = is_heard(host, d, bth_dqpn(d->bytes + at), now);
    return heard && place(d) == ANY;
}

/* What is too short to name a queue pair has nothing behind it: only the last packet is shorter than the others. */
static void part(const struct host *host, struct port *port, const struct udp_datagram *d, uint64_t now) {
    bool mixed = is_mixed(host, d, now);
    for (uint32_t at = 0; at + BTH_BYTES <= d->length; at += d->segment)
        port_part(port, &d->src.sin6_addr, d->src.sin6_port, bth_dqpn(d->bytes + at), mixed);
}

/* Ports that change as soon as they are muted are many ports. */
static uint16_t port_of(const struct port *port, const struct flood_source *s) {
    bool one = s->votes >= s->count / 2;
    for (uint32_t i = 0; one && i < port->sieve.count; i++) {
        const struct sieve_rule *r = &port->sieve.rules[i];
        one = !r->port || r->port == s->port || r->qpn != s->qpn || !IN6_ARE_ADDR_EQUAL(&r->from, &s->from);
    }
    return one ? s->port : 0;
}

static void weigh(struct host *host, struct port *port, const struct udp_datagram *d, uint32_t qpn, uint32_t n,
                  uint64_t now) {
    struct floods *f = &host->floods;
    const struct in6_addr *from = &d->src.sin6_addr;
    struct sieve_rule *rule = sieve_find(&port->sieve, from, d->src.sin6_port, qpn);
    if (rule) {
        judge_again(host, port, rule, n, now);
        return;
    }
    const struct flood_source *here = qpn == ANY ? NULL : count(f, from, qpn, d->src.sin6_port, n),
                              *all = count(f, from, ANY, d->src.sin6_port, n);
    if (f->judged || !all || all->count < LIMIT || all->windows < PATIENCE)
        return;
    bool one = here && (here->count >= all->count / 2 || here->windows >= PATIENCE);
    judge(host, port,
          &(struct sieve_rule){.from = *from, .qpn = one ? qpn : ANY, .port = one ? port_of(port, here) : 0}, now);
}

void floods_note(struct host *host, struct port *port, const struct udp_datagram *d, uint32_t n, uint64_t now) {
    struct floods *f = &host->floods;
    uint32_t qpn = place(d), most = d->length ? packets(d) : 1;
    n = n < most ? n : most; /* a packet may have been found useless twice */
    n = qpn == QPN_GSI ? n * MANAGED : n;
    now = now > f->since ? now : f->since; /* it may have been read before the lock was had */
    if (now - f->since >= WINDOW_NS)
        begin_window(f, now);
    if (port->rx_fd < 0)
        return;
    weigh(host, port, d, qpn, n, now);
    if (port->sieve.count > 0)
        part(host, port, d, now);
}

static void spare_newcomer(struct host *host, const struct in6_addr *from, uint32_t place) {
    for (int i = 0; i < host->net->netdev.ngids; i++) {
        if (host->net->ports[i].steering && host->net->ports[i].rx_fd >= 0)
            port_spare(&host->net->ports[i], from, place);
    }
}

void floods_new_peer(struct host *host, const struct qp *qp, const struct in6_addr *from) {
    spare_newcomer(host, from, qp->pub.qp_num);
}

void floods_handed_on(struct host *host, uint32_t slot, uint64_t now) {
    bool known = host->floods.handed_on[slot % SLOT_COUNT];
    host->floods.handed_on[slot % SLOT_COUNT] = now;
    if (!known)
        spare_newcomer(host, NULL, SIEVE_SLOT | slot % SLOT_COUNT);
}

/* ---------------------------------------------------------------- requests for connections */

/* The one that has asked longest ago makes room. */
static struct flood_asker *asker_of(struct floods *f, const struct sockaddr_in6 *src) {
    struct flood_asker *set = &f->askers[set_of(&src->sin6_addr, src->sin6_port)], *least = set;
    for (uint32_t i = 0; i < WAYS; i++) {
        if (set[i].port == src->sin6_port && IN6_ARE_ADDR_EQUAL(&set[i].from, &src->sin6_addr))
            return &set[i];
        least = set[i].paid_until < least->paid_until ? &set[i] : least;
    }
    *least = (struct flood_asker){.from = src->sin6_addr, .port = src->sin6_port};
    return least;
}

/* Processes of this host, or of a peer's, that share a user's port. */
static bool is_known(struct host *host, const struct sockaddr_in6 *src) {
    if (src->sin6_port != RNIC_PORT)
        return false;
    if (is_own(host, &src->sin6_addr))
        return true;
    host->floods.rule = (struct sieve_rule){.from = src->sin6_addr};
    look_at_all(host);
    return host->floods.is_peer;
}

static bool is_admitted(struct host *host, const struct sockaddr_in6 *src, uint64_t now) {
    struct floods *f = &host->floods;
    struct flood_asker *a = asker_of(f, src);
    if (a->paid_until < now + REQUESTS * REQUEST_NS) {
        a->paid_until = (a->paid_until > now ? a->paid_until : now) + REQUEST_NS;
        return true;
    }
    if (now >= f->looked_at + WINDOW_NS / FLOOD_SOURCES) { /* a look at all queue pairs takes long */
        f->looked_at = now;
        a->known = is_known(host, src);
    }
    return a->known;
}

bool floods_admit(struct host *host, const struct sockaddr_in6 *src, uint64_t now) {
    bool admitted = is_admitted(host, src, now);
    host->nic->counters.value[RNIC_CNT_drop_request] += !admitted;
    return admitted;
}
