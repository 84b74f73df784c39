/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations table of the software RNIC (IBA chapter 11; the man pages of libibverbs).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "dev/dev.h"
#include "link/group.h"
#include "roce/roce.h"

#define MAX_QP (DEV_MAX_SLOTS * (int)QPN_INDICES / 2)
#define MAX_QP_WR 32768
#define MAX_SGE 32
#define MAX_INLINE 4096
#define MAX_CQE (1 << 20)
#define MAX_MR (1 << 22)
#define MAX_PD 65536
#define MAX_CQ 65536
#define MAX_AH (1 << 20)
#define MAX_GROUPS 1024 /* each has a socket of its own */
#define HEADERS_MAX 84 /* IPv6, UDP, BTH, RETH, ImmDt, ICRC: what the netdev's MTU must leave room for */

#define REMOTE_CHANGES (RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC)
#define MR_ACCESS                                                                                                      \
    (RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_READ | RNIC_ACCESS_REMOTE_ATOMIC |        \
     RNIC_ACCESS_RELAXED_ORDERING)

int dev_check_alive(const struct dev *dev, struct rnic_err *err) {
    return atomic_load(&dev->dead)
               ? fail(err, -EINVAL,
                      "this device was opened before a fork(), in the parent process; open it again "
                      "in the child")
               : 0;
}

static int check_port(int port, struct rnic_err *err) {
    return port == 1 ? 0 : fail(err, -EINVAL, "port %d does not exist; the device has port 1", port);
}

/* ---------------------------------------------------------------- device */

static int soft_close(struct rnic_context *ctx, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int pds = dev->pds, cqs = dev->cqs, channels = dev->channels, listeners = gsi_listeners(dev);
    dev_unlock(dev);
    if (pds || cqs || channels || listeners)
        return fail(err, -EBUSY,
                    "still open: %d protection domains, %d completion queues, %d completion channels, %d listeners",
                    pds, cqs, channels, listeners);
    return device_close(ctx);
}

static int soft_query_device(struct rnic_context *ctx, struct rnic_device_attr *attr, struct rnic_err *err) {
    const struct dev *dev = dev_of(ctx);
    (void)err;
    *attr = (struct rnic_device_attr){
        .fw_ver = RNIC_VERSION,
        .node_guid = dev->net.guid,
        .sys_image_guid = dev->net.guid,
        .max_mr_size = 1ull << 47,
        .page_size_cap = 0xFFFFF000,
        .max_qp = MAX_QP,
        .max_qp_wr = MAX_QP_WR,
        .device_cap_flags = RNIC_DEVICE_CURR_QP_STATE_MOD | RNIC_DEVICE_SYS_IMAGE_GUID | RNIC_DEVICE_RC_RNR_NAK_GEN |
                            RNIC_DEVICE_N_NOTIFY_CQ,
        .max_sge = MAX_SGE,
        .max_sge_rd = MAX_SGE,
        .max_cq = MAX_CQ,
        .max_cqe = MAX_CQE,
        .max_mr = MAX_MR,
        .max_pd = MAX_PD,
        .max_qp_rd_atom = MAX_RD_ATOMIC,
        .max_res_rd_atom = MAX_RD_ATOMIC * MAX_QP,
        .max_qp_init_rd_atom = MAX_RD_ATOMIC,
        .atomic_cap = RNIC_ATOMIC_GLOB,
        .max_mcast_grp = MAX_GROUPS,
        .max_mcast_qp_attach = MAX_QP,
        .max_ah = MAX_AH,
        .max_pkeys = 1,
        .local_ca_ack_delay = 15, /* 4.096 us * 2^15: a host under load */
        .phys_port_cnt = 1,
        .max_inline_data = MAX_INLINE,
    };
    return 0;
}

int dev_active_mtu(const struct dev *dev) {
    int mtu = RNIC_MTU_4096;
    while (mtu && (int)mtu_bytes(mtu) + HEADERS_MAX > dev->net.mtu)
        mtu--;
    return mtu;
}

static uint64_t qkey_violations(struct dev *dev) {
    if (atomic_load(&dev->dead)) /* its lock is held for ever */
        return 0;
    dev_lock(dev);
    uint64_t n = dev->nic.counters.value[RNIC_CNT_drop_bad_qkey];
    dev_unlock(dev);
    return n;
}

