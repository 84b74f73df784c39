/* SPDX-License-Identifier: Apache-2.0
 *
 * XRC domains, their shared receive queues and queue pairs (IBA A14.2; ibv_open_xrcd(3), ibv_create_srq_ex(3),
 * ibv_open_qp(3)).
 *
 * Each context that opens the domain of a file has its own part of it: the objects that it makes there.  A queue pair
 * finds the shared receive queues of its own context.  That others have the domain open shows by locks on the file, one for
 * each context: who may open the file may lock it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* F_OFD_SETLK */
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "qp/xrc.h"
#include "verbs/verbs.h"

/* A domain, and the file that it belongs to. */
struct xrcd {
    struct rnic_xrcd pub;
    struct listed listed;
    struct xrc_inode *of;
    int srqs, qps; /* made with this one */
};

/* ---------------------------------------------------------------- domains */

struct rnic_xrcd *xrcd_listed(struct listed *object) { return &LISTED_IN(struct xrcd, listed, object)->pub; }

static struct xrc_inode *find(const struct dev *dev, const struct stat *st) {
    struct xrc_inode *of = dev->objects.xrc_inodes;
    while (of && (of->device != st->st_dev || of->inode != st->st_ino))
        of = of->next;
    return of;
}

/* The byte of a device in a file: far beyond what programs write and lock themselves. */
static struct flock lock_of(const struct dev *dev, short type) {
    uint64_t far = UINT64_C(1) << 62;
    return (struct flock){
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(far | (dev->info.guid & (far - 1))), .l_len = 1};
}

/* Open the file once more and lock it: a lock belongs to one opening of a file, and goes with it.  The file keeps its inode
 * number as long.  A descriptor. */
static int lock_file(const struct dev *dev, int fd, struct rnic_err *err) {
    char path[sizeof "/proc/self/fd/-2147483648"];
    struct flock lock = lock_of(dev, F_RDLCK);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (own < 0)
        return fail(err, -errno, "the file of an XRC domain cannot be opened for reading");
    if (fcntl(own, F_OFD_SETLK, &lock) == 0)
        return own;
    int rc = fail(err, -errno, "the file of an XRC domain cannot be locked (F_OFD_SETLK)");
    close(own);
    return rc;
}

