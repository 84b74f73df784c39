# SPDX-License-Identifier: Apache-2.0


cdef class XRCD(Handle):
    """An XRC domain: its queue pairs serve all of its shared receive queues (IBA A14.2; ibv_open_xrcd(3))."""

    cdef rnic_xrcd *p

    def __cinit__(self, Context context not None, int fd, int oflags):
        cdef rnic_xrcd_init_attr attr
        cdef rnic_err err
        context.need_verb("open_xrcd", context.ops.open_xrcd is not NULL)
        attr.fd, attr.oflags = fd, oflags
        err.text[0] = 0
        check(context.ops.open_xrcd(context.p, &attr, &self.p, &err), "open_xrcd", &err)
        self.attach(context, (context,), "close_xrcd")

    cdef int destroy(self, rnic_err *err):
        return self.ops.close_xrcd(self.p, err)