static int soft_query_port(struct rnic_context *ctx, int port, struct rnic_port_attr *attr, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = check_port(port, err);
    if (rc)
        return rc;
    uint64_t violations = qkey_violations(dev);
    *attr = (struct rnic_port_attr){
        .state = dev->net.up ? RNIC_PORT_ACTIVE : RNIC_PORT_DOWN,
        .max_mtu = RNIC_MTU_4096,
        .active_mtu = dev_active_mtu(dev),
        .gid_tbl_len = dev->net.ngids,
        .port_cap_flags = 0x00010000, /* CM is supported: IB_PORT_CM_SUP */
        .max_msg_sz = 0x7FFFFFFF,
        .qkey_viol_cntr = violations < 0xFFFF ? (uint32_t)violations : 0xFFFF, /* 16 bits wide (IBA 14.2.5.6) */
        .pkey_tbl_len = 1,
        .max_vl_num = 1,
        .active_width = 1,
        .active_speed = 1,
        .phys_state = dev->net.up ? 5 : 3, /* LinkUp, Disabled */
        .link_layer = RNIC_LINK_LAYER_ETHERNET,
    };
    return 0;
}

static int soft_query_gid(struct rnic_context *ctx, int port, int index, struct rnic_gid_entry *gid,
                          struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = check_port(port, err);
    if (rc)
        return rc;
    if (index < 0 || index >= dev->net.ngids)
        return fail(err, -EINVAL, "GID index %d; the table has %d entries", index, dev->net.ngids);
    *gid = (struct rnic_gid_entry){.gid = dev->net.gids[index],
                                   .gid_index = (uint32_t)index,
                                   .port_num = 1,
                                   .gid_type = RNIC_GID_TYPE_ROCE_V2,
                                   .ndev_ifindex = (uint32_t)dev->net.ifindex};
    return 0;
}

static int soft_query_pkey(struct rnic_context *ctx, int port, int index, uint16_t *pkey, struct rnic_err *err) {
    int rc = check_port(port, err);
    (void)ctx;
    if (rc)
        return rc;
    if (index != 0)
        return fail(err, -EINVAL, "P_Key index %d; the table has 1 entry", index);
    *pkey = 0xFFFF;
    return 0;
}

static int soft_query_counters(struct rnic_context *ctx, struct rnic_counters *out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    *out = dev->nic.counters;
    dev_unlock(dev);
    return 0;
}

static int soft_set_fault(struct rnic_context *ctx, const struct rnic_fault *fault, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    udp_tx_flush(&dev->tx);
    fault_set(&dev->fault, fault);
    dev_unlock(dev);
    engine_wake(dev); /* it may have to wait for what the injector holds */
    return 0;
}

static int soft_get_async_event(struct rnic_context *ctx, struct rnic_async_event *event, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    return event_take(&dev->nic.events, event) ? 0 : -EAGAIN;
}

/* ---------------------------------------------------------------- protection domains and memory regions */

static int soft_alloc_pd(struct rnic_context *ctx, struct rnic_pd **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    struct pd *pd = calloc(1, sizeof *pd);
    if (!pd)
        return fail(err, -ENOMEM, "no memory");
    pd->pub.ctx = ctx;
    dev_lock(dev);
    dev->pds++;
    dev_unlock(dev);
    *out = &pd->pub;
    return 0;
}

