# SPDX-License-Identifier: Apache-2.0
"""`rnic kmod` as its users see it, where no machine is needed, or a stand-in for QEMU will do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.cli.main import run
from rnic.kmod import KmodError, Module, build, course, lessons, loading, place
from rnic.kmod import module as modules
from rnic.kmod.folder import Folder
from rnic.kmod.grade import built
from rnic.kmod.steps import PASSED
from rnic.vm import Machine, MachineError, Result, kernel, running, siw
from rnic.vm.host import CommandError
from vm.conftest import DIE, furnish, need_tap
from waiting import until

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failed(words: list[str], capsys: Captured) -> str:
    assert run(["kmod", *words]) == 1
    return capsys.readouterr().err


def module(folder: Path, name: str) -> Path:
    """A folder whose module is built."""
    folder = folder / name
    folder.mkdir()
    (folder / "Kbuild").write_text(f"obj-m += {name}.o\n")
    (folder / f"{name}.ko").touch()
    return folder


# ---------------------------------------------------------------- making


def test_the_list_has_the_course(capsys: Captured) -> None:
    assert run(["kmod", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [lesson["name"] for lesson in found] == [lesson.name for lesson in course.lessons()]
    assert run(["kmod", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [lesson["name"] for lesson in found]
    assert max(len(line.rstrip()) for line in lines) <= 78  # so that a terminal has room for it


@pytest.mark.parametrize(
    ("made_from", "peer", "words"),
    [
        ("client", "peer_listener.py", ["--device", "none"]),
        ("listener", "peer_client.py", ["127.0.0.1", "--device", "none"]),
        ("rw", "peer_memory.py", ["--size", "1K", "--device", "none"]),
    ],
)
def test_a_copied_peer_says_in_a_line_what_is_wrong(
    here: Path, made_from: str, peer: str, words: list[str]
) -> None:
    course.new("mine", made_from, here / "mine")
    ended = subprocess.run([sys.executable, peer, *words], cwd=here / "mine", capture_output=True, text=True)
    assert ended.returncode == 1
    assert re.fullmatch(rf"{peer}: .*no device none; there are: .*\n", ended.stderr)


@pytest.mark.usefixtures("here")
def test_a_new_module_is_told_file_by_file(capsys: Captured) -> None:
    assert run(["kmod", "new", "mine", "--from", "client"]) == 0
    assert {"mine/Kbuild", "mine/mine.c", "mine/peer_listener.py"} <= set(capsys.readouterr().out.split())
    assert "mine exists already" in failed(["new", "mine"], capsys)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", ["build", "load", "unload", "grade", "test"])
def test_a_folder_that_is_none_is_told(command: str, capsys: Captured) -> None:
    said = failed([command, "none"], capsys)
    if command == "test":
        assert said.startswith(
            "rnic: none is no module of the course, which rnic kmod list shows, and no folder"
        )
    else:
        assert said.startswith("rnic: none: no such folder; rnic kmod new makes one")
    assert "has no Kbuild" in failed([command, "."], capsys)


def test_a_module_of_nothing_in_the_course_is_said_to_be_tested_for_little(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "grade", lambda *_: [])
    module(here, "mine")
    assert run(["kmod", "test", "mine"]) == 0
    assert "mine is not made from a module of the course: only" in capsys.readouterr().err
    (here / "mine/Kbuild").write_text("# rnic kmod new mine --from hello\nobj-m += mine.o\n")
    assert run(["kmod", "test", "mine"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_a_limit_that_is_no_number_is_refused() -> None:
    assert run(["kmod", "grade", "mine", "--timeout", "nan"]) == 2


def test_a_computer_without_a_compiler_is_told(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "found", lambda program: program != "gcc")
    module(here, "mine")
    assert "no compiler here: gcc missing; on Debian apt-get install gcc" in failed(["build", "mine"], capsys)


@pytest.mark.parametrize("name", ["a b", "a:b", "a$b", "a#b", "a'b"])
def test_a_folder_that_make_cannot_read_is_told(name: str, here: Path) -> None:
    (here / name).mkdir()
    target = build.Target("", lambda _: pytest.fail("nothing is to be made"))
    with pytest.raises(KmodError, match="the kernel's makefiles take no "):
        build.build(Folder(module(here / name, "mine")), target)


def test_what_is_no_file_is_not_copied_for_a_test(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(module(here, "mine") / "pipe")
    (here / "mine/link").symlink_to("/nowhere")
    monkeypatch.setattr(build, "for_machine", lambda: build.Target("", lambda _: ""))
    assert built(Folder(here / "mine"), "mine", here / "copy").outcome is PASSED
    assert {path.name for path in (here / "copy").iterdir()} == {"Kbuild"}


KILLED_WHILE_IT_BUILDS = """
import os, signal, sys
from rnic.cli.main import run
from rnic.kmod import build

