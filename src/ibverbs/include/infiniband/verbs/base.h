/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs/base.h: what every part of infiniband/verbs.h stands on: the system's types, the names of objects, GIDs.
 *
 * __be16, __be32 and __be64 are in network byte order, all else in the host's.  __extension__ lets -pedantic pass what
 * the ABI has and C99 or C++ lack: unnamed members, enumerators beyond int.
 */
#ifndef RNIC_VERBS_BASE_H
#define RNIC_VERBS_BASE_H

#include <errno.h>
#include <linux/types.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include <infiniband/verbs_api.h>

struct ibv_device;
struct ibv_context;
struct ibv_pd;
struct ibv_td;
struct ibv_xrcd;
struct ibv_mr;
struct ibv_mw;
struct ibv_dm;
struct ibv_ah;
struct ibv_comp_channel;
struct ibv_cq;
struct ibv_cq_ex;
struct ibv_srq;
struct ibv_wq;
struct ibv_rwq_ind_table;
struct ibv_qp;
struct ibv_qp_ex;
struct ibv_flow;
struct ibv_flow_action;
struct ibv_counters;

union ibv_gid {
    uint8_t raw[16];
    struct {
        __be64 subnet_prefix, interface_id;
    } global;
};

/* Is a member within the sz bytes that the other side knows of its structure? */
#define vext_field_avail(type, fld, sz) ((sz) > offsetof(type, fld))

#endif
