# SPDX-License-Identifier: Apache-2.0
"""The sdist is whole; a wheel is built from it and works where there is no compiler.

These take a build, so `make test` leaves them out: `make test ARGS=tests/packaging`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 1800  # seconds, on a machine that has other things to do
NOWHERE = {"PATH": "/nonexistent"}
SERVER = """
import rnic
with rnic.listen("127.0.0.1", 0) as listener:
    print(listener.port, flush=True)
    with listener.accept() as conn:
        conn.send(conn.recv()[::-1])
"""
NEW_MODULE = """
import pathlib, sys
from rnic.kmod import course
course.new("mine", "client", pathlib.Path(sys.argv[1]))
"""
CLIENT = """
import shutil, sys
import rnic
with rnic.connect("127.0.0.1", int(sys.argv[1])) as conn:
    conn.send(b"olleh")
    print(conn.recv().decode(), rnic.__file__.startswith(sys.prefix), shutil.which("cc"), shutil.which("gcc"))
"""


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheels` makes, for this Python alone."""
    if not (ROOT / ".git").exists():
        pytest.skip("the sdist is made of what git knows: this is no clone")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "tools.wheels", "--offline", "--dist", folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment, in which the wheel was installed without a compiler."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    pip = ["-m", "pip", "install", "--disable-pip-version-check", "--no-index", "--no-deps"]
    run(python, *pip, wheel, env=NOWHERE)
    return python


def test_sdist_has_every_file_that_is_committed(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    committed = run("git", "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")
    assert set(committed) - {""} <= inside


def test_wheel_is_named_after_the_oldest_glibc_that_will_do(wheel: Path) -> None:
    assert re.search(r"-manylinux_2_\d+_\w+(\.manylinux\w+)?\.whl$", wheel.name)


def test_wheel_has_every_module_and_no_source_of_the_extension(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    committed = run("git", "ls-tree", "-r", "-z", "--name-only", "HEAD", "src").split("\0")
    modules = {name.removeprefix("src/") for name in committed if name.endswith((".py", ".pyi", ".typed"))}
    assert modules <= set(names)
    sources = [name for name in names if name.endswith((".c", ".h", ".pyx", ".pxi", ".pxd", ".build"))]
    for_users = ("rnic/include/", "rnic/cli/lab3/skeleton.c", "rnic/kmod/course/")
    assert not [name for name in sources if not name.startswith(for_users)]


def test_wheel_has_what_c_programs_need(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"rnic/lib/libibverbs.so.1", "rnic/lib/librnic_preload.so"} <= names
    headers = {
        str(path.relative_to(ROOT / "src/ibverbs")) for path in ROOT.glob("src/ibverbs/include/**/*.h")
    }
    assert headers
    assert {f"rnic/{name}" for name in headers} <= names


def test_wheel_has_the_course_of_kernel_modules(wheel: Path, installed: Path, tmp_path: Path) -> None:
    committed = run("git", "ls-tree", "-r", "-z", "--name-only", "HEAD", "examples/kernel").split("\0")
    course = {name.replace("examples/kernel", "rnic/kmod/course") for name in committed if name}
    assert course
    assert course <= set(zipfile.ZipFile(wheel).namelist())
    run(installed, "-c", NEW_MODULE, tmp_path / "mine", env=NOWHERE)
    assert "EOPNOTSUPP" in (tmp_path / "mine/mine.c").read_text()


def test_two_processes_talk_where_there_is_no_compiler(installed: Path) -> None:
    with subprocess.Popen(
        [installed, "-c", SERVER], env=NOWHERE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        port = server.stdout.readline().strip()
        assert run(installed, "-c", CLIENT, port, env=NOWHERE).split() == ["hello", "True", "None", "None"]
        assert server.wait(LIMIT) == 0
