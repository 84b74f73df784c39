/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory windows (IBA 10.6.7, 11.2.8): keys for a part of a memory region, which come and go by work requests.
 *
 * A window's key stands in the table of the regions' keys, as an entry of a protection domain that is nobody's: no
 * region's check takes it, so that windows cost regions nothing.  Type 1 is for all queue pairs of its protection domain,
 * type 2 for the one that it was bound through (2B).  Everything here runs under the device's lock.
 */
#ifndef RNIC_MEM_MW_H
#define RNIC_MEM_MW_H

#include "mem/mr.h"

#define MW_MAX (1u << 20) /* windows of a device */

enum mw_list { OF_REGION, OF_QP }; /* the lists that a bound window is in; of a QP: type 2 */

struct mw {
    struct rnic_mw pub;
    struct listed listed;     /* in the context's list of its kind; device's lock */
    struct mr entry;          /* its key, and the bytes that it shows: of length 0 when it is not bound */
    struct rnic_pd nobodys;   /* the entry's protection domain, which is no queue pair's */
    struct mr *mr;            /* the region that it is bound to, or NULL */
    const struct rnic_qp *qp; /* type 2, bound: who alone may use it */
    struct {
        struct mw *next, **at;
    } link[2]; /* enum mw_list */
};

/* What a bind asks for, by keys: the objects may have gone since it was posted. */
struct mw_binding {
    uint32_t window;  /* its key at the time; it is found by the upper 24 bits */
    uint32_t new_key; /* the lower 8 bits count */
    uint32_t region;  /* lkey */
    uint32_t access;  /* enum rnic_access_flags */
    uint64_t addr, length;
};

/* Gives the window a key, and enters it, not bound. 0 or -ENOMEM. */
int mw_insert(struct mr_table *t, struct mw *mw);
void mw_remove(struct mr_table *t, struct mw *mw); /* unbinds it, too */

/* All are checked before anything changes: 0, or enum rnic_vendor_err. of_qp: the queue pair's list. */
int mw_bind(struct mr_table *t, const struct rnic_qp *qp, struct mw **of_qp, const struct mw_binding *b);
/* The window that a queue pair may invalidate by this key; NULL: it may not, and *ve is why. */
struct mw *mw_invalidable(const struct mr_table *t, const struct rnic_qp *qp, uint32_t key, int *ve);
void mw_unbind(struct mw *mw);
void mw_unbind_all(struct mw **list); /* of a queue pair that goes */

/* As mr_remote(), for keys of windows; pd: that the queue pair asks under. */
int mw_remote(const struct mr_table *t, const struct rnic_qp *qp, const struct rnic_pd *pd, uint32_t key, uint64_t addr,
              uint64_t length, uint32_t access, uint8_t **ptr);

#endif
