# SPDX-License-Identifier: Apache-2.0
"""Files arrive as they are, or not at all."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import stat
from collections import deque
from contextlib import closing
from errno import ENOSPC, EPERM
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import rnic.aio
from conn.peers import descriptors
from files.ends import ALL, Place, content, run
from rnic.files import CopyError, Options, Rights, naming, reading, writing
from rnic.files.naming import Naming
from rnic.files.options import CHUNK, LEFT, SLOTS
from rnic.files.records import INLINE, Folder, Would, digest
from rnic.files.state import LEAST, Pace
from rnic.files.talk import ALIVE, QUIET
from rnic.files.tree import Tree
from rnic.files.writing import RESUMABLE, Partial, Target
from rnic.records import replace

SIZES = [0, 1, INLINE, INLINE + 1, CHUNK, 3 * CHUNK + 17]


def fill(root: Path) -> None:
    source = random.Random(1)
    for number, size in enumerate(SIZES):
        path = root / f"d{number % 2}" / "deep" / f"file {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.randbytes(size))
        path.chmod(0o640 + number)
        os.utime(path, ns=(1, 10**18 + number))
    (root / "empty").mkdir(mode=0o711)
    (root / "empty").chmod(0o711)
    os.utime(root / "empty", ns=(1, 10**18))
    (root / os.fsdecode(b"\xff\xfe")).write_bytes(b"a name that is no UTF-8")


def same(one: Path, other: Path) -> None:
    assert content(one) == content(other)
    for path in one.rglob("*"):
        a, b = path.stat(), (other / path.relative_to(one)).stat()
        assert (a.st_mode, a.st_mtime_ns) == (b.st_mode, b.st_mtime_ns), path


@pytest.mark.one_in(2)
@pytest.mark.own_way
@pytest.mark.parametrize(
    "way",
    [
        {"RNIC_LOCAL": "off"},
        {"RNIC_LOCAL": "off", "RNIC_FAULT": "loss=0.02,seed=7"},
        {"RNIC_LOCAL": "on"},
        {"RNIC_TRANSPORT": "iwarp"},
    ],
    ids=["packets", "loss", "local", "iwarp"],
)
def test_there_and_back(place: Place, monkeypatch: pytest.MonkeyPatch, way: dict[str, str]) -> None:
    for name, value in way.items():
        monkeypatch.setenv(name, value)
    fill(place.own / "tree")
    total = sum(SIZES) + 23

    async def main() -> None:
        async with place.server():
            report = await place.put("tree")
            assert (report.files, report.bytes, report.failures) == (len(SIZES) + 1, total, [])
            report = await place.get("tree", to="back")
            assert (report.files, report.bytes, report.failures) == (len(SIZES) + 1, total, [])
            await place.put("tree", to="other")
            await place.put("tree/.", to="third")
            await place.get("", to="all")
            await place.get("tree/.", to="fourth")

    run(main())
    for one in ("served/tree", "own/back", "served/other", "served/third", "own/fourth", "own/all/tree"):
        same(place.own / "tree", place.own.parent / one)


def test_many_small_files_take_few_messages(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        (place.own / f"{number}").write_bytes(b"%d" % number)
    messages = 0
    batch = reading.pack

    def pack(*args: object) -> object:
        nonlocal messages
        for one in batch(*args):  # type: ignore[arg-type]
            messages += 1
            yield one

    monkeypatch.setattr(reading, "pack", pack)

    async def main() -> None:
        async with place.server():
            report = await place.put(".")
            assert report.files == 1000

    run(main())
    assert content(place.served) == content(place.own)
    assert messages < 10


@pytest.mark.parametrize("no_clobber", [False, True])
def test_folders_that_are_there_are_dressed_as_the_others(place: Place, no_clobber: bool) -> None:
    """As an interrupted copy leaves them; the folder into which is copied stays as it is."""
    (place.own / "tree/below").mkdir(parents=True)
    (place.own / "tree/below/f").write_text("f")
    for name in ("tree/below", "tree"):
        (place.own / name).chmod(0o755)
        os.utime(place.own / name, ns=(1, 10**18))
    (place.served / "tree/below").mkdir(parents=True, mode=0o700)
    os.utime(place.served / "tree/below", ns=(1, 5))
    place.served.chmod(0o700)

    async def main() -> None:
        async with place.server():
            options = replace(ALL, no_clobber=no_clobber)
            assert not (await place.put("tree", options=options)).failures
            assert not (await place.put("tree/.", options=options)).failures

    run(main())
    there = (place.served / "tree/below").stat()
    assert (stat.S_IMODE(there.st_mode), there.st_mtime_ns == 10**18) == (
        (0o700, False) if no_clobber else (0o755, True)
    )
    assert stat.S_IMODE(place.served.stat().st_mode) == 0o700


def test_a_folder_that_comes_again_is_kept_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer may send it a million times."""
    (place.own / "tree").mkdir()
    dressed: list[bytes] = []
    dress = writing.dress_folder

    def counted(tree: Any, parts: tuple[bytes, ...], *what: int) -> None:
        dressed.extend(parts)
        dress(tree, parts, *what)

    monkeypatch.setattr("rnic.files.naming.dress_folder", counted)

    async def main() -> None:
        async with place.server():
            assert not (await place.put("tree", "tree", "tree")).failures

    run(main())
    assert dressed == [b"tree"]


