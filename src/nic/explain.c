/* SPDX-License-Identifier: Apache-2.0
 *
 * explain.c: a failed completion in words, for people: what went wrong, on which side, and what to look at.
 */
#include "nic.h"

#include <stddef.h>
#include <stdio.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

struct words {
    const char *side, *what, *look;
};

/* IBA 11.6.2 and ibv_poll_cq(3) define the statuses. */
static const struct words statuses[] = {
    [RNIC_WC_LOC_LEN_ERR] =
        {"local side", "the message is longer than the posted receive buffer, or than the port can send",
         "compare its size with the lengths in the receive's sg_list, and with PortAttr.max_msg_sz"},
    [RNIC_WC_LOC_QP_OP_ERR] = {"local side", "the queue pair could not carry out the request",
                               "check opcode, flags, max_rd_atomic and the other attributes of the move to RTS"},
    [RNIC_WC_LOC_EEC_OP_ERR] = {"local side", "an end-to-end context could not carry out the request",
                                "reliable datagrams are not supported by any device: suspect the provider"},
    [RNIC_WC_LOC_PROT_ERR] =
        {"local side", "an SGE does not name memory that this queue pair may use for the request",
         "check lkey, addr and length of every SGE: is its MR still registered, in the queue pair's PD, and with "
         "LOCAL_WRITE if data arrives there (receives, READ, atomics)?"},
    [RNIC_WC_WR_FLUSH_ERR] =
        {"local side", "the request was not carried out, because the queue pair was in the error state",
         "this is a consequence: look at the first completion that is neither SUCCESS nor WR_FLUSH_ERR, at the "
         "peer, at get_async_event(), and of iWARP at Context.next_stream_event() or CmId.stream_end"},
    [RNIC_WC_MW_BIND_ERR] = {"local side", "a memory window was not bound",
                             "the MR needs MW_BIND and at least the window's rights, and must contain its range"},
    [RNIC_WC_BAD_RESP_ERR] =
        {"remote side", "the peer's answer does not belong to the request",
         "suspect the peer's implementation; capture the packets and compare opcode, PSN and length"},
    [RNIC_WC_LOC_ACCESS_ERR] = {"local side", "a peer's RDMA WRITE WITH IMMEDIATE named memory that it may not write",
                                "check rights and range of the MR here that the peer's rkey names"},
    [RNIC_WC_REM_INV_REQ_ERR] =
        {"remote side", "the peer calls the request invalid",
         "is its receive buffer long enough? does its queue pair allow the operation (qp_access_flags, "
         "max_dest_rd_atomic)? is an atomic's address a multiple of 8? is the path MTU the same at both ends?"},
    [RNIC_WC_REM_ACCESS_ERR] =
        {"remote side", "the peer refuses access to the memory",
         "compare rkey, remote_addr and length with the peer's MR, its access flags and its PD; is it still "
         "registered?"},
    [RNIC_WC_REM_OP_ERR] =
        {"remote side", "the peer could not complete the operation, for a reason of its own",
         "look at the peer's completions and its get_async_event(): its queue pair is in the error state too"},
    [RNIC_WC_RETRY_EXC_ERR] =
        {"remote side or the path", "the peer did not acknowledge the request, however often it was sent",
         "is the peer's process alive, and its queue pair in RTR or RTS? do dest_qp_num, dgid and PSNs match at "
         "both ends? does the firewall let UDP port 4791 pass? does a drop_ counter grow? does tx_too_long grow "
         "(then set a smaller path_mtu)?"},
    [RNIC_WC_RNR_RETRY_EXC_ERR] =
        {"remote side", "the peer had no receive posted, however often it was asked",
         "post receives there before you send here, or raise rnr_retry (7: no end) or its min_rnr_timer"},
    [RNIC_WC_LOC_RDD_VIOL_ERR] = {"local side", "the reliable datagram domains do not match",
                                  "reliable datagrams are not supported by any device: suspect the provider"},
    [RNIC_WC_REM_INV_RD_REQ_ERR] = {"remote side", "the peer calls the reliable datagram invalid",
                                    "reliable datagrams are not supported by any device: suspect the provider"},
    [RNIC_WC_REM_ABORT_ERR] = {"remote side", "the peer ended the operation",
                               "look at what the peer did with its queue pair"},
    [RNIC_WC_INV_EECN_ERR] = {"local side", "there is no such end-to-end context",
                              "reliable datagrams are not supported by any device: suspect the provider"},
    [RNIC_WC_INV_EEC_STATE_ERR] = {"local side", "the end-to-end context is in the wrong state",
                                   "reliable datagrams are not supported by any device: suspect the provider"},
    [RNIC_WC_FATAL_ERR] = {"local side", "the device failed",
                           "look at get_async_event(); the context has to be opened again"},
    [RNIC_WC_RESP_TIMEOUT_ERR] = {"remote side", "the peer's answer came too late",
                                  "look at the peer's load and at the timeout"},
    [RNIC_WC_GENERAL_ERR] = {"local side", "something failed for which there is no status of its own",
                             "only vendor_err says more"},
    [RNIC_WC_TM_ERR] = {"local side", "tag matching failed", "the tag list is full, or the tag was unknown"},
    [RNIC_WC_TM_RNDV_INCOMPLETE] = {"local side", "the rendezvous data has to be fetched by software",
                                    "READ the data from the peer in the program, then tell the peer"},
};

/* The same for causes that mean something else: those of iWARP, which has no retries. */
static const struct words causes[] = {
    [RNIC_VE_STREAM_LOST] =
        {"remote side or the path",
         "the TCP connection was lost, and nobody knows how much of the request the peer has",
         "is the peer's process alive, and its host? does a firewall or NAT on the way forget idle connections? "
         "Context.next_stream_event() or CmId.stream_end has TCP's errno"},
    [RNIC_VE_PEER_NO_RECEIVE] = {"remote side",
                                 "the peer had no receive posted for a SEND; iWARP does not send it again",
                                 "post receives there before you send here; let the peer tell how many there are"},
};

static const struct words *words_of(const struct words *rows, int count, int i) {
    return i >= 0 && i < count && rows[i].what ? &rows[i] : NULL;
}

static const char *status_name(int status) {
#define NAME(n, v) [v] = #n,
    static const char *const names[] = {RNIC_WC_STATUSES(NAME)};
#undef NAME
    return names[status];
}

void rnic_explain(const struct rnic_wc *wc, const struct rnic_cause *cause, char *text, size_t room) {
    int n = snprintf(text, room, "wr_id %llu on QP 0x%06x: ", (unsigned long long)wc->wr_id, wc->qp_num);
    text += (size_t)n < room ? (size_t)n : room - 1;
    room -= (size_t)n < room ? (size_t)n : room - 1;
    const struct words *words = words_of(statuses, COUNT(statuses), wc->status);
    if (!words) {
        if (wc->status == RNIC_WC_SUCCESS)
            snprintf(text, room, "completed");
        else
            snprintf(text, room, "status %d, which rnic does not know", wc->status);
        return;
    }
    const struct words *special = words_of(causes, COUNT(causes), (int)wc->vendor_err);
    const char *reason = rnic_vendor_err_text((int)wc->vendor_err);
    const char *found = cause ? cause->found : "", *cure = cause ? cause->cure : "";
    words = special ? special : words;
    reason = reason ? reason : "";
    bool both = *reason && *found, any = *reason || *found;
    snprintf(text, room, "%s, %s: %s%s%s%s%s%s. Look here: %s", status_name(wc->status), words->side, words->what,
             any ? " (" : "", reason, both ? "; " : "", found, any ? ")" : "", *cure ? cure : words->look);
}
