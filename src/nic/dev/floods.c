/* SPDX-License-Identifier: Apache-2.0
 *
 * Floods: somebody sends so much that nobody needs that the device would do little but throw it away, and the socket would
 * drop what live queue pairs are sent.  Whoever goes on with that is muted: the kernel drops it (link/sieve.h).  The few
 * packets that come through tell whether it still goes on.
 *
 * What nobody needs is counted in nic->useless: packets that are malformed, strange or for nobody, PSNs far from what a
 * peer can send, notifications of congestion that change nothing; and messages to queue pair 1, of which no source has to
 * send so many.  A peer of a live queue pair is not muted, whatever else it sends, nor are processes of this host that
 * share the port.
 *
 * A request for a connection makes the most work, so a host that no queue pair is connected to may make so many a second.
 *
 * One that sends from many ports is muted by its address: there, its ports that are known to be peers', and rnic's own port,
 * are heard all the same.
 */
#include "dev/dev.h"
#include "link/address.h"

#define WINDOW_NS 25000000ull
#define WAYS 4 /* places that a source may have in the table */
#define LIMIT 1024 /* packets of a window: 40,000 a second, which take a tenth of a processor */
#define PATIENCE 4 /* windows: what was under way to a process that has gone ends by then */
#define MUTE_NS 1000000000ull
#define REQUESTS 1024u /* that may come together */
#define REQUEST_NS 4000000ull /* 250 a second in the long run: each takes half a millisecond */

static uint32_t hash(const struct in6_addr *from, uint16_t port) {
    return ((get_be32(from->s6_addr + 12) ^ get_be32(from->s6_addr + 4) ^ port) * 0x9E3779B1u) >> 16;
}

static bool is_it(const struct flood_source *s, const struct in6_addr *from, uint16_t port) {
    return s->port == port && IN6_ARE_ADDR_EQUAL(&s->from, from);
}

/* Its place in the table, or that of whoever sends least of those that may be there. */
static struct flood_source *place_of(struct floods *f, const struct in6_addr *from, uint16_t port) {
    struct flood_source *set = &f->sources[hash(from, port) % (FLOOD_SOURCES / WAYS) * WAYS], *least = set;
    for (uint32_t i = 0; i < WAYS; i++) {
        if (is_it(&set[i], from, port))
            return &set[i];
        least = set[i].count < least->count ? &set[i] : least;
    }
    return least;
}

/* Those that send most stay in the table; NULL: it has not come in yet. */
static const struct flood_source *count(struct floods *f, const struct in6_addr *from, uint16_t port, uint32_t n) {
    struct flood_source *s = place_of(f, from, port);
    if (!is_it(s, from, port)) {
        if (s->count > n) {
            s->count -= n;
            return NULL;
        }
        *s = (struct flood_source){.from = *from, .port = port};
    }
    s->count += n;
    return s;
}

static void begin_window(struct floods *f, uint64_t now) {
    bool next = now - f->since < 2 * WINDOW_NS;
    for (uint32_t i = 0; i < FLOOD_SOURCES; i++) {
        struct flood_source *s = &f->sources[i];
        s->windows = next && s->count >= LIMIT ? s->windows + 1 : 0;
        s->count = 0;
    }
    f->since = now;
    f->judged = false;
}

/* ---------------------------------------------------------------- whose peers they are */

static bool is_connected(const struct qp *qp) {
    return qp->heard_port && qp->state >= RNIC_QPS_RTR && qp->state != RNIC_QPS_ERR;
}

static void look_at(struct dev *dev, struct qp *qp) {
    struct sieve_source *s = &dev->floods.suspect;
    if (!is_connected(qp) || memcmp(&qp->flow.dst.sin6_addr, &s->from, sizeof s->from))
        return;
    dev->floods.is_peer |= qp->heard_port == s->port;
    for (uint32_t i = 0; i < s->nspared; i++) {
        if (s->spared[i] == qp->heard_port)
            return;
    }
    if (s->nspared < SIEVE_SPARED)
        s->spared[s->nspared++] = qp->heard_port;
    else
        dev->floods.many = true;
}

/* False: not without harm to others. */
static bool may_be_muted(struct dev *dev, const struct port *port) {
    const struct sieve_source *s = &dev->floods.suspect;
    if (s->port == htons(ROCE_UDP_PORT) && IN6_ARE_ADDR_EQUAL(&s->from, &port->addr.sin6_addr))
        return false;
    dev->floods.is_peer = dev->floods.many = false;
    qpn_each(dev, look_at);
    return s->port ? !dev->floods.is_peer : !dev->floods.many;
}

/* ---------------------------------------------------------------- judgement */

static void judge(struct dev *dev, struct port *port, const struct in6_addr *from, uint16_t number, uint64_t now) {
    struct floods *f = &dev->floods;
    f->judged = true;
    f->suspect = (struct sieve_source){
        .from = *from, .port = number, .spared = {htons(ROCE_UDP_PORT)}, .nspared = 1, .until = now + MUTE_NS};
    if (!may_be_muted(dev, port))
        return;
    port_mute(port, &f->suspect);
    engine_wake_for(dev, f->suspect.until);
    dev->nic.counters.value[RNIC_CNT_sources_muted]++;
}

/* ---------------------------------------------------------------- requests for connections */

static bool is_strange(struct dev *dev, const struct port *port, const struct sockaddr_in6 *src) {
    dev->floods.suspect = (struct sieve_source){.from = src->sin6_addr, .port = src->sin6_port};
    return may_be_muted(dev, port);
}

bool floods_admit(struct dev *dev, const struct port *port, const struct sockaddr_in6 *src, uint64_t now) {
    uint16_t number = src->sin6_port == htons(ROCE_UDP_PORT) ? src->sin6_port : 0; /* nobody else there can have it */
    struct flood_asker *a = &dev->floods.askers[hash(&src->sin6_addr, number) % FLOOD_SOURCES];
    if (a->port != number || !IN6_ARE_ADDR_EQUAL(&a->from, &src->sin6_addr))
        *a = (struct flood_asker){.from = src->sin6_addr, .port = number};
    if (a->paid_until < now + REQUESTS * REQUEST_NS) {
        a->paid_until = (a->paid_until > now ? a->paid_until : now) + REQUEST_NS;
        return true;
    }
    if (a->looked_at == 0 || now - a->looked_at >= WINDOW_NS) {
        a->looked_at = now;
        a->strange = is_strange(dev, port, src);
    }
    return !a->strange;
}

/* ---------------------------------------------------------------- what nobody needs */

static uint32_t counted(const struct flood_source *s) { return s ? s->count : 0; }

void floods_note(struct dev *dev, struct port *port, const struct sockaddr_in6 *src, uint32_t n, uint64_t now) {
    struct floods *f = &dev->floods;
    const struct in6_addr *from = &src->sin6_addr;
    if (now - f->since >= WINDOW_NS)
        begin_window(f, now);
    if (port->rx_fd < 0)
        return;
    const struct flood_source *here = count(f, from, src->sin6_port, n), *all = count(f, from, 0, n);
    const struct sieve_source *muted = sieve_find(&port->sieve, from, src->sin6_port);
    if (f->judged)
        return;
    if (muted) { /* its time is short, and what comes through says that it goes on */
        if (muted->until < now + MUTE_NS / 2 && counted(muted->port ? here : all) >= LIMIT / SIEVE_PASSES)
            judge(dev, port, from, muted->port, now);
    } else if (counted(all) >= LIMIT && all->windows >= PATIENCE) {
        judge(dev, port, from, counted(here) >= counted(all) / 2 ? src->sin6_port : 0, now);
    }
}