static int soft_dealloc_pd(struct rnic_pd *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct pd *pd = (struct pd *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int mrs = pd->mrs, qps = pd->qps, ahs = pd->ahs;
    if (!mrs && !qps && !ahs)
        dev->pds--;
    dev_unlock(dev);
    if (mrs || qps || ahs)
        return fail(err, -EBUSY, "the protection domain has %d memory regions, %d queue pairs and %d address handles",
                    mrs, qps, ahs);
    free(pd);
    return 0;
}

static int check_access(uint32_t access, struct rnic_err *err) {
    if (access & ~(uint32_t)MR_ACCESS)
        return fail(err, -EOPNOTSUPP, "access flags 0x%x are not supported", access & ~(uint32_t)MR_ACCESS);
    if ((access & REMOTE_CHANGES) && !(access & RNIC_ACCESS_LOCAL_WRITE)) /* IBA 10.6.3.1; man ibv_reg_mr */
        return fail(err, -EINVAL, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well");
    return 0;
}

/* Brings the pages in, and finds out without a signal whether they can be read, or written.  Registration on a
 * hardware NIC pins them; software needs no physical addresses. */
static int check_mapped(void *addr, uint64_t length, uint32_t access, struct rnic_err *err) {
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1);
    uintptr_t to = ((uintptr_t)addr + length + page - 1) & ~(page - 1);
    bool writes = access & RNIC_ACCESS_LOCAL_WRITE;
    if ((uintptr_t)addr + length < (uintptr_t)addr || to < from)
        return fail(err, -EINVAL, "the range wraps around the address space");
    if (madvise((void *)from, to - from, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0 || errno == EINVAL)
        return 0; /* EINVAL: before Linux 5.14, or memory that cannot be populated, such as a device's */
    if (errno == ENOMEM || errno == EFAULT)
        return fail(err, -EFAULT, "the memory is not mapped%s", writes ? ", or may not be written" : "");
    return fail(err, -errno, "the memory cannot be used: %s", strerror(errno));
}

static int enter_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, int memfd, struct rnic_mr **out,
                    struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    struct mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return fail(err, -ENOMEM, "no memory");
    mr->pub = (struct rnic_mr){.ctx = pd->ctx, .pd = pd, .addr = addr, .length = length};
    mr->access = access;
    mr->memfd = memfd;
    dev_lock(dev);
    int rc = mr_insert(&dev->nic.mrs, mr);
    if (!rc)
        ((struct pd *)pd)->mrs++;
    dev_unlock(dev);
    if (rc) {
        free(mr);
        return fail(err, rc, "no memory for the key table, or %d regions are registered", MAX_MR);
    }
    *out = &mr->pub;
    return 0;
}

static int soft_reg_mr(struct rnic_pd *pd, void *addr, uint64_t length, uint32_t access, struct rnic_mr **mr,
                       struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(pd->ctx), err);
    if (!rc)
        rc = check_access(access, err);
    if (!rc && length == 0)
        rc = fail(err, -EINVAL, "a memory region has at least 1 byte");
    if (!rc)
        rc = check_mapped(addr, length, access, err);
    return rc ? rc : enter_mr(pd, addr, length, access, -1, mr, err);
}

