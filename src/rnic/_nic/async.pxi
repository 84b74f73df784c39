# SPDX-License-Identifier: Apache-2.0


@cython.final
cdef class AsyncToken:
    """An asynchronous event that the program has received and not acknowledged; dropping it acknowledges it."""

    cdef Handle element
    cdef rnic_async_event event

    def ack(self):
        """Acknowledge the event (ibv_ack_async_event(3)): its object can be closed again. Raises EINVAL the second
        time.
        """
        cdef rnic_err err
        if self.element is None:
            raise VerbsError(EINVAL, "the event is acknowledged already", "ack_async_event")
        err.text[0] = 0
        check(self.give_back(&err), "ack_async_event", &err)

    cdef int give_back(self, rnic_err *err):
        cdef Handle element = self.element
        self.element = None
        if not element.live or not element.async_taken or element.pid != getpid():
            return 0        # it went first, and acknowledged all
        element.async_taken -= 1
        return element.ops.ack_async_event(element.ctx.p, &self.event, err)

    def __del__(self):
        cdef rnic_err err
        if self.element is not None:
            self.give_back(&err)


cdef AsyncToken token_of(Handle element, rnic_async_event *event):
    cdef AsyncToken token = AsyncToken.__new__(AsyncToken)
    token.element, token.event = element, event[0]
    element.async_taken += 1
    return token
