/* SPDX-License-Identifier: Apache-2.0
 *
 * What a forked child does: it closes every descriptor of the device, or it would keep the parent's slot and port alive
 * after the parent's death; and it marks the contexts dead.  It has no engine thread, and touches no lock of a device:
 * they stay as the fork found them, held.
 */
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dev/dev.h"
#include "nic_heap.h"

/* The one mutable global: fork knows no arguments.  A handler of a signal may fork, in any thread and at any moment; so signals are
 * blocked while a thread has the lock. */
static struct dev *devices;
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER; /* of the two: */
static int keeping_out;                                   /* threads that fork waits for */
static int forking;      /* threads that wait for them, or fork: nobody keeps out anew */
static int interrupted;  /* of those that keep out, by a handler that forks: they do not wait for each other */
static int cancel_state; /* before, of the thread that forks, which is not cancelled while it has the locks */
static sigset_t signals; /* likewise */
static _Thread_local int keeps_out; /* this thread does: it may be interrupted, and fork */

static void install(void);

/* All signals but faults: to a program's handlers for these (prepare handlers of a fork may need them) no other time will do. */
static sigset_t block_signals(void) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    return before;
}

static sigset_t lock_devices(void) {
    sigset_t before = block_signals();
    pthread_mutex_lock(&devices_lock);
    return before;
}

static void unlock_devices(sigset_t before) {
    pthread_mutex_unlock(&devices_lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int fork_keep_out(void) {
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_once(&once, install);
    sigset_t were = lock_devices();
    while (forking && !keeps_out)
        pthread_cond_wait(&changed, &devices_lock);
    keeping_out++;
    keeps_out++;
    unlock_devices(were);
    return state;
}

void fork_let_in(int state) {
    sigset_t were = lock_devices();
    keeping_out--;
    keeps_out--;
    pthread_cond_broadcast(&changed);
    unlock_devices(were);
    pthread_setcancelstate(state, NULL);
}

/* Ahead of the heap's lock, as the thread that is waited for may want that one first: a handler of it forks, too. */
static void await_devices(void) {
    pthread_mutex_lock(&devices_lock);
    forking++;
    interrupted += keeps_out;
    pthread_cond_broadcast(&changed);
    while (keeping_out > (keeps_out ? interrupted : 0))
        pthread_cond_wait(&changed, &devices_lock);
    pthread_mutex_unlock(&devices_lock);
}

/* Descriptors are copied first and memory later: a thread that made or closed one in between would leave the child with a
 * descriptor that its memory does not know.  So who has a device's lock stands still meanwhile, and who opens or closes a
 * device is done.  A handler of a signal may have interrupted just that in this very thread; then the child may have
 * such a descriptor. */
static void before(void) {
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    sigset_t were = block_signals();
    run_wait_to_fork(true);
    await_devices();
    if (rnic_heap_before_fork)
        rnic_heap_before_fork();
    pthread_mutex_lock(&devices_lock);
    run_wait_to_fork(false);
    cancel_state = state;
    signals = were;
    for (struct dev *dev = devices; dev; dev = dev->next)
        dev->forks = run_lock_to_fork(&dev->run);
}

static void in_parent(void) {
    for (struct dev *dev = devices; dev; dev = dev->next) {
        if (dev->forks)
            dev_unlock(dev);
        dev->forks = false;
    }
    forking--;
    interrupted -= keeps_out;
    int state = cancel_state;
    sigset_t were = signals;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&devices_lock);
    if (rnic_heap_after_fork)
        rnic_heap_after_fork();
    pthread_sigmask(SIG_SETMASK, &were, NULL);
    pthread_setcancelstate(state, NULL);
}

static void abandon(struct dev *dev) {
    atomic_store(&dev->dead, true);
    net_abandon(&dev->net);
    host_abandon(&dev->host);
    for (struct xrc_inode *of = dev->objects.xrc_inodes; of; of = of->next)
        close(of->file);
    for (struct listed *ch = dev->objects.of[KIND_CHANNEL].first; ch; ch = ch->next)
        close(LISTED_IN(struct channel, listed, ch)->pub.fd);
    close(dev->nic.events.fd);
    close(dev->nic.events.end_fd);
    ends_abandon(&dev->ends);
    store_abandon(&dev->store);
    if (dev->peer.fd >= 0)
        close(dev->peer.fd);
    run_abandon(&dev->run);
}

static void in_child(void) {
    for (struct dev *dev = devices; dev; dev = dev->next)
        abandon(dev);
    devices = NULL;
    forking = interrupted = 0;
    keeping_out = keeps_out; /* this thread's: a handler has interrupted it, and it may go on here */
    pthread_mutex_init(&devices_lock, NULL);
    pthread_cond_init(&changed, NULL);
    lock_forget_all();
    pthread_sigmask(SIG_SETMASK, &signals, NULL);
    pthread_setcancelstate(cancel_state, NULL);
}

static void install(void) { pthread_atfork(before, in_parent, in_child); }

const struct dev *fork_held(void) {
    const struct dev *dev = NULL;
    sigset_t were = block_signals();
    if (!pthread_mutex_trylock(&devices_lock)) {
        for (dev = devices; dev && !run_is_held(&dev->run);)
            dev = dev->next;
        pthread_mutex_unlock(&devices_lock);
    }
    pthread_sigmask(SIG_SETMASK, &were, NULL);
    return dev;
}

void fork_register(struct dev *dev) {
    sigset_t were = lock_devices();
    dev->next = devices;
    devices = dev;
    lost_watch();
    unlock_devices(were);
}

/* All contexts of a process give an address one index.  But what reserves an entry whose address has gone (ports.c) is each
 * context's own: the next new address may have another index in those where nothing does. */
void fork_arrange(const struct device_kind *kind, struct netdev *dev) {
    sigset_t were = lock_devices();
    for (struct dev *one = devices; one; one = one->next) {
        if (one->kind != kind || one->net.netdev.ifindex != dev->ifindex || one->net.netdev.space != dev->space ||
            atomic_load(&one->fatal))
            continue;
        pthread_mutex_lock(&one->net.lock);
        netdev_arrange(dev, one->net.had);
        pthread_mutex_unlock(&one->net.lock);
        break;
    }
    unlock_devices(were);
}

/* An imported context is the same one, which each of its owners closes. */
struct dev *fork_adopt(int cmd_fd) {
    struct dev *dev;
    struct stat theirs, ours;
    if (fstat(cmd_fd, &theirs))
        return NULL;
    sigset_t were = lock_devices();
    for (dev = devices; dev; dev = dev->next) {
        if (fstat(dev->store.fd, &ours) == 0 && ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino)
            break;
    }
    if (dev)
        dev->adopted++;
    unlock_devices(were);
    return dev;
}

bool fork_disown(struct dev *dev) {
    sigset_t were = lock_devices();
    bool others = dev->adopted > 0;
    dev->adopted -= others;
    unlock_devices(were);
    return others;
}

bool fork_unregister(struct dev *dev) {
    sigset_t were = lock_devices();
    bool others = dev->adopted > 0;
    dev->adopted -= others;
    for (struct dev **at = &devices; !others && *at; at = &(*at)->next) {
        if (*at == dev) {
            *at = dev->next;
            break;
        }
    }
    unlock_devices(were);
    return !others;
}
