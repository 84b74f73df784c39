# SPDX-License-Identifier: Apache-2.0
# The one door from a C status to an exception, and the one place that waits.


cdef object text_of(rnic_err *err):
    return err.text.decode("utf-8", "replace")


cdef int check(int rc, str verb, rnic_err *err) except -1:
    """Returns rc if it is no error; else raises VerbsError with the provider's text, and the limit that was reached."""
    if rc < 0:
        raise VerbsError(-rc, with_limit(-rc, text_of(err)), verb)
    return rc


cdef double deadline_of(timeout) except? -1:
    """The time of monotonic() at which a wait ends; infinity for None."""
    ends = after(timeout)
    return float("inf") if ends is None else ends


# A signal that comes between the look for signals and the sleep does not end the sleep, which therefore is short.
cdef double LONGEST_SLEEP = 0.25


cdef int wait_readable(Handle owner, int fd, double deadline, str verb) except -1:
    """Returns when fd is readable; raises TimeoutError at the deadline. Ctrl-C and other signal handlers run
    meanwhile.
    """
    if not is_readable(owner, fd, deadline, verb):
        raise TimeoutError(f"{verb}: nothing came in time")
    return 0


cdef bint is_readable(Handle owner, int fd, double deadline, str verb) except -1:
    """As wait_readable(), but returns False at the deadline."""
    cdef pollfd p
    cdef timespec ts
    cdef double left
    cdef int rc, why

    p.fd, p.events, p.revents = fd, POLLIN, 0
    while True:
        left = deadline - <double>monotonic()
        if left <= 0:
            return False
        ts.tv_sec, ts.tv_nsec = 0, <long>(min(left, LONGEST_SLEEP) * 1e9)
        owner.calls += 1
        with nogil:
            rc = ppoll(&p, 1, &ts, NULL)
            why = errno
        owner.calls -= 1
        PyErr_CheckSignals()
        if rc > 0:
            return True
        if rc < 0 and why != EINTR:
            raise VerbsError(why, "", verb)
