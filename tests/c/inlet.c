/* SPDX-License-Identifier: Apache-2.0 */
#include "inlet.h"

#include <string.h>
#include <unistd.h>

#include "bare.h"
#include "base/bytes.h"
#include "check.h"
#include "link/udp/steering.h"
#include "link/udp/udpsock.h"
#include "wire/icrc.h"
#include "wire/mad.h"

struct dev *dev;
struct port *port;
uint64_t now;
struct qp qp;
bool expected, handed;
uint32_t taken;

static struct port_steering steering; /* at rest */

static bool expects(const struct qp *q, const struct packet *pkt) {
    (void)q, (void)pkt;
    return expected;
}

static void input(struct qp *q, const struct packet *pkt, uint64_t at) {
    (void)pkt, (void)at;
    taken++;
    if (expected)
        COUNT(q, requests_executed);
}

static bool owes(struct qp *q, uint64_t at) {
    (void)q, (void)at;
    return false;
}

static uint64_t never(const struct qp *q) {
    (void)q;
    return NEVER;
}

static const struct engine_ops engine = {
    .input = input, .expects = expects, .owes = owes, .deadline = never, .held = never};

void inlet_open(void) {
    dev = bare_open();
    port = &dev->net.ports[0];
    port->slot = &dev->host.slots[0];
    port->steering = &steering;
    port->rx_fd = port->tx_fd = udpsock_open(&port->addr);
    CHECK(port->rx_fd >= 0);
    now = 1000 * MS;
    expected = true;
    taken = 0;
}

void inlet_close(void) {
    close(port->rx_fd);
    bare_close(dev);
}

void inlet_arrive(const struct sockaddr_in6 *from, uint8_t *bytes, uint32_t n) {
    struct sockaddr_in6 to = port->addr;
    to.sin6_port = htons(ROCE_UDP_PORT);
    put_le32(bytes + n - ICRC_BYTES, icrc_compute(from, &to, 0, bytes, n - ICRC_BYTES));
    demux_datagram(dev, port, &(struct udp_datagram){.bytes = bytes, .length = n, .segment = n, .src = *from}, handed,
                   now);
}

uint32_t inlet_qpn(uint32_t index) { return dev->host.slots[0].number << QPN_INDEX_BITS | index; }

void inlet_mad_for(const struct sockaddr_in6 *from, uint16_t attribute, uint32_t comm_id) {
    uint8_t bytes[MAD_PACKET] = {[0] = 0x64, [2] = 0xFF, [3] = 0xFF, [7] = QPN_GSI};
    uint8_t *m = bytes + BTH_BYTES + DETH_BYTES;
    put_be32(bytes + BTH_BYTES, GSI_QKEY);
    m[0] = 1;
    m[1] = CM_CLASS;
    m[2] = CM_CLASS_VERSION;
    m[3] = 3;
    put_be16(m + MAD_ATTRIBUTE, attribute);
    put_be32(m + MAD_REMOTE_ID, comm_id);
    inlet_arrive(from, bytes, sizeof bytes);
}

void inlet_mad(const struct sockaddr_in6 *from, uint16_t attribute) { inlet_mad_for(from, attribute, 0); }

void inlet_datagram(const struct sockaddr_in6 *from, uint8_t *bytes, uint32_t n) {
    struct udp_datagram d = {.bytes = bytes, .length = n, .segment = n ? n : 1, .src = *from};
    demux_datagram(dev, port, &d, false, now);
}

void inlet_enter(struct qp *q, uint32_t index) {
    q->nic = &dev->nic;
    q->engine = &engine;
    q->state = RNIC_QPS_RTS;
    q->ib.pkey = 0xFFFF;
    q->pub.qp_num = inlet_qpn(index);
    q->turn.timer_at = NEVER;
    dev->host.table[0][index] = q;
}

void inlet_connect(const struct sockaddr_in6 *peer) {
    qp = (struct qp){.ib = {.service = OPC_RC, .takes = OPC_RC | OPC_CNP}};
    qp.way = (struct way){.src = port->addr, .dst = *peer};
    qp.ib.from = (struct way){.src = *peer, .dst = port->addr};
    qp.ib.from.dst.sin6_port = htons(ROCE_UDP_PORT);
    inlet_enter(&qp, 6);
}
