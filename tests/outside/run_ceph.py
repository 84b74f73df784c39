# SPDX-License-Identifier: Apache-2.0
"""Ceph: an OSD, its monitor and this client put and get random objects by RDMA for so long; compared."""

import json
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rados  # of Debian's Python

POOL, AT_ONCE, LARGEST = "objects", 16, 4 << 20
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")  # if librados aborts this process, for example
SETTINGS = """
[global]
fsid = {fsid}
mon_initial_members = a
mon_host = v2:{address}:3300
public_addr = {address}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_type = async+rdma
ms_async_rdma_device_name = {device}
ms_async_rdma_gid_idx = {gid_index}
ms_async_rdma_receive_queue_len = 512  # 128 MiB in each process; 4,096 if nothing is said
mon_data = {folder}/mon
mon_allow_pool_size_one = true
osd_data = {folder}/osd
osd_objectstore = memstore
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
client_mount_timeout = 60
rados_mon_op_timeout = 60
rados_osd_op_timeout = 60
run_dir = {folder}
log_file = {folder}/$name.log
"""


def gid_index(address: str, device: str) -> int:
    """The index of the GID that is the address: 0 can be another's, or an IPv6 address's that comes later."""
    ours = bytes(10) + b"\xff\xff" + bytes(map(int, address.split(".")))
    for gid in Path(f"/sys/class/infiniband/{device}/ports/1/gids").iterdir():
        if bytes.fromhex(gid.read_text().replace(":", "")) == ours:
            return int(gid.name)
    raise LookupError(f"{device} has no GID of {address}")


@contextmanager
def daemon(file: Path, kind: str, name: str, *more: str) -> Iterator[None]:
    """A daemon with a new store, in the foreground until the block ends."""
    (file.parent / kind).mkdir()
    words = [f"ceph-{kind}", "-i", name, f"--conf={file}"]
    subprocess.run([*words, "--mkfs", *more], check=True, timeout=60)
    with subprocess.Popen([*ENDS_WITH_US, *words, "-f"]) as process:
        try:
            yield
            assert process.poll() is None, f"ceph-{kind} has ended"
        finally:
            process.kill()


def ask(cluster: rados.Rados, prefix: str, **arguments: object) -> None:
    """Let the monitor do a command."""
    code, _, why = cluster.mon_command(json.dumps({"prefix": prefix, **arguments}), b"")
    assert code == 0, f"{prefix}: {why}"


def turn(objects: rados.Ioctx, rng: random.Random) -> int:
    """Objects of all lengths are put and got at once, and compared; their bytes."""
    sent = {f"object {i}": rng.randbytes(int(LARGEST ** rng.random())) for i in range(AT_ONCE)}
    puts = [objects.aio_write_full(name, content) for name, content in sent.items()]
    for put in puts:
        put.wait_for_complete_and_cb()
        assert put.get_return_value() == 0
    got: dict[str, bytes] = {}
    gets = [
        objects.aio_read(name, LARGEST, 0, lambda _, content, name=name: got.update({name: content}))
        for name in sent
    ]
    for get in gets:
        get.wait_for_complete_and_cb()
    assert got == sent
    return sum(map(len, sent.values()))


def main(seconds: str, address: str, device: str) -> None:
    until, rng, turns, length = time.monotonic() + float(seconds), random.Random(1), 0, 0
    osd, fsid = str(uuid.uuid4()), uuid.uuid4()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ceph.conf")
        index = gid_index(address, device)
        file.write_text(
            SETTINGS.format(fsid=fsid, address=address, device=device, gid_index=index, folder=folder)
        )
        with daemon(file, "mon", "a"), rados.Rados(conffile=str(file)) as cluster:
            ask(cluster, "osd new", uuid=osd)
            with daemon(file, "osd", "0", f"--osd-uuid={osd}"):
                ask(cluster, "osd pool create", pool=POOL, pg_num=8)
                with cluster.open_ioctx(POOL) as objects:
                    while not turns or time.monotonic() < until:
                        length += turn(objects, rng)
                        turns += 1
    print(f"{turns * AT_ONCE} objects, {length >> 20} MiB, put and got, are the same")


if __name__ == "__main__":
    main(*sys.argv[1:])