def test_more_sources_than_descriptors(place: Place) -> None:
    """As a shell names them: a client has open what it reads, and not what it was told to read."""
    for number in range(300):
        (place.own / f"f{number}").write_bytes(b"%d" % number)
        (place.own / f"d{number}").mkdir()
        (place.own / f"d{number}/f").write_bytes(b"%d" % number)
    names = sorted(path.name for path in place.own.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> None:
        async with place.server():
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 200, hard))
            try:
                for options in (ALL, replace(ALL, total=True)):
                    report = await place.put(*names, options=options)
                    assert (report.files, report.failures) == (600, [])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    run(main())
    assert content(place.served) == content(place.own)


@pytest.mark.parametrize("rate", [0.25, 1, 2, 10, 100, 10_000])
def test_signs_of_life_pass_between_chunks(rate: float) -> None:
    """On a link of so many Mbit/s, which carries one chunk behind the other."""
    pace, flying, now, longest = Pace(SLOTS * CHUNK), deque[tuple[float, float, int]](), 0.0, 0.0
    for _ in range(100):
        while not flying or sum(one[2] for one in flying) < pace.limit:
            size = min(CHUNK, pace.limit)
            began = flying[-1][1] if flying else now
            flying.append((now, began + size * 8e-6 / rate, size))
        longest = max(longest, flying[-1][1] - now)  # what follows waits so long
        began, now, _ = flying.popleft()
        pace.took(now - began)
    assert longest + 2 * ALIVE < QUIET
    if rate > 1000:
        assert pace.limit == SLOTS * CHUNK


def test_no_more_chunks_at_a_time_than_the_pace_allows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.own / "large").write_bytes(bytes(5 * CHUNK))
    monkeypatch.setattr(Pace, "took", lambda *_: None)
    write, writing, most = rnic.aio.Connection.write, 0, 0

    async def counted(conn: Any, view: memoryview, *args: Any) -> None:
        nonlocal writing, most
        writing += len(view)
        most = max(most, writing)
        await asyncio.sleep(0)
        await write(conn, view, *args)
        writing -= len(view)

    monkeypatch.setattr(rnic.aio.Connection, "write", counted)

    async def main() -> None:
        async with place.server():
            assert (await place.put("large")).files == 1

    run(main())
    assert most == LEAST


