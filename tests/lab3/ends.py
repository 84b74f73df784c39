# SPDX-License-Identifier: Apache-2.0
"""A receiver that leaves: `python ends.py STEP killed|leaves` prints its port and waits for a sender."""

from __future__ import annotations

import os
import signal
import sys

from rnic.cli.lab3.line import Line, answer
from rnic.cli.lab3.messages import Region, Type
from rnic.cli.lab3.protocol import Receiver, Send, key_of
from rnic.cli.lab3.receiver import REGION_ACCESS
from rnic.rdmacm import EventChannel, create_id

SIZE, LARGE = 1000, 32 << 20  # bytes of the region
SECONDS = 60.0  # that only a hang takes


def leave(how: str) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)


def serve(line: Line, step: str, how: str) -> None:
    """The receiver's part, up to where it leaves: when that message has come, or when REGION has gone out.

    That region is so large that the sender cannot be done with it yet.
    """
    mr = line.stack.enter_context(line.pd.alloc_mr(LARGE if step == "REGION" else SIZE, REGION_ACCESS))
    machine = Receiver(Region(mr.rkey, mr.addr, mr.length), lambda who: key_of(b"secret", who), 1 << 30)
    data = line.receive(step)
    while True:
        if step == Type(int.from_bytes(data[:4], "big")).name:
            leave(how)
        action = machine.receive(data)
        if not isinstance(action, Send):
            action = machine.stored(machine.sha256)
        assert isinstance(action, Send)
        line.expect()
        line.send(action.message, step)
        if step == "REGION":
            leave(how)
        data = line.receive(step)


def main(step: str, how: str) -> None:
    with EventChannel() as channel, create_id(channel) as listener:
        listener.bind_addr(("127.0.0.1", 0))
        listener.listen()
        print(listener.get_src_port(), flush=True)
        with channel.get_cm_event(SECONDS) as event:
            cm_id = event.id
        if step == "CONNECT":
            leave(how)
        with answer(cm_id, SECONDS) as line:
            serve(line, step, how)


if __name__ == "__main__":
    main(*sys.argv[1:])