static int make_memory(uint64_t length, void **addr, int *fd, struct rnic_err *err) {
    *fd = memfd_create("rnic-mr", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return fail(err, -errno, "memfd_create: %s", strerror(errno));
    *addr = MAP_FAILED;
    if (ftruncate(*fd, (off_t)length) == 0)
        *addr = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (*addr == MAP_FAILED) {
        int rc = fail(err, -errno, "a memory file of %llu bytes: %s", (unsigned long long)length, strerror(errno));
        close(*fd);
        return rc;
    }
    return 0;
}

static int soft_alloc_mr(struct rnic_pd *pd, uint64_t length, uint32_t access, struct rnic_mr **mr,
                         struct rnic_err *err) {
    void *addr;
    int fd, rc = dev_check_alive(dev_of(pd->ctx), err);
    if (!rc)
        rc = check_access(access, err);
    if (!rc && length == 0)
        rc = fail(err, -EINVAL, "a memory region has at least 1 byte");
    if (!rc)
        rc = make_memory(length, &addr, &fd, err);
    if (rc)
        return rc;
    rc = enter_mr(pd, addr, length, access, fd, mr, err);
    if (rc) {
        munmap(addr, length);
        close(fd);
    }
    return rc;
}

/* The engine touches bytes only under the lock, so after it nobody does. */
static int soft_dereg_mr(struct rnic_mr *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct mr *mr = (struct mr *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    mr_remove(&dev->nic.mrs, mr);
    ((struct pd *)pub->pd)->mrs--;
    dev_unlock(dev);
    if (mr->memfd >= 0) {
        munmap(pub->addr, pub->length);
        close(mr->memfd);
    }
    free(mr);
    return 0;
}

/* ---------------------------------------------------------------- completion queues */

static int soft_create_comp_channel(struct rnic_context *ctx, struct rnic_comp_channel **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    struct channel *ch = calloc(1, sizeof *ch);
    rc = ch ? channel_init(ch) : -ENOMEM;
    if (rc) {
        free(ch);
        return fail(err, rc, "eventfd: %s", strerror(-rc));
    }
    ch->pub.ctx = ctx;
    dev_lock(dev);
    dev->channels++;
    ch->next = dev->channel_list;
    dev->channel_list = ch;
    dev_unlock(dev);
    *out = &ch->pub;
    return 0;
}

static void unlink_channel(struct dev *dev, struct channel *ch) {
    struct channel **at = &dev->channel_list;
    while (*at != ch)
        at = &(*at)->next;
    *at = ch->next;
    dev->channels--;
}

static int soft_destroy_comp_channel(struct rnic_comp_channel *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct channel *ch = (struct channel *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int cqs = ch->cqs;
    if (!cqs)
        unlink_channel(dev, ch);
    dev_unlock(dev);
    if (cqs)
        return fail(err, -EBUSY, "%d completion queues report to the channel", cqs);
    channel_free(ch);
    free(ch);
    return 0;
}

static int soft_get_cq_event(struct rnic_comp_channel *ch, struct rnic_cq **cq, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(ch->ctx), err);
    if (rc)
        return rc;
    struct cq *got = channel_take((struct channel *)ch);
    if (!got) {
        engine_take_over(dev_of(ch->ctx));
        return -EAGAIN;
    }
    *cq = &got->pub;
    return 0;
}

static int check_cqe(int cqe, struct rnic_err *err) {
    return cqe >= 1 && cqe <= MAX_CQE ? 0 : fail(err, -EINVAL, "%d entries; allowed are 1 to %d", cqe, MAX_CQE);
}

static int soft_create_cq(struct rnic_context *ctx, int cqe, struct rnic_comp_channel *ch, void *cq_context,
                          struct rnic_cq **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc)
        rc = check_cqe(cqe, err);
    if (rc)
        return rc;
    if (ch && ch->ctx != ctx)
        return fail(err, -EINVAL, "the completion channel belongs to another device");
    struct cq *cq = calloc(1, sizeof *cq);
    if (!cq || cq_init(cq, cqe)) {
        free(cq);
        return fail(err, -ENOMEM, "no memory for %d entries", cqe);
    }
    cq->pub.ctx = ctx;
    cq->pub.channel = ch;
    cq->pub.cq_context = cq_context;
    dev_lock(dev);
    dev->cqs++;
    if (ch)
        ((struct channel *)ch)->cqs++;
    dev_unlock(dev);
    *out = &cq->pub;
    return 0;
}

static int soft_resize_cq(struct rnic_cq *cq, int cqe, struct rnic_err *err) {
    struct dev *dev = dev_of(cq->ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc)
        rc = check_cqe(cqe, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = cq_resize((struct cq *)cq, cqe, err);
    dev_unlock(dev);
    return rc;
}

static int soft_destroy_cq(struct rnic_cq *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct channel *ch = (struct channel *)pub->channel;
    struct cq *cq = (struct cq *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    if (cq->qps)
        rc = fail(err, -EBUSY, "%d send or receive queues complete to it", cq->qps);
    else if (ch && !channel_forget(ch, cq))
        rc = fail(err, -EBUSY, "%u events are not acknowledged: ack_events(%u)", cq->taken, cq->taken);
    if (!rc) {
        dev->cqs--;
        if (ch)
            ch->cqs--;
        event_forget(&dev->nic.events, pub->cq_context);
    }
    dev_unlock(dev);
    if (rc)
        return rc;
    cq_free(cq);
    free(cq);
    return 0;
}

static int soft_poll_cq(struct rnic_cq *pub, int n, struct rnic_wc *wc) {
    struct dev *dev = dev_of(pub->ctx);
    struct cq *cq = (struct cq *)pub;
    if (n <= 0)
        return n < 0 ? -EINVAL : 0;
    if (atomic_load_explicit(&dev->dead, memory_order_relaxed))
        return -EINVAL;
    if (cq_empty(cq)) /* and armed: whoever polls is about to wait for the event */
        progress_poll(dev, atomic_load_explicit(&cq->armed, memory_order_relaxed) != CQ_NOT_ARMED);
    int got = cq_empty(cq) ? 0 : cq_take(cq, n, wc);
    progress_polled(dev, got > 0);
    return got == 0 && atomic_load_explicit(&cq->overrun, memory_order_relaxed) ? -EOVERFLOW : got;
}

static int soft_req_notify_cq(struct rnic_cq *cq, int solicited_only, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(cq->ctx), err);
    if (rc)
        return rc;
    if (!cq->channel)
        return fail(err, -EINVAL, "the completion queue was created without a completion channel");
    cq_arm((struct cq *)cq, solicited_only != 0);
    return 0;
}

static int soft_ack_cq_events(struct rnic_cq *cq, unsigned n, struct rnic_err *err) {
    int rc = dev_check_alive(dev_of(cq->ctx), err);
    return rc ? rc : cq_ack((struct cq *)cq, n, err);
}

/* ---------------------------------------------------------------- queue pairs */

static int check_cap(const struct rnic_qp_cap *cap, struct rnic_err *err) {
    const struct {
        uint32_t value, most;
        const char *name;
    } rows[] = {{cap->max_send_wr, MAX_QP_WR, "max_send_wr"},
                {cap->max_recv_wr, MAX_QP_WR, "max_recv_wr"},
                {cap->max_send_sge, MAX_SGE, "max_send_sge"},
                {cap->max_recv_sge, MAX_SGE, "max_recv_sge"},
                {cap->max_inline_data, MAX_INLINE, "max_inline_data"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].value > rows[i].most)
            return fail(err, -EINVAL, "cap.%s is %u; the device has %u", rows[i].name, rows[i].value, rows[i].most);
    }
    return 0;
}

struct engine {
    const struct engine_ops *ops; /* NULL: no such type */
    uint32_t service;
};

static struct engine engine_of(int qp_type) {
    static const struct engine engines[] = {[RNIC_QPT_GSI] = {&roce_ud_ops, OPC_UD},
                                            [RNIC_QPT_RC] = {&roce_rc_ops, OPC_RC},
                                            [RNIC_QPT_UD] = {&roce_ud_ops, OPC_UD}};
    int n = (int)(sizeof engines / sizeof *engines);
    return qp_type >= 0 && qp_type < n ? engines[qp_type] : (struct engine){NULL, 0};
}

static int check_init(const struct rnic_pd *pd, const struct rnic_qp_init_attr *attr, struct rnic_err *err) {
    if (!engine_of(attr->qp_type).ops)
        return fail(err, -EOPNOTSUPP, "queue pair type %d: this device has RC (%d), UD (%d) and GSI (%d)",
                    attr->qp_type, RNIC_QPT_RC, RNIC_QPT_UD, RNIC_QPT_GSI);
    if (attr->srq)
        return fail(err, -EOPNOTSUPP, "shared receive queues are not supported");
    if (!attr->send_cq || !attr->recv_cq)
        return fail(err, -EINVAL, "a queue pair needs a send_cq and a recv_cq (they may be the same)");
    if (attr->send_cq->ctx != pd->ctx || attr->recv_cq->ctx != pd->ctx)
        return fail(err, -EINVAL, "the completion queues belong to another device than the protection domain");
    return check_cap(&attr->cap, err);
}

static void free_qp(struct qp *qp) {
    if (qp->engine_state)
        qp->engine->destroy(qp);
    wq_free(&qp->sq);
    wq_free(&qp->rq);
    free(qp);
}

static uint32_t at_least_one(uint32_t n) { return n ? n : 1; }

static struct qp *make_qp(struct rnic_pd *pd, struct rnic_qp_init_attr *attr) {
    struct qp *qp = calloc(1, sizeof *qp);
    struct rnic_qp_cap *cap = &attr->cap;
    if (!qp)
        return NULL;
    qp->pub = (struct rnic_qp){pd->ctx, pd, attr->send_cq, attr->recv_cq, attr->qp_context, 0, attr->qp_type};
    qp->nic = &dev_of(pd->ctx)->nic;
    qp->engine = engine_of(attr->qp_type).ops;
    qp->service = engine_of(attr->qp_type).service;
    qp->sq.qp_type = attr->qp_type;
    qp->sq.pd = pd;
    qp->sq_sig_all = attr->sq_sig_all;
    qp->timer_at = NEVER;
    if (wq_init(&qp->sq, at_least_one(cap->max_send_wr), at_least_one(cap->max_send_sge), cap->max_inline_data,
                sizeof(struct send_wqe)) ||
        wq_init(&qp->rq, at_least_one(cap->max_recv_wr), at_least_one(cap->max_recv_sge), 0, sizeof(struct recv_wqe)) ||
        qp->engine->create(qp)) {
        free_qp(qp);
        return NULL;
    }
    *cap = (struct rnic_qp_cap){qp->sq.max_wr, qp->rq.max_wr, qp->sq.max_sge, qp->rq.max_sge, cap->max_inline_data};
    return qp;
}

/* The timer heap has room for every QP, so that a timer never fails. */
static int heap_room(struct dev *dev) {
    struct timer_heap *h = &dev->timers;
    if ((uint32_t)dev->qps < h->room)
        return 0;
    uint32_t room = h->room ? h->room * 2 : 64;
    struct qp **at = realloc(h->at, room * sizeof(struct qp *));
    if (!at)
        return -ENOMEM;
    h->at = at;
    h->room = room;
    return 0;
}

static int number_qp(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    if (qp->pub.qp_type != RNIC_QPT_GSI)
        return qpn_add(dev, qp, err);
    if (dev->gsi)
        return fail(err, -EBUSY, "this context has a GSI queue pair already; there is one queue pair 1 in each");
    dev->gsi = qp;
    qp->pub.qp_num = QPN_GSI;
    return 0;
}

static void show_headers(struct dev *dev, bool show) {
    for (int i = 0; i < dev->net.ngids; i++)
        port_show_headers(&dev->ports[i], show);
}

static int enter_qp(struct dev *dev, struct qp *qp, struct rnic_err *err) {
    int rc = heap_room(dev);
    if (rc)
        return fail(err, rc, "no memory");
    rc = number_qp(dev, qp, err);
    if (rc)
        return rc;
    dev->qps++;
    if (qp_is_datagram(qp) && dev->datagram_qps++ == 0)
        show_headers(dev, true);
    ((struct pd *)qp->pub.pd)->qps++;
    ((struct cq *)qp->pub.send_cq)->qps++;
    ((struct cq *)qp->pub.recv_cq)->qps++;
    return 0;
}

static int soft_create_qp(struct rnic_pd *pd, struct rnic_qp_init_attr *attr, struct rnic_qp **out,
                          struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc)
        rc = check_init(pd, attr, err);
    if (rc)
        return rc;
    struct qp *qp = make_qp(pd, attr);
    if (!qp)
        return fail(err, -ENOMEM, "no memory for the queues");
    dev_lock(dev);
    rc = enter_qp(dev, qp, err);
    dev_unlock(dev);
    if (rc) {
        free_qp(qp);
        return rc;
    }
    *out = &qp->pub;
    return 0;
}

