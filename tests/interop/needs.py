# SPDX-License-Identifier: Apache-2.0
"""What this computer must have for the interop tests beside what every machine needs (rnic.vm.host).

    python tests/interop/needs.py      installs what is missing, and makes what guests boot from

Exit status 77: the tests cannot run on this computer; one line says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from rnic.vm import host, images

NOT_RUN = 77  # the exit code of "the tests could not be run here", as automake and meson read it

PACKAGES = [
    *host.PROGRAMS.values(),
    *host.FOR_SIW.values(),
    *("tcpdump", "tshark"),
    # the guest
    *("ibverbs-utils", "ibverbs-providers", "rdmacm-utils", "perftest", "python3-pyverbs"),
]


EXTRA = ["nvme-cli", "nfs-kernel-server"]  # for machines alone


def missing() -> str:
    """What keeps the tests from running on this computer, in one line; "" when nothing does."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root (to make a tap device in the network of the tests)")
    packages = _not_installed()
    can_install = os.geteuid() == 0 and shutil.which("apt-get")
    if packages and not can_install:
        lacks.append(f"the programs of Debian's packages {', '.join(packages)}")
    elif not packages and (why := host.missing(siw=True)):
        lacks.append(why)
    return "; ".join(lacks)


def install() -> None:
    """Install the Debian packages that this computer lacks."""
    packages = _not_installed()
    if packages:
        print(f"interop: apt-get install {' '.join(packages)}", file=sys.stderr, flush=True)
        host.sh("apt-get", "update")
        host.sh("apt-get", "install", "-y", "--no-install-recommends", *packages)


def prepare() -> None:
    """Install what is missing, and make what guests boot from."""
    install()
    if why := host.missing(siw=True):
        raise RuntimeError(f"this computer lacks {why}")
    images.prepare(
        with_siw=True, with_tools=True, packages=EXTRA
    )  # now: the tests have a network of their own


def _not_installed() -> list[str]:
    packages = sorted(set(PACKAGES))
    if not shutil.which("dpkg-query"):
        return packages
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    status = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    return [p for p in packages if f"{p} installed" not in status]


def main() -> int:
    if why := missing():
        print(f"interop: not run: this computer lacks {why}", file=sys.stderr)
        return NOT_RUN
    prepare()
    return 0


if __name__ == "__main__":
    sys.exit(main())
