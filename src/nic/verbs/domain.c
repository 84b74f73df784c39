/* SPDX-License-Identifier: Apache-2.0
 *
 * Thread domains and parent domains (man ibv_alloc_td, ibv_alloc_parent_domain).  A parent domain is a protection domain
 * wherever one is asked for; what it protects is that of the one that it stands for.  That its objects are one thread's
 * is a hint: the locks of this device cost an uncontended thread next to nothing, so it keeps them.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fail.h"
#include "verbs/verbs.h"

int soft_alloc_td(struct rnic_context *ctx, struct rnic_td **out, struct rnic_err *err) {
    struct dev *dev = dev_of(ctx);
    int rc = dev_check_usable(dev, err);
    struct td *td = rc ? NULL : calloc(1, sizeof *td);
    if (!td)
        return rc ? rc : fail(err, -ENOMEM, "no memory");
    td->pub.ctx = ctx;
    dev_lock(dev);
    object_enter(dev, KIND_TD, &td->listed);
    dev_unlock(dev);
    *out = &td->pub;
    return 0;
}

int soft_dealloc_td(struct rnic_td *pub, struct rnic_err *err) {
    struct dev *dev = dev_of(pub->ctx);
    struct td *td = (struct td *)pub;
    int rc = dev_check_alive(dev, err);
    if (rc)
        return rc;
    dev_lock(dev);
    int domains = td->domains;
    if (!domains)
        object_leave(dev, KIND_TD, &td->listed);
    dev_unlock(dev);
    if (domains)
        return fail(err, -EBUSY, "%d parent domains use the thread domain", domains);
    free(td);
    return 0;
}

int soft_alloc_parent_domain(struct rnic_pd *pd, struct rnic_td *td, struct rnic_pd **out, struct rnic_err *err) {
    struct dev *dev = dev_of(pd->ctx);
    int rc = dev_check_alive(dev, err);
    if (!rc && pd->parent)
        rc = fail(err, -EINVAL, "a parent domain is made of a protection domain, not of another parent domain");
    if (!rc && td && td->ctx != pd->ctx)
        rc = fail(err, -EINVAL, "the thread domain belongs to another device than the protection domain");
    struct pd *parent = rc ? NULL : new_pd(pd->ctx);
    if (!parent)
        return rc ? rc : fail(err, -ENOMEM, "no memory");
    parent->pub.parent = pd;
    parent->pub.handle = pd->handle; /* who imports gets the protection domain */
    parent->td = (struct td *)td;
    dev_lock(dev);
    ((struct pd *)pd)->domains++;
    if (td)
        parent->td->domains++;
    dev_unlock(dev);
    enter_pd(parent);
    *out = &parent->pub;
    return 0;
}
