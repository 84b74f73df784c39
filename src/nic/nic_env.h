/* SPDX-License-Identifier: Apache-2.0
 *
 * nic_env.h: the part of nic.h, which includes it, that is about the environment: the variables that steer a device where
 * the program that opens it says nothing.  They are read at each open, so that a change of the environment counts: what a
 * caller of open may say (RNIC_DEVICE, RNIC_LOCAL, RNIC_PKEYS) by a binding, the rest by the device.  An empty variable is
 * as one that is not set.
 */
#ifndef RNIC_NIC_ENV_H
#define RNIC_NIC_ENV_H

#include <stdbool.h>
#include <stdint.h>

struct rnic_err;
struct rnic_fault;
struct rnic_device_attr;

/* Name, the values that it can have, what counts without it, and what it is for. */
#define RNIC_ENV_VARS(X)                                                                                               \
    X(DEVICE, "the name or GUID of a device", "the first device of the list",                                          \
      "the device to open where the program names none")                                                               \
    X(DEVICES, "names of devices with commas between them", "all", "the only devices that there are, in this order")   \
    X(EVENTS, "`port_down@5s,port_active@7s`", "none",                                                                 \
      "asynchronous events to raise, a time after the program opens its first device")                                 \
    X(FAIL, "`create_cq@2=ENOMEM;reg_mr:1%=EAGAIN,seed=3`", "none", "C programs: calls that fail")                     \
    X(FAULT, "`loss=0.01,seed=7`", "none", "faults in what devices send: the fields of `rnic.Faults`; each device takes those that it has") \
    X(LIMITS, "`max_qp=4,max_cqe=100`", "the device's own", "attributes of the device that are to be smaller")         \
    X(LOCAL, "`on` or `off`", "`on`", "whether peers on this host are reached through shared memory")                  \
    X(MPA_CRC, "`on` or `off`", "`on`",                                                                                \
      "iWARP: whether messages carry CRCs where the peer can do without; TCP's own checksum is weaker")                \
    X(NAMES, "`mlx5_0=eth0,siw0=eth0:iwarp`", "`roce_` or `iwarp_`, and the interface's name",                         \
      "names of devices, and the network interface of each; with `:iwarp` behind it, it is an iWARP device")           \
    X(PKEYS, "numbers with commas between them", "`0xffff`", "the P_Key table of RoCE devices: `0xffff,0x8001`, for example")    \
    X(RATE, "`100g`, for example", "`2.5g`", "the rate that the port tells: it does not make the device faster")        \
    X(TRANSPORT, "`roce` or `iwarp`", "`roce`", "the devices that are listed first, and so taken where none is named") \
    X(VERBS_DEBUG, "`0` or `1`", "`0`", "C programs: what goes wrong is printed, as by `rnic run --explain`")

struct rnic_env_row {
    const char *name, *values, *otherwise, *text;
};
/* Row i of the variables; NULL past the end. */
const struct rnic_env_row *rnic_env_row(int i);
/* Whether a variable may have this value: 0, or -EINVAL with words. */
int rnic_env_check(const char *name, const char *value, struct rnic_err *err);

/* The device to open, NULL for the first.  The text is the environment's: it lasts until the program changes it. */
const char *rnic_env_device(void);

/* Whether C programs print what goes wrong. */
bool rnic_env_verbs_debug(void);

/* 1: through shared memory, 0: not. */
int rnic_env_local(struct rnic_err *err);

/* 1: with CRCs, 0: without, where the peer can do without, too. */
int rnic_env_mpa_crc(struct rnic_err *err);

/* P_Keys into pkeys: at most max; the number there are, 0 for the table of a device that nobody fills. */
int rnic_env_pkeys(uint16_t *pkeys, int max, struct rnic_err *err);

/* ---------------------------------------------------------------- what a program finds */

#define RNIC_ENV_DEVICES 32
struct rnic_env_name {
    char device[32], netdev[16];
    int transport; /* enum rnic_transport */
};
/* Names that devices are to have: how many, or -EINVAL. */
int rnic_env_names(struct rnic_env_name names[RNIC_ENV_DEVICES], struct rnic_err *err);
/* The devices that there are to be: their number, or -EINVAL; 0: all. */
int rnic_env_devices(char names[RNIC_ENV_DEVICES][32], struct rnic_err *err);
/* The transport (enum rnic_transport) whose devices come first, or -EINVAL. */
int rnic_env_transport(struct rnic_err *err);

struct rnic_rate {
    uint8_t speed, width; /* as ibv_port_attr has them */
};
/* 0, or -EINVAL; *rate stays what it is where the variable is not set. */
int rnic_env_rate(struct rnic_rate *rate, struct rnic_err *err);

