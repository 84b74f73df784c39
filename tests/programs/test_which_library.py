# SPDX-License-Identifier: Apache-2.0
"""Programs that would find another libibverbs than rnic's: each gets rnic's under `rnic run`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, LIBRARY, OURS, compiled
from rnic.programs import elf
from rnic.testing.pytest import Run
from ucma.under import needs_libraries

pytestmark = needs_libraries

HASHED = "libibverbs-1de1263b.so.1.14.48.0"  # as auditwheel names a library that it puts into a wheel
RPATH, RUNPATH = "--disable-new-dtags", "--enable-new-dtags"
LEFT = """
#include <stddef.h>
struct ibv_device **ibv_get_device_list(int *count);
void ibv_free_device_list(struct ibv_device **list);
const char *ibv_get_device_name(struct ibv_device *device);
struct ibv_device **ibv_get_device_list(int *count) {
    static struct ibv_device *none;
    *count = 0;
    return &none;
}
void ibv_free_device_list(struct ibv_device **list) { (void)list; }
const char *ibv_get_device_name(struct ibv_device *device) { return (void)device, "none"; }
"""
"""A libibverbs that has no devices, as the system's where no driver is."""
VERSIONS = "IBVERBS_1.0 { global: *; }; IBVERBS_1.1 { global: ibv_*; } IBVERBS_1.0;"
LINKED = r"""
#include <infiniband/verbs.h>
#include <stdio.h>
int main(void) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    puts(count ? ibv_get_device_name(list[0]) : "no devices");
    ibv_free_device_list(list);
    return !count;
}
"""
LOADING = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int count;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library)
        return fprintf(stderr, "%d: %s\n", argc, dlerror()), 2;
    void **(*list)(int *) = (void **(*)(int *))dlsym(library, "ibv_get_device_list");
    const char *(*name)(void *) = (const char *(*)(void *))dlsym(library, "ibv_get_device_name");
    void **found = list(&count);
    puts(count ? name(found[0]) : "no devices");
    return !count;
}
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with a program's own libraries: libibverbs under its three names, without devices."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (tmp_path / "left.c").write_text(LEFT)
    (tmp_path / "left.map").write_text(VERSIONS)
    words: list[str | Path] = [
        "-shared",
        "-fPIC",
        tmp_path / "left.c",
        f"-Wl,--version-script={tmp_path / 'left.map'}",
    ]
    for name in ("libibverbs.so.1", HASHED):
        compiled(folder / name, *words, f"-Wl,-soname,{name}")
    (folder / "libibverbs.so").symlink_to("libibverbs.so.1")
    return folder


def linked(folder: Path, name: str, tags: str) -> Path:
    """A program that is linked with a library of this folder, which it finds there by itself."""
    source = folder.parent / "linked.c"
    source.write_text(LINKED)
    words = [OURS[0], f"-L{folder}", f"-l:{name}", "-Wl,-rpath,$ORIGIN/lib", f"-Wl,{tags}"]
    return compiled(folder.parent / "linked", source, *words)


def loading(folder: Path, tags: str) -> Path:
    """A program that loads a library by the name that it is given, and looks in this folder first."""
    source = folder.parent / "loading.c"
    source.write_text(LOADING)
    return compiled(folder.parent / "loading", source, "-Wl,-rpath,$ORIGIN/lib", f"-Wl,{tags}")


def finds_devices(rnic_run: Run, *command: object) -> None:
    program = rnic_run(*command, device=DEVICE)
    assert program.wait() == 0, program.output
    assert program.output == f"{DEVICE}\n"


@pytest.mark.parametrize("name", ["libibverbs.so.1", HASHED])
@pytest.mark.parametrize("tags", [RPATH, RUNPATH])
def test_linked_with_a_library_of_its_own(rnic_run: Run, other: Path, name: str, tags: str) -> None:
    program = linked(other, name, tags)
    assert subprocess.run([program], capture_output=True, check=False).stdout == b"no devices\n"
    finds_devices(rnic_run, program)


@pytest.mark.parametrize("name", ["libibverbs.so", "libibverbs.so.1", HASHED, "{}/libibverbs.so.1"])
@pytest.mark.parametrize("tags", [RPATH, RUNPATH])
def test_loaded_by_any_name(rnic_run: Run, other: Path, name: str, tags: str) -> None:
    program, name = loading(other, tags), name.format(other)
    assert subprocess.run([program, name], capture_output=True, check=False).stdout == b"no devices\n"
    finds_devices(rnic_run, program, name)


