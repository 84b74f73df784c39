# SPDX-License-Identifier: Apache-2.0
"""How many processors this process may use: by control groups, made up here, and by its affinity."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rnic._nic import nic

CODE = "from rnic._nic import nic; print(nic.processors())"


def quota(folder: Path, own: str, limits: dict[str, str]) -> float:
    """Of a process whose groups are `own`, in a tree with these files cpu.max."""
    for group, text in limits.items():
        at = folder / "cgroup" / group
        at.mkdir(parents=True, exist_ok=True)
        (at / "cpu.max").write_text(text)
    (folder / "own").write_text(own)
    return nic.cgroup_quota(str(folder / "cgroup"), str(folder / "own"))


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"a/b": "150000 100000\n"}, 1.5),
        ({"a/b": "50000 100000\n"}, 0.5),
        ({"a/b": "max 100000\n"}, 0),
        ({"a/b": "max 100000\n", "a": "200000 100000\n"}, 2),
        ({"a/b": "400000 100000\n", "a": "200000 100000\n"}, 2),
        ({"a/b": "100000 100000\n", "a": "200000 100000\n"}, 1),
        ({"a/b": "max 100000\n", "a": "max 100000\n", "": "300000 100000\n"}, 3),
        ({"a": "200000 100000\n"}, 2),
        ({"a/c": "100000 100000\n"}, 0),
        ({"a/b": "", "a": "200000 100000\n"}, 2),
        ({"a/b": "much 100000\n", "a": "200000 100000\n"}, 2),
        ({"a/b": "100000\n"}, 0),
        ({}, 0),
    ],
)
def test_the_least_of_the_limits_of_nested_groups_counts(
    tmp_path: Path, limits: dict[str, str], found: float
) -> None:
    assert quota(tmp_path, "0::/a/b\n", limits) == found


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("0::/\n", 2),
        ("0::/a\n", 1),
        ("0::/a:b\n", 1.5),
        ("4:cpu,cpuacct:/a\n3:memory:/a\n0::/a\n", 1),
        ("4:cpuset:/a\n3:memory:/a\n1:name=systemd:/a\n", 0),
        ("", 0),
        ("nonsense\n", 0),
    ],
)
def test_the_group_of_version_2_is_the_one_that_counts(tmp_path: Path, own: str, found: float) -> None:
    limits = {"": "200000 100000", "a": "100000 100000", "a:b": "150000 100000"}
    assert quota(tmp_path, own, limits) == found


@pytest.mark.parametrize(
    ("own", "files", "found"),
    [
        ("/a/b", {"a/b/cpu.cfs_quota_us": "150000", "a/b/cpu.cfs_period_us": "100000"}, 1.5),
        ("/a/b", {"a/b/cpu.cfs_quota_us": "-1", "a/b/cpu.cfs_period_us": "100000"}, 0),
        ("/a/b", {"a/cpu.cfs_quota_us": "50000", "a/cpu.cfs_period_us": "100000"}, 0.5),
        ("/seen/outside", {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}, 2),
        ("/a/b", {"a/b/cpu.cfs_quota_us": "150000"}, 0),
    ],
)
def test_version_1_has_two_files(tmp_path: Path, own: str, files: dict[str, str], found: float) -> None:
    for name, text in files.items():
        at = tmp_path / "cgroup" / "cpu,cpuacct" / name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(f"{text}\n")
    assert quota(tmp_path, f"5:memory:{own}\n4:cpu,cpuacct:{own}\n1:name=systemd:/\n", {}) == found


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert nic.cgroup_quota(str(tmp_path / "no"), str(tmp_path / "none")) == 0
    assert quota(tmp_path, "0::/a\n", {}) == 0


def test_a_process_on_one_processor_has_one() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert nic.processors() == 1
        done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        assert done.stdout == "1\n"
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_process_has_no_more_than_its_affinity_and_one_at_least() -> None:
    limit = nic.cgroup_quota()
    allowed = len(os.sched_getaffinity(0))
    assert nic.processors() == (max(1, min(allowed, int(limit))) if limit else allowed)
