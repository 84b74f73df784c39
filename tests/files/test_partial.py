# SPDX-License-Identifier: Apache-2.0
"""What an interrupted copy leaves, and who uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from rnic.files.options import CHUNK, SLOTS
from rnic.files.records import Open, digest
from rnic.files.tree import Tree
from rnic.files.writing import RESUMABLE, Partial

SIZE = (SLOTS + 4) * CHUNK
ENTRY = Open(0, 0o600, 10**18, SIZE, 1, b"big")
BLOCK = bytes(CHUNK)
DIGEST = digest(BLOCK)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    one = Tree(str(tmp_path))
    yield one
    one.close()


def partial(tree: Tree, chunks: int = 0, entry: Open = ENTRY) -> Partial:
    one = Partial(tree, (b"big",), entry)
    for number in range(chunks):
        one.expect(number * CHUNK, CHUNK)
        one.put(memoryview(BLOCK), number * CHUNK, DIGEST)
    return one


def killed(one: Partial) -> None:
    """Its process ended at once."""
    one._close()


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_what_a_killed_receiver_has_left_counts_but_for_the_last_chunks(tree: Tree) -> None:
    killed(partial(tree, SLOTS + 3))
    again = partial(tree)
    assert again.have(Event())[0] == 3 * CHUNK
    again.drop()


def test_all_that_is_left_counts_up_to_the_first_gap(tree: Tree) -> None:
    one = partial(tree, 3)
    for number in (3, 4, 5):
        one.expect(number * CHUNK, CHUNK)
    one.put(memoryview(BLOCK), 4 * CHUNK, DIGEST)
    one.drop(keep=True)
    again = partial(tree)
    assert again.have(Event())[0] == 3 * CHUNK
    again.begin(3 * CHUNK)
    again.drop(keep=True)
    again = partial(tree)
    assert again.have(Event())[0] == 3 * CHUNK
    again.drop()


@pytest.mark.parametrize(
    "other",
    [ENTRY._replace(mtime=1), ENTRY._replace(size=SIZE + 1)],
    ids=["of another time", "of another size"],
)
def test_another_file_does_not_use_it(tree: Tree, other: Open) -> None:
    partial(tree, SLOTS + 3).drop(keep=True)
    again = partial(tree, 0, other)
    assert again.have(Event())[0] == 0
    again.drop()


def test_chunks_of_a_file_that_has_failed_are_not_counted(tree: Tree) -> None:
    one = partial(tree)
    for number in range(5):
        one.expect(number, 1)
        one.put(memoryview(BLOCK)[:1], number, bytes(16))
    assert len(one._due) == 1
    one.drop()


def test_small_and_damaged_files_leave_nothing(tree: Tree, tmp_path: Path) -> None:
    partial(tree, 1, ENTRY._replace(size=RESUMABLE - 1)).drop(keep=True)
    damaged = partial(tree, 1)
    damaged.put(memoryview(BLOCK), 0, bytes(16))
    damaged.drop(keep=True)
    partial(tree, 1).drop()
    assert names(tmp_path) == []


def test_two_copies_of_one_file(tree: Tree, tmp_path: Path) -> None:
    """Each has a file of its own, and the one that ends last leaves none behind."""
    first, second = partial(tree, 1), partial(tree, 1)
    assert len(names(tmp_path)) == 2
    assert second.finish(no_clobber=False)
    first.drop(keep=True)
    assert names(tmp_path) == ["big"]
    first, second = partial(tree, 1), partial(tree, 1)
    first.drop(keep=True)
    assert second.finish(no_clobber=False)
    assert names(tmp_path) == ["big"]
    first, second = partial(tree, 1), partial(tree, 1)
    second.drop(keep=True)
    assert len(names(tmp_path)) == 2
    assert first.finish(no_clobber=False)
    assert names(tmp_path) == ["big"]


@pytest.mark.parametrize("what", ["link", "hard link", "folder", "fifo"])
def test_what_others_have_put_in_its_place_is_not_used(tree: Tree, tmp_path: Path, what: str) -> None:
    partial(tree, 1).drop(keep=True)
    (name,) = names(tmp_path)
    path, other = tmp_path / name, tmp_path / "other"
    path.unlink()
    other.write_bytes(b"precious")
    if what == "link":
        path.symlink_to(other)
    elif what == "hard link":
        path.hardlink_to(other)
    elif what == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    one = partial(tree, 1)
    assert one.finish(no_clobber=False)
    assert other.read_bytes() == b"precious"
    assert (tmp_path / "big").stat().st_size == SIZE


def test_no_clobber_at_the_last_moment(tree: Tree, tmp_path: Path) -> None:
    one = partial(tree, 1)
    (tmp_path / "big").write_text("first")
    assert not one.finish(no_clobber=True)
    assert (tmp_path / "big").read_text() == "first"
    assert names(tmp_path) == ["big"]
