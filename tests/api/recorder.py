# SPDX-License-Identifier: Apache-2.0
"""The second provider of nic.h's operations table, tests/c/recorder*.c: it writes down what it is asked."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import rnic


class WC(ctypes.Structure):
    """struct rnic_wc."""

    _fields_ = (
        ("wr_id", ctypes.c_uint64),
        ("status", ctypes.c_int),
        ("opcode", ctypes.c_int),
        ("vendor_err", ctypes.c_uint32),
        ("byte_len", ctypes.c_uint32),
        ("imm_data", ctypes.c_uint32),
        ("qp_num", ctypes.c_uint32),
        ("src_qp", ctypes.c_uint32),
        ("wc_flags", ctypes.c_uint32),
        ("pkey_index", ctypes.c_uint16),
        ("slid", ctypes.c_uint16),
        ("sl", ctypes.c_uint8),
        ("dlid_path_bits", ctypes.c_uint8),
    )


class CQHead(ctypes.Structure):
    """struct rnic_cq."""

    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("channel", ctypes.c_void_p),
        ("cq_context", ctypes.c_void_p),
        ("cqe", ctypes.c_int),
    )


class QPHead(ctypes.Structure):
    """The beginning of struct rnic_qp."""

    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("pd", ctypes.c_void_p),
        ("send_cq", ctypes.c_void_p),
        ("recv_cq", ctypes.c_void_p),
        ("qp_context", ctypes.c_void_p),
    )


def build(root: Path, into: Path) -> ctypes.CDLL:
    """Compiles the recorder and loads it."""
    library = into / "recorder.so"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    include = f"-I{root / 'src' / 'nic'}"
    sources = sorted(str(path) for path in (root / "tests/c").glob("recorder*.c"))
    subprocess.run(["cc", *flags, include, "-o", str(library), *sources], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.recorder_new.restype = ctypes.c_void_p
    loaded.recorder_log.restype = ctypes.c_char_p
    loaded.recorder_last_cq.restype = ctypes.POINTER(CQHead)
    loaded.recorder_last_qp.restype = ctypes.POINTER(QPHead)
    return loaded


class Recorder:
    """One recording context, its log, and what it is told to answer."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._c = library
        self._p = ctypes.c_void_p(library.recorder_new())
        self.context: Any = rnic.Context.from_pointer(self._p.value or 0)

    def take(self) -> list[str]:
        """The lines written since the last take()."""
        lines: list[str] = self._c.recorder_log(self._p).decode().splitlines()
        self._c.recorder_clear(self._p)
        return lines

    @property
    def alive(self) -> int:
        """How many native objects there are, the context apart."""
        return int(self._c.recorder_alive(self._p))

    def fail(self, verb: str, errno: int, text: str = "", at: int = 0) -> None:
        """The next call of the verb fails."""
        self._c.recorder_fail(self._p, verb.encode(), errno, text.encode(), at)

    def quiet(self) -> None:
        """Nothing more is written down."""
        self._c.recorder_quiet(self._p)

    def complete(self, **fields: int) -> None:
        """A completion for the next poll()."""
        self._c.recorder_complete(self._p, ctypes.byref(WC(**fields)))

    def cq_event(self) -> None:
        """An event of the CQ that was created last."""
        self._c.recorder_cq_event(self._c.recorder_last_cq(self._p))

    def async_event(self, kind: int, port: int = 0, of: str = "") -> None:
        """An asynchronous event: of a port, or of the "cq" or "qp" that was created last."""
        context = None
        if of == "cq":
            context = self._c.recorder_last_cq(self._p).contents.cq_context
        elif of == "qp":
            context = self._c.recorder_last_qp(self._p).contents.qp_context
        self._c.recorder_async_event(self._p, kind, port, ctypes.c_void_p(context))

    def free(self) -> None:
        """Frees the C side: nothing may use the context afterwards."""
        self._c.recorder_free(self._p)
