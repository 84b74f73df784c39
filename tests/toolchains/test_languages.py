# SPDX-License-Identifier: Apache-2.0
"""Bindings of other languages to libibverbs: Go's cgo and Rust's bindgen, with both headers; Java's JNA."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, OURS
from packages import need, need_package
from ucma.under import Program, needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

HERE = Path(__file__).parent
SYSTEM = Path("/usr/include/infiniband/verbs.h")
HEADERS = {"rnic": OURS[:1], "rdma-core": []}
LINK = OURS[1:]
JNA = Path("/usr/share/java/jna.jar")
BINDGEN = "--allowlist-function ibv_.* --allowlist-type ibv_.* --no-prepend-enum-name --size_t-is-usize"


def make(*words: str | Path, **more: str) -> None:
    done = subprocess.run(words, env=os.environ | more, capture_output=True, text=True, check=False)
    if "Unable to find libclang" in done.stderr:
        need_package("libclang-dev")
    assert not done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module", params=HEADERS)
def flags(request: pytest.FixtureRequest) -> list[str]:
    """What a compiler needs for these headers."""
    if request.param == "rdma-core" and not SYSTEM.exists():
        need_package("libibverbs-dev")
    return HEADERS[request.param]


@pytest.fixture(scope="module")
def go(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("go", "golang-go")
    folder = tmp_path_factory.mktemp("go")
    how = {"GO111MODULE": "off", "GOCACHE": str(folder / "cache"), "CGO_LDFLAGS": " ".join(LINK)}
    how["CGO_CFLAGS"] = " ".join(["-O1", "-Wall", "-Werror", *flags])
    make("go", "build", "-o", folder / "pairs", HERE / "pairs.go", **how)
    return folder / "pairs"


@pytest.fixture(scope="module")
def bindings(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """verbs.h in Rust."""
    need("bindgen", "bindgen")
    need("rustc", "rustc")
    folder = tmp_path_factory.mktemp("rust")
    (folder / "all.h").write_text("#include <infiniband/verbs.h>\n")
    make("bindgen", folder / "all.h", *BINDGEN.split(), "-o", folder / "verbs.rs", "--", *flags)
    return folder / "verbs.rs"


def rust(bindings: Path, program: str, *more: str) -> Path:
    made = bindings.parent / program
    link = [word for flag in LINK for word in ("-C", f"link-arg={flag}")]
    make("rustc", "--edition=2021", *more, HERE / "pair.rs", "-o", made, *link, VERBS=str(bindings))
    return made


@pytest.mark.parametrize("local", ["on", "off"])
def test_go(go: Path, local: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", local)
    with Program(go, DEVICE, within=folder) as pairs:
        assert pairs.good() == "all is well\n"


def test_rust(bindings: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = rust(bindings, "pair", "-D", "warnings")
    for local in ("on", "off"):
        monkeypatch.setenv("RNIC_LOCAL", local)
        with Program(program, DEVICE, within=folder) as pair:
            assert pair.good() == "all is well\n"


def test_layouts_that_rust_computes(bindings: Path, folder: Path) -> None:
    """bindgen writes tests of each struct's size and places, as clang has them."""
    program = rust(bindings, "layouts", "--test", "-A", "unused")
    with Program(program, within=folder) as layouts:
        assert "0 failed" in layouts.good()


def test_java(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("javac", "default-jdk-headless")
    if not JNA.exists():
        need_package("libjna-java")
    make("javac", "-cp", JNA, "-d", tmp_path, HERE / "Pair.java")
    for local in ("on", "off"):
        monkeypatch.setenv("RNIC_LOCAL", local)
        with Program("java", "-cp", f"{JNA}:{tmp_path}", "Pair", DEVICE, within=folder) as pair:
            assert pair.good() == "all is well\n"
