# SPDX-License-Identifier: Apache-2.0
"""libfabric's fi_pingpong, which compares what it gets: both ends, again and again for so many seconds."""

import subprocess
import sys
import time
from itertools import cycle, takewhile

from busy import busy_processors
from ibverbs.programs import free_port, listens

ENDPOINTS = ("-p verbs;ofi_rxm -e rdm", "-p verbs;ofi_rxm -e rdm -m tagged", "-p verbs -e msg")
LONGEST = 60  # seconds of a turn, which only one that hangs takes


def turn(endpoint: str, address: str, device: str) -> None:
    """A server and its client, both of which end well."""
    port = free_port()
    words = f"fi_pingpong -c -I 100 -S 16384 {endpoint} -d {device}".split()
    with subprocess.Popen([*words, "-B", str(port)], stdout=subprocess.DEVNULL) as server:
        try:
            while not listens(port):
                assert server.poll() is None, "the server has ended"
                time.sleep(0.02)
            client = [*words, "-P", str(port), address]
            subprocess.run(client, stdout=subprocess.DEVNULL, timeout=LONGEST, check=True)
            assert server.wait(LONGEST) == 0, "the server"
        finally:
            server.kill()


def main(seconds: str, address: str, device: str) -> None:
    until, turns = time.monotonic() + float(seconds), 0
    with busy_processors():
        for endpoint in takewhile(lambda _: time.monotonic() < until, cycle(ENDPOINTS)):
            turn(endpoint, address, device)
            turns += 1
    print(f"{turns} pairs of fi_pingpong")


if __name__ == "__main__":
    main(*sys.argv[1:])
