/* SPDX-License-Identifier: Apache-2.0
 *
 * The counts are in a file of `rnic run`'s folder that all processes under it map: so they are there whatever ends a program.
 */
#include "base/tally.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nic.h"

#define FAULTS (RNIC_CNT_fault_marked - RNIC_CNT_fault_lost + 1)

/* src/rnic/programs/tally.py reads it. */
struct tally {
    struct {
        _Atomic uint64_t called, failed; /* how often, in all processes */
    } rules[RNIC_ENV_FAIL];              /* in their order */
    _Atomic uint64_t faults[FAULTS];     /* in the order of their counters */
};

static struct tally *shared; /* NULL: nobody asks */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* By syscall(), as no thread is to be cancelled here. */
static void map(void) {
    char path[PATH_MAX];
    const char *folder = getenv("RNIC_RUN");
    int n = folder ? snprintf(path, sizeof path, "%s/tally", folder) : 0;
    int fd = n > 0 && n < (int)sizeof path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    shared = at != MAP_FAILED ? at : NULL;
    syscall(SYS_close, fd);
}

static struct tally *tally(void) {
    pthread_once(&once, map);
    return shared;
}

void tally_fault(struct rnic_counters *cnt, int counter) {
    cnt->value[counter]++;
    if (tally())
        atomic_fetch_add(&tally()->faults[counter - RNIC_CNT_fault_lost], 1);
}

void rnic_env_met(int rule, bool failed) {
    if (!tally())
        return;
    atomic_fetch_add(&tally()->rules[rule].called, 1);
    atomic_fetch_add(&tally()->rules[rule].failed, failed);
}
