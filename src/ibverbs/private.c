/* SPDX-License-Identifier: Apache-2.0
 *
 * What libibverbs gives its drivers alone (symbol versions IBVERBS_PRIVATE_34 and so on; versioned.h).  Drivers are loaded all the
 * same: pyverbs is linked with two of them.  They find no device of theirs; were they asked to do something, they would hear that the kernel
 * is not there.
 */
#include <stdarg.h>
#include <stdio.h>

#include "lib.h"
#include "versioned.h"

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
    X(ibv_cmd_rereg_mr) X(ibv_cmd_resize_cq) X(ibv_cmd_create_cq_ex2) X(ibv_cmd_alloc_dmah) X(ibv_cmd_free_dmah) X(ibv_cmd_reg_mr_ex) X(ibv_cmd_export_dmabuf_fd) X(ibv_cmd_query_port_speed) X(ibv_cmd_query_comp_cntr_caps) X(ibv_cmd_create_comp_cntr) X(ibv_cmd_destroy_comp_cntr) X(ibv_cmd_set_comp_cntr) X(ibv_cmd_set_err_comp_cntr) X(ibv_cmd_inc_comp_cntr) X(ibv_cmd_inc_err_comp_cntr) X(ibv_cmd_read_comp_cntr) X(ibv_cmd_read_err_comp_cntr) X(ibv_cmd_qp_attach_comp_cntr)
#define COMMAND(name)                                                                                                  \
    EXPORT int name(void);                                                                                             \
    int name(void) { return refused(#name, EOPNOTSUPP, NO_KERNEL); }                                                   \
    PRIVATE_VERSIONS(name)
COMMANDS(COMMAND)

extern bool verbs_allow_disassociate_destroy;
EXPORT bool verbs_allow_disassociate_destroy;
PRIVATE_VERSIONS(verbs_allow_disassociate_destroy)

/* A driver introduces itself; the name of the call has the version, too. */
EXPORT void ibv_register_driver(const char *name, void *init);
void ibv_register_driver(const char *name, void *init) { (void)name, (void)init; }

static void register_driver(const void *ops) { (void)ops; }
#define REGISTER(name, at, version)                                                                                    \
    IN_VERSION(name, verbs_register_driver_##version, "verbs_register_driver_" #version "@@IBVERBS_PRIVATE_" #version)
EACH_PRIVATE_VERSION(REGISTER, register_driver)

EXPORT void __verbs_log(void *context, uint32_t level, const char *format, ...);
void __verbs_log(void *context, uint32_t level, const char *format, ...) { (void)context, (void)level, (void)format; }
PRIVATE_VERSIONS(__verbs_log)

#define NOTHING(name)                                                                                                  \
    EXPORT void *name(void);                                                                                           \
    void *name(void) { return failed_null(#name, -EOPNOTSUPP, NULL); }                                                 \
    PRIVATE_VERSIONS(name)
NOTHING(_verbs_init_and_alloc_context)
NOTHING(verbs_open_device)
NOTHING(ibv_dmabuf_heap_cc_shared_init)
NOTHING(ibv_dmabuf_heap_alloc)

/* Of what no driver can have had from those above. */
#define NEVER_CALLED(name)                                                                                             \
    EXPORT void name(void);                                                                                            \
    void name(void) { refused(#name, EOPNOTSUPP, NO_KERNEL); }                                                         \
    PRIVATE_VERSIONS(name)
NEVER_CALLED(verbs_set_ops)
NEVER_CALLED(verbs_init_cq)
NEVER_CALLED(verbs_uninit_context)
NEVER_CALLED(ibv_dmabuf_heap_free)
NEVER_CALLED(ibv_dmabuf_heap_destroy)

EXPORT int ibv_read_ibdev_sysfs_file(char *buf, size_t size, struct ibv_device *device, const char *format, ...);
int ibv_read_ibdev_sysfs_file(char *buf, size_t size, struct ibv_device *device, const char *format, ...) {
    char file[IBV_SYSFS_PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(file, sizeof file, format, args);
    va_end(args);
    return ibv_read_sysfs_file(device->ibdev_path, file, buf, size);
}
PRIVATE_VERSIONS(ibv_read_ibdev_sysfs_file)
