# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False
"""Many small files of a folder in one call: between two of them, neither Python runs nor does a thread wait for it."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc

from rnic._disk import Found

cdef extern from "disk.h" nogil:
    struct new_file:
        const char *name
        const char *content
        size_t size
        unsigned int mode
        long long mtime
    struct found_file:
        size_t size
        unsigned int mode
        long long mtime
        int error
    int _SINGLE "SINGLE"
    int _TAKEN "TAKEN"
    int store_file(int folder, const char *temporary, const new_file *f, bint replace)
    size_t load_files(int folder, const char **names, size_t n, size_t most, char *into, size_t room, found_file *found)

SINGLE, TAKEN = _SINGLE, _TAKEN


def store(int folder, bytes temporary, list files, bint replace):
    """Store whole files in a folder, a descriptor, one after the other, each under the temporary name first. For
    each 0; or an errno; or, without `replace`, TAKEN: something has its name. None of the names may have a NUL.
    """
    cdef size_t i, n = len(files), held = 0
    cdef const char *under = PyBytes_AS_STRING(temporary)
    cdef new_file *jobs = <new_file *>malloc((n + 1) * sizeof(new_file))
    cdef Py_buffer *contents = <Py_buffer *>malloc((n + 1) * sizeof(Py_buffer))
    cdef int *ends = <int *>malloc((n + 1) * sizeof(int))
    cdef bytes name
    try:
        if not jobs or not contents or not ends:
            raise MemoryError
        for i in range(n):
            name, content, mode, mtime = files[i]
            PyObject_GetBuffer(content, &contents[i], PyBUF_SIMPLE)
            held += 1
            jobs[i] = new_file(PyBytes_AS_STRING(name), <const char *>contents[i].buf, contents[i].len, mode, mtime)
        with nogil:
            for i in range(n):
                ends[i] = store_file(folder, under, &jobs[i], replace)
        return [ends[i] for i in range(n)]
    finally:
        for i in range(held):
            PyBuffer_Release(&contents[i])
        free(jobs)
        free(contents)
        free(ends)


def load(int folder, list names, size_t most, size_t room):
    """Read files of at most `most` bytes from a folder, a descriptor, in their order, as many as fit `room` bytes, at
    least one. The contents, one behind the other; and for each what was found; or an errno; or SINGLE: it is larger,
    no regular file or has changed meanwhile.
    """
    cdef size_t i, n = len(names), done, size = 0
    cdef char *into = <char *>malloc(room)
    cdef const char **wanted = <const char **>malloc((n + 1) * sizeof(char *))
    cdef found_file *found = <found_file *>malloc((n + 1) * sizeof(found_file))
    cdef bytes name
    try:
        if not into or not wanted or not found:
            raise MemoryError
        for i in range(n):
            name = names[i]
            wanted[i] = PyBytes_AS_STRING(name)
        with nogil:
            done = load_files(folder, wanted, n, most, into, room, found)
        for i in range(done):
            size += 0 if found[i].error else found[i].size
        ends = [found[i].error or Found(found[i].size, found[i].mode, found[i].mtime) for i in range(done)]
        return PyBytes_FromStringAndSize(into, size), ends
    finally:
        free(into)
        free(wanted)
        free(found)