static void leave_port(struct dev *dev, struct qp *qp) {
    struct port *port = qp->flow.port;
    if (port)
        dev->port_users[port - dev->ports]--;
    qp->flow.port = NULL;
}

static void leave_qp(struct dev *dev, struct qp *qp) {
    struct rnic_qp *pub = &qp->pub;
    sched_settle(dev, qp);
    sched_forget(dev, qp);
    qp_forget_completions(qp);
    if (dev->gsi == qp)
        dev->gsi = NULL;
    else
        qpn_remove(dev, qp);
    leave_port(dev, qp);
    event_forget(&dev->nic.events, pub->qp_context);
    dev->qps--;
    if (qp_is_datagram(qp) && --dev->datagram_qps == 0)
        show_headers(dev, false);
    ((struct pd *)pub->pd)->qps--;
    ((struct cq *)pub->send_cq)->qps--;
    ((struct cq *)pub->recv_cq)->qps--;
}

static int soft_destroy_qp(struct rnic_qp *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int groups = qp->groups;
    if (!groups)
        leave_qp(dev, qp);
    dev_unlock(dev);
    if (groups) /* IBA 10.5.2 */
        return fail(err, -EBUSY, "the queue pair is attached to %d multicast groups: detach_mcast() first", groups);
    free_qp(qp);
    return 0;
}

