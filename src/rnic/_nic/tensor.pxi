# SPDX-License-Identifier: Apache-2.0
# Arrays of other libraries as buffers, by DLPack (https://dmlc.github.io/dlpack): memory of the host, in C order.

cdef struct dl_tensor:
    void *data
    int32_t device_type, device_id
    int32_t ndim
    uint8_t code, bits
    uint16_t lanes
    int64_t *shape
    int64_t *strides        # in elements; NULL: C order
    uint64_t byte_offset

cdef struct dl_managed:     # in a capsule "dltensor"
    dl_tensor tensor
    void *manager
    void (*deleter)(dl_managed *) noexcept

cdef struct dl_versioned:   # in a capsule "dltensor_versioned", since version 1
    uint32_t major, minor
    void *manager
    void (*deleter)(dl_versioned *) noexcept
    uint64_t flags
    dl_tensor tensor

cdef enum:
    DL_MAJOR = 1
    DL_READ_ONLY = 1        # flags
    DL_COPIED = 2
    DL_DIMENSIONS = 64      # that a buffer can have

# kDLCPU, and memory of the host that a GPU reaches, too: kDLCUDAHost, kDLROCMHost
HOST_DEVICES = (1, 3, 11)
DL_OPAQUE = 3   # type of elements: handles
DL_FORMATS = {
    (0, 8): b"b", (0, 16): b"h", (0, 32): b"i", (0, 64): b"q", (1, 8): b"B", (1, 16): b"H", (1, 32): b"I", (1, 64): b"Q",
    (2, 16): b"e", (2, 32): b"f", (2, 64): b"d", (5, 64): b"Zf", (5, 128): b"Zd", (6, 8): b"?",
}


@cython.final
cdef class Tensor:
    """The memory of an object that speaks DLPack, as a buffer; given back with the last view of it.

    Raises ValueError for memory that the host does not reach, or that is not contiguous in C order.  What the object
    raises goes through, BufferError as a rule.
    """

    cdef dl_managed *plain          # one of the two is this object's,
    cdef dl_versioned *versioned    # and has to be given back
    cdef void *data
    cdef bint readonly
    cdef int dimensions
    cdef Py_ssize_t length, itemsize
    cdef Py_ssize_t shape[DL_DIMENSIONS]
    cdef Py_ssize_t strides[DL_DIMENSIONS]
    cdef bytes format

    def __cinit__(self, exporter):
        device = exporter.__dlpack_device__()[0]
        if device not in HOST_DEVICES:
            raise ValueError(f"{type(exporter).__name__} in memory of a device (DLPack device type {int(device)}): "
                             "copy it to the host's memory first, which RDMA reaches here")
        try:
            capsule = exporter.__dlpack__(max_version=(DL_MAJOR, 0), copy=False)
        except TypeError:   # it is from before there were versions
            capsule = exporter.__dlpack__()
        try:
            self.take(exporter, capsule)
        except BaseException:
            capsule = None  # what is not taken goes here, where its destructor meets no exception on its way
            raise

    cdef int take(self, exporter, capsule) except -1:
        """The capsule gives it back itself, until its name says that it was taken."""
        cdef dl_managed *plain = NULL
        cdef dl_versioned *versioned = NULL
        if PyCapsule_IsValid(capsule, b"dltensor_versioned"):
            versioned = <dl_versioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
            if versioned.major != DL_MAJOR:
                raise ValueError(f"DLPack {versioned.major}.{versioned.minor} is not known here, only {DL_MAJOR}")
            self.readonly = versioned.flags & (DL_READ_ONLY | DL_COPIED) != 0   # nobody would see what a copy gets
            self.describe(&versioned.tensor)
        elif PyCapsule_IsValid(capsule, b"dltensor"):
            plain = <dl_managed *>PyCapsule_GetPointer(capsule, b"dltensor")
            self.describe(&plain.tensor)
        else:
            raise TypeError(f"__dlpack__() of {type(exporter).__name__} has returned no capsule of DLPack that is fresh")
        PyCapsule_SetName(capsule, b"used_dltensor" if versioned is NULL else b"used_dltensor_versioned")
        self.plain, self.versioned = plain, versioned
        return 0

    def __dealloc__(self):
        if self.versioned is not NULL and self.versioned.deleter is not NULL:
            self.versioned.deleter(self.versioned)
        if self.plain is not NULL and self.plain.deleter is not NULL:
            self.plain.deleter(self.plain)

    cdef int describe(self, const dl_tensor *tensor) except -1:
        cdef int bits = tensor.bits * tensor.lanes
        if not 0 <= tensor.ndim <= DL_DIMENSIONS:
            raise ValueError(f"a DLPack tensor of {tensor.ndim} dimensions: up to {DL_DIMENSIONS} are possible")
        if bits == 0 or bits % 8:
            raise ValueError(f"a DLPack tensor with elements of {bits} bits: they must be whole bytes")
        if tensor.code == DL_OPAQUE:
            raise TypeError("a DLPack tensor of handles, which mean nothing to a peer: give a tensor of values")
        self.dimensions, self.itemsize = tensor.ndim, bits // 8
        known = DL_FORMATS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
        self.format = b"%ds" % self.itemsize if known is None else known
        self.measure(tensor)
        if self.length and tensor.data is NULL:
            raise ValueError("a DLPack tensor without memory")
        self.data = <uint8_t *>tensor.data + tensor.byte_offset if self.length else <void *>self
        return 0

    cdef int measure(self, const dl_tensor *tensor) except -1:
        """From the last dimension to the first: each step is as long as what stands behind it."""
        cdef int i
        cdef int64_t n
        cdef bint in_order = True, nothing = False
        cdef Py_ssize_t step = 1
        for i in range(tensor.ndim):
            nothing |= tensor.shape[i] == 0
        for i in range(tensor.ndim - 1, -1, -1):
            n = tensor.shape[i]
            if n < 0 or (n > 0 and step > PY_SSIZE_T_MAX // self.itemsize // n):
                raise ValueError(f"a DLPack tensor whose dimension {i} is {n} long")
            if tensor.strides is not NULL and n > 1 and tensor.strides[i] != step:
                in_order = False
            self.shape[i], self.strides[i] = n, step * self.itemsize
            step *= max(n, 1)
        if not in_order and not nothing:
            raise ValueError("a tensor that is not contiguous in C order: copy it first, tensor.contiguous()")
        self.length = 0 if nothing else step * self.itemsize
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE and self.readonly:
            raise BufferError("the tensor is read-only")
        view.buf, view.len, view.itemsize, view.readonly = self.data, self.length, self.itemsize, self.readonly
        view.ndim = self.dimensions
        view.format = PyBytes_AS_STRING(self.format) if flags & PyBUF_FORMAT else NULL
        view.shape = self.shape if flags & PyBUF_ND else NULL
        view.strides = self.strides if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets, view.internal = NULL, NULL
        view.obj = self
