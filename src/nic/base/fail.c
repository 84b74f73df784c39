/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fail.h"

#include <stdarg.h>
#include <stdio.h>

int fail(struct rnic_err *err, int rc, const char *fmt, ...) {
    if (err == NULL) {
        return rc;
    }
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    err->unacknowledged = 0;
    return rc;
}