def test_long_paths_and_longer_ones(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files, folders and complaints from both ends; each kind alone is more than a message takes."""
    base = place.own / "tree" / "/".join(["d" * 240] * 15)
    (base / "folders").mkdir(parents=True)
    for number in range(500):
        (base / f"file{number}").write_bytes(b"%d" % number)
        (base / f"link{number}").symlink_to("file0")
        (base / f"folders/{number}").mkdir()
    fd = os.open(base, os.O_RDONLY)
    for _ in range(300):
        os.mkdir(b"e" * 250, dir_fd=fd)
        below = os.open(b"e" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)

    def fail(*_: object) -> None:
        raise PermissionError(EPERM, "not here")

    monkeypatch.setattr(naming, "dress_folder", fail)

    async def main() -> None:
        async with place.server():
            report = await place.put("tree")
            assert report.files == 500
            texts = [text for _, text in report.failures]
            assert sum("symbolic links are not copied" in text for text in texts) == 500
            assert sum("cannot set mode" in text for text in texts) > 500
            assert sum("a path of more than" in text for text in texts) > 290
            back = await place.get("tree", to="back")
            assert back.files == 500
            with pytest.raises(CopyError, match="are the most"):
                await place.get(*["x" * 1000] * 1600)

    run(main())
    one = base / "file7"
    assert (place.served / one.relative_to(place.own)).read_bytes() == b"7"
    assert (place.own / "back" / one.relative_to(place.own / "tree")).read_bytes() == b"7"


def test_what_cannot_be_stored_is_not_sent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that is worth a question; the copy goes on with the next one."""
    for name in ("large", "other"):
        with (place.own / name).open("wb") as file:
            file.write(bytes(LEAST))
            file.truncate(RESUMABLE)
    (place.served / "large").mkdir()
    write, writes = rnic.aio.Connection.write, 0

    async def counted(*args: Any) -> None:
        nonlocal writes
        writes += 1
        await write(*args)

    monkeypatch.setattr(rnic.aio.Connection, "write", counted)

    async def main() -> None:
        async with place.server():
            report = await place.put("large", "other")
            assert report.files == 1
            assert [text for _, text in report.failures] == [
                "cannot copy 'large': cannot overwrite the directory with a file"
            ]

    run(main())
    assert writes == 1
    assert content(place.served) == {"large": None, "other": (place.own / "other").read_bytes()}


def test_long_paths_fill_a_message_too(place: Place) -> None:
    count, deep = 800, place.own
    for _ in range(9):
        deep /= 240 * "n"
    deep.mkdir(parents=True)
    for number in range(count):
        (deep / f"file {number}").write_bytes(b"content")
        (deep / f"link {number}").symlink_to("nowhere")

    async def copy() -> None:
        async with place.server():
            report = await place.put(".")
            assert (report.files, report.failed_count) == (count, count)

    run(copy())
    assert list(content(place.served).values()).count(b"content") == count


def test_a_file_is_replaced_and_no_clobber_leaves_it(place: Place) -> None:
    for name, size in (("small", 10), ("large", 200_000)):
        (place.own / name).write_bytes(bytes(size))
        (place.served / name).write_bytes(b"old")

    async def main() -> None:
        async with place.server():
            report = await place.put("small", "large", options=replace(ALL, no_clobber=True))
            assert (report.files, report.skips, report.failures) == (0, 2, [])
            assert (place.served / "large").read_bytes() == b"old"
            report = await place.put("small", "large")
            assert (report.files, report.skips) == (2, 0)
            report = await place.get("small", "large", options=Options(no_clobber=True))
            assert (report.files, report.skips) == (0, 2)

    run(main())
    assert content(place.served) == content(place.own)


def test_a_dry_run_changes_nothing(place: Place) -> None:
    fill(place.own / "tree")
    (place.served / "tree").mkdir()
    (place.served / "tree/empty").write_text("in the way")

    async def main() -> None:
        async with place.server():
            report = await place.put("tree", options=replace(ALL, dry_run=True))
            assert (report.files, report.bytes) == (len(SIZES) + 1, sum(SIZES) + 23)

    run(main())
    assert list(content(place.served)) == ["tree", "tree/empty"]


def test_a_dry_run_keeps_no_more_than_one_path_of_what_it_would_make(place: Place) -> None:
    with closing(Tree(str(place.served))) as tree:
        naming = Naming(Target(tree, ()), replace(ALL, dry_run=True), Event())
        paths = [
            b"new",
            b"new/in",
            b"new/in/deeper",
            b"new/other",
            *(b"one%d" % at for at in range(1000)),
            b"one999/in",
        ]
        for number, path in enumerate(paths):
            assert naming.enter([Folder(number, 0o755, 0, 0, path)]) == [None]
            assert naming.enter([Would(number, 0o644, 1, 0, path + b"/file")]) == [None]
        kept = [value for value in vars(naming).values() if isinstance(value, (dict, set, list))]
        assert kept == [{}, {}, set()]


@pytest.mark.parametrize("source", ["a", "tree"])
@pytest.mark.parametrize("to", ["no/where", "file/where", "taken", "new", "."])
def test_a_dry_run_fails_where_a_copy_does(place: Place, source: str, to: str) -> None:
    (place.own / "a").write_text("a")
    (place.own / "tree" / "below").mkdir(parents=True)
    (place.own / "tree" / "below" / "b").write_text("b")
    (place.served / "file").write_text("")
    (place.served / "taken" / "a").mkdir(parents=True)
    (place.served / "taken" / "tree").write_text("")

    async def main() -> None:
        async with place.server():
            dry = await place.put(source, to=to, options=replace(ALL, dry_run=True))
            copied = await place.put(source, to=to, options=ALL)
        assert dry.failures == copied.failures
        assert dry.files == copied.files

    run(main())


@pytest.mark.parametrize("no_clobber", [False, True])
def test_a_dry_run_and_files_of_any_size_tell_of_a_directory_in_the_way_alike(
    place: Place, no_clobber: bool
) -> None:
    """As with cp, -n leaves it alone."""
    for name, size in (("small", 1), ("large", INLINE + 1), ("asked", RESUMABLE)):
        with (place.own / name).open("wb") as file:
            file.truncate(size)
        (place.served / name).mkdir()
    reports = []

    async def main() -> None:
        async with place.server():
            for dry_run in (True, False):
                options = replace(ALL, no_clobber=no_clobber, dry_run=dry_run)
                reports.append(await place.put("small", "large", "asked", options=options))

    run(main())
    for report in reports:
        assert (report.files, report.skips) == (0, 3 if no_clobber else 0)
        said = {text.rpartition(": ")[2] for _, text in report.failures}
        assert said == (set() if no_clobber else {"cannot overwrite the directory with a file"})
    assert set(content(place.served).values()) == {None}


def test_holes_stay_holes(place: Place) -> None:
    path = place.own / "sparse"
    with path.open("wb") as file:
        file.seek(5 * CHUNK)
        file.write(b"x" * 5000)
        file.truncate(12 * CHUNK)

    async def main() -> None:
        async with place.server():
            await place.put("sparse")

    run(main())
    there = (place.served / "sparse").stat()
    assert content(place.served) == content(place.own)
    if path.stat().st_blocks * 512 < CHUNK:  # the file system has holes
        assert there.st_blocks * 512 < 2 * CHUNK


# ---------------------------------------------------------------- what fails


def test_what_cannot_be_copied_is_told_and_the_rest_arrives(place: Place) -> None:
    (place.own / "file").write_text("x")
    (place.own / "link").symlink_to("file")
    os.mkfifo(place.own / "fifo")
    (place.own / "folder").mkdir()
    (place.served / "file").mkdir()

    async def main() -> None:
        async with place.server():
            report = await place.put(".")
            assert sorted(path.rpartition("/")[2] for path, _ in report.failures) == ["fifo", "file", "link"]
            assert report.files == 0
            report = await place.put("folder", "nothing", options=Options())
            assert [text.partition(" ")[0] for _, text in report.failures] == ["cannot", "-r"]
            report = await place.get("folder", "nothing", options=Options())
            assert [text.partition("'")[0] for _, text in report.failures] == [
                "-r not specified; omitting directory ",
                "cannot stat ",
            ]

    run(main())
    assert set(content(place.served)) == {"folder", "file"}


def test_targets_as_with_cp(place: Place) -> None:
    (place.own / "a").write_text("a")
    (place.own / "b").write_text("b")

    async def main() -> None:
        async with place.server():
            await place.put("a", to="c")
            for to in ("c", "d", "c/"):
                with pytest.raises(CopyError, match="not a directory"):
                    await place.put("a", *(["b"] if to != "c/" else []), to=to)
            report = await place.put("a", to="no/where")
            assert "there is no directory 'no'" in report.failures[0][1]
            report = await place.put("a", to="c/where")
            assert "'c' is not a directory" in report.failures[0][1]
            (place.served / "link").symlink_to(".")
            report = await place.put("a", to="link/where")
            assert "'link' is a symbolic link, which is not followed" in report.failures[0][1]
            (place.served / "link").unlink()
            with pytest.raises(CopyError, match="not a directory"):
                await place.get("c", "c", to="a")

    run(main())
    assert content(place.served) == {"c": b"a"}


@pytest.mark.parametrize("path", ["../own/a", "..", "x/../../own/a"])
def test_no_path_leads_out(place: Place, path: str) -> None:
    (place.own / "a").write_text("a")

    async def main() -> None:
        async with place.server():
            with pytest.raises(CopyError, match="leads out"):
                await place.get(path)
            with pytest.raises(CopyError, match="leads out"):
                await place.put("a", to=path)

    run(main())


def test_no_link_leads_out(place: Place) -> None:
    (place.own / "a").write_text("a")
    (place.served / "out").symlink_to(place.own)

    async def main() -> None:
        async with place.server():
            report = await place.get("out/a", to="b")
            assert "a symbolic link" in report.failures[0][1]
            report = await place.put("a", to="out/c")
            assert "a symbolic link" in report.failures[0][1] or "levels of symbolic" in report.failures[0][1]

    run(main())
    assert content(place.own) == {"a": b"a"}


def test_read_only_and_write_only(place: Place) -> None:
    (place.own / "a").write_text("a")
    (place.served / "b").write_text("b")

    async def main() -> None:
        async with place.server(Rights(write=False)):
            with pytest.raises(CopyError, match="nothing may be copied to"):
                await place.put("a")
            await place.get("b")
        async with place.server(Rights(read=False)):
            with pytest.raises(CopyError, match="nothing may be copied from"):
                await place.get("b")
            await place.put("a")

    run(main())
    assert content(place.served) == content(place.own)


def test_the_secret(place: Place) -> None:
    (place.own / "a").write_text("a")

    async def main() -> None:
        async with place.server(secret=b"right"):
            with pytest.raises(CopyError, match="the secret is wrong"):
                await place.put("a", secret=b"wrong")
            with pytest.raises(CopyError, match="asks for a secret"):
                await place.put("a")
            assert not content(place.served)
            await place.put("a", secret=b"right")
        async with place.server():
            with pytest.raises(CopyError, match="has no secret"):
                await place.put("a", secret=b"right")

    run(main())
    assert content(place.served) == content(place.own)


# ---------------------------------------------------------------- files that change, copies that break off


@pytest.mark.parametrize("size", [100, 3 * CHUNK])
@pytest.mark.parametrize("how", ["grows", "shrinks", "is written to"])
def test_a_file_that_changes_meanwhile_is_not_copied(
    place: Place, monkeypatch: pytest.MonkeyPatch, size: int, how: str
) -> None:
    path = place.own / "file"
    path.write_bytes(bytes(size))
    os.utime(path, ns=(1, 1))
    times = iter(range(2, 1000))

    def change() -> None:
        now = next(times)
        if how == "grows":
            with path.open("ab") as file:
                file.write(b"x")
        elif how == "shrinks":
            os.truncate(path, max(0, path.stat().st_size - 10))
        os.utime(path, ns=(now, now))

    whole_read, whole_pread = reading.read_chunk, os.pread

    def read_chunk(fd: int, view: memoryview, offset: int) -> bytes | None:
        change()
        return whole_read(fd, view, offset)

    def pread(fd: int, length: int, offset: int) -> bytes:
        data = whole_pread(fd, length, offset)
        change()
        return data

    monkeypatch.setattr(reading, "read_chunk", read_chunk)
    monkeypatch.setattr(os, "pread", pread)

    async def main() -> None:
        async with place.server():
            report = await place.put("file")
            assert [text.partition(": ")[2] for _, text in report.failures] == [reading.CHANGED]

    run(main())
    assert not content(place.served)


def test_a_full_disk_ends_the_reading_of_a_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next file is copied."""
    size = 30 * CHUNK
    with (place.own / "a").open("wb") as file:
        for at in range(0, size, CHUNK):
            file.seek(at)
            file.write(b"x" * 100)
        file.truncate(size)
    (place.own / "b").write_bytes(bytes(CHUNK))
    read, reads, full = reading.read_chunk, 0, False

    def counted(fd: int, view: memoryview, offset: int) -> bytes | None:
        nonlocal reads
        reads += 1
        return read(fd, view, offset)

    def write(fd: int, data: memoryview, offset: int) -> None:
        nonlocal full
        if not full:
            full = True
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        os.pwrite(fd, data, offset)

    monkeypatch.setattr(reading, "read_chunk", counted)
    monkeypatch.setattr(writing, "_write", write)
    monkeypatch.setattr(Pace, "took", lambda *_: None)  # a chunk at a time

    async def main() -> None:
        async with place.server():
            report = await place.put("a", "b")
        assert [text for _, text in report.failures] == ["cannot copy 'a': No space left on device"]
        assert report.files == 1

    run(main())
    assert content(place.served) == {"b": bytes(CHUNK)}
    assert reads < 30 + CHUNK // LEAST


def test_an_interrupted_copy_goes_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 24 * CHUNK
    data = random.Random(2).randbytes(size)
    (place.own / "big").write_bytes(data)
    begins: list[int] = []
    whole_read, whole_begin = reading.read_chunk, Partial.begin

    def begin(partial: Partial, offset: int) -> None:
        begins.append(offset)
        whole_begin(partial, offset)

    monkeypatch.setattr(Partial, "begin", begin)

    async def main() -> None:
        async with place.server():
            loop, task = asyncio.get_running_loop(), asyncio.create_task(place.put("big"))

            def read_chunk(fd: int, view: memoryview, offset: int) -> bytes | None:
                if offset == 20 * CHUNK:
                    loop.call_soon_threadsafe(task.cancel)
                return whole_read(fd, view, offset)

            monkeypatch.setattr(reading, "read_chunk", read_chunk)
            with pytest.raises(asyncio.CancelledError):
                await task
        (left,) = content(place.served)
        assert left == _partial_name(place)
        async with place.server():
            report = await place.put("big")
            assert (report.files, report.failures) == (1, [])

    run(main())
    assert content(place.served) == {"big": data}
    assert begins[0] == 0
    assert begins[1] > 0


def test_what_is_left_of_another_content_is_not_used(place: Place) -> None:
    size = 20 * CHUNK
    data = random.Random(3).randbytes(size)
    (place.own / "big").write_bytes(data)

    async def main() -> None:
        async with place.server():
            await place.put("big")
            name = _partial_name(place)
            (place.served / "big").rename(place.served / name)
            with (place.served / name).open("r+b") as file:
                file.seek(CHUNK)
                file.write(b"other")
            report = await place.put("big")
            assert report.failures == []

    run(main())
    assert content(place.served) == {"big": data}


def _partial_name(place: Place) -> str:
    status = (place.own / "big").stat()
    same_file = b"%d %d big" % (status.st_size, status.st_mtime_ns)
    return f".big.{digest(same_file)[:6].hex()}.rnic-part"


@pytest.mark.parametrize("way", ["put", "get"])
def test_what_somebody_else_has_not_copied_yet_is_no_file(place: Place, way: str) -> None:
    """Unless it is asked for by its name."""
    source, target = (place.own, place.served) if way == "put" else (place.served, place.own)
    part = ".big.0123456789ab.rnic-part"
    kept = {"tree/whole", "tree/.x.rnic-part", "tree/in/big.0123456789ab.rnic-part"}
    (source / "tree" / "in").mkdir(parents=True)
    for name in (*kept, f"tree/{part}", f"tree/in/{part}"):
        (source / name).write_text("contents")

    async def main() -> None:
        async with place.server():
            report = await getattr(place, way)("tree")
            assert (report.files, report.failures) == (3, [])
            assert {name for name in content(target) if "." in name or "whole" in name} == kept
            assert (await getattr(place, way)(f"tree/{part}")).files == 1

    run(main())
    assert (target / part).read_text() == "contents"


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("there", [True, False])
def test_what_lies_below_a_directory_that_cannot_be_made_is_counted(
    place: Place, there: bool, dry_run: bool
) -> None:
    source, target = (place.own, place.served) if there else (place.served, place.own)
    below = source / "tree" / "a" / "b"
    below.mkdir(parents=True)
    for number in range(5):
        (below / f"small{number}").write_bytes(b"x")
    for name, size in (("middle", 1 << 20), ("large", RESUMABLE)):
        with (below / name).open("wb") as file:
            file.truncate(size)
    (source / "tree" / "z").write_bytes(b"z")
    (target / "tree").mkdir()
    (target / "tree" / "a").write_bytes(b"no directory")
    options = replace(ALL, dry_run=dry_run)

    async def main() -> None:
        async with place.server():
            report = await (place.put if there else place.get)("tree", options=options)
            assert (report.files, report.failed_count, report.left_count) == (1, 9, 8)
            texts = [text for _, text in report.failures if text != LEFT]
            assert len(texts) == 1
            assert "'a' is not a directory" in texts[0]
            assert {path for path, text in report.failures if text == LEFT} >= {"tree/a/b", "tree/a/b/large"}

    run(main())
    assert place.heard[-1].endswith(", 9 failed")
    assert (target / "tree" / "z").exists() != dry_run


@pytest.mark.parametrize("no_clobber", [False, True])
def test_a_directory_without_the_right_to_write_is_copied_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, no_clobber: bool
) -> None:
    """Its owner has that right meanwhile, if the copy may change what is there."""
    for root in (place.own, place.served):
        (root / "tree").mkdir()
        (root / "tree" / "f").write_bytes(b"x")
        (root / "tree").chmod(0o555)
    modes: list[int] = []
    store = writing.store

    def watched(*args: Any) -> list[bool | str]:
        modes.append(stat.S_IMODE((place.served / "tree").stat().st_mode))
        return store(*args)

    monkeypatch.setattr(naming, "store", watched)

    async def main() -> None:
        async with place.server():
            report = await place.put("tree", options=replace(ALL, no_clobber=no_clobber))
            assert not report.failures

    run(main())
    assert modes == [0o555 if no_clobber else 0o755]
    assert stat.S_IMODE((place.served / "tree").stat().st_mode) == 0o555
