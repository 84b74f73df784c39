/* SPDX-License-Identifier: Apache-2.0
 *
 * Which of its implementations a CRC uses: included behind struct crc_impl, which has name, update and copy, and find().  Each
 * file that includes it has a choice of its own.
 */
#include <stdatomic.h>

/* Set at the first call, or by use(); what it points at is constant, so no order is asked of the loads. */
static _Atomic(const struct crc_impl *) chosen;

static __attribute__((noinline, cold)) const struct crc_impl *choose(void) {
    const struct crc_impl *expected = NULL, *best = find(NULL);
    return atomic_compare_exchange_strong(&chosen, &expected, best) ? best : expected;
}

INLINE const struct crc_impl *current(void) {
    const struct crc_impl *impl = atomic_load_explicit(&chosen, memory_order_relaxed);
    return __builtin_expect(impl != NULL, 1) ? impl : choose();
}

/* 0, or -1: this CPU has none of that name. */
static int use(const char *name) {
    const struct crc_impl *impl = find(name);
    if (!impl)
        return -1;
    atomic_store(&chosen, impl);
    return 0;
}
