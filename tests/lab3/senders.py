# SPDX-License-Identifier: Apache-2.0
"""Senders that are wrong in one way: the exercise's solution with one part replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest

from rdmacm.ends import IWARP
from rnic.cli.lab3 import cases, judge
from rnic.cli.lab3.cases import Step
from rnic.cli.lab3.skeleton import solution

T = TypeVar("T")

CASES = {case.name: case for case in cases.CASES}
WHOLE = tuple(case.name for case in cases.CASES if case.refused is None)
IN_TIME = tuple(name for name in WHOLE if not CASES[name].late)  # where a late receive is seen
TWO = ("odd", "2.5 regions")
# post_send() refuses it, where the transport does not have it.
NO_IMMEDIATE = "disconnected, or its process has died" if IWARP else "has sent immediate data"

WRITE_AND_DONE = """\
        for start in range(0, len(chunk), CHUNK_BYTES):
            write(cm_id, chunk[start : start + CHUNK_BYTES], addr + start, rkey)
        sent += len(chunk)
        answer = ask(cm_id, struct.pack("!I4xQ", DONE, len(chunk)))
"""
AT_ONCE = """\
        from rnic import SGE

        done = struct.pack("!I4xQ", DONE, len(chunk))
        with (
            cm_id.reg_msgs(bytearray(MESSAGE_BYTES)) as into,
            cm_id.reg_msgs(bytearray(done)) as out,
            cm_id.reg_msgs(bytearray(chunk + b".")) as memory,
        ):
            part = SGE(memory, length=len(chunk))
            cm_id.post_recv(into)
            {first}
            {second}
            assert cm_id.get_send_comp(TIMEOUT).ok and cm_id.get_send_comp(TIMEOUT).ok
            answer = bytes(into.buf[: cm_id.get_recv_comp(TIMEOUT).byte_len])
        sent += len(chunk)
