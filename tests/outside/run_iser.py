# SPDX-License-Identifier: Apache-2.0
"""iSER: tgtd has a disk, and qemu-io writes to it, reads and compares, for so many seconds."""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB, REQUEST = 16, 256 << 10  # libiscsi has requests of less than 512 KiB
TARGET, INITIATOR = "iqn.2026-11.org.example:disk", "iqn.2008-11.org.linux-kvm"  # the second is qemu-io's
SETS_UP = (
    f"target --op new --tid 1 --targetname {TARGET}",
    "logicalunit --op new --tid 1 --lun 1 --backing-store {disk}",
    f"target --op bind --tid 1 --initiator-name {INITIATOR}",
    "target --op bind --tid 1 --initiator-address ALL",
)


def tgtadm(words: str) -> bool:
    done = subprocess.run(["tgtadm", "--lld", "iser", "--mode", *words.split()], capture_output=True)
    return done.returncode == 0


def qemu_io(url: str, commands: list[str]) -> None:
    """Let it do the commands; it compares what it reads with the pattern of the command."""
    words = [word for command in commands for word in ("-c", command)]
    done = subprocess.run(
        ["qemu-io", "-f", "raw", *words, url], timeout=120, check=True, capture_output=True, text=True
    )
    assert done.stdout.count(" ops;") == len(commands), done.stdout
    assert "fail" not in done.stdout, done.stdout


def main(seconds: str, address: str) -> None:
    """Port 3260 is iSER's; tgtd has iSCSI by TCP as well, and gets another port for that."""
    until, rounds, rng = time.monotonic() + float(seconds), 0, random.Random(1)
    places = range(0, MIB << 20, REQUEST)
    with tempfile.TemporaryDirectory() as folder:
        disk = Path(folder, "disk")
        disk.write_bytes(bytes(MIB << 20))
        with subprocess.Popen(
            ["tgtd", "-f", "--iscsi", f"portal={address}:3270", "--iser", "port=3260"]
        ) as server:
            try:
                while not tgtadm("target --op show"):
                    assert server.poll() is None, "tgtd has ended"
                    time.sleep(0.1)
                assert all(tgtadm(words.format(disk=disk)) for words in SETS_UP)
                while not rounds or time.monotonic() < until:
                    content = {place: rng.randrange(1, 256) for place in places}
                    for verb in "write", "read":
                        url = f"iser://{address}:3260/{TARGET}/1"
                        qemu_io(
                            url, [f"{verb} -P {byte} {place} {REQUEST}" for place, byte in content.items()]
                        )
                    assert disk.read_bytes() == b"".join(bytes([byte]) * REQUEST for byte in content.values())
                    rounds += 1
            finally:
                server.kill()
    print(f"{rounds} disks of {MIB} MiB, written and read, are the same")


if __name__ == "__main__":
    main(*sys.argv[1:])