def make(source):
    print(source, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

build.for_machine = lambda: build.Target("", make)
run(["kmod", *sys.argv[1:]])
"""


@pytest.mark.parametrize("words", [["grade", "mine"], ["test", "hello"]])
def test_nothing_stays_of_a_test_that_is_killed(words: list[str], here: Path) -> None:
    module(here, "mine")
    (here / "tmp").mkdir()
    command = [sys.executable, "-c", KILLED_WHILE_IT_BUILDS, *words]
    killed = subprocess.run(command, env=os.environ | {"TMPDIR": str(here / "tmp")}, stdout=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout.decode().startswith(str(here / "tmp"))
    until(lambda: not [*(here / "tmp").iterdir()], "the end of its folders")


def test_a_computer_without_room_for_a_test_is_told(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(here / "none"))
    module(here, "mine")
    assert "no folder to build the module in: " in failed(["grade", "mine"], capsys)


def test_loading_here_takes_root_and_headers(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module(here, "mine") / "mine.ko").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words in ["load", "mine"], ["unload", "mine"], ["log"]:
        said = failed([*words, "--here"], capsys)
        assert "only root may use this computer's kernel: use sudo, or leave out --here" in said
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "here", "0.0-none", "", "x86_64")))
    said = failed(["build", "mine", "--here"], capsys)
    assert "apt-get install linux-headers-0.0-none; or leave out --here" in said
    assert run(["kmod", "load", "mine", "--here", "-n", "box"]) == 2


# ---------------------------------------------------------------- as programs see it


def test_a_module_is_an_object(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "client" in [lesson.name for lesson in lessons()]
    mine = Module.new("mine", made_from="client")
    assert repr(mine) == repr(Module("mine")) == f"Module('{here}/mine', '')"
    assert (mine.name, mine.made_from, mine.path) == ("mine", "client", here / "mine")
    assert (mine.files, mine.is_built) == ([here / "mine/mine.ko"], False)

    def make(source: Path) -> str:
        (source / "mine.ko").touch()
        return "mine.c:3:5: warning: unused variable 'x'"

    monkeypatch.setattr(build, "for_machine", lambda: build.Target("", make))
    assert mine.build() == "mine.c:3:5: warning: unused variable 'x'"
    assert mine.is_built


def test_a_module_that_does_not_build_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: Path) -> str:
        raise CommandError("make: exit 2\nmine.c:3:5: error: expected ';'")

    monkeypatch.setattr(build, "for_machine", lambda: build.Target("", make))
    with pytest.raises(KmodError, match=r"mine does not build\nmine.c:3:5: error: expected ';'"):
        Module.new("mine", folder=here / "mine").build()


def test_a_module_of_several_is_named_when_it_must_be(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "ready", lambda *_: pytest.fail("no machine is started for that"))
    Module.of_course("user", here / "copy")
    (here / "copy/Kbuild").write_text("obj-m += user.o base.o\n")
    assert [file.name for file in Module("copy").files] == ["user.ko", "base.ko"]
    with pytest.raises(KmodError, match="several modules"):
        Module("copy").load()
    assert Module("copy", "base").name == "base"
    with pytest.raises(KmodError, match="has no module none"):
        Module("copy", "none")
    with pytest.raises(KmodError, match="the course has no module none"):
        Module.of_course("none", here / "none")
    with pytest.raises(ValueError, match="'roce' is no transport of a module: rxe, siw"):
        Module("copy", "base").grade(transports=("roce",))


# ---------------------------------------------------------------- machines


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One whose machines are stand-ins without siw, which takes a kernel's source."""
    need_tap()
    furnish(tmp_path, monkeypatch)
    monkeypatch.setattr(siw, "module", lambda *_: None)
    monkeypatch.setattr(kernel, "headers", lambda *_: tmp_path)
    monkeypatch.setattr(place.Box, "is_damaged", lambda _: (tmp_path / "oopsed").exists())
    yield tmp_path
    for name in running():
        with Machine.attach(name) as machine:
            machine.end()


def test_a_machine_is_started_and_started_again_as_it_was_when_it_is_not_well(computer: Path) -> None:
    said: list[str] = []
    with place.ready("", said.append) as box:
        assert box.machine.devices == ["rxe0", "siw0"]
    assert said == ["starting box", "box is started, with rxe0 and siw0; rnic vm down box ends it"]
    with place.ready("", said.append) as box:
        assert len(said) == 2
        with pytest.raises(MachineError):
            box.run(DIE)
    with pytest.raises(KmodError, match="the machine box died: Kernel panic"), place.attached("box"):
        pass
    with place.ready("", said.append) as box:
        assert said[2:] == ["starting box", "box is started again: Kernel panic - not syncing: enough"]
        assert box.machine.devices == ["rxe0", "siw0"]
    (computer / "oopsed").touch()
    with place.ready("", said.append):
        assert said[-1] == "box is started again: its kernel had oopsed"


def test_a_command_without_a_machine_says_how_one_is_started(
    here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(here, "mine")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(here))
    assert "no machine box runs: rnic kmod load" in failed(["unload", "mine"], capsys)
    assert "no machine box runs: rnic kmod load" in failed(["log"], capsys)


# ---------------------------------------------------------------- loading


class Stand(place.Here):
    """A place whose programs say what they are told to say."""

    def __init__(self, says: dict[str, tuple[int, str]]) -> None:
        self.says = says
        self.commands: list[str] = []

    def run(self, command: str, timeout: float = 60) -> Result:  # noqa: ARG002
        self.commands.append(command)
        program = command.partition(" ")[0]
        return Result(*self.says.get(program, (0, "")))


class Kernel(place.Here):
    """A place that knows which modules are loaded, by the names that a kernel gives them."""

    def __init__(self) -> None:
        self.modules: list[str] = []

    def run(self, command: str, timeout: float = 60) -> Result:  # noqa: ARG002
        program, *words = command.split()
        if program == "insmod":
            self.modules.append(Path(words[0]).stem.replace("-", "_"))
        elif program == "rmmod":
            self.modules.remove(words[0].replace("-", "_"))
        elif program == "test":
            _, needed, _, *user = Path(words[1]).relative_to("/sys").parts
            return Result(0 if {needed, *user} <= {*self.modules} and needed not in user else 1, "")
        return Result(0, "")


def test_a_module_that_needs_one_with_a_hyphen(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"my-user.ko": "my-base,ib_core", "my-base.ko": ""}
    monkeypatch.setattr(loading, "sh", lambda *words: needs[words[-1].name])
    module(here, "my-user")
    (here / "my-user/Kbuild").write_text("obj-m += my-user.o my-base.o\n")
    folder = Folder(here / "my-user")
    kernel = Kernel()
    loading.load(kernel, folder, "my-user")
    kernel.modules.remove("my_user")
    loading.load(kernel, folder, "my-user")  # when my-base is there already
    assert kernel.modules == ["my_base", "my_user"]
    loading.unload(kernel, folder, "my-user")
    assert kernel.modules == []


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("insmod: ERROR: could not insert module mine.ko: File exists", "loaded already: rnic kmod unload"),
        ("insmod: ERROR: could not insert module mine.ko: Invalid module format", "another kernel"),
        ("insmod: ERROR: could not insert module mine.ko: Unknown symbol in module", "load that one first"),
        ("insmod: ERROR: could not insert module mine.ko: Invalid parameters", "load: Invalid parameters"),
    ],
)
def test_why_a_module_does_not_load(
    printed: str, says: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "sh", lambda *_: "")
    stand = Stand({"insmod": (1, printed), "dmesg": (0, "[ 1.0] mine: times=0 is not in 1..10")})
    with pytest.raises(KmodError, match=says) as error:
        loading.load(stand, Folder(module(here, "mine")), "mine", ["whom=you and me"])
    assert str(error.value).splitlines()[1:] == ["[ 1.0] mine: times=0 is not in 1..10"]
    assert stand.commands[-2].endswith("mine.ko 'whom=you and me'")


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("rmmod: ERROR: Module mine is in use by: user", "it is in use by user: unload that first"),
        ("rmmod: ERROR: Module mine is in use", "it is in use"),
        ("rmmod: ERROR: Module mine is not currently loaded", "it is not loaded"),
    ],
)
def test_why_a_module_does_not_unload(printed: str, says: str, here: Path) -> None:
    stand = Stand({"rmmod": (1, printed), "test": (1, "")})
    with pytest.raises(KmodError, match=rf"{says}\Z"):  # no line of the kernel's, and no empty one
        loading.unload(stand, Folder(module(here, "mine")), "mine")


def test_an_oops_while_a_module_loads_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "sh", lambda *_: "")
    stand = Stand({"insmod": (-9, ""), "dmesg": (0, "[ 1.0] BUG: kernel NULL pointer dereference")})
    with pytest.raises(loading.OopsError, match=r"trouble after insmod\n.*BUG: kernel NULL"):
        loading.load(stand, Folder(module(here, "mine")), "mine")
