/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of one process that import, give back, re-register and deregister the same objects at once, on nic.h: what the
 * interpreter's lock hides from Python.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "live.h"
#include "verbs/verbs.h"

#define ROUNDS 30
#define IMPORTS 3 /* of a thread in a round: without an end there may always be somebody who has it, and waits for a processor */
#define OURS (RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_READ)

static struct rnic_context *ctx;
static const struct rnic_ops *ops;
static struct rnic_pd *pd, *other_pd;
static uint8_t memory[4096];
static _Atomic uint32_t handle;   /* of the region that there is */
static _Atomic uint32_t imported; /* how often it was */
static _Atomic uint32_t rounds;   /* regions that there have been */
static _Atomic bool over;

/* ---------------------------------------------------------------- import */

/* As long as it has it, nobody else may free it. */
static bool import_once(void) {
    struct rnic_mr *mr;
    if (ops->import_mr(pd, atomic_load(&handle), &mr, NULL))
        return false;
    atomic_fetch_add(&imported, 1);
    sched_yield();
    CHECK_EQ(mr->length, sizeof memory);
    CHECK_EQ(ops->unimport_mr(mr, NULL), 0);
    return true;
}

static void *imports(void *arg) {
    uint32_t round = 0;
    (void)arg;
    for (int n = 0; !atomic_load(&over);) {
        uint32_t now = atomic_load(&rounds);
        n = now == round ? n : 0;
        round = now;
        if (n < IMPORTS && import_once())
            n++;
        else
            sched_yield();
    }
    return NULL;
}

static void a_region_that_is_imported_is_not_freed(void) {
    pthread_t threads[2];
    int busy = 0;
    atomic_store(&over, false);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, imports, NULL), 0);
    for (int i = 0; i < ROUNDS; i++) {
        struct rnic_mr *mr;
        int rc;
        CHECK_EQ(ops->reg_mr(pd, memory, sizeof memory, OURS, &mr, NULL), 0);
        uint32_t before = atomic_load(&imported);
        atomic_store(&handle, mr->handle);
        atomic_fetch_add(&rounds, 1);
        while (atomic_load(&imported) == before)
            sched_yield();
        while ((rc = ops->dereg_mr(mr, NULL)) == -EBUSY) {
            busy++;
            sched_yield();
        }
        CHECK_EQ(rc, 0);
    }
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("# %d deregistrations met an import\n", busy);
}

/* ---------------------------------------------------------------- re-registration */

static void *moves_it(void *arg) {
    struct rnic_mr *mr = arg;
    for (int i = 0; !atomic_load(&over); i++) {
        int rc = ops->rereg_mr(mr, RNIC_REREG_MR_CHANGE_PD, i % 2 ? pd : other_pd, NULL, 0, 0, NULL);
        CHECK(rc == 0 || rc == -EBUSY);
        sched_yield(); /* it loses the processor here, and not in the middle of a change */
    }
    return NULL;
}

/* Each changes what it changes, and nothing else. */
static void two_changes_at_once_are_both_made(void) {
    static const uint32_t rights[] = {OURS, RNIC_ACCESS_LOCAL_WRITE};
    struct rnic_mr *mr;
    pthread_t thread;
    atomic_store(&over, false);
    CHECK_EQ(ops->reg_mr(pd, memory, sizeof memory, OURS, &mr, NULL), 0);
    CHECK_EQ(pthread_create(&thread, NULL, moves_it, mr), 0);
    for (int i = 0; i < ROUNDS; i++) {
        int rc;
        while ((rc = ops->rereg_mr(mr, RNIC_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, rights[i % 2], NULL)) == -EBUSY)
            sched_yield();
        CHECK_EQ(rc, 0);
        sched_yield();
        CHECK_EQ(((struct mr *)mr)->access, rights[i % 2]);
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    CHECK_EQ(ops->dereg_mr(mr, NULL), 0);
    CHECK_EQ(((struct pd *)pd)->mrs, 0);
    CHECK_EQ(((struct pd *)other_pd)->mrs, 0);
}

int main(void) {
    struct rnic_err err = {0};
    live_isolate();
    /* Regions that no other process can see are waited for by nobody. */
    if (rnic_soft.open("roce_lo", &(struct rnic_open_attr){.local = -1}, &ctx, &err))
        check_fail(__FILE__, __LINE__, "%s", err.text);
    ops = ctx->ops;
    CHECK_EQ(ops->alloc_pd(ctx, &pd, NULL), 0);
    CHECK_EQ(ops->alloc_pd(ctx, &other_pd, NULL), 0);
    RUN(a_region_that_is_imported_is_not_freed);
    RUN(two_changes_at_once_are_both_made);
    CHECK_EQ(ops->dealloc_pd(pd, NULL), 0);
    CHECK_EQ(ops->dealloc_pd(other_pd, NULL), 0);
    CHECK_EQ(ops->close(ctx, NULL), 0);
    return check_done();
}
