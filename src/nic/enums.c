/* SPDX-License-Identifier: Apache-2.0
 *
 * enums.c: the names, texts and values of nic_enums.h's and nic_raw.h's X-macros as data, for bindings and for people.
 */
#include "nic.h"

#include <stddef.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

struct name_text {
    const char *name, *text;
};

#define ROW(n, t) {#n, t},
static const struct name_text counters[] = {RNIC_COUNTERS(ROW)};
static const struct name_text vendor_errs[] = {RNIC_VENDOR_ERRS(ROW)};
#undef ROW

static const struct name_text *row_of(const struct name_text *rows, int count, int i) {
    static const struct name_text none = {NULL, NULL};

    return i >= 0 && i < count ? &rows[i] : &none;
}

const char *rnic_counter_name(int counter) { return row_of(counters, COUNT(counters), counter)->name; }

const char *rnic_counter_text(int counter) { return row_of(counters, COUNT(counters), counter)->text; }

const char *rnic_vendor_err_name(int err) { return row_of(vendor_errs, COUNT(vendor_errs), err)->name; }

const char *rnic_vendor_err_text(int err) { return row_of(vendor_errs, COUNT(vendor_errs), err)->text; }

#define QP_STATE(n, v) {"qp_state", #n, v},
#define QP_TYPE(n, v) {"qp_type", #n, v},
#define MTU(n, v) {"mtu", #n, v},
#define MIG_STATE(n, v) {"mig_state", #n, v},
#define STREAM_RTR(n, v) {"stream_rtr", #n, v},
#define STREAM_END(n, v) {"stream_end", #n, v},
#define PORT_STATE(n, v) {"port_state", #n, v},
#define LINK_LAYER(n, v) {"link_layer", #n, v},
#define GID_TYPE(n, v) {"gid_type", #n, v},
#define TRANSPORT(n, v) {"transport", #n, v},
#define NODE_TYPE(n, v) {"node_type", #n, v},
#define ATOMIC_CAP(n, v) {"atomic_cap", #n, v},
#define ACCESS_FLAGS(n, v) {"access_flags", #n, v},
#define QP_ATTR_MASK(n, v) {"qp_attr_mask", #n, v},
#define WR_OPCODE(n, v) {"wr_opcode", #n, v},
#define SEND_FLAGS(n, v) {"send_flags", #n, v},
#define WC_STATUS(n, v) {"wc_status", #n, v},
#define WC_OPCODE(n, v) {"wc_opcode", #n, v},
#define WC_FLAGS(n, v) {"wc_flags", #n, v},
#define EVENT_TYPE(n, v) {"event_type", #n, v},
#define DEVICE_CAP(n, v) {"device_cap", #n, v},
#define SRQ_ATTR_MASK(n, v) {"srq_attr_mask", #n, v},
#define SRQ_TYPE(n, v) {"srq_type", #n, v},
#define OPS_WR_OPCODE(n, v) {"ops_wr_opcode", #n, v},
#define OPS_FLAGS(n, v) {"ops_flags", #n, v},
#define TM_CAP_FLAGS(n, v) {"tm_cap_flags", #n, v},
#define CREATE_CQ_WC_FLAGS(n, v) {"create_cq_wc_flags", #n, v},
#define CQ_INIT_ATTR_MASK(n, v) {"cq_init_attr_mask", #n, v},
#define CREATE_CQ_ATTR_FLAGS(n, v) {"create_cq_attr_flags", #n, v},
#define CQ_ATTR_MASK(n, v) {"cq_attr_mask", #n, v},
#define VALUES_MASK(n, v) {"values_mask", #n, v},
#define COUNTER_DESCRIPTION(n, v) {"counter_description", #n, v},
#define READ_COUNTERS_FLAGS(n, v) {"read_counters_flags", #n, v},
#define COMP_CNTR_TYPE(n, v) {"comp_cntr_type", #n, v},
#define COMP_CNTR_OP(n, v) {"comp_cntr_op", #n, v},
#define REREG_MR_FLAGS(n, v) {"rereg_mr_flags", #n, v},
#define ODP_GENERAL_CAPS(n, v) {"odp_general_caps", #n, v},
#define ODP_TRANSPORT_CAPS(n, v) {"odp_transport_caps", #n, v},
#define ADVISE_MR_ADVICE(n, v) {"advise_mr_advice", #n, v},
#define ADVISE_MR_FLAGS(n, v) {"advise_mr_flags", #n, v},
#define MW_TYPE(n, v) {"mw_type", #n, v},
#define DEVICE_CAP_EX(n, v) {"device_cap_ex", #n, v},
#define PLACEMENT_TYPE(n, v) {"placement_type", #n, v},
#define SELECTIVITY_LEVEL(n, v) {"selectivity_level", #n, v},
#define QP_INIT_ATTR_MASK(n, v) {"qp_init_attr_mask", #n, v},
#define QP_CREATE_FLAGS(n, v) {"qp_create_flags", #n, v},
#define QP_SEND_OPS(n, v) {"qp_send_ops", #n, v},
#define FLOW_ATTR_TYPE(n, v) {"flow_attr_type", #n, v},
#define FLOW_FLAGS(n, v) {"flow_flags", #n, v},
#define FLOW_SPEC_TYPE(n, v) {"flow_spec_type", #n, v},
#define RX_HASH_FUNCTION(n, v) {"rx_hash_function", #n, v},
#define RX_HASH_FIELDS(n, v) {"rx_hash_fields", #n, v},
#define WQ_TYPE(n, v) {"wq_type", #n, v},
#define WQ_FLAGS(n, v) {"wq_flags", #n, v},
#define WQ_STATE(n, v) {"wq_state", #n, v},
#define WQ_ATTR_MASK(n, v) {"wq_attr_mask", #n, v},
#define RAW_PACKET_CAPS(n, v) {"raw_packet_caps", #n, v},

