# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel and initial file system: made once, kept in ~/.cache/rnic-interop ($RNIC_INTEROP_CACHE).

The kernel is Debian's own package, unpacked and never installed.  The initial file system holds only busybox
and the modules that every guest needs; all else the guest reads from this machine's root, siw (siw.py), too.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from . import siw
from .host import install, log, sh

MODULES = [
    *("virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p"),
    *("crc32_generic", "crc32c_intel", "libcrc32c", "rdma_rxe", "rdma_ucm", "sch_netem"),
]

# The kernel hands `agent=` of its command line to this script in the environment.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in /modules/*; do insmod $m || echo "insmod $m failed"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose root /host
for d in proc sys dev; do mount -o bind /$d /host/$d; done
mkdir -p /host/dev/shm
for d in dev/shm run; do mount -t tmpfs tmpfs /host/$d; done
ulimit -l unlimited
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 TMPDIR=/run HOME=/run
chroot /host /usr/bin/python3 -I "$agent"
poweroff -f
"""


def directory() -> pathlib.Path:
    return pathlib.Path(os.environ.get("RNIC_INTEROP_CACHE") or "~/.cache/rnic-interop").expanduser()


class Made(NamedTuple):
    kernel: pathlib.Path  # the image
    initrd: pathlib.Path
    siw: pathlib.Path  # the module


def prepare() -> Made:
    """What guests boot from and load, made when it is not there yet."""
    with _locked(directory()) as top:
        install()
        release = _kernel(top)
        image = top / f"kernel/boot/vmlinuz-{release}"
        return Made(image, _initrd(top, release), siw.module(top / "kernel", release))


@contextmanager
def _locked(top: pathlib.Path) -> Iterator[pathlib.Path]:
    top.mkdir(parents=True, exist_ok=True)
    with (top / "lock").open("w") as lock:  # two test runs must not fill it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield top


def _kernel(top: pathlib.Path) -> str:
    """Debian's newest kernel and what siw needs, unpacked in top/kernel; its release, as uname -r says it."""
    kernel, done = top / "kernel", top / "kernel/unpacked"
    if not done.exists():
        shutil.rmtree(kernel, ignore_errors=True)
        kernel.mkdir()
        sh("apt-get", "update")
        depends = sh("apt-cache", "depends", "linux-image-amd64")
        found = re.search(r"Depends: linux-image-(\S+)", depends)
        if not found:
            raise RuntimeError(f"linux-image-amd64 names no kernel:\n{depends}")
        log(f"downloading Debian's kernel {found[1]}")
        with tempfile.TemporaryDirectory(dir=top) as tmp:
            sh("apt-get", "download", "-o", "APT::Sandbox::User=root", f"linux-image-{found[1]}", cwd=tmp)
            deb = next(pathlib.Path(tmp).glob("*.deb"))
            version = sh("dpkg-deb", "-f", deb, "Version").strip()
            sh("dpkg", "-x", deb, kernel)
        siw.fetch(kernel, found[1], version)
        sh("depmod", "-b", kernel, found[1])
        done.write_text(found[1])
    return done.read_text()


def _initrd(top: pathlib.Path, release: str) -> pathlib.Path:
    initrd, made_of = top / "initrd.cpio", top / "initrd.made-of"
    recipe = f"{release}\n{MODULES}\n{INIT}"
    if initrd.exists() and made_of.exists() and made_of.read_text() == recipe:
        return initrd
    made_of.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=top) as tmp:
        root = pathlib.Path(tmp)
        for name in ("bin", "proc", "sys", "dev", "host", "modules"):
            (root / name).mkdir()
        shutil.copy("/bin/busybox", root / "bin")
        (root / "init").write_text(INIT)
        (root / "init").chmod(0o755)
        for i, module in enumerate(
            _modules(top / "kernel", release)
        ):  # the names sort into the order to load
            shutil.copy(module, root / f"modules/{i:03}-{module.name}")
        names = "\n".join(str(p.relative_to(root)) for p in sorted(root.rglob("*")))
        with initrd.open("wb") as out:  # not compressed: an emulated processor unpacks slowly
            cpio = ["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"]
            subprocess.run(cpio, input=names.encode(), stdout=out, cwd=root, check=True)
    made_of.write_text(recipe)
    return initrd


def _modules(kernel: pathlib.Path, release: str) -> list[pathlib.Path]:
    """The files of MODULES and of all that they need, in the order to load them."""
    shown = sh("modprobe", "-d", kernel, "-S", release, "-a", "--show-depends", *MODULES)
    return [pathlib.Path(p) for p in dict.fromkeys(re.findall(r"^insmod (\S+)", shown, re.M))]
