/* SPDX-License-Identifier: Apache-2.0
 *
 * How a function says why it failed.
 */
#ifndef RNIC_BASE_FAIL_H
#define RNIC_BASE_FAIL_H

#include "nic.h"

/* Returns rc, and formats the text (a sentence without a full stop) into *err when err is not NULL. */
int fail(struct rnic_err *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