/* Whether another context has locked it; true, too, where that cannot be found out. */
static bool others_have(const struct dev *dev, int file) {
    struct flock lock = lock_of(dev, F_WRLCK);
    return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static struct xrc_inode *make(struct dev *dev, const struct stat *st, int file) {
    struct xrc_inode *of = calloc(1, sizeof *of);
    if (!of)
        return NULL;
    of->file = file;
    if (file < 0)
        return of;
    of->device = st->st_dev;
    of->inode = st->st_ino;
    of->next = dev->objects.xrc_inodes;
    dev->objects.xrc_inodes = of;
    return of;
}

/* What the flags ask of a file whose domain exists already, or not.  The errnos are those of the kernel's verbs. */
static int check_exists(bool exists, int oflags, struct rnic_err *err) {
    if (exists && (oflags & O_CREAT) && (oflags & O_EXCL))
        return fail(err, -EINVAL, "the file has an XRC domain already, and O_EXCL asks for a new one");
    if (!exists && !(oflags & O_CREAT))
        return fail(err, -EAGAIN, "the file has no XRC domain; O_CREAT makes one");
    return 0;
}

/* First the lock and then the look at others: of two that ask with O_EXCL at the same time, at most one succeeds. */
static int of_file(struct dev *dev, const struct stat *st, const struct rnic_xrcd_init_attr *attr,
                   struct xrc_inode **out, struct rnic_err *err) {
    *out = find(dev, st);
    if (*out)
        return check_exists(true, attr->oflags, err);
    int file = lock_file(dev, attr->fd, err);
    if (file < 0)
        return file;
    int rc = attr->oflags == O_CREAT ? 0 : check_exists(others_have(dev, file), attr->oflags, err);
    if (!rc && !(*out = make(dev, st, file)))
        rc = fail(err, -ENOMEM, "no memory");
    if (rc)
        close(file);
    return rc;
}

static void drop(struct dev *dev, struct xrc_inode *of) {
    struct xrc_inode **at = &dev->objects.xrc_inodes;
    if (of->file >= 0) {
        while (*at != of)
            at = &(*at)->next;
        *at = of->next;
        close(of->file);
    }
    free(of);
}

static int check_open(const struct rnic_xrcd_init_attr *attr, struct stat *st, struct rnic_err *err) {
    if (attr->oflags & ~(O_CREAT | O_EXCL))
        return fail(err, -EINVAL, "oflags 0x%x: an XRC domain takes O_CREAT and O_EXCL only", (unsigned)attr->oflags);
    if (attr->fd == -1)
        return attr->oflags & O_CREAT ? 0 : fail(err, -EINVAL, "a domain without a file is always new: give O_CREAT");
    return fstat(attr->fd, st) == 0 ? 0 : fail(err, -errno, "fd %d is not open", attr->fd);
}

int soft_open_xrcd(struct rnic_context *ctx, const struct rnic_xrcd_init_attr *attr, struct rnic_xrcd **out,
                   struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    struct stat st;
    int rc = dev_check_has(dev, HAS_XRC, "XRC domains", err);
    if (!rc)
        rc = check_open(attr, &st, err);
    if (rc)
        return rc;
    struct xrcd *xrcd = calloc(1, sizeof *xrcd);
    if (!xrcd)
        return fail(err, -ENOMEM, "no memory");
    xrcd->pub.ctx = ctx;
    dev_lock(dev);
    if (attr->fd != -1)
        rc = of_file(dev, &st, attr, &xrcd->of, err);
    else if (!(xrcd->of = make(dev, NULL, -1)))
        rc = fail(err, -ENOMEM, "no memory");
    if (!rc) {
        xrcd->of->domain.handles++;
        object_enter(dev, KIND_XRCD, &xrcd->listed);
    }
    dev_unlock(dev);
    if (rc) {
        free(xrcd);
        return rc;
    }
    *out = &xrcd->pub;
    return 0;
}

int soft_close_xrcd(struct rnic_xrcd *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct xrcd *xrcd = (struct xrcd *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int srqs = xrcd->srqs, qps = xrcd->qps;
    if (!srqs && !qps) {
        object_leave(dev, KIND_XRCD, &xrcd->listed);
        if (--xrcd->of->domain.handles == 0)
            drop(dev, xrcd->of);
    }
    dev_unlock(dev);
    if (srqs || qps)
        return fail(err, -EBUSY, "the XRC domain has %d shared receive queues and %d queue pairs", srqs, qps);
    free(xrcd);
    return 0;
}

/* ---------------------------------------------------------------- shared receive queues */

int verbs_join_domain(struct dev *dev, struct srq *srq, const struct rnic_srq_init_attr_ex *attr,
                      struct rnic_err *err) {
    struct xrcd *xrcd = (struct xrcd *)attr->xrcd;
    int rc = xrc_add_srq(&dev->nic, srq, &xrcd->of->domain, attr->cq);
    if (rc)
        return fail(err, rc, "no memory, or no number is free for it");
    srq->xrcd = xrcd;
    xrcd->srqs++;
    return 0;
}

void verbs_leave_domain(struct dev *dev, struct srq *srq) {
    xrc_remove_srq(&dev->nic, srq);
    srq->xrcd->srqs--;
}

/* ---------------------------------------------------------------- queue pairs */

/* What a program has of a queue pair: it can neither be posted to nor does it have an engine. */
static struct xrc_handle *make_handle(struct rnic_context *ctx, struct xrcd *xrcd, void *qp_context) {
    struct xrc_handle *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->qp.pub = (struct rnic_qp){.ctx = ctx, .qp_context = qp_context, .qp_type = RNIC_QPT_XRC_RECV};
    h->qp.no_receives = true;
    h->xrcd = xrcd;
    return h;
}

static void add_handle(struct dev *dev, struct qp *qp, struct xrc_handle *h) {
    object_enter(dev, KIND_QP, &h->qp.listed);
    h->qp.real = qp;
    h->qp.pub.qp_num = qp->pub.qp_num;
    h->next = qp->handles;
    qp->handles = h;
    h->xrcd->qps++;
}

static void remove_handle(struct dev *dev, struct xrc_handle *h) {
    object_leave(dev, KIND_QP, &h->qp.listed);
    struct xrc_handle **at = &h->qp.real->handles;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    h->xrcd->qps--;
}

static int check_xrc_qp(const struct rnic_qp_init_attr *attr, struct rnic_err *err) {
    if (attr->qp_type != RNIC_QPT_XRC_RECV)
        return fail(err, -EINVAL, "queue pair type %d: those of an XRC domain are XRC_RECV (%d)", attr->qp_type,
                    RNIC_QPT_XRC_RECV);
    if (attr->send_cq || attr->recv_cq || attr->srq)
        return fail(err, -EINVAL,
                    "an XRC_RECV queue pair has no completion queue and no shared receive queue of its own: messages "
                    "name an XRC SRQ, which has both");
    return 0;
}

static int enter(struct dev *dev, struct qp *qp, struct xrc_handle *h, struct rnic_err *err) {
    dev_lock(dev);
    xrc_add_qp(qp, &h->xrcd->of->domain);
    int rc = verbs_enter_qp(dev, qp, err);
    if (rc)
        xrc_remove_qp(qp);
    else
        add_handle(dev, qp, h);
    dev_unlock(dev);
    return rc;
}

int soft_create_xrc_qp(struct rnic_xrcd *xrcd, struct rnic_qp_init_attr *attr, struct rnic_qp **out,
                       struct rnic_err *err) {
    struct dev *dev = dev_of(xrcd->ctx);
    int rc = dev_check_usable(dev, err);
    if (!rc)
        rc = check_xrc_qp(attr, err);
    if (rc)
        return rc;
    attr->cap = (struct rnic_qp_cap){0}; /* nothing can be posted to it */
    struct xrc_handle *h = make_handle(xrcd->ctx, (struct xrcd *)xrcd, attr->qp_context);
    struct qp *qp = verbs_make_qp(dev, NULL, attr);
    attr->cap = (struct rnic_qp_cap){0};
    rc = h && qp ? enter(dev, qp, h, err) : fail(err, -ENOMEM, "no memory");
    if (!rc) {
        *out = &h->qp.pub;
        return 0;
    }
    if (qp)
        verbs_free_qp(qp);
    free(h);
    return rc;
}

int soft_open_qp(struct rnic_context *ctx, const struct rnic_qp_open_attr *attr, struct rnic_qp **out,
                 struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    struct xrcd *xrcd = (struct xrcd *)attr->xrcd;
    int rc = dev_check_usable(dev, err);
    if (!rc && attr->qp_type != RNIC_QPT_XRC_RECV)
        rc = fail(err, -EINVAL, "queue pair type %d: XRC_RECV ones (%d) can be shared", attr->qp_type,
                  RNIC_QPT_XRC_RECV);
    if (!rc && (!xrcd || xrcd->pub.ctx != ctx))
        rc = fail(err, -EINVAL, "open_qp needs an xrcd of this device");
    if (rc)
        return rc;
    struct xrc_handle *h = make_handle(ctx, xrcd, attr->qp_context);
    if (!h)
        return fail(err, -ENOMEM, "no memory");
    dev_lock(dev);
    struct qp *qp = qpn_find(&dev->host, attr->qp_num);
    if (qp && qp->xrc == &xrcd->of->domain)
        add_handle(dev, qp, h);
    else if (qpn_is_ours(&dev->host, qpn_slot(attr->qp_num)))
        rc = fail(err, -EINVAL, "the XRC domain has no queue pair 0x%06x", attr->qp_num);
    else
        rc = fail(err, -EOPNOTSUPP, "queue pair 0x%06x is not this context's: a context opens queue pairs of its own",
                  attr->qp_num);
    dev_unlock(dev);
    if (rc) {
        free(h);
        return rc;
    }
    *out = &h->qp.pub;
    return 0;
}

/* With the last handle the queue pair goes; true. */
static bool leave(struct dev *dev, struct qp *qp, struct xrc_handle *h) {
    remove_handle(dev, h);
    if (qp->handles)
        return false;
    verbs_leave_qp(dev, qp);
    xrc_remove_qp(qp);
    return true;
}

int soft_close_qp(struct rnic_qp *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct xrc_handle *h = (struct xrc_handle *)pub;
    struct qp *qp = h->qp.real;
    dev_lock(dev);
    int rc = dev_check_events(dev, pub->qp_context, err);
    bool ends = !rc && qp->handles == h && !h->next;
    if (ends)
        rc = verbs_close_off_to_destroy(dev, qp, err);
    if (!rc) {
        rc = dev_leave_events(dev, pub->qp_context, err); /* one may have been taken meanwhile */
        if (rc && ends)
            verbs_carry_on(dev, qp);
    }
    bool last = !rc && leave(dev, qp, h);
    if (!rc && ends && !last) /* somebody has opened it meanwhile */
        verbs_carry_on(dev, qp);
    dev_unlock(dev);
    if (rc)
        return rc;
    if (last)
        verbs_free_qp(qp);
    free(h);
    return 0;
}
