# SPDX-License-Identifier: Apache-2.0
"""NVMe over RDMA: the client has a disk that is a file in the server's memory.

The server is nvmet, which is told by folders and files of configfs: a subsystem (what the client connects to)
with a namespace (the disk), and a port (where to listen). The client is nvme-rdma: `nvme connect` gives it
/dev/nvme0n1. Commands and their completions are SENDs. The server fetches what is to be written by RDMA READ,
unless it is short and came with the command, and gives what is to be read by RDMA WRITE.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from verify import same

from rnic.vm import Machine

TITLE = "NVMe over RDMA: nvmet-rdma serves a disk, nvme-rdma uses it"
PACKAGES = ["nvme-cli"]
MODULES = ["nvmet-rdma", "nvme-rdma", "loop"]
PORT = 4420

SERVE = """set -e
mount -t configfs none /sys/kernel/config
truncate -s 32M /run/disk
cd /sys/kernel/config/nvmet
mkdir subsystems/disk subsystems/disk/namespaces/1 ports/1
echo 1 >subsystems/disk/attr_allow_any_host
echo /run/disk >subsystems/disk/namespaces/1/device_path
echo 1 >subsystems/disk/namespaces/1/buffered_io  # a file in memory has no direct I/O
echo 1 >subsystems/disk/namespaces/1/enable
echo rdma >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo {ip} >ports/1/addr_traddr
echo {port} >ports/1/addr_trsvcid
ln -s $PWD/subsystems/disk ports/1/subsystems/
"""

USE = """set -e
nvme connect -t rdma -a {ip} -s {port} -n disk --nr-io-queues=1
until [ -b /dev/nvme0n1 ]; do sleep .1; done
mkfs.ext4 -q /dev/nvme0n1
mkdir /run/mounted
mount /dev/nvme0n1 /run/mounted
head -c 1000000 /dev/urandom >/run/file
cp /run/file /run/mounted/file
umount /run/mounted  # so that what is read below comes from the server
mount /dev/nvme0n1 /run/mounted
sha256sum /run/file /run/mounted/file
umount /run/mounted
nvme disconnect -n disk
"""

LOOK = """set -e
mkdir /run/seen
mount -o loop,ro /run/disk /run/seen
sha256sum /run/seen/file
umount /run/seen
"""


def show(server: Machine, client: Machine) -> Iterator[str]:
    """Serve a disk, write a file on it and read it back, and look for it in the server's memory."""
    server.check(SERVE.format(ip=server.ip, port=PORT))
    yield f"{server.ip} serves a disk of 32 MiB at port {PORT}"
    used = client.check(USE.format(ip=server.ip, port=PORT))
    yield f"{client.ip}: connect, mkfs.ext4, mount, write 1000000 bytes, umount, mount, read, disconnect"
    digest = same(client=used, server=server.check(LOOK))
    yield f"verified: written, read back and in the server's memory: SHA-256 {digest[:16]}"


def on_the_wire(_: Path) -> list[str]:
    """tshark's counts say all."""
    return []
