/* SPDX-License-Identifier: Apache-2.0
 *
 * What the device says itself, as queue pair 1, whether or not there is one.
 */
#include "mad/class.h"
#include "roce/roce.h"
#include "wire/icrc.h"

#define HOPS 64

void mads_answer(struct mads *mads, const struct mad_message *m, uint16_t pkey, const uint8_t mad[MAD_BYTES]) {
    struct nic *nic = mads->host->nic;
    struct udp_tx *tx = &mads->host->net->tx;
    struct datagram d = {.dqpn = deth_source(&m->in->pkt), .sqpn = QPN_GSI, .qkey = GSI_QKEY, .psn = mads->psn};
    struct way to = {.link = nic->wire, .src = m->port->addr, .dst = m->d->src, .hop_limit = HOPS};
    udp_way(&to)->port = m->port;
    struct out out;
    to.dst.sin6_port = htons(ROCE_UDP_PORT);
    udp_tx_flush(tx);
    if (!out_open_to(&to, &out, ROCE_UD_SEND_ONLY, MAD_BYTES, d.dqpn, d.psn, pkey)) {
        nic->counters.value[RNIC_CNT_tx_errors]++; /* the link is busy; its sender asks again */
        return;
    }
    out_deth(&out, &d);
    out_headers(&out);
    out.crc = crc32_copy(out.crc, out_payload(&out), mad, MAD_BYTES);
    nic->counters.value[RNIC_CNT_tx_bytes] += out_close_to(&out);
    nic->counters.value[RNIC_CNT_tx_packets]++;
    mads->psn = psn_add(mads->psn, 1);
    udp_tx_flush(tx);
}