/* ---------------------------------------------------------------- modify */

/* The ways to and from the peer that an address vector names (IBA A17.4). */
static int resolve(struct dev *dev, const struct rnic_ah_attr *av, uint32_t dest_qpn, struct flow *to,
                   struct flow *from, struct rnic_err *err) {
    int rc = ah_resolve(dev, av, to, err);
    if (rc)
        return rc;
    if (group_is_multicast(&to->dst.sin6_addr))
        return fail(err, -EINVAL, "ah_attr: dgid is a multicast address, which a connected queue pair cannot have");
    to->dst_slot = qpn_slot(dest_qpn);
    *from = (struct flow){.src = to->dst, .dst = to->src};
    from->dst.sin6_port = htons(ROCE_UDP_PORT);
    return 0;
}

static void take_flow(struct dev *dev, struct qp *qp, const struct flow *to, const struct flow *from) {
    leave_port(dev, qp);
    qp->flow = *to;
    qp->from = *from;
    dev->port_users[(struct port *)to->port - dev->ports]++;
}

static void to_reset(struct dev *dev, struct qp *qp) {
    sched_forget(dev, qp);
    qp->ready = qp->in_held = false;
    leave_port(dev, qp);
    qp->engine->reset(qp);
    qp_forget_completions(qp);
    wq_reset(&qp->sq);
    wq_reset(&qp->rq);
    qp->attr = (struct rnic_qp_attr){0};
    qp->attr_set = 0;
    qp->sq_draining = qp->last_wqe = false;
    qp->state = RNIC_QPS_RESET;
}

