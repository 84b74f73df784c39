# SPDX-License-Identifier: Apache-2.0
"""Programs of their own, for what a test process cannot do to itself: to fork, to end, to be interrupted."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass

SECONDS = 300

# What every program begins with: one of each, connected to another of each, and something to post.
PRELUDE = """
import os, signal, sys, threading, time
import rnic
from rnic import *
from rnic.testing import *

def objects():
    ctx = rnic.open_device("roce_lo")
    pd = ctx.alloc_pd()
    channel = ctx.create_comp_channel()
    cq = ctx.create_cq(64, channel)
    mr = pd.alloc_mr(4096, ALL_ACCESS)
    a, b = (pd.create_qp(QPInitAttr(cq, cq)) for _ in range(2))
    connect(a, b)
    return ctx, pd, channel, cq, mr, a, b

def write(mr, wr_id=1):
    return SendWR(wr_id, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(mr, 0, 64)], mr.addr + 64, mr.rkey)
"""


@dataclass
class Ended:
    """How a program ended."""

    code: int
    out: str
    err: str


def start(program: str, *options: str) -> subprocess.Popen[str]:
    """The program, running; `options` are the interpreter's."""
    text = PRELUDE + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, *options, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> Ended:
    """Waits for the end; a program that hangs fails the test."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it hangs\n{out}\n{err}") from None
    return Ended(process.returncode, out, err)


def run(program: str, *options: str) -> Ended:
    return end(start(program, *options))
