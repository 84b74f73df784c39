# SPDX-License-Identifier: Apache-2.0
# What a buffer's elements are: values, or references, which no peer may read or write.


cdef bint has_references(const char *format) noexcept:
    """Whether a buffer's format (PEP 3118) has objects or pointers that Python follows: O, &, X, z, and Z without a
    type behind it, which is a complex number.  Names of fields stand between colons.
    """
    cdef bint in_name = False
    while format[0]:
        if format[0] == c':':
            in_name = not in_name
        elif not in_name and (format[0] in b"O&Xz" or (format[0] == c'Z' and format[1] not in b"fdg")):
            return True
        format += 1
    return False


cdef refuse_references(buffer, what):
    raise TypeError(
        f"{what} needs values: {type(buffer).__name__} has references to objects, or pointers, which mean nothing to a peer, "
        "and crash this process when a peer overwrites them; give an array of values, such as array.astype(float) or "
        "array.astype('S'), or bytes, such as pickle.dumps(array)")


def need_values(str kind, buffer, what):
    """TypeError if the elements of a buffer of this kind (its format, PEP 3118) are references."""
    if has_references(kind.encode()):
        refuse_references(buffer, what)


cdef int take_buffer(buffer, Py_buffer *view, int flags, what) except -1:
    """PyObject_GetBuffer() of a buffer of values: TypeError for one of references."""
    try:
        PyObject_GetBuffer(buffer, view, flags | PyBUF_FORMAT)
    except ValueError:      # a type of NumPy's that no format names: a time, or a text of any length, which is a reference
        dtype = getattr(buffer, "dtype", None)
        if dtype is None:   # it is closed, or was released
            raise
        if getattr(dtype, "hasobject", True):
            refuse_references(buffer, what)
        PyObject_GetBuffer(buffer, view, flags)
    if view.format is not NULL and has_references(view.format):
        PyBuffer_Release(view)
        refuse_references(buffer, what)
    return 0


def blank(Py_ssize_t size):
    """Bytes that nobody has written yet, and where they lie: for a READ to fill before anybody sees them."""
    found = PyBytes_FromStringAndSize(NULL, size)
    return found, <uintptr_t>PyBytes_AS_STRING(found)
