/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation on a word whose page may be missing.  The kernel copies such memory (kinds.c), but has no call for this.  So
 * a child does it that shares the memory of this process, and ends where a missing page would be a signal.  It lives for
 * the one operation; this thread stands still meanwhile, as with vfork(2).
 */
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mem/mr.h"

#define STACK_BYTES 65536

#ifdef __SANITIZE_THREAD__ /* it takes clone() for a fork, and the child would tidy up what it shares with this process */
int __clone(int (*fn)(void *), void *stack, int flags, void *arg, ...);
#define clone __clone
#endif

struct ask {
    const struct word_op *op;
    uint64_t *word, was;
    bool done;
};

static void give_up(int number) {
    (void)number;
    syscall(SYS_exit, 0); /* not exit(): the program's memory is not the child's to tidy up */
}

/* Its table of signal handlers is its own. */
static int child(void *arg) {
    struct ask *ask = arg;
    struct sigaction end = {.sa_handler = give_up};
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    sigaddset(&faults, SIGBUS);
    sigaction(SIGSEGV, &end, NULL);
    sigaction(SIGBUS, &end, NULL);
    sigprocmask(SIG_UNBLOCK, &faults, NULL);
    ask->was = word_apply(ask->op, ask->word);
    ask->done = true;
    return 0;
}

/* No signal may reach the child: handlers of the program would run in it, on the program's memory.  The program does not
 * hear of its end either (no SIGCHLD, and wait(2) passes it over). */
static void run(struct ask *ask, uint8_t *stack) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int pid = clone(child, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, ask);
    if (pid > 0)
        waitpid(pid, NULL, __WCLONE);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

bool guarded_word(uint64_t addr, const struct word_op *op, uint64_t *was) {
    struct ask ask = {.op = op, .word = (uint64_t *)(uintptr_t)addr};
    uint8_t *stack = aligned_alloc(64, STACK_BYTES);
    if (!stack)
        return false;
    run(&ask, stack);
    free(stack);
    *was = ask.was;
    return ask.done;
}

bool guarded_word_works(void) {
    uint64_t word = 1, was;
    return guarded_word((uintptr_t)&word, &(struct word_op){WORD_ADD, 1, 0}, &was) && word == 2;
}
