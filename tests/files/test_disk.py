# SPDX-License-Identifier: Apache-2.0
"""Many files in one call: each ends as it would alone."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from conn.peers import descriptors
from rnic._disk import Found, New, disk

TIMES = [0, 1, -1, 10**18 + 7, -(10**18) - 7]  # ns; some are before 1970


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    found = os.open(tmp_path, os.O_PATH)
    yield found
    os.close(found)


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


@pytest.mark.parametrize("mtime", TIMES)
def test_what_is_stored_is_found_again(tmp_path: Path, folder: int, mtime: int) -> None:
    new = [New(b"%d" % size, os.urandom(size), 0o640 + size % 8, mtime) for size in (0, 1, 4096, 70_000)]
    assert disk.store(folder, b".new", new, True) == [0, 0, 0, 0]
    assert names_in(tmp_path) == ["0", "1", "4096", "70000"]
    contents, found = disk.load(folder, [one.name for one in new], 70_000, 200_000)
    assert contents == b"".join(one.content for one in new)
    assert found == [Found(len(one.content), stat.S_IFREG | one.mode, mtime) for one in new]


def test_each_has_an_end_of_its_own(tmp_path: Path, folder: int) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "old").write_text("old")
    names = [b"folder", b"a" * 256, b"missing/file", b"old", b"new"]
    new = [New(name, name, 0o600, 0) for name in names]
    before = descriptors()
    assert disk.store(folder, b".new", new, True) == [errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT, 0, 0]
    assert names_in(tmp_path) == ["folder", "new", "old"]
    assert (tmp_path / "old").read_text() == "old"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("old")
    names = [b"new", b"folder", b"missing", b"fifo", b"link", b"old"]
    contents, found = disk.load(folder, names, 100, 1000)
    assert found[1:5] == [disk.SINGLE, errno.ENOENT, disk.SINGLE, errno.ELOOP]
    assert [one.size for one in (found[0], found[5]) if isinstance(one, Found)] == [3, 3]
    assert contents == b"newold"
    assert descriptors() == before


def test_what_is_there_is_not_replaced_unless_it_may_be(tmp_path: Path, folder: int) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    new = [New(name, b"new", 0o600, 0) for name in (b"file", b"link", b"folder", b"free")]
    assert disk.store(folder, b".new", new, False) == [disk.TAKEN, disk.TAKEN, disk.TAKEN, 0]
    assert (tmp_path / "file").read_text() == "old"
    assert (tmp_path / "free").read_text() == "new"
    assert names_in(tmp_path) == ["file", "folder", "free", "link"]


def test_a_temporary_name_that_somebody_has_is_not_followed(tmp_path: Path, folder: int) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / ".new").symlink_to("secret")
    assert disk.store(folder, b".new", [New(b"file", b"x", 0o600, 0)], True) == [errno.EEXIST]
    assert (tmp_path / "secret").read_text() == "secret"


def test_what_does_not_fit_is_left_for_the_next_call(tmp_path: Path, folder: int) -> None:
    names = [b"%d" % number for number in range(10)]
    for name in names:
        (tmp_path / name.decode()).write_bytes(name * 100)
    contents, found = disk.load(folder, names, 100, 350)
    assert [one.size for one in found if isinstance(one, Found)] == [100, 100, 100]
    assert contents == b"0" * 100 + b"1" * 100 + b"2" * 100
    (tmp_path / "0").write_bytes(bytes(101))
    assert disk.load(folder, names[:1], 100, 350) == (b"", [disk.SINGLE])
    assert disk.load(folder, [], 100, 350) == (b"", [])
    assert disk.store(folder, b".new", [], True) == []
