# SPDX-License-Identifier: Apache-2.0
"""examples/ci: what other projects copy, judged by the linters of its formats, and its tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from packages import need
from ucma.under import Program, needs_libraries

pytestmark = pytest.mark.own_way

LINTERS = {
    "yamllint": [
        "-d",
        "{extends: default, rules: {line-length: {max: 120}}}",
        "github.yml",
        "kubernetes.yaml",
    ],
    "check-jsonschema": ["--builtin-schema", "vendor.github-workflows", "github.yml"],
    "hadolint": ["Dockerfile"],
    "kubernetes-validate": ["--strict", "kubernetes.yaml"],
    "shellcheck": ["tests.sh"],
    "jactionlint": ["--profile", "correctness", "github.yml"],  # it calls shellcheck
}


@pytest.mark.parametrize("linter", LINTERS)
def test_linters(linter: str, root: Path) -> None:
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    found = shutil.which(linter, path=path)
    if found is None:
        pytest.skip(f"needs {linter}")
    done = subprocess.run(
        [found, *LINTERS[linter]],
        cwd=root / "examples/ci",
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_libraries
def test_tests_of_the_example(root: Path, folder: Path) -> None:
    for program, package in (
        ("ibv_devices", "ibverbs-utils"),
        ("ib_write_bw", "perftest"),
        ("rping", "rdmacm-utils"),
    ):
        need(program, package)
    with Program(root / "examples/ci/tests.sh", within=folder) as tests:
        assert "all tests passed" in tests.good()
