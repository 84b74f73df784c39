# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""The binding of src/nic/nic.h: calls, ownership and conversion.  Decisions belong to rnic.verbs, above it.

Every object here owns one object of the device and reaches it only through its provider's operations table and
extensions, so that any provider works.  need_verb() says EOPNOTSUPP for what a provider lacks.  Methods called raw_... speak in the fields of nic.h's
structs, as dicts; rnic.verbs makes records of them.
"""
cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject_GenericSetAttr
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport EAGAIN, EBUSY, ECONNRESET, EINTR, EINVAL, EIO, ENODEV, EOPNOTSUPP, ETIMEDOUT, errno
from libc.limits cimport INT_MAX
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, uintptr_t, INT64_MAX, UINT64_MAX
from libc.string cimport memcpy, memmove, memset
from posix.unistd cimport close, getpid

import atexit
import os
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from time import monotonic
from typing import NamedTuple

from rnic.enums import (
    AccessFlags, CreateCQWCFlags, MWType, OpsFlags, OpsWROpcode, QPState, QPType, SendFlags, WCFlags, WCOpcode, WCStatus,
    WQState, WROpcode,
)
from rnic.errors import PostError, VerbsError, exhausted, with_limit
from rnic.notebook import table
from rnic.sizes import limited, whole
from rnic.times import after

cdef extern from "<arpa/inet.h>" nogil:
    uint32_t htonl(uint32_t)
    uint32_t ntohl(uint32_t)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec

cdef extern from "<sys/eventfd.h>" nogil:
    ctypedef uint64_t eventfd_t
    int EFD_NONBLOCK, EFD_CLOEXEC
    int eventfd(unsigned int, int)
    int eventfd_read(int, eventfd_t *)
    int eventfd_write(int, eventfd_t)

cdef extern from *:
    Py_ssize_t PY_SSIZE_T_MAX

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    short POLLIN
    int ppoll(pollfd *, unsigned long, const timespec *, const void *)

include "check.pxi"
include "buffers.pxi"
include "handle.pxi"
include "async.pxi"
include "context.pxi"
include "pd.pxi"
include "mr.pxi"
include "memory.pxi"
include "event.pxi"
include "cq.pxi"
include "cntr.pxi"
include "ah.pxi"
include "listener.pxi"
include "mw.pxi"
include "wr.pxi"
include "places.pxi"
include "tensor.pxi"
include "ops.pxi"
include "wc.pxi"
include "cq_ex.pxi"
include "post.pxi"
include "xrcd.pxi"
include "srq.pxi"
include "flow.pxi"
include "wq.pxi"
include "qp.pxi"
include "tables.pxi"
include "spinning.pxi"
include "msg.pxi"
include "moving.pxi"
include "messages.pxi"
include "operations.pxi"
include "machine.pxi"
include "perf.pxi"
