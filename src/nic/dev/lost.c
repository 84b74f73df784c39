/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a region that a program has unmapped, protected or truncated before it deregistered the region.  A network card has
 * pinned the pages and goes on; here the request that uses them fails, and the program is told which region it is.
 *
 * Any other signal is handed on to whom it belonged to before: a program's own handler, a sanitizer's, the system's default.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/guard.h"
#include "dev/dev.h"

#define MASK_BYTES 8 /* of the kernel's sigset_t */

/* Actions for SIGSEGV and SIGBUS that devices found when they were opened, where these were not ours.  Each has a handler of
 * ours in front: a program's handler, once set in front of such a one, takes it for the handler before its own, and calls it
 * or puts it back. */
#define ENTRIES 8
static struct sigaction was_segv[ENTRIES], was_bus[ENTRIES];
static int segv_entries, bus_entries;

/* Never waits for room in a full pipe, and writes to none that nobody reads: SIGPIPE would end the program. */
static void say(const char *text, size_t n) {
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&out, 1, 0) == 1 && out.revents == POLLOUT)
        (void)!write(out.fd, text, n);
}

/* Once a region: a peer may go on to ask for it. */
static void tell(const struct dev *dev, struct mr *mr, const void *at) {
    char text[512];
    if (mr->lost)
        return;
    mr->lost = true;
    int n = snprintf(
        text, sizeof text,
        "rnic: %s: the memory at %p is gone or protected, but belongs to a region of %llu bytes at 0x%llx with lkey "
        "0x%x that is still registered, so a request that uses it fails: deregister a region before its memory is "
        "freed, unmapped, protected, or its file truncated\n",
        dev->net.netdev.name, at, (unsigned long long)mr->pub.length, (unsigned long long)(mr->pub.iova + mr->shift),
        mr->pub.lkey);
    say(text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

static bool has_handler(const struct sigaction *action) {
    return action->sa_flags & SA_SIGINFO || (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

static void hand_on(struct sigaction *own, int number, siginfo_t *info, void *context) {
    const struct sigaction before = *own, *was = &before;
    if (has_handler(was) && was->sa_flags & SA_RESETHAND)
        *own = (struct sigaction){.sa_handler = SIG_DFL};
    bool sent = info->si_code <= 0; /* by somebody: not a fault, which comes again when this returns */
    if (has_handler(was)) {
        if (was->sa_flags & SA_SIGINFO)
            was->sa_sigaction(number, info, context);
        else
            was->sa_handler(number);
    } else if (was->sa_handler == SIG_DFL || !sent) {
        struct sigaction end = {.sa_handler = SIG_DFL};
        sigaction(number, &end, NULL);
        if (sent)
            raise(number);
    }
}

/* The kernel reads a mask before it finds that nothing can be done with it. */
static bool can_be_read(const void *at) {
    const void *mask = (const void *)((uintptr_t)at & ~(uintptr_t)(MASK_BYTES - 1));
    return syscall(SYS_rt_sigprocmask, -1, mask, NULL, (size_t)MASK_BYTES) && errno == EINVAL;
}

/* Some programs make memory read-only to hear of the next write, and open it then: collectors, checkpoints.  Their handlers ask
 * for the address; Python's faulthandler, which only reports, does not. */
static bool may_be_opened(const struct sigaction *was, int number, const siginfo_t *info) {
    return number == SIGSEGV && info->si_code == SEGV_ACCERR && was->sa_flags & SA_SIGINFO &&
           can_be_read(info->si_addr);
}

/* The kernel gives a handler the rounding and the traps that a program begins with. */
static void restore_arithmetic(const ucontext_t *was) {
#ifdef __x86_64__
    if (was->uc_mcontext.fpregs)
        __asm__ volatile("fldcw %0\n\tldmxcsr %1" ::"m"(was->uc_mcontext.fpregs->cwd),
                         "m"(was->uc_mcontext.fpregs->mxcsr));
#else
    (void)was;
#endif
}

static void handle(int entry, int number, siginfo_t *info, void *context) {
    int error = errno;
    struct sigaction *was = &(number == SIGSEGV ? was_segv : was_bus)[entry];
    bool fault = info->si_code > 0 && !may_be_opened(was, number, info);
    const struct dev *dev = fault ? fork_held() : NULL;
    struct mr *mr = dev ? mr_covering(&dev->nic.mrs, (uintptr_t)info->si_addr) : NULL;
    if (mr)
        tell(dev, mr, info->si_addr);
    if (!fault || !guard_covers(info->si_addr)) {
        errno = error;
        hand_on(was, number, info, context);
        return;
    }
    pthread_sigmask(SIG_SETMASK, &((ucontext_t *)context)->uc_sigmask, NULL); /* as when a handler returns */
    restore_arithmetic(context);
    errno = error;
    guard_end();
}

#define EACH_ENTRY(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define ENTRY(i)                                                                                                       \
    static void entry##i(int number, siginfo_t *info, void *context) { handle(i, number, info, context); }
#define NAME(i) entry##i,

EACH_ENTRY(ENTRY)

static void (*const entries[ENTRIES])(int, siginfo_t *, void *) = {EACH_ENTRY(NAME)};

static bool is_ours(const struct sigaction *action) {
    bool ours = false;
    for (int i = 0; action->sa_flags & SA_SIGINFO && i < ENTRIES; i++)
        ours |= action->sa_sigaction == entries[i];
    return ours;
}

/* A program may set the same one again and again. */
static bool same(const struct sigaction *a, const struct sigaction *b) {
    return a->sa_flags == b->sa_flags && a->sa_handler == b->sa_handler;
}

/* The program's own handler runs with the signals blocked that it asked for, and waits go on behind it if they did.  Where there
 * are too many of them, its latest one has its faults to itself. */
static void watch(int number, struct sigaction *was, int *count) {
    struct sigaction watches = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART}, now;
    int i = 0;
    sigaction(number, NULL, &now);
    while (i < *count && !same(&was[i], &now))
        i++;
    if (is_ours(&now) || i == ENTRIES)
        return;
    was[i] = now;
    *count += i == *count;
    watches.sa_sigaction = entries[i];
    if (has_handler(&now)) {
        watches.sa_mask = now.sa_mask;
        watches.sa_flags = SA_SIGINFO | SA_ONSTACK | (now.sa_flags & (SA_RESTART | SA_NODEFER));
    }
    sigaction(number, &watches, NULL);
}

/* With each device: who has set a handler meanwhile did not know of this one. */
void lost_watch(void) {
    watch(SIGSEGV, was_segv, &segv_entries);
    watch(SIGBUS, was_bus, &bus_entries);
}
