# SPDX-License-Identifier: Apache-2.0
"""`rnic lab3 receiver` and `rnic lab3 sender` as processes: files of all lengths, and ends that leave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from rich.console import Console

from cli.commands import Command
from lab3 import ends
from lab3.senders import PART, but
from rdmacm.ends import IWARP
from rnic.cli.lab3 import receiver as receiver_
from rnic.cli.lab3.faults import Code
from rnic.cli.lab3.protocol import key_of
from rnic.cli.main import run as rnic_main

Start = Callable[..., Command]
HOST = "127.0.0.1"
# iWARP does not tell a process that dies from one that disconnects.
LEFT = "disconnected, or its process has died" if IWARP else "disconnected"
DIED = " disconnected, or its process has died" if IWARP else "'s process has died"
KILLED = f"({LEFT}|was lost|does not answer any more)" if IWARP else "'s process has died"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the receiver leaves files."""
    folder = tmp_path / "received"
    folder.mkdir()
    return folder


def a_file(path: Path, length: int) -> Path:
    file = path / f"file-{length}"
    file.write_bytes(os.urandom(length))
    return file


def receiver(rnic: Start, folder: Path, *options: object) -> tuple[Command, int]:
    command = rnic(
        "lab3", "receiver", "--dir", folder, "--port", 0, "--bind", HOST, "--secret", "s", *options
    )
    return command, command.listening()


def send(rnic: Start, port: int, file: Path, *options: object, who: str = "alice") -> Command:
    return rnic("lab3", "sender", HOST, file, "--id", who, "--port", port, *options)


def interrupt(command: Command) -> tuple[int, str]:
    command.process.send_signal(signal.SIGINT)
    result = command.wait()
    assert result.err == ""
    return result.status, result.out


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def name(file: Path) -> str:
    return f"lab3-{sha256(file.read_bytes()).hexdigest()[:16]}"


# ------------------------------------------------------------------ good transfers


def test_many_senders_one_after_another_and_side_by_side(rnic: Start, folder: Path, tmp_path: Path) -> None:
    files = [a_file(tmp_path, length) for length in (0, 1, 10007, 65536, 3 * 65536 + 1)]
    command, port = receiver(rnic, folder, "--region", "64K")
    first = send(rnic, port, files[0]).wait()
    assert (first.status, first.err) == (0, "")
    running = [send(rnic, port, file, who=f"student {at}") for at, file in enumerate(files)]
    for at, one in enumerate(running):
        result = one.wait()
        assert (result.status, result.err) == (0, "")
        assert result.out.endswith(f"secret key: {key_of(b's', f'student {at}')}\n")
    status, out = interrupt(command)
    assert status == 0
    assert out.endswith("6 files received, 0 transfers failed\n")
    assert kept(folder) == {name(file): file.read_bytes() for file in files}


def test_receiver_says_before_it_listens_that_files_cannot_be_written(rnic: Start) -> None:
    result = rnic("lab3", "receiver", "--dir", "/proc", "--port", 0, "--bind", HOST).wait()
    assert (result.status, result.out) == (1, "")
    assert re.fullmatch(r"rnic: /proc cannot be written to: .+: choose another --dir\n", result.err)


def test_key_goes_with_the_secret_of_the_receiver(rnic: Start, folder: Path, tmp_path: Path) -> None:
    file = a_file(tmp_path, 5)
    outs = []
    for secret in ("one", "other"):
        command, port = receiver(rnic, folder, "--once", "--secret", secret)
        outs.append(send(rnic, port, file).wait().out.splitlines()[-1])
        assert command.wait().status == 0
    assert outs == [f"secret key: {key_of(secret, 'alice')}" for secret in (b"one", b"other")]


