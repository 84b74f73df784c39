# SPDX-License-Identifier: Apache-2.0
"""NFS over RDMA: the client mounts a folder that is in the server's memory.

The server is the kernel's nfsd; rpc.mountd tells it who may mount what. The client is the kernel's, too:
mount with the option rdma. Calls and replies are SENDs of RPC-over-RDMA (RFC 8166). A call that writes much
names memory of the client (a read chunk), which the server fetches by RDMA READ. A call that reads much names
memory (a write chunk), which the server fills by RDMA WRITE.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from verify import same

from rnic.vm import Machine

TITLE = "NFS over RDMA: nfsd serves a folder by RPC-over-RDMA (rpcrdma), the other machine mounts it"
PACKAGES = ["nfs-kernel-server"]
MODULES = ["rpcrdma", "nfsd", "nfsv4"]
PORT = 20049

# nfsd and its programs keep their state in /var/lib/nfs, and the machine's root is read-only.  rpc.nfsd
# refuses NFS version 4 without TCP.  A server begins with a grace period for the clients that it had before:
# this one had none.
SERVE = """set -e
mount -t tmpfs tmpfs /var/lib
mkdir -p /var/lib/nfs/v4recovery /run/share
touch /var/lib/nfs/etab
mount -t tmpfs tmpfs /run/share
mount -t nfsd nfsd /proc/fs/nfsd
exportfs -i -o rw,fsid=0,no_root_squash,no_subtree_check '*:/run/share'
rpc.mountd --no-nfs-version 3 --no-tcp --no-udp
rpc.nfsd --no-nfs-version 3 --no-udp --rdma={port} 2
echo Y >/proc/fs/nfsd/v4_end_grace
"""

USE = """set -e
mkdir /run/folder
mount -t nfs -o vers=4.2,rdma,port={port} {ip}:/ /run/folder
grep -q proto=rdma /proc/mounts
head -c 1000000 /dev/urandom >/run/data
cp /run/data /run/folder/file
umount /run/folder  # so that what is read below comes from the server
mount -t nfs -o vers=4.2,rdma,port={port} {ip}:/ /run/folder
sha256sum /run/data /run/folder/file
umount /run/folder
"""

END = """set -e
sha256sum /run/share/file
rpc.nfsd 0
pkill -x rpc.mountd
"""


def show(server: Machine, client: Machine) -> Iterator[str]:
    """Serve a folder, write a file in it and read it back, and look for it at the server."""
    server.check(SERVE.format(port=PORT))
    yield f"{server.ip} serves a folder at port {PORT}"
    used = client.check(USE.format(ip=server.ip, port=PORT))
    yield f"{client.ip}: mount -o rdma, write 1000000 bytes, umount, mount, read, umount"
    digest = same(client=used, server=server.check(END))
    yield f"verified: written, read back and in the server's folder: SHA-256 {digest[:16]}"


def on_the_wire(_: Path) -> list[str]:
    """tshark's counts say all."""
    return []
