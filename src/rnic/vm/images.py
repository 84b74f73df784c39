# SPDX-License-Identifier: Apache-2.0
"""The machine's kernel and its first file system, made once and kept in the cache (paths.py).

The kernel is Debian's own package, unpacked and never installed. The first file system has only busybox and
the modules that every machine needs; all else the machine reads from this computer's root, siw (siw.py), too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rnic.vm import extras, kernel, lock, paths, siw, tools
from rnic.vm.cpio import Archive
from rnic.vm.host import BUSYBOX, log, search_path
from rnic.vm.job import MachineError
from rnic.vm.kernel import Kernel

PATIENCE = 3600.0  # seconds that another process may take to fill the cache, which may be a slow download
MODULES = [
    *("virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p"),
    *("crc32_generic", "crc32c_intel", "libcrc32c", "rdma_rxe", "rdma_ucm", "sch_netem"),
]

# The kernel hands `agent=`, `box=` and `modules=` of its command line to this script in the environment.  The
# root is mounted without a cache: a file that changes on the host has changed here, too.  In QEMU's user
# namespace root's files are nobody's, and a setuid program such as mount(8) would run as nobody: so nosuid.
# The kernel loads what modules it wants by /bin/load, as for a file system that is mounted; MODPROBE_OPTIONS
# is for all others.
INIT = r"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
hostname "$box"
for m in /modules/*; do insmod $m || echo "insmod $m failed"; done
mount -t 9p -o ro,nosuid,trans=virtio,version=9p2000.L,msize=512000,cache=mmap root /host
for d in proc sys dev; do mount -o bind /$d /host/$d; done
mkdir -p /host/dev/shm /host/dev/pts
mount -t devpts devpts /host/dev/pts
for d in dev/shm run; do mount -t tmpfs tmpfs /host/$d; done
ulimit -l unlimited
printf '#!/bin/sh\nexec chroot /host /sbin/modprobe -d "%s" "$@"\n' "$modules" >/bin/load
chmod 755 /bin/load; echo /bin/load >/proc/sys/kernel/modprobe
export MODPROBE_OPTIONS="-d $modules"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 TMPDIR=/run HOME=/run
chroot /host /usr/bin/python3 -I "$agent"
poweroff -f
"""


class Made(NamedTuple):
    """All of it."""

    kernel: Kernel
    initrd: Path
    siw: Path | None  # the module
    laid_over: Sequence[Path]  # folders of more packages, the uppermost first


def prepare(*, with_siw: bool = False, with_tools: bool = False, packages: Sequence[str] = ()) -> Made:
    """What machines boot from and load, made when it is not there yet."""
    with _locked(paths.cache()) as top:
        debian = kernel.fetch(top)
        module = siw.module(top, debian, kernel.headers(top, debian)) if with_siw else None
        laid_over = [extras.fetch(top, packages)] if packages else []
        if with_tools:
            kernel.headers(top, debian)
            laid_over += [extras.fetch(top, tools.PACKAGES), tools.links(debian)]
        return Made(debian, _initrd(top, debian), module, laid_over)


def headers() -> tuple[Kernel, Path]:
    """The kernel, and the folder to build modules for it with: make -C FOLDER M=..."""
    with _locked(paths.cache()) as top:
        debian = kernel.fetch(top)
        return debian, kernel.headers(top, debian)


def recipe(release: str) -> str:
    """What the first file system is made of."""
    return f"{release}\n{MODULES}\n{INIT}"


@contextmanager
def _locked(top: Path) -> Iterator[Path]:
    path = top / "lock"
    try:
        top.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        why = paths.useless(error, "XDG_CACHE_HOME")
        raise MachineError(f"no place for the kernel of machines: {why}") from None
    with file:  # two machines must not fill it at once
        lock.take(file.fileno(), path, PATIENCE, log)
        for left in top.glob(f"{tempfile.gettempprefix()}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield top


def _initrd(top: Path, debian: Kernel) -> Path:
    initrd, made_of = top / "initrd.cpio", top / "initrd.made-of"
    if initrd.exists() and made_of.exists() and made_of.read_text() == recipe(debian.release):
        return initrd
    made_of.unlink(missing_ok=True)
    busybox = shutil.which(BUSYBOX, path=search_path())
    assert busybox is not None
    new = top / "initrd.new"  # another machine may be booting from the old one
    with new.open("wb") as file:
        archive = Archive(file)
        for name in ("bin", "proc", "sys", "dev", "host", "modules"):
            archive.folder(name)
        archive.copy("bin/busybox", Path(busybox))
        archive.file("init", INIT.encode())
        for i, module in enumerate(kernel.modules(debian, MODULES)):  # the names sort into the order to load
            archive.copy(f"modules/{i:03}-{module.name}", module)
        archive.end()
    new.rename(initrd)
    made_of.write_text(recipe(debian.release))
    return initrd
