# SPDX-License-Identifier: Apache-2.0
"""Which memory can be registered with which right: rnic and the kernel give the same answers."""

from __future__ import annotations

import shutil
import subprocess
from errno import EFAULT
from pathlib import Path

import pytest
from link import Link

from packages import need_package
from ucma.under import Program, needs_libraries

pytestmark = [pytest.mark.interop, needs_libraries]

HERE = Path(__file__).parent
DONE = "ok - each_mapping_with_each_right\n1 passed, 0 failed\n"
OLD = (6, 2)  # before it a kernel pinned memory without LOCAL_WRITE by FOLL_FORCE | FOLL_WRITE
FORCED = ["no right", "write alone", "a guard page", "a guard page, read", "a file, no right"]
"""What cannot be read, but is private: an old kernel registers a copy of its pages."""
NOT_FORCED = ["shared, read", "a file, shared, read"]
"""What can be read, but not written, and is shared: an old kernel refuses it."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rights.c."""
    made = tmp_path_factory.mktemp("rights") / "rights"
    check = HERE.parent / "c"
    words = ["cc", f"-I{check}", HERE / "rights.c", check / "check.c", "-o", made, "-libverbs"]
    if not shutil.which("cc") or subprocess.run(words, check=False).returncode:
        need_package("gcc", "libibverbs-dev")
    return made


def test_rnic(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Program(str(program)) as process:
        assert process.good() == DONE


def test_the_kernel(link: Link, program: Path) -> None:
    differs, _, end = link.guest.check(f"cd /run && {link.guest.put(program)}").partition("ok - ")
    assert "ok - " + end == DONE
    release = tuple(map(int, link.guest.check("uname -r").split(".")[:2]))
    expected = [*((name, 0) for name in FORCED), *((name, EFAULT) for name in NOT_FORCED)]
    rows = {f"{name}, access {right}: {error}" for name, error in expected for right in ("0x0", "0x4")}
    # A processor without protection keys reads what may only be executed.
    found = {line for line in differs.splitlines() if not line.startswith("execute alone")}
    assert found == (rows if release < OLD else set())
