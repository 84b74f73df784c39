# SPDX-License-Identifier: Apache-2.0
"""fio's engine "rdma": WRITE, READ and SEND between two processes for so long. fio compares nothing."""

import subprocess
import sys
import time
from itertools import cycle, takewhile

from ibverbs.programs import free_port

FIO = ("fio", "--name=job", "--ioengine=rdma", "--bs=64k", "--size=64m", "--output-format=terse")
LONGEST = 60  # seconds of a turn, which only one that hangs takes


def turn(verb: str, address: str) -> None:
    """A receiver and a sender, both of which end well. With SEND, fio needs more receives than sends."""
    words = [*FIO, f"--port={free_port()}", f"--verb={verb}"]
    receiver = [*words, "--rw=read", "--iodepth=16"]
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as receiving:
        try:
            assert receiving.stdout is not None
            assert any("waiting for connection" in line for line in receiving.stdout), (
                "the receiver has ended"
            )
            sender = [*words, "--rw=write", "--iodepth=4", f"--hostname={address}"]
            subprocess.run(sender, stdout=subprocess.DEVNULL, timeout=LONGEST, check=True)
            receiving.communicate(timeout=LONGEST)
            assert receiving.returncode == 0, "the receiver"
        finally:
            receiving.kill()


def main(seconds: str, address: str) -> None:
    until, turns = time.monotonic() + float(seconds), 0
    for verb in takewhile(lambda _: time.monotonic() < until, cycle(("write", "read", "send"))):
        turn(verb, address)
        turns += 1
    print(f"{turns} pairs of fio")


if __name__ == "__main__":
    main(*sys.argv[1:])
