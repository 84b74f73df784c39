/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs/memory.h: domains, and memory that a device may reach.
 */
#ifndef RNIC_VERBS_MEMORY_H
#define RNIC_VERBS_MEMORY_H

#include <infiniband/verbs/base.h>

/* ---------------------------------------------------------------- domains */

struct ibv_pd { /* man ibv_alloc_pd */
    struct ibv_context *context;
    uint32_t handle;
};

struct ibv_td_init_attr {
    uint32_t comp_mask; /* 0 */
};
struct ibv_td { /* man ibv_alloc_td */
    struct ibv_context *context;
};

enum ibv_parent_domain_init_attr_mask {
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1
};
#define IBV_ALLOCATOR_USE_DEFAULT ((void *)-1) /* what alloc returns to leave the memory to the library */
struct ibv_parent_domain_init_attr { /* man ibv_alloc_parent_domain */
    struct ibv_pd *pd;
    struct ibv_td *td; /* or NULL */
    uint32_t comp_mask;
    void *(*alloc)(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t resource_type);
    void (*free)(struct ibv_pd *pd, void *pd_context, void *ptr, uint64_t resource_type);
    void *pd_context;
};

enum ibv_xrcd_init_attr_mask {
    IBV_XRCD_INIT_ATTR_FD = 1 << 0,
    IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
    IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2
};
struct ibv_xrcd_init_attr { /* man ibv_open_xrcd */
    uint32_t comp_mask;
    int fd /* of the file that names it; -1: none */, oflags /* O_CREAT, O_EXCL */;
};
struct ibv_xrcd {
    struct ibv_context *context;
};

/* ---------------------------------------------------------------- regions */

enum ibv_access_flags {
    IBV_ACCESS_LOCAL_WRITE = 1 << 0,
    IBV_ACCESS_REMOTE_WRITE = 1 << 1,
    IBV_ACCESS_REMOTE_READ = 1 << 2,
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    IBV_ACCESS_MW_BIND = 1 << 4,
    IBV_ACCESS_ZERO_BASED = 1 << 5,
    IBV_ACCESS_ON_DEMAND = 1 << 6,
    IBV_ACCESS_HUGETLB = 1 << 7,
    IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,     /* newer than rdma-core 44 */
    IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9, /* newer than rdma-core 44 */
    IBV_ACCESS_RELAXED_ORDERING = IBV_ACCESS_OPTIONAL_FIRST
};

struct ibv_mr { /* man ibv_reg_mr */
    struct ibv_context *context;
    struct ibv_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle, lkey, rkey;
};

enum ibv_rereg_mr_flags {
    IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
    IBV_REREG_MR_CHANGE_PD = 1 << 1,
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
    IBV_REREG_MR_FLAGS_SUPPORTED = 7 /* all of them */
};
enum ibv_rereg_mr_err_code {
    IBV_REREG_MR_ERR_INPUT = -1,              /* wrong arguments: the region is as it was */
    IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,      /* the new range cannot be kept from children: the region is as it was */
    IBV_REREG_MR_ERR_DO_FORK_OLD = -3,        /* the old range cannot be given to children: the region is the new one */
    IBV_REREG_MR_ERR_CMD = -4,                /* the command failed: the region is of no use */
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5 /* both */
};

/* Windows. */
enum ibv_mw_type { IBV_MW_TYPE_1 = 1, IBV_MW_TYPE_2 };
struct ibv_mw { /* man ibv_alloc_mw */
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t rkey, handle;
    enum ibv_mw_type type;
};
struct ibv_mw_bind_info {
    struct ibv_mr *mr;
    uint64_t addr, length;
    unsigned int mw_access_flags; /* enum ibv_access_flags */
};
struct ibv_mw_bind { /* man ibv_bind_mw */
    uint64_t wr_id;
    unsigned int send_flags; /* enum ibv_send_flags */
    struct ibv_mw_bind_info bind_info;
};

/* Memory of the device. */
struct ibv_alloc_dm_attr { /* man ibv_alloc_dm */
    size_t length;
    uint32_t log_align_req, comp_mask;
};
enum ibv_dm_mask { IBV_DM_MASK_HANDLE = 1 }; /* the library wrote handle */
struct ibv_dm {
    struct ibv_context *context;
    int (*memcpy_to_dm)(struct ibv_dm *dm, uint64_t dm_offset, const void *host_addr, size_t length);
    int (*memcpy_from_dm)(void *host_addr, struct ibv_dm *dm, uint64_t dm_offset, size_t length);
    uint32_t comp_mask, handle;
};

#endif
