# SPDX-License-Identifier: Apache-2.0
"""`rnic cp` and `rnic serve` as a user calls them."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from cli.commands import Command, Start
from rnic.cli.copy import Place, place, progress_on
from waiting import until

HOST = "127.0.0.1"


@pytest.fixture
def served(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    return folder


def serve(rnic: Start, folder: Path, *options: str) -> tuple[Command, int]:
    server = rnic("serve", folder, "--host", HOST, "--port", "0", *options)
    return server, server.listening()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("host:path", Place("host", "path")),
        ("host:", Place("host", "")),
        ("[fe80::1%lo]:a:b", Place("fe80::1%lo", "a:b")),
        ("./a:b", Place(None, "./a:b")),
        ("/a:b", Place(None, "/a:b")),
        ("plain", Place(None, "plain")),
        (":x", Place(None, ":x")),
    ],
)
def test_places(text: str, wanted: Place) -> None:
    assert place(text) == wanted


def test_copy_there_and_back(rnic: Start, served: Path, tmp_path: Path) -> None:
    path = tmp_path / "[red]file"
    path.write_bytes(os.urandom(300_000))
    server, port = serve(rnic, served, "-v")
    assert server.client == ["client:", "rnic", "cp", "-p", str(port), "FILE", f"{HOST}:"]
    result = rnic("cp", "-v", "-p", port, path, f"{HOST}:").wait()
    assert (result.status, result.out, result.err) == (0, "'[red]file'\n", "")
    result = rnic("cp", "--json", "-p", port, f"{HOST}:[red]file", tmp_path / "back").wait()
    found = json.loads(result.out)
    assert found.pop("seconds") > 0
    assert found == {"files": 1, "bytes": 300_000, "skipped": 0, "failed": [], "dry_run": False}
    assert (tmp_path / "back").read_bytes() == path.read_bytes() == (served / "[red]file").read_bytes()
    server.process.send_signal(signal.SIGTERM)
    ended = server.wait()
    assert ended.status in (143, -signal.SIGTERM)
    assert ended.out == f"{HOST}: 1 file, 300000 bytes from it\n{HOST}: 1 file, 300000 bytes to it\n"


def test_what_fails_is_said_on_stderr_with_exit_code_1(rnic: Start, served: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    _, port = serve(rnic, served)
    result = rnic("cp", "-p", port, tmp_path / "folder", tmp_path / "no", f"{HOST}:").wait()
    assert result.status == 1
    assert sorted(result.err.splitlines()) == [
        f"rnic cp: -r not specified; omitting directory '{tmp_path}/folder'",
        f"rnic cp: cannot stat '{tmp_path}/no': No such file or directory",
    ]
    result = rnic("cp", "-p", port, f"{HOST}:no", tmp_path).wait()
    assert (result.status, result.err) == (1, "rnic cp: cannot stat 'no': No such file or directory\n")


@pytest.mark.parametrize(
    "words",
    [["a", "b"], ["x:a", "y:b"], ["a", "x:b", "y:"], ["x:a", "y:b", "c"], ["-v", "--json", "a", "x:"]],
)
def test_wrong_command_lines(rnic: Start, words: list[str]) -> None:
    assert rnic("cp", *words).wait().status == 2


def test_no_server(rnic: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    result = rnic("cp", "-p", "7", tmp_path / "file", f"{HOST}:").wait()
    assert result.status == 1
    assert result.err.startswith("rnic: ")


@pytest.mark.parametrize("words", [["serve", "."], ["kv", "serve"]])
def test_a_server_takes_all_descriptors_that_it_may_have(rnic: Start, words: list[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        server = rnic(*words, "--host", HOST, "--port", "0", anew=True)
        server.listening()
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_of_another_kind(rnic: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    port = rnic("kv", "serve", "-p", 0).listening()
    result = rnic("cp", "-p", port, tmp_path / "file", f"{HOST}:").wait()
    assert result.status == 1
    assert result.err.startswith(f"rnic: no greeting of rnic serve came from {HOST} port {port}: ")


def test_the_secret_of_a_file(rnic: Start, served: Path, tmp_path: Path) -> None:
    for name, text in (("right", "abc\n"), ("wrong", "abd\n"), ("empty", "\n")):
        (tmp_path / name).write_text(text)
    _, port = serve(rnic, served, "--secret-file", str(tmp_path / "right"))
    copy = ("cp", "-p", port, tmp_path / "right", f"{HOST}:", "--secret-file")
    assert rnic(*copy, tmp_path / "wrong").wait().err == "rnic: the secret is wrong\n"
    assert rnic(*copy, tmp_path / "empty").wait().status == 2
    assert rnic(*copy, tmp_path / "right").wait().status == 0


@pytest.mark.parametrize(("options", "may"), [([], "read and write"), (["--write-only"], "write")])
def test_a_server_without_a_secret_says_what_anybody_may(
    rnic: Start, served: Path, options: list[str], may: str
) -> None:
    server, _ = serve(rnic, served, *options)
    assert server.process.stderr is not None
    assert server.process.stderr.readline() == f"no --secret-file: whoever reaches the port may {may}\n"


def test_a_bar_on_a_terminal(rnic: Start, served: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    _, port = serve(rnic, served)
    copy = rnic("cp", "-p", port, tmp_path / "file", f"{HOST}:", terminal=True)
    copy.shows(r"1 file|1.0/1.0 MiB")
    assert copy.wait().status == 0


def test_a_directory_that_cannot_be_made_is_one_line(rnic: Start, served: Path, tmp_path: Path) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "tree" / "a" / str(number)).touch()
    (served / "tree").mkdir()
    (served / "tree" / "a").touch()
    _, port = serve(rnic, served)
    result = rnic("cp", "-r", "-p", port, tmp_path / "tree", f"{HOST}:").wait()
    assert result.status == 1
    assert result.err == (
        "rnic cp: cannot copy 'tree/a': 'a' is not a directory\n"
        "rnic cp: 3 files or directories were left out, as the directory above could not be made\n"
    )


@pytest.mark.parametrize("width", [30, 44, 60, 72, 80, 120])
def test_the_bar_is_one_line_on_terminals_of_any_width(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    bar = progress_on(console)
    bar.advance(bar.add_task("12345 files", total=123 << 30), 100 << 30)
    console.print(bar.get_renderable())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("\n") == 1
    assert "100.0/123.0 GiB" in shown


def size_of(folder: Path) -> int:
    """Bytes that the files there take; their names change while one looks."""
    found = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found += path.stat().st_blocks * 512
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("there", "who", "number"),
    [
        (True, "client", signal.SIGKILL),
        (True, "server", signal.SIGKILL),
        (True, "client", signal.SIGINT),
        (True, "server", signal.SIGINT),
        (False, "client", signal.SIGKILL),
        (False, "server", signal.SIGKILL),
    ],
)
def test_no_partial_file_has_its_name_when_an_end_dies(
    rnic: Start, served: Path, tmp_path: Path, there: bool, who: str, number: int
) -> None:
    """On its way to the server, or from there; it dies when some part has come."""
    size, own = 64 << 20, tmp_path / "own"
    own.mkdir()
    source, target = (own, served) if there else (served, own)
    (source / "big").write_bytes(os.urandom(size))
    part = Random(f"{there} {who} {number}").randrange(size * 3 // 4)

    def copy() -> Command:
        return rnic("cp", "-p", port, *((source / "big", f"{HOST}:") if there else (f"{HOST}:big", own)))

    def names() -> list[str]:
        return [path.name for path in target.iterdir()]

    server, port = serve(rnic, served)
    client = copy()
    until(lambda: size_of(target) > part, "that part has come")
    (client if who == "client" else server).process.send_signal(number)
    ended = client.wait()
    if "big" in names():  # it was faster than the signal
        assert (target / "big").read_bytes() == (source / "big").read_bytes()
    else:
        assert all(name.endswith(".rnic-part") for name in names())
        if (who, number) == ("server", signal.SIGINT):
            assert ended.err == "rnic: the peer aborted the connection: the server was stopped\n"
    if who == "server":
        server.wait()
        _, port = serve(rnic, served)
    again = copy().wait()
    assert (again.status, again.err) == (0, "")
    assert subprocess.run(["cmp", own / "big", served / "big"], check=False).returncode == 0
    until(lambda: names() == ["big"], "who has the rest of the first one knows of its end")
