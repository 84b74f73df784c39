/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the frames of RAW_PACKET queue pairs go and come from: each other, the fault injector, and the network device,
 * where the process may open a packet socket.  All of it is there while such a queue pair exists.
 *
 * The loopback interface has no socket: what it would bring is what the queue pairs have already given each other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "dev/dev.h"
#include "link/packet/packet.h"
#include "raw/raw.h"

#define AT_ONCE 64 /* frames taken from the socket before others have their turn */
#define RETRY_NS 200000 /* a full socket is tried again so much later */

struct raw_link {
    struct raw_net net; /* first */
    struct dev *dev;
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
static bool to_wire(struct raw_link *link, const uint8_t *frame, uint32_t n) {
    struct rnic_counters *cnt = &link->dev->nic.counters;
    int rc = packet_send(link->fd, link->dev->net.ifindex, frame, n);
    cnt->value[RNIC_CNT_tx_syscalls]++;
    if (rc == -EAGAIN || rc == -ENOBUFS)
        return false;
    cnt->value[rc ? RNIC_CNT_tx_errors : RNIC_CNT_tx_packets]++;
    if (!rc)
        cnt->value[RNIC_CNT_tx_bytes] += n;
    return true;
}

/* To the wire first: what that does not take now comes again, and the device's own queue pairs would have it twice. */
static bool send_now(struct raw_link *link, const struct qp *from, const uint8_t *frame, uint32_t n) {
    if (link->fd >= 0 && !to_wire(link, frame, n))
        return false;
    bool wanted = raw_input(&link->net, from, frame, n);
    if (link->fd < 0 && !wanted)
        link->dev->nic.counters.value[RNIC_CNT_drop_no_flow]++;
    return true;
}

/* What the injector lets go cannot wait: it is lost. */
static void emit(struct link *to, const struct way *way, const uint8_t *frame, uint32_t n) {
    struct raw_link *link = (struct raw_link *)to;
    if (!send_now(link, raw_way(way)->from, frame, n))
        link->dev->nic.counters.value[RNIC_CNT_tx_errors]++;
}

static bool put(struct link *to, const struct way *way, const uint8_t *frame, uint32_t n) {
    struct raw_link *link = (struct raw_link *)to;
    uint64_t now = link->dev->run.now;
    if (link->fault.on) {
        fault_send(&link->fault, &link->dev->nic.counters, way, frame, n, now);
        return true;
    }
    if (send_now(link, raw_way(way)->from, frame, n))
        return true;
    if (!to->full)
        link->dev->nic.counters.value[RNIC_CNT_tx_waits]++;
    to->full = true;
    link->retry_at = now + RETRY_NS;
    return false;
}

static const struct link_ops packet_ops = {.name = "packet", .put = put, .emit = emit};

/* A queue behind the socket does not tell when it has room: the frame is tried again after a while. */
static void resume(void *owner, uint64_t now, bool called) {
    struct dev *dev = owner;
    struct raw_link *link = dev->raw;
    (void)called;
    if (link && link->net.link.full && now >= link->retry_at) {
        link->net.link.full = false;
        sched_unpark(&dev->run, &link->net.link);
    }
    if (link && link->fault.held)
        fault_release(&link->fault, now);
}

static uint64_t deadline(const void *owner) {
    const struct raw_link *link = ((const struct dev *)owner)->raw;
    if (!link)
        return NEVER;
    uint64_t fault = fault_deadline(&link->fault), retry = link->net.link.full ? link->retry_at : NEVER;
    return retry < fault ? retry : fault;
}

/* ---------------------------------------------------------------- in */

static void from_wire(struct raw_link *link, uint8_t *frame, uint32_t n, bool partial) {
    struct rnic_counters *cnt = &link->dev->nic.counters;
    struct frame f;
    cnt->value[RNIC_CNT_rx_packets]++;
    cnt->value[RNIC_CNT_rx_bytes] += n;
    if (n > link->room - PACKET_ROOM) { /* several packets that the kernel has joined to one, and cut */
        cnt->value[RNIC_CNT_drop_malformed]++;
        return;
    }
    if (partial && frame_parse(&f, frame, n)) /* as it would have been on a wire */
        frame_put_csums(&f, frame);
    if (!raw_input(&link->net, NULL, frame, n))
        cnt->value[RNIC_CNT_drop_no_flow]++;
}

static bool receive(struct raw_link *link) {
    uint8_t *frame;
    bool partial;
    int got = 0;
    while (got < AT_ONCE) {
        int n = packet_receive(link->fd, link->buffer, link->room, &frame, &partial);
        if (n < 0)
            break;
        got++;
        link->dev->nic.counters.value[RNIC_CNT_rx_syscalls]++;
        from_wire(link, frame, (uint32_t)n, partial);
    }
    return got > 0;
}

static bool source_receive(void *owner, uint64_t now) {
    struct raw_link *link = ((struct dev *)owner)->raw;
    (void)now;
    return link && link->listens && receive(link);
}

const struct source raw_source = {
    .name = "raw", .receive_rare = source_receive, .resume = resume, .deadline = deadline};

void raw_set_fault(struct dev *dev, const struct rnic_fault *fault) {
    if (dev->raw)
        fault_set(&dev->raw->fault, fault);
}

/* ---------------------------------------------------------------- while there are queue pairs */

static void close_link(struct dev *dev) {
    struct raw_link *link = dev->raw;
    dev->raw = NULL;
    dev->nic.raw = NULL;
    if (link->fd >= 0)
        close(link->fd);
    fault_set(&link->fault, NULL);
    free(link->net.frame);
    free(link->buffer);
    free(link);
}

static int open_link(struct dev *dev, struct rnic_err *err) {
    uint32_t mtu = (uint32_t)dev->net.mtu;
    struct raw_link *link = calloc(1, sizeof *link);
    if (!link)
        return fail(err, -ENOMEM, "no memory");
    *link = (struct raw_link){.net = {.link.ops = &packet_ops, .nic = &dev->nic, .mtu = mtu}, .dev = dev, .fd = -1};
    link->room = PACKET_ROOM + RAW_FRAME_ROOM(mtu);
    link->buffer = malloc(link->room);
    link->net.frame = malloc(RAW_FRAME_ROOM(mtu));
    dev->raw = link;
    if (!link->buffer || !link->net.frame) {
        close_link(dev);
        return fail(err, -ENOMEM, "no memory for frames");
    }
    if (dev->fault.on)
        fault_set(&link->fault, &dev->fault.cfg);
    if (!dev->net.loopback)
        link->fd = packet_open(NULL);
    dev->nic.raw = &link->net;
    return 0;
}

/* A netdev that takes longer frames now; where there is no memory for them, the limit stays. */
void raw_measure(struct dev *dev) {
    struct raw_link *link = dev->raw;
    uint32_t mtu = (uint32_t)dev->net.mtu;
    if (!link || link->net.mtu == mtu)
        return;
    uint8_t *buffer = malloc(PACKET_ROOM + RAW_FRAME_ROOM(mtu)), *frame = malloc(RAW_FRAME_ROOM(mtu));
    if (!buffer || !frame) {
        free(buffer);
        free(frame);
        return;
    }
    free(link->buffer);
    free(link->net.frame);
    link->buffer = buffer;
    link->net.frame = frame;
    link->room = PACKET_ROOM + RAW_FRAME_ROOM(mtu);
    link->net.mtu = mtu;
}

static void end_work_queues(struct dev *dev, struct qp *qp) {
    (void)dev;
    const struct rwq_table *table = qp->engine == &raw_ops ? raw_of(qp)->rss.table : NULL;
    for (uint32_t i = 0; table && i < table->size; i++)
        rwq_end(table->wq[i]);
}

void raw_fail(struct dev *dev) {
    struct raw_link *link = dev->raw;
    if (!link)
        return;
    qpn_each(dev, end_work_queues);
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    link->listens = false;
}

int raw_enter(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    int rc = dev->raw ? 0 : open_link(dev, err);
    if (rc)
        return rc;
    dev->raw->qps++;
    raw_set_way(qp, &dev->raw->net.link);
    if (raw_of(qp)->rss.table)
        raw_of(qp)->rss.table->qps++;
    return 0;
}

void raw_leave(struct dev *dev, struct qp *qp) {
    if (raw_of(qp)->rss.table)
        raw_of(qp)->rss.table->qps--;
    fault_forget(&dev->raw->fault, raw_is_from, qp);
    if (--dev->raw->qps == 0)
        close_link(dev);
}

int raw_listen(struct dev *dev, struct rnic_err *err) {
    struct raw_link *link = dev->raw;
    if (link->fd < 0 || link->listens)
        return 0;
    int rc = packet_listen(link->fd, dev->net.ifindex, err);
    if (rc)
        return rc;
    link->listens = true;
    engine_watch(&dev->run, link->fd);
    return 0;
}

void raw_abandon(struct dev *dev) {
    if (dev->raw && dev->raw->fd >= 0)
        close(dev->raw->fd);
}

/* ---------------------------------------------------------------- what it can do */

/* Whether a packet socket could be opened is known by trying. */
bool raw_reaches_wire(struct dev *dev, struct rnic_err *err) {
    if (dev->net.loopback)
        return fail(err, 0, "%s is the loopback interface, whose frames stay in this context", dev->net.name);
    if (dev->raw && dev->raw->fd >= 0)
        return true;
    int fd = packet_open(err);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}
