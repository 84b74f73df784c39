# SPDX-License-Identifier: Apache-2.0
"""What a program needs around it to run on rnic's devices: the libraries, and a folder with files and a
server's socket.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from pathlib import Path
from time import time

import rnic
from rnic.errors import VerbsError
from rnic.programs import netlink, tree
from rnic.ucma import Failing, Removal, Server
from rnic.verbs.device import get_device_list, open_device

RUN = "RNIC_RUN"
SOCKET = "ucma"  # in the folder of $RNIC_RUN; src/preload/ucma.c has the same name
IBVERBS, PRELOAD, HEAP = "libibverbs.so.1", "librnic_preload.so", "librnic_heap.so"
_ANY_ORDER = "verify_asan_link_order=0"
_PREFIX = "rnic-run-"  # and the number of the process, which src/preload/parent.c looks for
_MOST_PATH = 107  # bytes of a socket's path
_LEAST_FREE = 1 << 20  # bytes of a place for the folder
_NEW = 10  # seconds in which a folder may not be locked yet


def libraries() -> Path:
    """The folder of the libraries."""
    return Path(rnic.__file__).parent / "lib"


def variables(folder: Path | None = None, *, heap: bool = True, sanitized: bool = False) -> dict[str, str]:
    """The variables for a program: rnic's libraries come ahead of what is in the environment already.

    Without a folder it can use verbs, but neither RDMA-CM nor files of sysfs. heap: its memory in whole pages
    is such that peers on this host can map it. sanitized: a sanitizer allocates its memory, and is to accept
    libraries ahead of its own.

    libibverbs is loaded ahead of all others, too: programs that look elsewhere first (DT_RPATH), or whose
    wrapper sets LD_LIBRARY_PATH, find it loaded by its name.
    """
    lib = libraries()
    ahead = (PRELOAD, HEAP, IBVERBS) if folder and heap and not sanitized else (PRELOAD, IBVERBS)
    found = {
        "LD_LIBRARY_PATH": _ahead(str(lib), os.environ.get("LD_LIBRARY_PATH")),
        "LD_PRELOAD": _ahead(":".join(str(lib / name) for name in ahead), os.environ.get("LD_PRELOAD")),
    }
    if folder is not None:
        found[RUN] = str(folder)
    if sanitized:
        given = os.environ.get("ASAN_OPTIONS")
        found["ASAN_OPTIONS"] = f"{given}:{_ANY_ORDER}" if given else _ANY_ORDER
    return found


def _ahead(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


@contextmanager
def serve(
    failures: Iterable[Failing] = (), removals: Iterable[Removal] = ()
) -> Iterator[tuple[Path, Server]]:
    """A private folder with the tree, and a server of RDMA-CM in it, until the end of the block.

    `failures` are calls of librdmacm that are to fail, `removals` devices that are to go.
    """
    base = _base()
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _naming(folder):
            _show_devices(folder)
            server = Server(str(folder / SOCKET), failures, removals)
        with server:
            yield folder, server
    finally:
        _remove(folder)
        os.close(lock)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Name the folder in errors of a full disk, which have no path."""
    try:
        yield
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT, EFBIG) or error.filename:
            raise
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _show_devices(folder: Path) -> None:
    """Write what programs are shown of all devices of this network namespace; each is opened once."""
    parts = (tree, netlink)
    for part in parts:
        part.make(folder)
    for number, device in enumerate(get_device_list()):
        with ExitStack() as stack:
            context = None
            with suppress(VerbsError):
                context = stack.enter_context(open_device(device))
            for part in parts:
                part.add(folder, number, device, context)


def _base() -> Path:
    """Where private folders are made: where it can be written, and paths are short enough for a socket."""
    places = [os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR"), "/tmp", "/dev/shm"]
    for place in filter(None, places):
        longest = Path(place) / f"{_PREFIX}{os.getpid()}-xxxxxxxx" / SOCKET
        fits = longest.is_absolute() and len(os.fsencode(longest)) <= _MOST_PATH
        if fits and os.access(place, os.W_OK | os.X_OK) and _free(place) >= _LEAST_FREE:
            return Path(place)
    raise OSError(
        EROFS, "no folder for files of rnic: let /tmp, /dev/shm or $TMPDIR be writable, with 1 MiB free"
    )


def _free(place: str) -> int:
    """Bytes that are free for anybody."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _remove(folder: Path) -> None:
    """Remove a folder and what is in it, as far as that goes. It takes one descriptor: few may be left."""
    for path, folders, files in os.walk(folder, topdown=False):
        for name in files + folders:
            one = Path(path, name)
            with suppress(OSError):
                one.unlink() if one.is_symlink() or name in files else one.rmdir()
    with suppress(OSError):
        folder.rmdir()


def _sweep(base: Path) -> None:
    """Remove what killed processes of this user have left."""
    for folder in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            about = folder.lstat()
            if about.st_uid == os.getuid() and time() - about.st_mtime > _NEW:
                _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    finally:
        os.close(lock)
