# SPDX-License-Identifier: Apache-2.0
"""What a machine lacks is named in one line, with the Debian package that brings it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rnic

ROOT = Path(__file__).parents[2]


def check_build(path: Path, *args: str) -> tuple[int, list[str]]:
    """Run tools/check-build.sh with `path` as PATH; its exit code and lines of complaint."""
    shell = shutil.which("sh")
    assert shell
    done = subprocess.run(
        [shell, str(ROOT / "tools" / "check-build.sh"), *args],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


def program(path: Path, name: str, script: str) -> None:
    """A program that says what the test wants."""
    file = path / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A folder of programs with this interpreter and a compiler that is content with everything."""
    (tmp_path / "python3").symlink_to(sys.executable)
    program(tmp_path, "cc", "exit 0")
    return tmp_path


def test_good_machine_lacks_nothing() -> None:
    assert check_build(Path(os.environ["PATH"]), sys.executable) == (0, [])


def test_nothing_at_all_is_two_lines(tmp_path: Path) -> None:
    assert check_build(tmp_path) == (
        1,
        [
            "rnic: no Python: apt-get install python3 python3-dev python3-venv",
            "rnic: no C compiler: apt-get install gcc libc6-dev",
        ],
    )


def test_missing_compiler_is_one_line(good: Path) -> None:
    (good / "cc").unlink()
    status, lines = check_build(good, sys.executable)
    assert (status, lines) == (1, ["rnic: no C compiler: apt-get install gcc libc6-dev"])


def test_compiler_without_headers_is_one_line(good: Path) -> None:
    program(good, "cc", "exit 1")
    status, lines = check_build(good, sys.executable)
    assert (status, lines) == (1, ["rnic: no C library headers: apt-get install libc6-dev"])


def fake_python(path: Path, *, version: str = "python3.11", old: bool = False, venv: bool = True) -> str:
    """An interpreter with the answers that the script asks for."""
    answers = f"""case "$2" in
        *version_info\\ \\<*) exit {int(old)} ;;
        *'"%d.%d"'*) echo 3.9 ;;
        *python%d.%d*) echo {version} ;;
        *ensurepip*) exit {int(not venv)} ;;
        *include*) echo /no/such/folder ;;
    esac"""
    program(path, "python3", answers)
    return str(path / "python3")


def test_missing_headers_and_venv_are_named_for_the_interpreter(good: Path) -> None:
    (good / "python3").unlink()
    status, lines = check_build(good, fake_python(good, venv=False))
    assert status == 1
    assert lines == [
        "rnic: no venv for python3.11: apt-get install python3.11-venv",
        "rnic: no Python headers (/no/such/folder/Python.h): apt-get install python3.11-dev",
    ]


def test_old_python_is_one_line(good: Path) -> None:
    (good / "python3").unlink()
    status, lines = check_build(good, fake_python(good, old=True))
    assert status == 1
    assert len(lines) == 1
    assert "Python 3.11 or newer" in lines[0]
    assert lines[0].endswith("apt-get install python3.11 python3.11-dev python3.11-venv")


def test_every_module_is_installed() -> None:
    """meson.build names single files, and one that is forgotten is missed by nobody who has the sources."""
    installed = Path(rnic.__file__).parent
    source = ROOT / "src" / "rnic"
    modules = {path.relative_to(source) for path in source.rglob("*.py")}
    assert not [str(one) for one in modules if not (installed / one).is_file()]