def test_receiver_ends_on_sigint_in_the_middle_of_a_transfer(
    rnic: Start, folder: Path, tmp_path: Path
) -> None:
    command, port = receiver(rnic, folder)
    with run(script_of(tmp_path, "before DONE", "stops"), port, a_file(tmp_path, 100)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        status, out = interrupt(command)
        process.kill()
    assert status == 0
    assert "failed: the receiver was interrupted" in out
    assert out.endswith("0 files received, 1 transfer failed\n")
    assert kept(folder) == {}


def test_once_that_is_interrupted_ends_with_130(rnic: Start, folder: Path) -> None:
    command, _ = receiver(rnic, folder, "--once")
    assert interrupt(command)[0] == 130


def test_wrong_hash_leaves_no_file(rnic: Start, folder: Path, tmp_path: Path) -> None:
    command, port = receiver(rnic, folder, "--once")
    script = tmp_path / "sender.py"
    script.write_text(but(("hashlib.sha256(data).digest())", "bytes(32))")))
    with run(script, port, a_file(tmp_path, 100)) as wrong:
        assert "the receiver has other bytes than were announced" in wrong.communicate(timeout=300)[1]
    result = command.wait()
    assert result.status == Code.HASH
    assert "the bytes do not have the SHA-256 that was announced: the file is dropped" in result.out
    assert kept(folder) == {}


def test_sender_that_is_refused_hears_why(rnic: Start, folder: Path, tmp_path: Path) -> None:
    command, port = receiver(rnic, folder, "--once")
    script = tmp_path / "sender.py"
    script.write_text(but(("VERSION, len(data), hashlib", "VERSION, 1 << 62, hashlib")))
    with run(script, port, a_file(tmp_path, 100)) as refused:
        words = refused.communicate(timeout=300)[1]
    assert words.startswith(
        "the receiver refuses: the file has 4611686018427387904 bytes, there is room for "
    )
    assert command.wait().status == Code.FAILED
    assert kept(folder) == {}


def test_sender_beyond_the_limit_is_refused_in_words(
    rnic: Start, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_, "MAX_SENDERS", 0)
    server = receiver_.Server(HOST, 0, receiver_.Settings(folder, 4096, 5, b"s"), Console(quiet=True))
    results = []

    def call() -> None:
        try:
            results.append(send(rnic, server.port, a_file(tmp_path, 1)).wait())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    caller = threading.Thread(target=call)
    caller.start()
    assert server.run(once=False) == 0
    caller.join()
    assert results[0].status == Code.CONNECT
    assert results[0].err.endswith("refused: too many senders: try again later\n")


# ------------------------------------------------------------------ a sender that leaves


def run(script: Path, port: int, file: Path) -> subprocess.Popen[str]:
    """A sender; what it says can be read."""
    args = [sys.executable, str(script), HOST, str(file), "--id", "alice", "--port", str(port)]
    return subprocess.Popen(args, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


WRITE = "            write(cm_id, chunk[start : start + CHUNK_BYTES], addr + start, rkey)\n"
SENDERS = {
    "before ANNOUNCE": (
        "    verdict = transfer(cm_id, data)\n",
        "    {}\n    verdict = transfer(cm_id, data)\n",
    ),
    "before the WRITE": (WRITE, "            {}\n" + WRITE),
    "before DONE": (WRITE, WRITE + "            {}\n"),
    "before the last DONE": (WRITE, WRITE + "            if sent: {}\n"),
    "before ID": (PART, "    {}\n" + PART),
}
HOW = {
    "killed": "os.kill(os.getpid(), 9)",
    "leaves": "sys.exit('enough')",
    "stops": "(print('here', flush=True), time.sleep(600))",
}


def script_of(folder: Path, step: str, how: str) -> Path:
    old, new = SENDERS[step]
    path = folder / f"{step} {how}.py"
    path.write_text(
        but(("import sys\n", "import sys\nimport os\nimport time\n"), (old, new.format(HOW[how])))
    )
    return path


@pytest.mark.parametrize("step", SENDERS if os.environ.get("RNIC_SOAK") else ["before DONE", "before ID"])
def test_sender_that_leaves_is_noticed_at_once(step: str, rnic: Start, folder: Path, tmp_path: Path) -> None:
    command, port = receiver(rnic, folder, "--once", "--region", 64)
    with run(script_of(tmp_path, step, "leaves"), port, a_file(tmp_path, 100)) as sender:
        result = command.wait()
        sender.communicate()
    assert result.status == Code.LOST
    assert f"failed: {RECEIVER_SAYS[step]}: the sender disconnected" in result.out
    # The bytes were all there, and their hash was right, before the id was asked for.
    assert len(kept(folder)) == (step == "before ID")


def test_sender_that_is_killed_is_noticed_at_once(rnic: Start, tmp_path: Path) -> None:
    """At each step, all at the same time."""
    file, running = a_file(tmp_path, 100), {}
    for step in SENDERS:
        folder = tmp_path / step
        folder.mkdir()
        command, port = receiver(rnic, folder, "--once", "--region", 64, "--timeout", 50)
        running[step] = command, run(script_of(tmp_path, step, "killed"), port, file)
    for step, (command, sender) in running.items():
        result = command.wait()
        assert sender.wait() == -signal.SIGKILL
        sender.communicate()
        assert result.status == Code.LOST
        # Who dies as soon as connect() returns may not have sent its RTU.
        doing = f"({RECEIVER_SAYS[step]}|connecting)" if step == "before ANNOUNCE" else RECEIVER_SAYS[step]
        assert re.search(f"failed: {doing}: (the sender{DIED}|.*was lost|.*ended with)", result.out)
        assert len(kept(tmp_path / step)) == (step == "before ID")


RECEIVER_SAYS = {
    "before ANNOUNCE": "waiting for the announcement",
    "before the WRITE": "waiting for the file's bytes",
    "before DONE": "waiting for the file's bytes",
    "before the last DONE": "waiting for the file's bytes",
    "before ID": "waiting for the sender's id",
}


# ------------------------------------------------------------------ a receiver that leaves


@contextmanager
def leaving(step: str, how: str) -> Iterator[int]:
    """A receiver that leaves when the step's message has come; its port."""
    args = [sys.executable, ends.__file__, step, how]
    with subprocess.Popen(args, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


SENDER_SAYS = {
    "ANNOUNCE": "waiting for the receiver's region",
    "DONE": "waiting for the next region or the verdict",
    "ID": "waiting for the secret key",
}


@pytest.mark.parametrize("step", SENDER_SAYS)
def test_receiver_that_leaves_is_noticed_at_once(step: str, rnic: Start, tmp_path: Path) -> None:
    with leaving(step, "leaves") as port:
        result = send(rnic, port, a_file(tmp_path, 100)).wait()
    assert result.status == Code.LOST
    assert result.err == f"rnic: {SENDER_SAYS[step]}: the receiver {LEFT}\n"
    assert "secret key" not in result.out


def test_receiver_that_leaves_before_it_accepts_has_refused(rnic: Start, tmp_path: Path) -> None:
    with leaving("CONNECT", "leaves") as port:
        result = send(rnic, port, a_file(tmp_path, 100)).wait()
    assert result.status == Code.CONNECT
    assert result.err.startswith(f"rnic: {HOST} port {port}: refused")


def test_receiver_that_is_killed_is_noticed_at_once(rnic: Start, tmp_path: Path) -> None:
    """At each step, all at the same time."""
    file, running = a_file(tmp_path, 100), {}
    with ExitStack() as stack:
        for step in ("CONNECT", *SENDER_SAYS):
            port = stack.enter_context(leaving(step, "killed"))
            running[step] = send(rnic, port, file, "--timeout", 50), port
        port = stack.enter_context(leaving("REGION", "killed"))
        writing = send(rnic, port, a_file(tmp_path, ends.LARGE), "--timeout", 50)
        for step, (command, port) in running.items():
            result = command.wait()
            if step == "CONNECT":
                assert result.status == Code.CONNECT
                refused = "(refused: .*|nobody listens there)" if IWARP else "nobody listens there"
                assert re.fullmatch(f"rnic: {HOST} port {port}: {refused}\n", result.err)
            else:
                assert result.status == Code.LOST
                assert result.err == f"rnic: {SENDER_SAYS[step]}: the receiver{DIED}\n"
        result = writing.wait()
        assert result.status == Code.LOST
        assert re.fullmatch(f"rnic: writing to the region: the .*{KILLED}.*\n", result.err)


def test_nobody_listens(rnic: Start, tmp_path: Path) -> None:
    result = send(rnic, 9, a_file(tmp_path, 1)).wait()
    assert result.status == Code.CONNECT
    assert result.err == f"rnic: {HOST} port 9: nobody listens there\n"


def test_host_that_has_no_address_is_no_connection(rnic: Start, tmp_path: Path) -> None:
    result = rnic("lab3", "sender", "no.such.host.invalid", a_file(tmp_path, 1), "--id", "a").wait()
    assert result.status == Code.CONNECT
    assert result.err.startswith("rnic: no.such.host.invalid port 7471: ")


@pytest.mark.parametrize(
    "args",
    [
        ["sender", HOST, "/no/such/file", "--id", "alice"],
        ["sender", HOST, "/etc/hostname"],
        ["sender", HOST, __file__, "--id", ""],
        ["receiver", "--dir", "/no/such/folder"],
        ["receiver", "--region", "0"],
        ["--skeleton", "receiver"],
        ["grade"],
    ],
)
def test_wrong_command_line_ends_with_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert rnic_main(["lab3", *args]) == 2
    assert "Usage: rnic lab3" in capsys.readouterr().err
