# SPDX-License-Identifier: Apache-2.0
"""What machines are made of, part by part."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from packages import need_package
from rnic.vm import MachineError, console, copy, extras, host, images, kernel, paths, tools
from rnic.vm.console import Console, Follower
from rnic.vm.cpio import Archive
from rnic.vm.lines import LONGEST, BrokenLineError, Lines
from rnic.vm.paths import Folder, folders

# ---------------------------------------------------------------- lines


@pytest.fixture
def ends() -> tuple[Lines, socket.socket]:
    ours, theirs = socket.socketpair()
    return Lines(ours), theirs


def test_messages_may_come_in_pieces(ends: tuple[Lines, socket.socket]) -> None:
    lines, peer = ends
    assert lines.receive() == []
    peer.send(b'{"a": 1}\n{"b"')
    assert lines.receive() == [{"a": 1}]
    peer.send(b": 2}\n")
    assert lines.receive() == [{"b": 2}]
    peer.close()
    with pytest.raises(EOFError):
        lines.receive()
    lines.close()


@pytest.mark.parametrize("line", [b"not JSON\n", b"[1]\n", b"\xff\n"])
def test_what_is_no_message(ends: tuple[Lines, socket.socket], line: bytes) -> None:
    lines, peer = ends
    peer.send(line)
    with pytest.raises(BrokenLineError):
        lines.receive()
    peer.close()
    lines.close()


def test_a_line_without_end(ends: tuple[Lines, socket.socket]) -> None:
    lines, peer = ends
    peer.setblocking(False)
    with pytest.raises(BrokenLineError, match="a line of more than"):
        for _ in range(LONGEST // 4096):
            peer.send(bytes(8192))
            lines.receive()
    peer.close()
    lines.close()


def test_what_the_socket_does_not_take_waits(ends: tuple[Lines, socket.socket]) -> None:
    lines, peer = ends
    for _ in range(100):
        lines.send({"a": "b" * 10_000})
    assert lines.waits
    got = 0
    while got < 100:
        got += peer.recv(1 << 20).count(b"\n")
        lines.flush()
    assert not lines.waits
    peer.close()
    lines.close()


# ---------------------------------------------------------------- the console


def test_a_console_stays_small_and_keeps_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "console"
    written, line = Console(path), b"x" * 99 + b"\n"
    for _ in range(console.LIMIT // 100):
        written.write(line)
    written.write(b"the last one\n")
    assert path.stat().st_size <= console.LIMIT // 4
    assert set(path.read_bytes().splitlines()) == {line[:-1], b"the last one"}


def test_a_reader_follows(tmp_path: Path) -> None:
    path = tmp_path / "console"
    with Follower(path) as follower:
        assert follower.more() == b""
        for text in (b"one\n", b"two\n"):
            Console(path).write(text)
            assert follower.more() == text
        path.write_bytes(b"3\n")  # it was shortened
        assert follower.more() == b"3\n"
        Console(path).write(b"the last\n")
        path.unlink()
        assert follower.more() == b"the last\n"
        assert follower.more() == b""


OOPS = "\n".join([*"abc", "[ 1.0] BUG: unable to handle", "why", "[ 1.1] Kernel panic - not syncing: Fatal"])


def test_an_excerpt_begins_with_the_trouble() -> None:
    assert console.excerpt(OOPS).startswith("[ 1.0] BUG")
    assert console.excerpt("\n".join(map(str, range(100)))).splitlines()[-1] == "99"
    assert len(console.excerpt("\n".join(map(str, range(100)))).splitlines()) == console.LAST


def test_a_panic_names_its_reason(tmp_path: Path) -> None:
    (tmp_path / "console").write_text(OOPS)
    assert console.panic_in(tmp_path / "console") == "Kernel panic - not syncing: Fatal"
    assert console.panic_in(tmp_path / "none") == ""


# ---------------------------------------------------------------- folders


@pytest.mark.usefixtures("computer")
def test_a_folder_is_claimed_once() -> None:
    folder = Folder.of("box")
    lock = folder.claim()
    assert lock is not None
    assert folder.claim() is None
    assert [one.name for one in folders()] == ["box"]
    os.close(lock)
    assert folders() == []
    assert not folder.path.exists()


def test_without_a_runtime_folder_there_is_one_in_tmp(tmp_path: Path) -> None:
    own = paths._own_folder(tmp_path / "mine")
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    with pytest.raises(PermissionError, match="set XDG_RUNTIME_DIR"):
        paths._own_folder(own)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="set XDG_RUNTIME_DIR"):
        paths._own_folder(tmp_path / "link")


def test_a_socket_in_a_deep_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path / ("x" * 200))
    lock = folder.claim()
    with socket.socket(socket.AF_UNIX) as server, folder.address() as address:
        server.bind(address)
    assert folder.socket.exists()
    assert lock is not None
    os.close(lock)


# ---------------------------------------------------------------- the first file system


def test_cpio_reads_the_archive(tmp_path: Path) -> None:
    file = io.BytesIO()
    archive = Archive(file)
    archive.folder("bin")
    archive.file("bin/odd", b"12345")
    archive.copy("bin/this", Path(__file__))
    archive.end()
    assert len(file.getvalue()) % 4 == 0
    cpio = shutil.which("cpio") or shutil.which("bsdcpio")
    if cpio is None:
        need_package("cpio")
    subprocess.run([cpio, "-i", "--quiet"], input=file.getvalue(), cwd=tmp_path, check=True)
    assert (tmp_path / "bin/odd").read_bytes() == b"12345"
    assert (tmp_path / "bin/this").read_bytes() == Path(__file__).read_bytes()
    assert os.access(tmp_path / "bin/odd", os.X_OK)


# ---------------------------------------------------------------- what is missing


@pytest.mark.usefixtures("tap")
def test_a_computer_that_has_all() -> None:
    assert host.missing() == ""


def test_packages_are_named(tap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "search_path", lambda: str(tap / "programs"))
    (tap / "programs/qemu-system-x86_64").unlink()
    (tap / "programs/modprobe").unlink()
    assert host.missing() == (
        "Debian's packages iproute2, kmod, qemu-system-x86 (apt-get install iproute2 kmod qemu-system-x86)"
    )
    assert "gcc" in host.missing(siw=True)
    assert host.missing_tools() == ["ibverbs-utils", "rdmacm-utils", "perftest"]


def test_a_busybox_with_libraries_is_none(tap: Path) -> None:
    shutil.copy(Path(sys.executable).resolve(), tap / "programs/busybox")
    assert "busybox-static" in host.missing()


def test_other_distributions_are_told(tap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tap / "programs/apt-get").unlink()
    monkeypatch.setattr(host, "search_path", lambda: str(tap / "programs"))
    assert "it is not Debian" in host.missing()


@pytest.mark.usefixtures("computer")
def test_a_computer_without_taps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "TUN", tmp_path / "tun")
    assert "No such file or directory; as root: modprobe tun" in host.missing()


# ---------------------------------------------------------------- more packages


@pytest.mark.parametrize("name", ["-o", "a/b", "A", "", "a b", "a\n"])
def test_names_that_are_no_package(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no name of a Debian package"):
        extras.fetch(tmp_path, ["good", name])


def test_packages_are_laid_over_what_is_there(tmp_path: Path) -> None:
    folder, lower = tmp_path / "it's", tmp_path / "lower"
    (folder / "usr").mkdir(parents=True)
    (lower / "usr").mkdir(parents=True)
    script = extras.script([folder, lower])
    assert f"lowerdir='{tmp_path}/it'\"'\"'s/usr':{lower}/usr:/usr /usr" in script
    assert "/etc" not in script


def test_nothing_stays_of_a_download_that_was_killed(computer: Path) -> None:
    cache = computer / "cache/rnic/vm"
    (cache / "tmpabc/unpacked").mkdir(parents=True)
    before = {path.name for path in cache.iterdir()}
    images.prepare()
    assert {path.name for path in cache.iterdir()} ^ before == {"tmpabc", "lock"}


def test_tools_find_the_kernel_where_a_system_has_it(tmp_path: Path) -> None:
    release = "6.1.0-0-amd64"
    debian = kernel.Kernel(tmp_path, release, "1")
    for name in (f"lib/modules/{release}", "usr/lib/linux-kbuild-6.1", f"usr/src/linux-headers-{release}"):
        (tmp_path / name).mkdir(parents=True)
    for _ in range(2):  # once made, they stay
        links = tools.links(debian)
    assert (links / f"usr/lib/modules/{release}").readlink() == tmp_path / f"lib/modules/{release}"
    assert (links / "usr/lib/linux-kbuild-6.1").readlink() == tmp_path / "usr/lib/linux-kbuild-6.1"
    assert (links / f"usr/src/linux-headers-{release}").exists()
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    links = tools.links(debian._replace(top=moved))
    assert (links / "usr/lib/linux-kbuild-6.1").readlink() == moved / "usr/lib/linux-kbuild-6.1"


@pytest.mark.usefixtures("computer")
def test_what_apt_has_to_say(computer: Path) -> None:
    apt_get = computer / "programs/apt-get"
    apt_get.write_text("#!/bin/sh\necho Reading; echo 'E: Unable to locate package nothing'; exit 100\n")
    with pytest.raises(host.CommandError, match=r"^apt-get: Unable to locate package nothing$"):
        extras.fetch(computer, ["nothing"])


APT_WITHOUT_A_NETWORK = """#!/bin/sh
case "$*" in *Error-Mode=any*update*) echo "E: Failed to fetch the lists"; exit 100; esac
"""  # as apt-get is: without this option it warns, and succeeds


def test_lists_that_do_not_come_are_asked_for_again(computer: Path) -> None:
    (computer / "programs/apt-get").write_text(APT_WITHOUT_A_NETWORK)
    for _ in range(2):
        with pytest.raises(host.CommandError, match=r"^apt-get: Failed to fetch the lists$"):
            extras.fetch(computer, ["nothing"])


def test_a_download_that_finds_no_room_ends(computer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apt-get itself would wait for ever."""
    (computer / "programs/apt-get").write_text("#!/bin/sh\nexec sleep 1000\n")
    full = os.statvfs_result((4096, 4096, 512, 0, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    with pytest.raises(MachineError, match=r"No space left on device; XDG_CACHE_HOME chooses another folder"):
        extras.fetch(computer, ["nothing"])


def test_a_file_system_that_counts_no_blocks_is_not_full(
    computer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (computer / "programs/apt-get").write_text("#!/bin/sh\nsleep 2\necho 'E: it has begun'\nexit 1\n")
    unknown = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: unknown)
    with pytest.raises(host.CommandError, match="it has begun"):
        extras.fetch(computer, ["nothing"])


# ---------------------------------------------------------------- copies


def test_a_copy_that_fails_at_once_says_why(tmp_path: Path) -> None:
    """What the machine prints may be there before spawn() has returned."""

    class Machine:
        def spawn(self, _command: str, *, output: object, errors: Callable[[bytes], object]) -> Machine:  # noqa: ARG002
            errors(b"no such file")
            return self

        def wait(self, _timeout: None) -> tuple[int, str]:
            return 2, ""

    with pytest.raises(MachineError, match="/it could not be got: no such file"):
        copy.get(cast("Any", Machine()), "/it", tmp_path)
