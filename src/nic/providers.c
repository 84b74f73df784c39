/* SPDX-License-Identifier: Apache-2.0
 *
 * providers.c: which providers there are, and what each has to have.  A provider of the house is a row of `own`.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/fail.h"
#include "nic.h"

static const struct rnic_provider *const own[] = {&rnic_soft};
#define OWN ((int)(sizeof own / sizeof own[0]))

/* Those of the program: written under the lock, and read without it up to the number. */
#define MOST 16
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
static const struct rnic_provider *added[MOST];
static _Atomic int num_added;

const struct rnic_provider *rnic_provider(int i) {
    if (i < OWN)
        return i < 0 ? NULL : own[i];
    return i - OWN < num_added ? added[i - OWN] : NULL;
}

static int append(const struct rnic_provider *provider, struct rnic_err *err) {
    for (int i = 0; rnic_provider(i); i++)
        if (!strcmp(rnic_provider(i)->name, provider->name))
            return fail(err, -EEXIST, "there is a provider %s already", provider->name);
    if (num_added == MOST)
        return fail(err, -ENOSPC, "%d providers were added, there is no room for more", MOST);
    added[num_added] = provider;
    num_added++;
    return 0;
}

int rnic_provider_add(const struct rnic_provider *provider, struct rnic_err *err) {
    int rc = rnic_provider_check(provider, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&adding);
    rc = append(provider, err);
    pthread_mutex_unlock(&adding);
    return rc;
}

/* ---------------------------------------------------------------- what a table has to have */

struct verb {
    const char *name;
    size_t at; /* in struct rnic_ops */
};
#define VERB(v) {#v, offsetof(struct rnic_ops, v)}

static const struct verb always[] = {
    VERB(close),
    VERB(query_device),
    VERB(query_port),
    VERB(query_gid),
    VERB(alloc_pd),
    VERB(dealloc_pd),
    VERB(reg_mr),
    VERB(dereg_mr),
    VERB(create_comp_channel),
    VERB(destroy_comp_channel),
    VERB(get_cq_event),
    VERB(create_cq),
    VERB(destroy_cq),
    VERB(poll_cq),
    VERB(req_notify_cq),
    VERB(ack_cq_events),
    VERB(create_qp),
    VERB(modify_qp),
    VERB(destroy_qp),
    VERB(post_send),
    VERB(post_recv),
};

/* With the first one the second one. */
static const struct verb pairs[][2] = {
    {VERB(get_async_event), VERB(ack_async_event)},
    {VERB(create_cq_ex), VERB(poll_cq_ex)},
    {VERB(create_qp_ex), VERB(post_send_whole)},
    {VERB(create_srq), VERB(destroy_srq)},
    {VERB(create_srq), VERB(post_srq_recv)},
    {VERB(create_srq_ex), VERB(destroy_srq)},
    {VERB(create_srq_ex), VERB(post_srq_recv)},
    {VERB(open_xrcd), VERB(close_xrcd)},
    {VERB(alloc_mw), VERB(dealloc_mw)},
    {VERB(create_ah), VERB(destroy_ah)},
    {VERB(attach_mcast), VERB(detach_mcast)},
    {VERB(create_counters), VERB(destroy_counters)},
    {VERB(create_counters), VERB(read_counters)},
    {VERB(create_counters), VERB(attach_counters_point_flow)},
    {VERB(create_comp_cntr), VERB(destroy_comp_cntr)},
    {VERB(create_comp_cntr), VERB(set_comp_cntr)},
    {VERB(create_comp_cntr), VERB(inc_comp_cntr)},
    {VERB(create_comp_cntr), VERB(read_comp_cntr)},
    {VERB(alloc_dm), VERB(free_dm)},
    {VERB(alloc_dm), VERB(memcpy_to_dm)},
    {VERB(alloc_dm), VERB(memcpy_from_dm)},
    {VERB(alloc_td), VERB(dealloc_td)},
    {VERB(import_pd), VERB(unimport_pd)},
    {VERB(import_mr), VERB(unimport_mr)},
    {VERB(import_dm), VERB(unimport_dm)},
    {VERB(import_dm), VERB(memcpy_to_dm)},
    {VERB(import_dm), VERB(memcpy_from_dm)},
    {VERB(create_flow), VERB(destroy_flow)},
    {VERB(create_wq), VERB(modify_wq)},
    {VERB(create_wq), VERB(destroy_wq)},
    {VERB(create_wq), VERB(post_wq_recv)},
    {VERB(create_rwq_ind_table), VERB(destroy_rwq_ind_table)},
};

static bool has(const struct rnic_ops *ops, const struct verb *verb) {
    int (*function)(void);
    memcpy(&function, (const char *)ops + verb->at, sizeof function);
    return function != NULL;
}

int rnic_provider_check(const struct rnic_provider *provider, struct rnic_err *err) {
    if (!provider->name || !provider->list || !provider->open || !provider->ops)
        return fail(err, -EINVAL, "a provider has a name, list, open and ops");
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        if (!has(provider->ops, &always[i]))
            return fail(err, -EINVAL, "provider %s lacks %s, which every provider has", provider->name, always[i].name);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (has(provider->ops, &pairs[i][0]) && !has(provider->ops, &pairs[i][1]))
            return fail(err, -EINVAL, "provider %s has %s, but lacks %s", provider->name, pairs[i][0].name,
                        pairs[i][1].name);
    return 0;
}

const void *rnic_extension(const struct rnic_context *ctx, const char *name) {
    for (const struct rnic_extension *one = ctx->provider->extensions; one && one->name; one++)
        if (!strcmp(one->name, name))
            return one->table;
    return NULL;
}
