# SPDX-License-Identifier: Apache-2.0
"""Boot a guest, run each command in it, power it off.

With no command it only prepares the cache.  Exit status 77: the lab cannot run on this machine; one line
says why.
"""

from __future__ import annotations

import argparse
import signal
import sys

from . import cache
from .guest import Guest
from .host import NOT_RUN, log, missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.lab", description=__doc__)
    parser.add_argument("command", nargs="*", help="a shell command for the guest")
    parser.add_argument("--kind", choices=("rxe", "siw"), default="rxe", help="of its device (default rxe)")
    parser.add_argument("--mtu", type=int, default=1500, help="of the network device (default 1500)")
    parser.add_argument("--smp", type=int, default=1, help="processors of the guest (default 1)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each command (default 600)")
    args = parser.parse_intermixed_args()
    if why := missing():
        log(f"not run: this machine lacks {why}")
        return NOT_RUN
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the guest is closed
    if not args.command:
        print(*cache.prepare(), sep="\n")
        return 0
    rc = 0
    with Guest(mtu=args.mtu, kind=args.kind, smp=args.smp) as guest:
        for command in args.command:
            rc, out = guest.run(command, args.timeout)
            print(out, end="", flush=True)
            if rc:
                log(f"exit {rc}: {command}")
    return abs(rc)


if __name__ == "__main__":
    sys.exit(main())
