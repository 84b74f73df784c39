/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int passed, failed;
static const char *running;
static char note[160];
static jmp_buf out;

void check_run(const char *name, void (*test)(void)) {
    const char *only = getenv("ONLY"); /* a part of the names of the tests to run */
    if (only && !strstr(name, only))
        return;
    running = name;
    note[0] = 0;
    if (setjmp(out)) {
        failed++;
    } else {
        test();
        printf("ok - %s\n", name);
        passed++;
    }
    fflush(stdout);
}

void check_note(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(note, sizeof note, fmt, ap);
    va_end(ap);
}

void check_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    printf("not ok - %s: %s:%d: ", running, file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("%s%s%s\n", note[0] ? " (" : "", note, note[0] ? ")" : "");
    longjmp(out, 1);
}

int check_done(void) {
    printf("%d passed, %d failed\n", passed, failed);
    fflush(stdout);
    if (failed)
        _exit(1); /* what failed tests have not freed is no news */
    return 0;
}

int check_descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}
