/* SPDX-License-Identifier: Apache-2.0
 *
 * What a C test program needs: RUN(test) prints "ok - name" or "not ok - name", CHECK ends a test that has failed, and
 * check_done() prints "N passed, M failed" and gives main's exit status.
 */
#ifndef RNIC_TESTS_CHECK_H
#define RNIC_TESTS_CHECK_H

#include <stdint.h>

#define RUN(test) check_run(#test, test)
#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            check_fail(__FILE__, __LINE__, "%s", #cond);                                                               \
    } while (0)
#define CHECK_EQ(got, want)                                                                                            \
    do {                                                                                                               \
        long long got_ = (long long)(got), want_ = (long long)(want);                                                  \
        if (got_ != want_)                                                                                             \
            check_fail(__FILE__, __LINE__, "%s is %lld, not %s (%lld)", #got, got_, #want, want_);                     \
    } while (0)

void check_run(const char *name, void (*test)(void));
/* What the test works on now ("seed 12", "loss of packet 3"): printed when it fails. */
void check_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void check_fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int check_done(void);
int check_descriptors(void); /* that are open, of the first 256 */

#endif
