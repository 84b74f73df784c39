# SPDX-License-Identifier: Apache-2.0
"""A few seconds of chaos: nothing is found where nothing is, and what is planted is found."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chaos.director import Director, Member, Plan, listed, take
from chaos.payload import LEAST, Head, Kind, WrongBytes, claimed, compare, in_slot
from chaos.talk import SLOT, Host, Tally, blank, place
from chaos.ways import Way
from chaos.worker import Settings, Worker

TESTS = Path(__file__).resolve().parents[1]
PLANTED = {  # what is found of a planted fault, in the report
    "wrong_byte": "WrongBytes",
    "hang": "not within 5.0 s",
    "stuck": "has said nothing for 2.5 s",
    "leak": "given back all, and still has",
    "leftover": "left behind: socket @rnic/planted",
    "crash": "ended with -6, which nobody has asked for",
}


def chaos(*options: str, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(TESTS), "CHAOS_LIMIT": str(limit)}
    command = [sys.executable, "-m", "chaos", "--seed", "1", *options]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)


def test_a_few_seconds_of_chaos_find_nothing() -> None:
    done = chaos("--seconds", "3", "--members", "3")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.one_in(3)
@pytest.mark.parametrize("plant", PLANTED)
def test_chaos_finds_a_planted_fault(plant: str) -> None:
    if plant == "stuck" and not os.environ.get("RNIC_SOAK"):
        pytest.skip("RNIC_SOAK=1 takes it")
    first = 5.0 if plant in ("hang", "stuck", "leak") else 60.0
    seconds = "1" if plant in ("leak", "leftover") else "60"
    said = [
        PLANTED[plant],
        *([PLANTED["hang"]] if plant == "stuck" else []),
    ]  # by the other one
    for patience in sorted({first, 60.0}):  # on a busy machine it may be another thing that takes too long
        done = chaos("--seconds", seconds, "--members", "2", "--calm", "--plant", plant, limit=patience)
        print(done.stdout)
        if any(one in done.stdout for one in said):
            break
    assert done.returncode == 1
    assert any(one in done.stdout for one in said)
    assert "again: make chaos SEED=1" in done.stdout


@pytest.mark.parametrize("at", [0, 5, LEAST - 1, LEAST, 99])
def test_each_byte_of_a_message_counts(at: int) -> None:
    data = bytearray(Head(Kind.ECHO, 3, 4, length=100).whole())
    assert Head.read(bytes(data)) == Head(Kind.ECHO, 3, 4, length=100)
    data[at] ^= 0x10
    with pytest.raises((WrongBytes, ValueError)):
        Head.read(bytes(data))


def test_where_bytes_differ_is_told() -> None:
    with pytest.raises(WrongBytes, match=r"slot: byte 2 of 4 is 0x58, not 0x43: 5844"):
        compare(b"ABXD", b"ABCD", "slot")


class Silent:
    """An end that nobody talks to."""


def host(found: bytes) -> Host:
    """It knows of version 1 in slot 2, and finds something in its memory."""
    made = Host(Silent(), 9, Tally())  # type: ignore[arg-type]
    made.caller = 7
    memory = bytearray(place(4))
    blank(memory)
    made.memory, made.known = memory, bytearray(memory)
    memory[place(2) : place(2) + 500] = in_slot(7, 2, 1, 500)
    made.act(Head(Kind.LOOK, 7, 1, 2, 1, 500))
    memory[place(2) : place(2) + len(found)] = found
    return made


@pytest.mark.parametrize("came", [0, LEAST, 100, 299, 300])
def test_a_write_that_a_death_has_torn_is_part_of_the_next_version(came: int) -> None:
    host(in_slot(7, 2, 2, 300)[:came]).after()


@pytest.mark.parametrize("at", [LEAST, 250, 299, 300, 499, 500, SLOT - 1, SLOT])
def test_a_torn_write_hides_no_wrong_byte(at: int) -> None:
    made = host(in_slot(7, 2, 2, 300)[:100])
    made.memory[place(2) + at] ^= 0x01
    if at < 100:
        made.memory[place(2) + at] ^= 0x80
    with pytest.raises(WrongBytes):
        made.after()


def test_only_the_next_version_of_the_caller_is_believed() -> None:
    data = in_slot(7, 2, 2, 300)
    assert claimed(data, 7, 2, 2) == 300
    assert [claimed(data, *other) for other in ((8, 2, 2), (7, 1, 2), (7, 2, 3))] == [0, 0, 0]


def test_what_was_counted_is_told_by_its_kind() -> None:
    counts = {"did add": 2, "error LostError died": 1, "heard": 1000}
    assert listed(take(counts, "error ")) == "1 LostError died"
    assert listed(counts) == "2 did add, 1,000 heard"


class Ended:
    """A process for which it is all the same how a conversation ends."""

    def ended(self, what: str, error: BaseException | None) -> None: ...


def test_a_conversation_that_begins_while_a_way_ends_is_waited_for() -> None:
    way = Way(Ended())  # type: ignore[arg-type]
    asked, over = threading.Event(), threading.Event()

    def talk() -> None:
        over.wait()

    def serve() -> None:
        asked.wait()
        way.thread("host", talk)

    way.thread("server", serve)
    threading.Timer(0.1, asked.set).start()
    threading.Timer(0.3, over.set).start()
    assert way.stop() == []
    assert over.is_set()


SETTINGS = Settings(1, 1, 1, ("verbs",))


def files_of(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


def test_a_worker_is_limited_when_it_knows_and_no_sooner(tmp_path: Path) -> None:
    async def look() -> None:
        pipe = asyncio.subprocess.PIPE
        knows = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)  # says what it is told
        member, director = Member(SETTINGS, knows, tmp_path), Director(Plan(), tmp_path)
        before = files_of(knows.pid)
        director.descriptors(member)
        assert files_of(knows.pid) == before
        assert knows.stdout
        ((what, value),) = json.loads(await knows.stdout.readline()).items()
        director.hear(member, what, value)
        assert files_of(knows.pid) < before
        director.relieve(member)
        assert files_of(knows.pid) == before
        knows.kill()
        await knows.wait()

    asyncio.run(look())


def test_a_worker_says_that_it_knows_and_another_program_still_does(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, object]] = []
    begun: list[list[str]] = []
    monkeypatch.setattr(Worker, "say", lambda _, what, value=None: said.append((what, value)))
    monkeypatch.setattr(os, "execv", lambda _, arguments: begun.append(arguments))
    worker = Worker(SETTINGS)
    asyncio.run(worker.obey({"scarce": [7, 36]}))
    assert said == [("scarce", [7, 36])]
    worker.exec()
    assert Worker(Settings(**json.loads(begun[0][-1]))).scarce