/* clang-format off */
static const struct rnic_enum_row enum_rows[] = {
    RNIC_QP_STATES(QP_STATE)
    RNIC_QP_TYPES(QP_TYPE)
    RNIC_MTUS(MTU)
    RNIC_MIG_STATES(MIG_STATE)
    RNIC_STREAM_RTRS(STREAM_RTR)
    RNIC_STREAM_ENDS(STREAM_END)
    RNIC_PORT_STATES(PORT_STATE)
    RNIC_LINK_LAYERS(LINK_LAYER)
    RNIC_GID_TYPES(GID_TYPE)
    RNIC_TRANSPORTS(TRANSPORT)
    RNIC_NODE_TYPES(NODE_TYPE)
    RNIC_ATOMIC_CAPS(ATOMIC_CAP)
    RNIC_ACCESS_FLAGS(ACCESS_FLAGS)
    RNIC_ATTR_MASKS(QP_ATTR_MASK)
    RNIC_WR_OPCODES(WR_OPCODE)
    RNIC_SEND_FLAGS(SEND_FLAGS)
    RNIC_WC_STATUSES(WC_STATUS)
    RNIC_WC_OPCODES(WC_OPCODE)
    RNIC_WC_FLAGS(WC_FLAGS)
    RNIC_EVENT_TYPES(EVENT_TYPE)
    RNIC_DEVICE_CAPS(DEVICE_CAP)
    RNIC_SRQ_ATTR_MASKS(SRQ_ATTR_MASK)
    RNIC_SRQ_TYPES(SRQ_TYPE)
    RNIC_OPS_WR_OPCODES(OPS_WR_OPCODE)
    RNIC_OPS_FLAGS(OPS_FLAGS)
    RNIC_TM_CAP_FLAGS(TM_CAP_FLAGS)
    RNIC_CREATE_CQ_WC_FLAGS(CREATE_CQ_WC_FLAGS)
    RNIC_CQ_INIT_ATTR_MASKS(CQ_INIT_ATTR_MASK)
    RNIC_CREATE_CQ_ATTR_FLAGS(CREATE_CQ_ATTR_FLAGS)
    RNIC_CQ_ATTR_MASKS(CQ_ATTR_MASK)
    RNIC_VALUES_MASKS(VALUES_MASK)
    RNIC_COUNTER_DESCRIPTIONS(COUNTER_DESCRIPTION)
    RNIC_READ_COUNTERS_FLAGS(READ_COUNTERS_FLAGS)
    RNIC_COMP_CNTR_TYPES(COMP_CNTR_TYPE)
    RNIC_COMP_CNTR_OPS(COMP_CNTR_OP)
    RNIC_REREG_MR_FLAGS(REREG_MR_FLAGS)
    RNIC_ODP_GENERAL_CAPS(ODP_GENERAL_CAPS)
    RNIC_ODP_TRANSPORT_CAPS(ODP_TRANSPORT_CAPS)
    RNIC_ADVISE_MR_ADVICES(ADVISE_MR_ADVICE)
    RNIC_ADVISE_MR_FLAGS(ADVISE_MR_FLAGS)
    RNIC_MW_TYPES(MW_TYPE)
    RNIC_DEVICE_CAPS_EX(DEVICE_CAP_EX)
    RNIC_PLACEMENT_TYPES(PLACEMENT_TYPE)
    RNIC_SELECTIVITY_LEVELS(SELECTIVITY_LEVEL)
    RNIC_QP_INIT_ATTR_MASKS(QP_INIT_ATTR_MASK)
    RNIC_QP_CREATE_FLAGS(QP_CREATE_FLAGS)
    RNIC_QP_SEND_OPS(QP_SEND_OPS)
    RNIC_FLOW_ATTR_TYPES(FLOW_ATTR_TYPE)
    RNIC_FLOW_FLAGS(FLOW_FLAGS)
    RNIC_FLOW_SPEC_TYPES(FLOW_SPEC_TYPE)
    RNIC_RX_HASH_FUNCTIONS(RX_HASH_FUNCTION)
    RNIC_RX_HASH_FIELDS(RX_HASH_FIELDS)
    RNIC_WQ_TYPES(WQ_TYPE)
    RNIC_WQ_FLAGS(WQ_FLAGS)
    RNIC_WQ_STATES(WQ_STATE)
    RNIC_WQ_ATTR_MASKS(WQ_ATTR_MASK)
    RNIC_RAW_PACKET_CAPS(RAW_PACKET_CAPS)
};
/* clang-format on */

const struct rnic_enum_row *rnic_enum_row(int i) { return i >= 0 && i < COUNT(enum_rows) ? &enum_rows[i] : NULL; }
