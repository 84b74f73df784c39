# SPDX-License-Identifier: Apache-2.0
"""Registered memory that is kept from being swapped."""

from __future__ import annotations

import mmap
import random
import subprocess
import sys
from pathlib import Path

import rnic
from rnic.testing import ALL_ACCESS, End

PAGE = mmap.PAGESIZE


def locked() -> int:
    """Pages of this process that are locked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmLck:")).split()[1]) * 1024 // PAGE


def test_pages_stay_locked_while_any_locked_region_has_them() -> None:
    with End() as end, mmap.mmap(-1, 16 * PAGE) as memory:
        view = memoryview(memory)
        before = locked()
        parts = {"all": (0, 16), "low": (0, 4), "mid": (2, 10), "high": (8, 16)}

        def register(name: str) -> rnic.MR:
            start, stop = (PAGE * page for page in parts[name])
            return end.pd.reg_mr(view[start:stop], ALL_ACCESS, lock=True)

        low, mid = register("low"), register("mid")
        assert locked() - before == 10
        low.close()
        assert locked() - before == 8
        high, everything = register("high"), register("all")
        assert locked() - before == 16
        mid.close()
        assert locked() - before == 16
        everything.close()
        assert locked() - before == 8
        with end.pd.reg_mr(view[PAGE : 3 * PAGE], ALL_ACCESS):
            assert locked() - before == 8  # not asked for
        low, twin = register("low"), register("low")
        low.close()
        assert locked() - before == 12
        twin.close()
        high.close()
        assert locked() == before
        view.release()


def test_what_is_locked_is_the_union_of_all_regions() -> None:
    dice = random.Random(1)
    with End() as end, mmap.mmap(-1, 32 * PAGE) as memory:
        view = memoryview(memory)
        before, held = locked(), list[tuple[set[int], rnic.MR]]()
        for _ in range(500):
            if held and dice.random() < len(held) / 10:
                held.pop(dice.randrange(len(held)))[1].close()
            else:
                start = dice.randrange(32)
                stop = dice.randrange(start, 32) + 1
                piece = view[start * PAGE + 5 : stop * PAGE - 9]
                held.append((set(range(start, stop)), end.pd.reg_mr(piece, ALL_ACCESS, lock=True)))
            assert locked() - before == len(set[int]().union(*(pages for pages, _ in held)))
        for _, mr in held:
            mr.close()
        assert locked() == before
        del piece
        view.release()


def test_parts_of_pages_count_as_whole() -> None:
    with End() as end, mmap.mmap(-1, 4 * PAGE) as memory:
        view = memoryview(memory)
        before = locked()
        first = end.pd.reg_mr(view[10 : PAGE + 10], ALL_ACCESS, lock=True)
        second = end.pd.reg_mr(view[PAGE + 20 : PAGE + 30], ALL_ACCESS, lock=True)
        assert locked() - before == 2
        first.close()
        assert locked() - before == 1
        second.close()
        assert locked() == before
        view.release()


def test_memory_of_the_device_is_locked_too() -> None:
    with End() as end:
        before = locked()
        with end.pd.alloc_mr(3 * PAGE, ALL_ACCESS, lock=True) as mr:
            mr.buf[0] = 1
            assert locked() - before == 3
        assert locked() == before


def test_the_limit_is_named_with_its_cure() -> None:
    program = f"""
import errno, os, resource
import rnic
from rnic.testing import ALL_ACCESS, End
with End() as end:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, ({4 * PAGE}, {4 * PAGE}))
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)  # root may lock what it likes
    end.pd.alloc_mr({4 * PAGE}, ALL_ACCESS, lock=True).close()
    for call in (lambda: end.pd.alloc_mr({5 * PAGE}, ALL_ACCESS, lock=True),
                 lambda: end.pd.reg_mr(bytearray({9 * PAGE}), ALL_ACCESS, lock=True)):
        try:
            call()
        except rnic.VerbsError as error:
            assert error.errno == errno.ENOMEM
            assert "ulimit -l" in str(error) and "{4 * PAGE}" in str(error), error
        else:
            raise AssertionError
    end.pd.alloc_mr({4 * PAGE}, ALL_ACCESS, lock=True).close()
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