def test_a_wrapper_that_sets_the_path_of_libraries(rnic_run: Run, other: Path) -> None:
    program = linked(other, "libibverbs.so.1", RUNPATH)
    wrapper = other.parent / "wrapper"
    wrapper.write_text(f"#!/bin/sh\nexport LD_LIBRARY_PATH={other}\nexec {program}\n")
    wrapper.chmod(0o755)
    finds_devices(rnic_run, wrapper)


def test_python_that_loads_a_wheel(rnic_run: Run, other: Path) -> None:
    """The module has its libraries beside it, and is loaded by a path."""
    wheel = other.parent / "wheel.so"
    (other.parent / "wheel.c").write_text(LINKED.replace("main", "devices"))
    words: list[str | Path] = [
        OURS[0],
        other.parent / "wheel.c",
        f"-L{other}",
        f"-l:{HASHED}",
        "-Wl,-rpath,$ORIGIN/lib",
    ]
    compiled(wheel, "-shared", "-fPIC", *words, f"-Wl,{RPATH}")
    text = f"import ctypes; ctypes.CDLL({str(wheel)!r}).devices(); ctypes.CDLL(None).fflush(None)"
    finds_devices(rnic_run, sys.executable, "-c", text)


@pytest.mark.parametrize("tags", [RPATH, RUNPATH])
def test_other_libraries_are_loaded_as_the_program_says(rnic_run: Run, other: Path, tags: str) -> None:
    """dlopen() looks where the library that calls it says, not where the one in front of libc does."""
    shutil.copy(other / "libibverbs.so.1", other / "libown.so")
    program = rnic_run(loading(other, tags), "libown.so")
    assert program.wait() == 1
    assert program.output == "no devices\n"


def test_variables_for_a_shell_lead_there_too(other: Path) -> None:
    command = (
        f'eval "$({sys.executable} -m rnic run --env)" && {loading(other, RPATH)} {other}/libibverbs.so.1'
    )
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert done.stdout != "no devices\n"


def checked(program: Path) -> tuple[int, list[str]]:
    """What `rnic run --check` says."""
    words = [sys.executable, "-m", "rnic", "run", "--check", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


AHEAD = "rnic's library is loaded ahead of it"


@pytest.mark.parametrize("name", ["libibverbs.so.1", HASHED])
def test_check_says_which_library_is_used(other: Path, name: str) -> None:
    program = linked(other, name, RPATH)
    assert checked(program) == (
        0,
        [
            str(program),
            f"  {name}: {LIBRARY}",
            f"  there is also {other / name}: {AHEAD}",
            "  can run on rnic's devices",
        ],
    )


def test_check_names_what_wheels_bring(other: Path) -> None:
    folder = other.parent / "venv"
    wheel = folder / "lib/python3.11/site-packages/some.libs" / HASHED
    for file in (wheel, folder / "bin/python"):
        file.parent.mkdir(parents=True)
    wheel.symlink_to(other / HASHED)
    (folder / "bin/python").symlink_to(sys.executable)
    script = other.parent / "script"
    script.write_text(f"#!{folder}/bin/python\n")
    script.chmod(0o755)
    for program in (folder / "bin/python", script):
        status, lines = checked(program)
        assert status == 0
        assert f"  there is also {wheel}: {AHEAD}" in lines


def test_check_finds_a_library_that_the_loader_does_not_load_ahead(other: Path) -> None:
    """As where the program's own loader is older than the C library that rnic's libraries need."""
    program = linked(other, "libibverbs.so.1", RPATH)
    found = elf.check(program, Path("/proc/self/exe"), {}, LIBRARY)
    assert found.obstacles == [
        f"it finds {other / 'libibverbs.so.1'} first, and its loader does not load {LIBRARY} ahead of it"
    ]


def test_check_finds_versions_that_no_library_has(other: Path) -> None:
    (other.parent / "left.map").write_text("IBVERBS_9.9 { global: *; };")
    own = other / "libibverbs.so.1"
    words: list[str | Path] = [
        "-shared",
        "-fPIC",
        other.parent / "left.c",
        f"-Wl,--version-script={other.parent / 'left.map'}",
    ]
    compiled(own, *words, "-Wl,-soname,libibverbs.so.1")
    program = linked(other, "libibverbs.so.1", RPATH)
    status, lines = checked(program)
    assert status == 1
    assert any("version `IBVERBS_9.9' not found" in line for line in lines), lines