/* What a transition does beside its attributes. */
static int enter_state(struct dev *dev, struct qp *qp, int from, int to) {
    switch (to) {
    case RNIC_QPS_RESET:
        sched_settle(dev, qp);
        to_reset(dev, qp);
        return 0;
    case RNIC_QPS_ERR:
        sched_settle(dev, qp);
        if (from != RNIC_QPS_ERR)
            qp_error(qp, -1);
        return 0;
    case RNIC_QPS_RTR: {
        int rc = qp->engine->rtr(qp);
        if (rc)
            return rc;
        break;
    }
    case RNIC_QPS_RTS:
        if (from == RNIC_QPS_RTR)
            qp->engine->rts(qp);
        break;
    case RNIC_QPS_SQD:
        qp->sq_draining |= from == RNIC_QPS_RTS;
        break;
    default:
        break;
    }
    qp->state = to;
    if (to >= RNIC_QPS_RTS)
        sched_ready(dev, qp);
    return 0;
}

static int check_mtu(const struct dev *dev, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    if (!(mask & RNIC_QP_PATH_MTU) || attr->path_mtu <= dev_active_mtu(dev))
        return 0;
    return fail(err, -EINVAL, "path_mtu is %u bytes; the port's active MTU is %u (the netdev's is %d)",
                mtu_bytes(attr->path_mtu), mtu_bytes(dev_active_mtu(dev)), dev->net.mtu);
}

static int modify(struct dev *dev, struct qp *qp, const struct rnic_qp_attr *attr, uint32_t mask,
                  struct rnic_err *err) {
    struct flow to, from;
    struct rnic_qp_attr before = qp->attr;
    int old = qp->state, rc = qp_attr_check(qp, attr, mask, err);
    uint32_t dest = mask & RNIC_QP_DEST_QPN ? attr->dest_qp_num : qp->attr.dest_qp_num;
    if (!rc)
        rc = check_mtu(dev, attr, mask, err);
    if (!rc && (mask & RNIC_QP_AV))
        rc = resolve(dev, &attr->ah_attr, dest, &to, &from, err);
    if (rc)
        return rc;
    qp_attr_apply(qp, attr, mask);
    if (mask & RNIC_QP_STATE)
        rc = enter_state(dev, qp, old, attr->qp_state);
    if (rc) {
        qp->attr = before;
        return fail(err, rc, "no memory for %u responder resources", attr->max_dest_rd_atomic);
    }
    if (mask & RNIC_QP_AV)
        take_flow(dev, qp, &to, &from);
    return 0;
}

static int soft_modify_qp(struct rnic_qp *pub, const struct rnic_qp_attr *attr, uint32_t mask, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    rc = modify(dev, (struct qp *)pub, attr, mask, err);
    while (!rc && dev->ready_first) /* flushes, or an SQ that was drained already */
        sched_run(dev, dev_clock());
    dev_unlock(dev);
    engine_wake(dev); /* new sockets to watch, new deadlines */
    return rc;
}

