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
#include "base/quick.h"
#include "dev/dev.h"

#define MASK_BYTES 8 /* of the kernel's sigset_t */

/* Actions for SIGSEGV and SIGBUS that the last device to be opened found, where these were not ours. */
static struct sigaction was_segv, was_bus;
/* This thread is in one of these handlers. */
static _Thread_local QUICK volatile bool handed_on;

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

static void hand_on(int number, siginfo_t *info, void *context) {
    struct sigaction *own = number == SIGSEGV ? &was_segv : &was_bus;
    const struct sigaction before = *own, *was = &before;
    if (has_handler(was) && was->sa_flags & SA_RESETHAND)
        *own = (struct sigaction){.sa_handler = SIG_DFL};
    bool sent = info->si_code <= 0; /* by somebody: not a fault, which comes again when this returns */
    bool ends = sent && handed_on;  /* by that handler, which takes us for the one before it, and is done */
    if (!ends && has_handler(was)) {
        handed_on = true;
        if (was->sa_flags & SA_SIGINFO)
            was->sa_sigaction(number, info, context);
        else
            was->sa_handler(number);
        handed_on = false;
    } else if (ends || was->sa_handler == SIG_DFL || !sent) {
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
static bool may_be_opened(int number, const siginfo_t *info) {
    return number == SIGSEGV && info->si_code == SEGV_ACCERR && was_segv.sa_flags & SA_SIGINFO &&
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

static void handle(int number, siginfo_t *info, void *context) {
    int error = errno;
    bool fault = info->si_code > 0 && !may_be_opened(number, info);
    const struct dev *dev = fault ? fork_held() : NULL;
    struct mr *mr = dev ? mr_covering(&dev->nic.mrs, (uintptr_t)info->si_addr) : NULL;
    if (mr)
        tell(dev, mr, info->si_addr);
    if (!fault || !guard_covers(info->si_addr)) {
        errno = error;
        hand_on(number, info, context);
        return;
    }
    pthread_sigmask(SIG_SETMASK, &((ucontext_t *)context)->uc_sigmask, NULL); /* as when a handler returns */
    restore_arithmetic(context);
    errno = error;
    guard_end();
}

/* The program's own handler runs with the signals blocked that it asked for, and waits go on behind it if they did. */
static void watch(int number, struct sigaction *was) {
    struct sigaction watches = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    struct sigaction now;
    sigaction(number, NULL, &now);
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == handle)
        return;
    *was = now;
    if (has_handler(was)) {
        watches.sa_mask = was->sa_mask;
        watches.sa_flags = SA_SIGINFO | SA_ONSTACK | (was->sa_flags & (SA_RESTART | SA_NODEFER));
    }
    sigaction(number, &watches, NULL);
}

/* With each device: who has set a handler meanwhile did not know of this one. */
void lost_watch(void) {
    watch(SIGSEGV, &was_segv);
    watch(SIGBUS, &was_bus);
}
