# SPDX-License-Identifier: Apache-2.0


@cython.final
cdef class Listener(Handle):
    """Delivers the CM's requests for a service to this context's queue pair 1; Context.cm_listen() makes it."""

    cdef rnic_listener *p
    cdef readonly uint64_t service_id   #: What it listens for.

    def __cinit__(self, Context context not None, uint64_t service_id, raw_gid, bint afonly=False, bint reuse=False,
                  bint hold=False):
        cdef rnic_gid gid = gid_of(raw_gid)
        cdef uint32_t flags = (RNIC_LISTEN_AFONLY if afonly else 0) | (RNIC_LISTEN_REUSE if reuse else 0)
        flags |= RNIC_LISTEN_HOLD if hold else 0
        cdef rnic_err err
        context.need_verb("cm_listen", context.cm is not NULL)
        err.text[0] = 0
        check(context.cm.listen(context.p, service_id, &gid, flags, &self.p, &err), "cm_listen", &err)
        self.service_id = service_id
        self.attach(context, (context,), "cm_unlisten")

    cdef int destroy(self, rnic_err *err):
        return self.ctx.cm.unlisten(self.p, err)

    cdef str label(self):
        return f"Listener 0x{self.service_id:x}"
