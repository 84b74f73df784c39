# SPDX-License-Identifier: Apache-2.0
# Whether a look for completions before a sleep pays: only where a processor is free for it.

cdef enum:
    MOST_MISSES = 64
    MOST_SOON = 8           # looks that are left out while messages come soon, but not soon enough
    WORTH = 4               # what came so soon, in times of `spin`, is worth a look the next time
    AWAY_NS = 500000        # a thread that looks and was away for so long may have lost its processor
    CROWDED_NS = 100000000  # then no look for so long, and up to MOST_CROWDED times as long if it happens again
    MOST_CROWDED = 16
    YIELDS = 4              # to others before a sleep, with one processor
    COUNTED_NS = 1000000000 # between two looks at how many processors there are


cdef extern from "<sys/resource.h>" nogil:
    struct rusage:
        long ru_nivcsw
    int RUSAGE_THREAD
    int getrusage(int, rusage *)


cdef double the_quota = -1  # processors that the control group allows; 0: no limit, -1: not known yet


cdef double quota_of(str folder) except -1:
    """How many processors' time one control group allows: by version 2's cpu.max, or version 1's two files; inf: no limit."""
    limits = []
    for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        try:
            with open(f"{folder}/{name}") as limit:
                limits += limit.read().split()
        except OSError:
            pass
    try:
        most, period = (float(limit) for limit in limits)
    except ValueError:                      # "max", or there are no such files
        return INFINITY
    return most / period if most > 0 and period > 0 else INFINITY


def cgroup_quota(root="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """How many processors' time the control groups of this process allow (cgroups(7)); 0: there is no limit."""
    least = INFINITY
    try:
        with open(own) as groups:
            lines = [line.rstrip("\n").split(":", 2) for line in groups if line.count(":") >= 2]
    except (OSError, ValueError):
        lines = []
    for number, controllers, at in lines:
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        tree = root if number == "0" else f"{root}/{controllers}"
        parts = [part for part in at.split("/") if part]
        for depth in range(len(parts) + 1):
            least = min(least, quota_of("/".join((tree, *parts[:depth]))))
    return 0.0 if least == INFINITY else least


def processors():
    """How many processors this process may use at once: by its affinity (sched_getaffinity(2)) and control group."""
    global the_quota
    if the_quota < 0:
        the_quota = cgroup_quota()
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, int(the_quota))) if the_quota else allowed


@cython.final
cdef class Spin:
    """How long a machine looks for completions before its program sleeps.

    Not at all with one processor. Otherwise it learns: from looks in vain, and from looks during which somebody else had
    the processor.
    """

    cdef int64_t most           # ns
    cdef int misses, rest       # looks in vain, one after the other; looks that are left out because of them
    cdef int64_t since          # when the last look has ended in vain
    cdef int64_t counted_at     # processors; and whether there are more than one
    cdef bint several
    cdef long taken             # how often the kernel has taken the processor away
    cdef int64_t crowded_until
    cdef int crowded            # so many times as long the next time

    def __cinit__(self, double seconds):
        self.most, self.crowded = <int64_t>(seconds * 1e9), 1

    cdef int64_t now(self, int64_t now) except -1:
        """How long to look this time."""
        if self.most == 0 or now < self.crowded_until:
            return 0
        if now >= self.counted_at:
            self.several, self.counted_at = processors() > 1, now + COUNTED_NS
        if self.rest > 0:
            self.rest -= 1
            return 0
        return self.most if self.several else 0

    cdef bint may_yield(self, int64_t now):
        """One processor: who is to answer needs it."""
        return self.most > 0 and not self.several and now >= self.crowded_until

    cdef int note(self, bint found, int64_t now) except -1:
        """A look has ended."""
        self.misses = 0 if found else min(2 * self.misses + 1, MOST_MISSES)
        self.rest = self.misses
        if not found:
            self.since = now
        return 0

    cdef int note_away(self, int64_t now) except -1:
        """The thread was away during a look. No looks for a while, if the kernel gave its processor to another thread."""
        cdef rusage used
        cdef long before = self.taken
        getrusage(RUSAGE_THREAD, &used)
        self.taken = used.ru_nivcsw
        if before == self.taken:    # the machine itself stood still, or a call took long
            return 0
        if now > self.crowded_until + self.crowded * CROWDED_NS:
            self.crowded = 1
        self.crowded_until = now + self.crowded * CROWDED_NS
        self.crowded = min(2 * self.crowded, MOST_CROWDED)
        return 0

    cdef int note_wait(self) except -1:
        """The sleep has ended; if it was short, it is worth a look the next time."""
        if now_ns() - self.since < WORTH * self.most:
            self.misses = min(self.misses, MOST_SOON)
            self.rest = min(self.rest, MOST_SOON)
        return 0