/* Of struct rnic_device_attr: what can be made smaller. */
#define RNIC_LIMITS(X)                                                                                                 \
    X(max_qp) X(max_qp_wr) X(max_sge) X(max_cq) X(max_cqe) X(max_mr) X(max_pd) X(max_qp_rd_atom)                       \
    X(max_qp_init_rd_atom) X(max_srq) X(max_srq_wr) X(max_srq_sge) X(max_mw) X(max_ah) X(max_inline_data)
/* Makes those of the device smaller that the variable names. 0, or -EINVAL: one would be larger, or is none of these. */
int rnic_env_limits(struct rnic_device_attr *attr, struct rnic_err *err);

/* ---------------------------------------------------------------- what happens to a program */

/* 1: there are faults; 0: none; -EINVAL. */
int rnic_env_fault(struct rnic_fault *fault, struct rnic_err *err);

#define RNIC_ENV_EVENTS 32
struct rnic_env_event {
    char device[32];   /* "": every device */
    int event_type;    /* enum rnic_event_type */
    uint64_t after_ns; /* the program has opened its first device */
};
/* In the order of their times. How many, or -EINVAL. */
int rnic_env_events(struct rnic_env_event events[RNIC_ENV_EVENTS], struct rnic_err *err);

/* Calls of libibverbs, and of librdmacm, that can be made to fail; _ex is left out: create_cq stands for both. */
#define RNIC_FAIL_VERBS(X)                                                                                             \
    X(open_device) X(query_device) X(query_port) X(query_gid) X(query_pkey) X(query_rt_values) X(alloc_pd)             \
    X(dealloc_pd) X(reg_mr) X(rereg_mr) X(dereg_mr) X(advise_mr) X(alloc_null_mr) X(alloc_mw) X(dealloc_mw) X(bind_mw) \
    X(alloc_dm) X(free_dm) X(memcpy_to_dm) X(memcpy_from_dm) X(alloc_td) X(dealloc_td) X(alloc_parent_domain)          \
    X(import_pd) X(import_mr) X(import_dm) X(create_comp_channel) X(destroy_comp_channel) X(create_cq) X(resize_cq)    \
    X(modify_cq) X(destroy_cq) X(poll_cq) X(start_poll) X(req_notify_cq) X(create_srq) X(modify_srq) X(query_srq) X(destroy_srq)     \
    X(post_srq_recv) X(post_srq_ops) X(open_xrcd) X(close_xrcd) X(create_qp) X(open_qp) X(modify_qp) X(query_qp)       \
    X(destroy_qp) X(modify_qp_rate_limit) X(set_ece) X(query_ece) X(post_send) X(post_recv) X(create_ah)               \
    X(destroy_ah) X(attach_mcast) X(detach_mcast) X(create_wq) X(modify_wq) X(destroy_wq) X(create_rwq_ind_table)      \
    X(destroy_rwq_ind_table) X(create_flow) X(destroy_flow) X(create_counters) X(destroy_counters)                     \
    X(get_cq_event) X(get_async_event) X(attach_counters_point_flow) X(read_counters) X(query_comp_cntr_caps)          \
    X(create_comp_cntr) X(destroy_comp_cntr) X(set_comp_cntr) X(inc_comp_cntr) X(read_comp_cntr) X(qp_attach_comp_cntr)
#define RNIC_FAIL_CM(X)                                                                                                \
    X(rdma_create_id) X(rdma_bind_addr) X(rdma_resolve_addr) X(rdma_resolve_route) X(rdma_listen) X(rdma_connect)      \
    X(rdma_accept) X(rdma_reject) X(rdma_disconnect) X(rdma_init_qp_attr) X(rdma_set_option) X(rdma_join_multicast)    \
    X(rdma_leave_multicast) X(rdma_migrate_id)
#define RNIC_FAIL_NUMBER(name) RNIC_FAIL_##name,
enum rnic_fail_call { RNIC_FAIL_VERBS(RNIC_FAIL_NUMBER) RNIC_FAIL_CM(RNIC_FAIL_NUMBER) RNIC_FAIL_CALLS };
#undef RNIC_FAIL_NUMBER
const char *rnic_fail_name(int call); /* NULL past the end */

#define RNIC_ENV_FAIL 32
struct rnic_fail {
    int call;      /* enum rnic_fail_call */
    uint32_t nth;  /* the only call that fails, counted from 1; 0: */
    uint32_t ppm;  /* as many of a million fail, */
    uint64_t seed; /* drawn from this */
    int error;     /* errno */
};
/* How many, or -EINVAL. */
int rnic_env_fail(struct rnic_fail rules[RNIC_ENV_FAIL], struct rnic_err *err);
/* Whether call n fails, counted from 1. */
bool rnic_fail_hits(const struct rnic_fail *rule, uint64_t n);
/* Tells `rnic run`, if the program is under it, that the call of a rule was made, and whether it failed. */
void rnic_env_met(int rule, bool failed);

#endif
