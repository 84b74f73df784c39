/* SPDX-License-Identifier: Apache-2.0
 *
 * What libibverbs gives its drivers alone (symbol version IBVERBS_PRIVATE_34).  Drivers are loaded all the same: pyverbs is
 * linked with two of them.  They find no device of theirs; were they asked to do something, they would hear that the kernel
 * is not there.
 */
#include <stdarg.h>
#include <stdio.h>

#include "lib.h"

#define NO_KERNEL "rnic's devices have no kernel driver, which this call is for"

#define COMMANDS(X) \
    X(__ioctl_final_num_attrs) X(execute_ioctl) X(ibv_cmd_advise_mr) X(ibv_cmd_alloc_dm) X(ibv_cmd_alloc_mw)           \
    X(ibv_cmd_alloc_pd) X(ibv_cmd_attach_mcast) X(ibv_cmd_close_xrcd) X(ibv_cmd_create_ah)                             \
    X(ibv_cmd_create_counters) X(ibv_cmd_create_cq) X(ibv_cmd_create_cq_ex) X(ibv_cmd_create_flow)                     \
    X(ibv_cmd_create_flow_action_esp) X(ibv_cmd_create_qp) X(ibv_cmd_create_qp_ex) X(ibv_cmd_create_qp_ex2)            \
    X(ibv_cmd_create_rwq_ind_table) X(ibv_cmd_create_srq) X(ibv_cmd_create_srq_ex) X(ibv_cmd_create_wq)                \
    X(ibv_cmd_dealloc_mw) X(ibv_cmd_dealloc_pd) X(ibv_cmd_dereg_mr) X(ibv_cmd_destroy_ah)                              \
    X(ibv_cmd_destroy_counters) X(ibv_cmd_destroy_cq) X(ibv_cmd_destroy_flow) X(ibv_cmd_destroy_flow_action)           \
    X(ibv_cmd_destroy_qp) X(ibv_cmd_destroy_rwq_ind_table) X(ibv_cmd_destroy_srq) X(ibv_cmd_destroy_wq)                \
    X(ibv_cmd_detach_mcast) X(ibv_cmd_free_dm) X(ibv_cmd_get_context) X(ibv_cmd_modify_cq)                             \
    X(ibv_cmd_modify_flow_action_esp) X(ibv_cmd_modify_qp) X(ibv_cmd_modify_qp_ex) X(ibv_cmd_modify_srq)               \
    X(ibv_cmd_modify_wq) X(ibv_cmd_open_qp) X(ibv_cmd_open_xrcd) X(ibv_cmd_poll_cq) X(ibv_cmd_post_recv)               \
    X(ibv_cmd_post_send) X(ibv_cmd_post_srq_recv) X(ibv_cmd_query_context) X(ibv_cmd_query_device_any)                 \
    X(ibv_cmd_query_mr) X(ibv_cmd_query_port) X(ibv_cmd_query_qp) X(ibv_cmd_query_srq) X(ibv_cmd_read_counters)        \
    X(ibv_cmd_reg_dm_mr) X(ibv_cmd_reg_dmabuf_mr) X(ibv_cmd_reg_mr) X(ibv_cmd_req_notify_cq)                           \
    X(ibv_cmd_rereg_mr) X(ibv_cmd_resize_cq)
#define COMMAND(name)                                                                                                  \
    EXPORT int name(void);                                                                                             \
    EXPORT int name(void) { return refused(#name, EOPNOTSUPP, NO_KERNEL); }
COMMANDS(COMMAND)

EXPORT bool verbs_allow_disassociate_destroy;

/* A driver introduces itself. */
EXPORT void verbs_register_driver_34(const void *ops);
void verbs_register_driver_34(const void *ops) { (void)ops; }

EXPORT void __verbs_log(void *context, uint32_t level, const char *format, ...);
void __verbs_log(void *context, uint32_t level, const char *format, ...) { (void)context, (void)level, (void)format; }

#define NOTHING(name)                                                                                                  \
    EXPORT void *name(void);                                                                                           \
    void *name(void) { return failed_null(#name, -EOPNOTSUPP, NULL); }
NOTHING(_verbs_init_and_alloc_context)
NOTHING(verbs_open_device)

/* Of a context that no driver can have had from the two above. */
#define NEVER_CALLED(name)                                                                                             \
    EXPORT void name(void);                                                                                            \
    void name(void) { refused(#name, EOPNOTSUPP, NO_KERNEL); }
NEVER_CALLED(verbs_set_ops)
NEVER_CALLED(verbs_init_cq)
NEVER_CALLED(verbs_uninit_context)

EXPORT int ibv_read_ibdev_sysfs_file(char *buf, size_t size, struct ibv_device *device, const char *format, ...);
int ibv_read_ibdev_sysfs_file(char *buf, size_t size, struct ibv_device *device, const char *format, ...) {
    char file[IBV_SYSFS_PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(file, sizeof file, format, args);
    va_end(args);
    return ibv_read_sysfs_file(device->ibdev_path, file, buf, size);
}
