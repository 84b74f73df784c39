# SPDX-License-Identifier: Apache-2.0
"""What a machine needs to build kernel modules in it, and the programs that users of RDMA look for.

The programs are Debian packages (extras.py). The kernel's headers, its build tools and its modules are in the
cache already; links put them where a Debian system has them: make -C /lib/modules/$(uname -r)/build M=...
"""

from __future__ import annotations

from pathlib import Path

from rnic.vm.kernel import Kernel

PACKAGES = (
    *("gcc", "make", "libelf1"),  # the kernel's own build tools need libelf
    *("ibverbs-utils", "ibverbs-providers", "rdmacm-utils", "perftest"),
)


def links(kernel: Kernel) -> Path:
    """A folder of links to the unpacked kernel and its headers, to be laid over /usr."""
    folder = kernel.top / "links"
    for kind, place in (("lib/modules", "*"), ("usr/lib", "linux-kbuild-*"), ("usr/src", "*")):
        for path in (kernel.top / kind).glob(place):
            link = folder / ("usr" if kind.startswith("lib") else "") / kind / path.name
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.is_symlink() and link.readlink() != path:  # the cache was elsewhere then
                link.unlink()
            if not link.is_symlink():
                link.symlink_to(path)
    return folder
