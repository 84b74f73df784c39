/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the frames of RAW_PACKET queue pairs go and come from: each other, the fault injector, and the network device
 * with the other contexts on it, where the process may open a packet socket.  All of it is there while such a queue pair
 * exists.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "link/packet/packet.h"
#include "net/net.h"
#include "raw/raw.h"

#define AT_ONCE 64 /* frames taken from the socket before others have their turn */
#define RETRY_NS 200000 /* a full socket is tried again so much later */

struct frames {
    struct raw_net raw; /* first */
    struct net *of;
    int fd; /* packet socket; -1: none */
    bool listens;
    struct fault fault; /* its own, as what it holds is no packet of a port */
    uint64_t retry_at;  /* a full socket is tried again then */
    int qps;
    uint32_t room;   /* of buffer */
    uint8_t *buffer; /* a frame that comes */
};

/* ---------------------------------------------------------------- out */

/* False: the socket, or the queue behind it, is full. */
static bool to_wire(struct frames *link, const uint8_t *frame, uint32_t n) {
    struct rnic_counters *cnt = &link->of->nic->counters;
    int rc = packet_send(link->fd, link->of->netdev.ifindex, frame, n);
    cnt->value[RNIC_CNT_tx_syscalls]++;
    if (rc == -EAGAIN || rc == -ENOBUFS)
        return false;
    cnt->value[rc ? RNIC_CNT_tx_errors : RNIC_CNT_tx_packets]++;
    if (!rc)
        cnt->value[RNIC_CNT_tx_bytes] += n;
    return true;
}

/* To the wire first: what that does not take now comes again, and the device's own queue pairs would have it twice. */
static bool send_now(struct frames *link, const struct qp *from, const uint8_t *frame, uint32_t n) {
    if (link->fd >= 0 && !to_wire(link, frame, n))
        return false;
    bool wanted = raw_input(&link->raw, from, frame, n);
    if (!wanted && (link->fd < 0 || link->of->netdev.loopback))
        link->of->nic->counters.value[RNIC_CNT_drop_no_flow]++;
    return true;
}

/* What the injector lets go cannot wait: it is lost. */
static void emit(struct link *to, const struct way *way, const uint8_t *frame, uint32_t n) {
    struct frames *link = (struct frames *)to;
    if (!send_now(link, raw_way(way)->from, frame, n))
        link->of->nic->counters.value[RNIC_CNT_tx_errors]++;
}

static bool put(struct link *to, const struct way *way, const uint8_t *frame, uint32_t n) {
    struct frames *link = (struct frames *)to;
    uint64_t now = link->of->run->now;
    if (link->fault.on) {
        fault_send(&link->fault, &link->of->nic->counters, way, frame, n, now);
        return true;
    }
    if (send_now(link, raw_way(way)->from, frame, n))
        return true;
    if (!to->full)
        link->of->nic->counters.value[RNIC_CNT_tx_waits]++;
    to->full = true;
    link->retry_at = now + RETRY_NS;
    return false;
}

static const struct link_ops packet_ops = {.name = "packet", .put = put, .emit = emit};

/* A queue behind the socket does not tell when it has room: the frame is tried again after a while. */
static void resume(void *owner, uint64_t now, bool called) {
    struct net *net = owner;
    struct frames *link = net->frames;
    (void)called;
    if (link && link->raw.link.full && now >= link->retry_at) {
        link->raw.link.full = false;
        sched_unpark(net->run, &link->raw.link);
    }
    if (link && link->fault.held)
        fault_release(&link->fault, now);
}

static uint64_t deadline(const void *owner) {
    const struct frames *link = ((const struct net *)owner)->frames;
    if (!link)
        return NEVER;
    uint64_t fault = fault_deadline(&link->fault), retry = link->raw.link.full ? link->retry_at : NEVER;
    return retry < fault ? retry : fault;
}

/* ---------------------------------------------------------------- in */

static void from_wire(struct frames *link, uint8_t *frame, uint32_t n, bool partial) {
    struct rnic_counters *cnt = &link->of->nic->counters;
    struct frame f;
    cnt->value[RNIC_CNT_rx_packets]++;
    cnt->value[RNIC_CNT_rx_bytes] += n;
    if (n > link->room - PACKET_ROOM) { /* several packets that the kernel has joined to one, and cut */
        cnt->value[RNIC_CNT_drop_malformed]++;
        return;
    }
    if (partial && frame_parse(&f, frame, n)) /* as it would have been on a wire */
        frame_put_csums(&f, frame);
    if (!raw_input(&link->raw, NULL, frame, n))
        cnt->value[RNIC_CNT_drop_no_flow]++;
}

