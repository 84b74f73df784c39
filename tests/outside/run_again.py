# SPDX-License-Identifier: Apache-2.0
"""`run_again.py SECONDS COMMAND...`: a command again and again for so long. It has to succeed each time."""

import subprocess
import sys
import time


def main(seconds: str, *command: str) -> None:
    until, times = time.monotonic() + float(seconds), 0
    while not times or time.monotonic() < until:
        subprocess.run(command, check=True)
        times += 1
    print(f"{times} times")


if __name__ == "__main__":
    main(*sys.argv[1:])
