# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md says file by file where a change goes: those files exist, and have what it says of them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PATHS = sorted(
    {word for word in re.findall(r"`([\w./*-]+/[\w./*-]*)`", TEXT) if not word.startswith(".venv/")}
)


def test_paths_are_found_in_the_text() -> None:
    assert {"src/nic/nic_enums.h", "tests/api/test_seam.py", ".ci/run", "src/rnic/verbs/"} <= set(PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_is_named_exists(path: str) -> None:
    assert list(ROOT.glob(path.rstrip("/")))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^    make (\w+)", TEXT, re.MULTILINE))))
def test_a_make_target_that_is_named_exists(target: str) -> None:
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("src/nic/nic_enums.h", "#define RNIC_COUNTERS(X)"),
        ("src/nic/link/udp/udp.c", "RNIC_CNT_tx_too_long"),
        ("src/nic/nic.h", "struct rnic_ops {"),
        ("src/nic/verbs/device.c", "struct rnic_ops soft_ops = {"),
        ("src/nic/nic_ext.h", "struct rnic_ext_query {"),
        ("src/nic/providers.c", "VERB(poll_cq)"),
        ("src/rnic/_nic/nic.pxd", "struct rnic_ops:"),
        ("src/rnic/_nic/srq.pxi", "need_verb("),
        ("tests/conftest.py", "one_in(n)"),
        ("tests/docs/test_rooms.py", "PY_ROOMS"),
    ],
)
def test_a_file_has_what_is_said_to_be_in_it(path: str, words: str) -> None:
    assert words in (ROOT / path).read_text()