static bool receive(struct frames *link) {
    uint8_t *frame;
    bool partial;
    int got = 0;
    while (got < AT_ONCE) {
        int n = packet_receive(link->fd, link->buffer, link->room, &frame, &partial);
        if (n < 0)
            break;
        got++;
        link->of->nic->counters.value[RNIC_CNT_rx_syscalls]++;
        from_wire(link, frame, (uint32_t)n, partial);
    }
    return got > 0;
}

static bool source_receive(void *owner, uint64_t now) {
    struct frames *link = ((struct net *)owner)->frames;
    (void)now;
    return link && link->listens && receive(link);
}

const struct source frames_source = {
    .name = "frames", .receive_rare = source_receive, .resume = resume, .deadline = deadline};

void frames_set_fault(struct net *net, const struct rnic_fault *fault) {
    if (net->frames)
        fault_set(&net->frames->fault, fault);
}

/* ---------------------------------------------------------------- while there are queue pairs */

static void close_link(struct net *net) {
    struct frames *link = net->frames;
    net->frames = NULL;
    net->nic->raw = NULL;
    if (link->fd >= 0)
        close(link->fd);
    fault_set(&link->fault, NULL);
    free(link->raw.frame);
    free(link->buffer);
    free(link);
}

static int open_link(struct net *net, struct rnic_err *err) {
    uint32_t mtu = (uint32_t)net->netdev.mtu;
    struct frames *link = calloc(1, sizeof *link);
    if (!link)
        return fail(err, -ENOMEM, "no memory");
    *link = (struct frames){.raw = {.link.ops = &packet_ops, .nic = net->nic, .mtu = mtu}, .of = net, .fd = -1};
    link->room = PACKET_ROOM + RAW_FRAME_ROOM(mtu);
    link->buffer = malloc(link->room);
    link->raw.frame = malloc(RAW_FRAME_ROOM(mtu));
    net->frames = link;
    if (!link->buffer || !link->raw.frame) {
        close_link(net);
        return fail(err, -ENOMEM, "no memory for frames");
    }
    if (net->fault.on)
        fault_set(&link->fault, &net->fault.cfg);
    link->fd = packet_open(NULL);
    net->nic->raw = &link->raw;
    return 0;
}

/* A netdev that takes longer frames now; where there is no memory for them, the limit stays. */
void frames_measure(struct net *net) {
    struct frames *link = net->frames;
    uint32_t mtu = (uint32_t)net->netdev.mtu;
    if (!link || link->raw.mtu == mtu)
        return;
    uint8_t *buffer = malloc(PACKET_ROOM + RAW_FRAME_ROOM(mtu)), *frame = malloc(RAW_FRAME_ROOM(mtu));
    if (!buffer || !frame) {
        free(buffer);
        free(frame);
        return;
    }
    free(link->buffer);
    free(link->raw.frame);
    link->buffer = buffer;
    link->raw.frame = frame;
    link->room = PACKET_ROOM + RAW_FRAME_ROOM(mtu);
    link->raw.mtu = mtu;
}

void frames_fail(struct net *net) {
    struct frames *link = net->frames;
    if (!link)
        return;
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    link->listens = false;
}

int frames_enter(struct net *net, struct qp *qp, struct rnic_err *err) {
    int rc = net->frames ? 0 : open_link(net, err);
    if (rc)
        return rc;
    net->frames->qps++;
    raw_set_way(qp, &net->frames->raw.link);
    if (raw_of(qp)->rss.table)
        raw_of(qp)->rss.table->qps++;
    return 0;
}

void frames_leave(struct net *net, struct qp *qp) {
    if (raw_of(qp)->rss.table)
        raw_of(qp)->rss.table->qps--;
    fault_forget(&net->frames->fault, raw_is_from, qp);
    if (--net->frames->qps == 0)
        close_link(net);
}

int frames_listen(struct net *net, struct rnic_err *err) {
    struct frames *link = net->frames;
    if (link->fd < 0 || link->listens)
        return 0;
    int rc = packet_listen(link->fd, net->netdev.ifindex, net->netdev.loopback, err);
    if (rc)
        return rc;
    link->listens = true;
    engine_watch(net->run, link->fd);
    return 0;
}

void frames_abandon(struct net *net) {
    if (net->frames && net->frames->fd >= 0)
        close(net->frames->fd);
}

/* ---------------------------------------------------------------- what it can do */

/* Whether a packet socket could be opened is known by trying. */
bool frames_reach_wire(struct net *net, struct rnic_err *err) {
    if (net->frames && net->frames->fd >= 0)
        return true;
    int fd = packet_open(err);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}
