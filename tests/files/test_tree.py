# SPDX-License-Identifier: Apache-2.0
"""Nothing outside of a folder is reached from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conn.peers import descriptors
from forked import FORKS
from rnic.files.packs import Small
from rnic.files.tree import Tree, split
from rnic.files.writing import Target, dress_folder, store


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "in/file").write_text("file")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "in/link").symlink_to("file")
    (root / "up").symlink_to("..")
    os.mkfifo(root / "fifo")
    one = Tree(str(root))
    yield one
    one.close()


def small(text: bytes = b"new") -> Small:
    return Small(0, 0o4644, 0, len(text), b"", text)


def test_paths_are_parted() -> None:
    assert split(b"/a//./b/") == (b"a", b"b")
    assert split(b"") == ()
    for wrong in (b"..", b"a/../b", b"a/..", b"a\0b"):
        with pytest.raises(ValueError, match="leads out"):
            split(wrong)


@pytest.mark.parametrize(
    "path", [b"out/secret", b"up/outside/secret", b"in/link", b"out", b"fifo", b"in", b""]
)
def test_links_and_what_is_no_file_are_not_opened(tree: Tree, path: bytes) -> None:
    with pytest.raises(OSError, match=r"link|regular|directory|Too many"):
        tree.open(split(path))


@pytest.mark.parametrize("path", [b"out/new", b"up/new", b"out/deeper/new"])
def test_nothing_is_stored_behind_a_link(tree: Tree, tmp_path: Path, path: bytes) -> None:
    before = sorted(tmp_path.rglob("*"))
    (why,) = store(tree, [(split(path), small())], False)
    assert isinstance(why, str)
    assert "link" in why or "No such" in why
    with pytest.raises(OSError, match=r"link|No such"):
        tree.make_folder(split(path))
    with pytest.raises(OSError, match=r"link|exists|directory"):
        tree.make_folder(split(path)[:1])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_is_replaced_and_not_followed(tree: Tree, tmp_path: Path) -> None:
    assert store(tree, [((b"in", b"link"), small())], False) == [True]
    assert (tmp_path / "root/in/file").read_text() == "file"
    new = tmp_path / "root/in/link"
    assert not new.is_symlink()
    assert new.read_text() == "new"
    assert new.stat().st_mode & 0o7777 == 0o644  # without set-user-ID


def test_a_folder_becomes_a_link_meanwhile(tree: Tree, tmp_path: Path) -> None:
    """What was opened once is gone on with; what is opened anew is not the link's."""
    tree.folder((b"in",))
    (tmp_path / "root/in").rename(tmp_path / "root/gone")
    (tmp_path / "root/in").symlink_to(tmp_path / "outside")
    assert store(tree, [((b"in", b"x"), small())], False) == [True]
    assert (tmp_path / "root/gone/x").exists()
    with pytest.raises(OSError, match="link"):
        Tree.folder(other := Tree(str(tmp_path / "root")), (b"in",))
    other.close()


def test_deep_and_many_folders(tmp_path: Path) -> None:
    before = descriptors()
    tree = Tree(str(tmp_path))
    parts: tuple[bytes, ...] = ()
    for _ in range(200):
        parts = (*parts, b"d")
        assert tree.make_folder(parts)
    assert descriptors() < before + 20
    assert store(tree, [((*parts, b"f"), small())], False) == [True]
    tree.close()
    assert descriptors() == before


def put_and_do_not_list(folder: Path) -> None:
    """As a user that may not list: in a process of its own, whose memory peers do not reach any more."""
    os.chdir(folder)
    trees = [Tree(".")]
    if os.geteuid() == 0:
        os.seteuid(65534)
    trees.append(Tree("drop"))
    for tree, parts in ((trees[0], (b"drop", b"deep", b"f")), (trees[1], (b"deep", b"g"))):
        assert store(tree, [(parts, small())], False) == [True]
        os.close(tree.open(parts)[0])
        assert tree.make_folder((*parts[:-1], b"new" + parts[-1]))
        dress_folder(tree, (*parts[:-1], b"new" + parts[-1]), 0o644, 10**18)
        with pytest.raises(PermissionError):
            tree.inside(parts[:-1])
        tree.close()


def test_to_pass_a_folder_takes_no_right_to_list_it(tmp_path: Path) -> None:
    (tmp_path / "drop/deep").mkdir(parents=True)
    for one in ("drop", "drop/deep"):
        (tmp_path / one).chmod(0o333)
    tmp_path.chmod(0o711)
    other = FORKS.Process(target=put_and_do_not_list, args=(tmp_path,))
    other.start()
    other.join()
    assert other.exitcode == 0
    for name in ("newf", "newg"):
        status = (tmp_path / "drop/deep" / name).stat()
        assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o644, 10**18)


@pytest.mark.parametrize("path", [b"a/../b", b"..", b"/a", b"a//b", b"", b"a/./b", b"a\0", b"other"])
def test_a_sender_places_nothing_elsewhere(tree: Tree, path: bytes) -> None:
    with pytest.raises(ValueError, match=r"leads out|contains|asked"):
        Target(tree, (), [b"a"]).place(path)


def test_where_things_go(tree: Tree) -> None:
    assert Target(tree, ()).place(b"a/b") == (b"a", b"b")
    assert Target(tree, (b"in",)).place(b"a/b") == (b"in", b"a", b"b")
    assert Target(tree, (b"in",)).place(b"./b") == (b"in", b"b")
    assert Target(tree, (b"new",)).place(b"a/b") == (b"new", b"b")
