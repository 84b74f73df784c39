# SPDX-License-Identifier: Apache-2.0
"""An echo wakes one thread at each end: the one that waits for it, and not the engine's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, environment, free_port, listens
from packages import need
from waiting import PATIENCE, until

ECHOES = 300
FEW_STOPS = ["-f", "--seccomp-bpf"]
BOTH = """
import os, sys
import rnic
from rnic import endpoint
SLEEPY = endpoint.Config(spin=0)
"""
SERVER = f"""
{BOTH}
with rnic.listen("127.0.0.1", 0, config=SLEEPY) as server:
    print(server.port, flush=True)
    with server.accept(60) as conn:
        for message in conn:
            conn.send(message)
"""
CLIENT = f"""
{BOTH}
with rnic.connect("127.0.0.1", int(sys.argv[1]), config=SLEEPY, timeout=60) as conn:
    def echoes(n):
        for _ in range(n):
            conn.send(b"12345678")
            assert conn.recv(60) == b"12345678"
    echoes(50)
    os.write(int(sys.argv[2]), b"begin")
    echoes({ECHOES})
    os.write(int(sys.argv[2]), b"end")
    for task in os.listdir("/proc/self/task"):
        print(task, open(f"/proc/self/task/{{task}}/comm").read().strip())
"""
SLEPT = re.compile(r"^(\d+) +(?:<\.\.\. )?(ppoll|poll|epoll_p?wait2?)(?: resumed>|\()(.*) = [1-9]")
LOOKS = re.compile(r", 0(, NULL, 8)?\)$")  # for no time: no sleep
WAYS = {"by shared memory": "on", "by the wire": "off"}


def need_strace() -> None:
    need("strace", "strace")
    tried = subprocess.run(
        ["strace", *FEW_STOPS, "-o", "/dev/null", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"strace may not trace: {tried.stderr.strip()}")


def woken(trace: str) -> dict[int, int]:
    """How often a descriptor has ended each thread's sleep, between the marks.

    Those of the engine, which looks up now and then, end by their time.
    """
    found: dict[int, int] = {}
    inside = False
    for line in trace.splitlines():
        if '"begin"' in line or '"end"' in line:
            inside = '"begin"' in line
        match = SLEPT.match(line)
        if inside and match and not (match[2] != "ppoll" and LOOKS.search(match[3].rstrip())):
            found[int(match[1])] = found.get(int(match[1]), 0) + 1
    return found


@pytest.mark.own_way
@pytest.mark.parametrize("way", WAYS)
def test_an_echo_wakes_the_thread_that_waits_and_no_other(way: str, tmp_path: Path) -> None:
    need_strace()
    env = {**os.environ, "RNIC_LOCAL": WAYS[way]}
    calls = "trace=ppoll,poll,epoll_wait,epoll_pwait,epoll_pwait2,write"
    with (
        (tmp_path / "marks").open("wb") as marks,
        subprocess.Popen(
            [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, env=env
        ) as server,
    ):
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            trace = tmp_path / "trace"
            client = subprocess.run(
                [
                    *("strace", *FEW_STOPS, "-qq", "-e", calls, "-e", "signal=none", "-o", str(trace)),
                    *(sys.executable, "-c", CLIENT, port, str(marks.fileno())),
                ],
                capture_output=True,
                text=True,
                env=env,
                timeout=PATIENCE,
                check=False,
                pass_fds=[marks.fileno()],
            )
            assert not client.returncode, client.stderr
        finally:
            server.kill()
    threads = dict(line.split(maxsplit=1) for line in client.stdout.splitlines())
    engines = [int(task) for task, name in threads.items() if name == "rnic-engine"]
    main = min(map(int, threads))
    found = woken(trace.read_text())
    print(found, threads)
    assert len(engines) == 1
    assert 0 < found[main] <= 1.3 * ECHOES, "the program is woken more than once for an echo"
    assert found.get(engines[0], 0) <= 0.3 * ECHOES, "the engine is woken, too"


@pytest.mark.own_way
@pytest.mark.parametrize("way", WAYS)
def test_an_event_wakes_the_thread_that_waits_and_no_other(way: str, tmp_path: Path) -> None:
    """The completion of a SEND has an event, too.  (Who has mistakes explained does not drive.)"""
    need_strace()
    need("ibv_rc_pingpong", "ibverbs-utils")
    port, env = str(free_port()), environment(RNIC_LOCAL=WAYS[way], RNIC_VERBS_DEBUG="0")
    command = ["ibv_rc_pingpong", "-d", DEVICE, "-g", "0", "-e", "-n", str(ECHOES), "-s", "8", "-p", port]
    trace = tmp_path / "trace"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env) as server:
        try:
            until(lambda: listens(int(port)) or server.poll() is not None, "the server listens")
            traced = [
                "strace",
                *FEW_STOPS,
                "-qq",
                "-e",
                "trace=ppoll,poll,epoll_wait,epoll_pwait",
                "-o",
                str(trace),
            ]
            client = subprocess.run(
                [*traced, *command, "127.0.0.1"],
                env=env,
                stdout=subprocess.DEVNULL,
                timeout=PATIENCE,
                check=False,
            )
            assert not client.returncode
        finally:
            server.kill()
    found = woken('"begin"\n' + trace.read_text())
    main = min(found)
    print(found)
    assert 0 < found.pop(main) <= 2.3 * ECHOES, "the program is woken more than once for an event"
    assert sum(found.values()) <= 0.3 * ECHOES, "the engine is woken, too"


WAITS = """
import asyncio, os, sys, threading
import rnic, rnic.aio
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
FACE, MARKS = sys.argv[1], int(sys.argv[2])
def mark(what):
    os.write(MARKS, what)
async def task(port):
    conn = await rnic.aio.connect("127.0.0.1", port)
    await conn.recv()
    mark(b"begin")
    try:
        await asyncio.wait_for(conn.recv(), 1)
    except TimeoutError:
        mark(b"end")
    await conn.close()
def thread(port):
    with rnic.connect("127.0.0.1", port) as conn:
        conn.recv()
        mark(b"begin")
        try:
            conn.recv(1)
        except TimeoutError:
            mark(b"end")
def serve(conn):
    conn.send(b"one")
    for message in conn:
        conn.send(message)
with rnic.listen("127.0.0.1", 0) as server:
    threading.Thread(target=server.serve, args=(serve,)).start()
    asyncio.run(task(server.port)) if FACE == "aio" else thread(server.port)
"""


@pytest.mark.own_way
@pytest.mark.parametrize("face", ["sync", "aio"])
def test_with_one_processor_others_have_it_before_a_sleep_and_then_it_sleeps(
    face: str, tmp_path: Path
) -> None:
    """A wait in vain yields four or eight times, fewer beside other programs, and then sleeps."""
    need_strace()
    trace = tmp_path / "trace"
    with (tmp_path / "marks").open("wb") as marks:
        done = subprocess.run(
            [
                *("strace", *FEW_STOPS, "-qq", "-e", "trace=sched_yield,write", "-e", "signal=none"),
                *("-o", str(trace), sys.executable, "-c", WAITS, face, str(marks.fileno())),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            pass_fds=[marks.fileno()],
        )
        assert not done.returncode, done.stderr
    text = trace.read_text()
    waited = text[text.index('"begin"') : text.index('"end"')].splitlines()
    main = text.split(maxsplit=1)[0]
    yields = sum(line.startswith(f"{main} ") and "sched_yield" in line for line in waited)
    assert yields <= 20