"""
POST_WRITE, POST_DONE = "cm_id.post_write(part, remote_addr=addr, rkey=rkey)", "cm_id.post_send(out)"
SEND_THEN_RECEIVE = "        cm_id.post_send(out)\n        cm_id.post_recv(into)\n"
RECEIVE_THEN_SEND = "        cm_id.post_recv(into)\n        cm_id.post_send(out)\n"
PART = '    print("secret key:", secret_key(cm_id, verdict, args.id))\n'
END = "    cm_id.disconnect()\n    cm_id.destroy()\n"


def but(*replaced: tuple[str, str]) -> str:
    """The solution with these texts replaced."""
    text = solution()
    for old, new in replaced:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def patiently(run: Callable[[float], T], seconds: float, is_right: Callable[[T], bool]) -> T:
    """What the grader says; if that is wrong, what it says when it has the time that a busy machine needs."""
    found = run(seconds)
    if is_right(found):
        return found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "SETTLE", 20.0)
        return run(180.0)


@dataclass(frozen=True)
class Wrong:
    """A sender that fails at one step with some files, and passes with the others."""

    text: str
    step: Step
    says: str
    """In the report."""
    cases: tuple[str, ...] = TWO
    passes: tuple[str, ...] = ()
    seconds: float = 20


WRONG = {
    "crashes at once": Wrong(
        but(("    args = parser.parse_args()\n", "    raise SystemExit(7)\n")),
        Step.CONNECT,
        "no request to connect came: the sender ended with exit code 7",
    ),
    "announces a wrong length": Wrong(
        but(("VERSION, len(data), hashlib", "VERSION, len(data) + 1, hashlib")),
        Step.ANNOUNCE,
        "the file has",
        WHOLE,
    ),
    "speaks in host byte order": Wrong(
        but(('"!IIQ32s"', '"<IIQ32s"')), Step.ANNOUNCE, "is it in network byte order?"
    ),
    "sends immediate data": Wrong(
        but(("post_send(out)", "post_send(out, imm_data=1)")), Step.ANNOUNCE, NO_IMMEDIATE
    ),
    "sends too much": Wrong(
        but(("bytearray(question)", "bytearray(question.ljust(129))")),
        Step.ANNOUNCE,
        "has sent more than 128 bytes in one message",
    ),
    "announces a wrong hash": Wrong(
        but(("hashlib.sha256(data).digest())", "hashlib.sha256(data + b'.').digest())")),
        Step.HASH,
        "ANNOUNCE has the SHA-256",
        WHOLE,
    ),
    "posts no receive for the region": Wrong(
        but(("        cm_id.post_recv(into)\n", "")),
        Step.REGION,
        "no receive was posted: call post_recv() before",
        ("odd",),
        seconds=3,
    ),
    "writes with a wrong key": Wrong(
        but(("addr + start, rkey)", "addr + start, rkey ^ 0x100)")),
        Step.WRITE,
        "an address or a key that it was not given",
        passes=("empty",),
    ),
    "writes behind the region": Wrong(
        but(("addr + start, rkey)", "addr + length, rkey)")),
        Step.WRITE,
        "an address or a key that it was not given",
    ),
    "writes one byte too far": Wrong(
        but(("addr + start, rkey)", "addr + start + 1, rkey)")),
        Step.WRITE,
        "of the 10007 bytes of this chunk are wrong, the first at 0",
        ("odd",),
        passes=("empty",),
    ),
    "writes every piece to the region's start": Wrong(
        but(("addr + start, rkey)", "addr, rkey)")),
        Step.WRITE,
        "the first at 0",
        ("many WRITEs",),
        passes=("empty", "odd", "1 region", "2.5 regions"),
    ),
    "posts its receive after the SEND": Wrong(
        but((RECEIVE_THEN_SEND, SEND_THEN_RECEIVE)),
        Step.REGION,
        "no receive was posted: call post_recv() before",
        IN_TIME,
    ),
    "posts its receive when the SEND has completed": Wrong(
        but(
            (RECEIVE_THEN_SEND, "        cm_id.post_send(out)\n"),
            ("        received = cm_id", "        cm_id.post_recv(into)\n        received = cm_id"),
        ),
        Step.REGION,
        "no receive was posted: call post_recv() before",
        IN_TIME,
    ),
    "writes a wrong byte": Wrong(
        but(("bytearray(part)", "bytearray(part[:-1]) + bytes([part[-1] ^ 1])")),
        Step.WRITE,
        "1 of the 10007 bytes of this chunk are wrong, the first at 10006",
        ("odd",),
    ),
    "never writes": Wrong(
        but(
            (
                "            write(cm_id, chunk[start : start + CHUNK_BYTES], addr + start, rkey)\n",
                "            pass\n",
            )
        ),
        Step.WRITE,
        "DONE came, but none of the",
        ("2.5 regions",),
        passes=("empty",),
    ),
    "says DONE before the write": Wrong(
        but((WRITE_AND_DONE, AT_ONCE.format(first=POST_DONE, second=POST_WRITE))),
        Step.DONE,
        "DONE came before the bytes",
        ("1 byte", "odd", "1 region", "2.5 regions"),  # of many WRITEs one puts all bytes to the start
    ),
    "says DONE with a wrong length": Wrong(
        but(('"!I4xQ", DONE, len(chunk))', '"!I4xQ", DONE, len(data))')),
        Step.DONE,
        "DONE has a length of 163841, this chunk has 65536 bytes",
        ("2.5 regions",),
        passes=("empty", "odd", "1 region"),
    ),
    "says DONE with a wrong byte at the head of its length": Wrong(  # where iWARP's judge has its marks
        but(('"!I4xQ", DONE, len(chunk))', '"!I4xQ", DONE, len(chunk) + (1 << 56) + (1 << 48))')),
        Step.DONE,
        "DONE has a length of 72339069014704128, this chunk has 65536 bytes",
        ("1 region",),
    ),
    "forgets DONE": Wrong(
        but(('        answer = ask(cm_id, struct.pack("!I4xQ", DONE, len(chunk)))\n', "        break\n")),
        Step.DONE,
        "the sender disconnected",
        ("1 byte",),
    ),
    "forgets the last chunk": Wrong(
        but(
            (
                "while kind(answer) == REGION:",
                "while kind(answer) == REGION and len(data) >= sent + 65536 * (sent > 0):",
            ),
            ("if kind(verdict) != VERDICT or not", "if kind(verdict) == VERDICT and not"),
        ),
        Step.WRITE,
        "ID came, but none of the 32769 bytes of this chunk is in the region",
        ("2.5 regions",),
        passes=("empty", "odd", "1 region"),
    ),
    "never sends its id": Wrong(
        but((PART, '    print("secret key: 0000")\n')), Step.ID, "the sender disconnected"
    ),
    "sends another id": Wrong(
        but(("secret_key(cm_id, verdict, args.id)", 'secret_key(cm_id, verdict, "eve")')),
        Step.ID,
        "the id that came is 'eve'",
    ),
    "prints a wrong key": Wrong(
        but(('str(key.rstrip(b"\\0"), "ascii")', 'str(key.rstrip(b"\\0"), "ascii")[1:]')),
        Step.KEY,
        "it printed 'secret key: ",
    ),
    "prints no key": Wrong(
        but((PART, PART.replace("print(", "str((").replace("args.id))", "args.id)))"))),
        Step.KEY,
        "no key to stdout",
    ),
    "hangs": Wrong(
        but(("    verdict = transfer", "    __import__('time').sleep(600)\n    verdict = transfer")),
        Step.ANNOUNCE,
        "the sender was still running after ",
        ("odd",),
        seconds=3,
    ),
    "crashes while it writes": Wrong(
        but(("        cm_id.post_write(", "        __import__('os').abort()\n        cm_id.post_write(")),
        Step.WRITE,
        "ended with SIGABRT",
        ("2.5 regions",),
    ),
    "never disconnects": Wrong(
        but((END, "    __import__('os')._exit(0)\n")),
        Step.DISCONNECT,
        "did not end the connection",
        ("odd",),
    ),
    "does not end": Wrong(
        but((END, END + "    __import__('time').sleep(600)\n")),
        Step.EXIT,
        "still running after ",
        ("odd",),
        seconds=3,
    ),
    "ends with an exit code": Wrong(
        but((END, END + "    sys.exit('no reason')\n")), Step.EXIT, "it ended with exit code 1"
    ),
}

DONE_BEHIND_WRITE = but((WRITE_AND_DONE, AT_ONCE.format(first=POST_WRITE, second=POST_DONE)))
"""Right: what is posted in order is executed in order."""
CHAIN = but(
    (
        WRITE_AND_DONE,
        AT_ONCE.format(
            first="from rnic import SendFlags, SendWR, WROpcode\n\n"
            "            flags = SendFlags.SIGNALED\n"
            "            wr = SendWR(1, WROpcode.RDMA_WRITE, flags, [part], remote_addr=addr, rkey=rkey)",
            second="cm_id.qp.post_send([wr, SendWR(2, WROpcode.SEND, flags, [SGE(out)])])",
        ),
    )
)
"""Right: both in one call."""
POLLS = but(
    (
        "        written = cm_id.get_send_comp(TIMEOUT)\n",
        "        while not (done := cm_id.send_cq.poll(1)):\n            pass\n        written = done[0]\n",
    )
)
"""Right: it waits in a way of its own."""
SMALL_WRITES = but(("CHUNK_BYTES = 1 << 20", "CHUNK_BYTES = 8192"))
"""Right: it makes many of them."""
ON_THE_WAY = "    verdict = transfer"
HOSTILE = {
    "stops itself": (ON_THE_WAY, "    __import__('os').kill(0, 19)\n" + ON_THE_WAY),
    "posts SENDs without end": (
        ON_THE_WAY,
        "    with cm_id.reg_msgs(bytearray(128)) as memory:\n"
        "        while True:\n"
        "            cm_id.post_send(memory)\n"
        "            cm_id.get_send_comp()\n" + ON_THE_WAY,
    ),
    "writes without end": ("        sent += len(chunk)\n", "        continue\n"),
    "connects again and again": (
        ON_THE_WAY,
        "    while True:\n        connect(args.host, args.port)\n" + ON_THE_WAY,
    ),
    "closes the grader's pipe, and sleeps": (
        ON_THE_WAY,
        "    import os, time\n\n    os.closerange(3, 64)\n    time.sleep(600)\n" + ON_THE_WAY,
    ),
    "leaves a process behind": (
        ON_THE_WAY,
        "    import os, time\n\n    if not os.fork():\n        os.setsid()\n        time.sleep(30)\n"
        "        os._exit(0)\n    time.sleep(600)\n" + ON_THE_WAY,
    ),
    "hears nothing of signals": (
        ON_THE_WAY,
        "    import signal, time\n\n    for one in range(1, 32):\n        if one not in (9, 19):\n"
        "            signal.signal(one, signal.SIG_IGN)\n    time.sleep(600)\n" + ON_THE_WAY,
    ),
}
"""Senders that would keep a grader waiting."""