static int soft_query_qp(struct rnic_qp *pub, struct rnic_qp_attr *attr, struct rnic_qp_init_attr *init,
                         struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    const struct qp *qp = (const struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    struct rnic_qp_cap cap = {qp->sq.max_wr, qp->rq.max_wr, qp->sq.max_sge, qp->rq.max_sge, qp->sq.max_inline};
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = qp->state;
    attr->sq_draining = qp->sq_draining;
    attr->cap = cap;
    *init = (struct rnic_qp_init_attr){.qp_context = pub->qp_context,
                                       .send_cq = pub->send_cq,
                                       .recv_cq = pub->recv_cq,
                                       .cap = cap,
                                       .qp_type = pub->qp_type,
                                       .sq_sig_all = qp->sq_sig_all};
    dev_unlock(dev);
    return 0;
}

static int soft_query_qp_stats(struct rnic_qp *pub, struct rnic_qp_stats *out, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    *out = (struct rnic_qp_stats){.counters = qp->counters,
                                  .sq_depth = wq_head(&qp->sq) - wq_tail(&qp->sq),
                                  .rq_depth = wq_head(&qp->rq) - wq_tail(&qp->rq)};
    qp->engine->stats(qp, out);
    dev_unlock(dev);
    return 0;
}

/* ---------------------------------------------------------------- post */

static int soft_post_send(struct rnic_qp *pub, const struct rnic_send_wr *wr, const struct rnic_send_wr **bad,
                          struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err), state = qp->state;
    if (!rc && state < RNIC_QPS_RTS)
        rc = fail(err, -EINVAL, "the queue pair is in %s; sending needs RTS", qp_state_name(state));
    if (rc) {
        *bad = wr;
        return rc;
    }
    rc = sq_post(&qp->sq, wr, bad, err);
    progress_post(dev, qp);
    return rc;
}

static int soft_post_recv(struct rnic_qp *pub, const struct rnic_recv_wr *wr, const struct rnic_recv_wr **bad,
                          struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct qp *qp = (struct qp *)pub;
    int rc = dev_check_alive(dev, err);
    if (!rc && qp->state == RNIC_QPS_RESET)
        rc = fail(err, -EINVAL, "the queue pair is in RESET; receives are posted from INIT on");
    if (rc) {
        *bad = wr;
        return rc;
    }
    rc = rq_post(&qp->rq, wr, bad, err);
    if (qp->state == RNIC_QPS_ERR)
        progress_post(dev, qp); /* to be flushed */
    return rc;
}

const struct rnic_ops soft_ops = {
    .name = "soft",
    .close = soft_close,
    .query_device = soft_query_device,
    .query_port = soft_query_port,
    .query_gid = soft_query_gid,
    .query_pkey = soft_query_pkey,
    .query_counters = soft_query_counters,
    .set_fault = soft_set_fault,
    .alloc_pd = soft_alloc_pd,
    .dealloc_pd = soft_dealloc_pd,
    .reg_mr = soft_reg_mr,
    .alloc_mr = soft_alloc_mr,
    .dereg_mr = soft_dereg_mr,
    .create_comp_channel = soft_create_comp_channel,
    .destroy_comp_channel = soft_destroy_comp_channel,
    .get_cq_event = soft_get_cq_event,
    .create_cq = soft_create_cq,
    .resize_cq = soft_resize_cq,
    .destroy_cq = soft_destroy_cq,
    .poll_cq = soft_poll_cq,
    .req_notify_cq = soft_req_notify_cq,
    .ack_cq_events = soft_ack_cq_events,
    .create_qp = soft_create_qp,
    .modify_qp = soft_modify_qp,
    .query_qp = soft_query_qp,
    .query_qp_stats = soft_query_qp_stats,
    .destroy_qp = soft_destroy_qp,
    .post_send = soft_post_send,
    .post_recv = soft_post_recv,
    .create_ah = soft_create_ah,
    .query_ah = soft_query_ah,
    .destroy_ah = soft_destroy_ah,
    .attach_mcast = soft_attach_mcast,
    .detach_mcast = soft_detach_mcast,
    .cm_listen = soft_cm_listen,
    .cm_unlisten = soft_cm_unlisten,
    .cm_slot = soft_cm_slot,
    .cm_watch = soft_cm_watch,
    .cm_watch_service = soft_cm_watch_service,
    .get_async_event = soft_get_async_event,
};
