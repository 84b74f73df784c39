# SPDX-License-Identifier: Apache-2.0
"""`rnic kmod` with real kernels: the course's modules pass, and wrong ones fail at their step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from kmod.wrong import WRONG
from rnic.kmod import Module, course
from rnic.kmod.grade import Built, built, rounds
from rnic.kmod.machines import Machines
from rnic.kmod.steps import NEEDS, Report, Step
from rnic.vm import Machine, running

pytestmark = pytest.mark.interop

SECONDS = 120  # for what must end
SHORT = 30  # for the few wrong modules that do not end
LIMIT = 300  # that nothing takes
COURSE = ("client", "listener", "rw", "blockdev")
SKELETONS = ("client", "listener", "rw", "blockdev")
EACH = [(name, device) for name in COURSE for device in ("rxe", "siw")]


def kmod(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rnic", "kmod", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)


def checked(*words: str) -> str:
    done = kmod(*words)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The machine "box", which `rnic kmod load` starts; at the end nothing of it is left."""
    run = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(run))
        said: list[str] = []
        with Machines("box", said.append) as machines:
            yield machines
        for name in running():
            with Machine.attach(name) as machine:
                machine.end()
        assert not [*(run / "rnic/vm").iterdir()]


def report(
    one: Built, machines: Machines, device: str, skipped: Collection[Step] = (), seconds: float = SECONDS
) -> Report:
    (found,) = rounds(one, machines, seconds, (device,), skipped)
    return found


def test_the_turn_of_who_writes_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checked("new", "mine", "--from", "hello")
    done = kmod("load", "mine", "whom=you")
    assert "hello, you" in done.stdout
    assert "box is started, with rxe0 and siw0" in done.stderr
    again = kmod("load", "mine")
    assert (again.returncode, "it is loaded already" in again.stderr) == (1, True)
    checked("unload", "mine")
    assert "goodbye, you" in checked("log")
    with Machine.attach("box") as machine:  # which is this computer, to what runs in it
        command = f"{sys.executable} -m rnic kmod"
        assert "hello, again" in machine.check(f"{command} load {tmp_path}/mine --here whom=again")
        machine.check(f"{command} unload {tmp_path}/mine --here")
        assert "goodbye, again" in machine.check(f"{command} log --here")
    graded = json.loads(checked("grade", "mine", "-n", "box", "--json"))
    assert (graded["from"], graded["passed"]) == ("hello", True)
    assert "it is not loaded" in kmod("unload", "mine").stderr


def test_the_example_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/kmod.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(example, {})
    first, *others = capsys.readouterr().out.splitlines()
    assert "'client'" in first
    assert "no warning" in others
    assert [re.sub(r"^\[.*?\] ", "", line) for line in others[-3:]] == [
        "mine: hello, you",
        "mine: goodbye, you",
        " True {}",
    ]


def test_a_module_needs_one_with_a_hyphen_in_its_name(tmp_path: Path) -> None:
    folder = course.copy(tmp_path / "course", "user").path
    for name in "user", "base":
        (folder / f"{name}.c").rename(folder / f"my-{name}.c")
    (folder / "Kbuild").write_text("obj-m += my-user.o my-base.o\n")
    user = Module(folder, "my-user")
    assert "my_user: base counts" in user.load()
    with Machine.attach("box") as machine:
        machine.check("rmmod my_user")
        assert "my_user: base counts" in user.load()  # when my-base is there already
        user.unload()
        assert machine.run("grep my_ /proc/modules").out == ""


def test_an_oops_is_told_and_the_machine_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = course.new("mine", "hello", tmp_path / "mine")
    text = (made.path / "mine.c").read_text()
    check = "\tif (times < 1 ||"
    assert check in text
    (made.path / "mine.c").write_text(
        text.replace(check, f"\tif (times == 7)\n\t\tWRITE_ONCE(*(int *)(long)times, 1);\n{check}")
    )
    done = kmod("load", "mine", "times=7")
    assert done.returncode == 1
    assert done.stderr.startswith("rnic: the kernel is in trouble after insmod\n")
    assert "BUG: " in done.stderr
    assert "hello_init" in done.stderr
    done = kmod("load", "mine", "times=2")
    assert done.returncode == 0, done
    assert "box is started again: its kernel had oopsed" in done.stderr
    checked("unload", "mine")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("module", "device"), EACH)
def test_a_module_of_the_course_passes(module: str, device: str, machines: Machines, tmp_path: Path) -> None:
    right = built(course.copy(tmp_path / "course", module), module, tmp_path / "built")
    found = report(right, machines, device)
    assert found.passed, found.as_dict()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("module", SKELETONS)
def test_a_skeleton_compiles_and_loads_and_says_what_is_missing(
    module: str, machines: Machines, tmp_path: Path
) -> None:
    made = course.new("mine", module, tmp_path / "mine")
    found = report(built(made, "mine", tmp_path / "built"), machines, "rxe")
    assert list(found.failures) == [Step.CONNECT], found.as_dict()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_module_fails_at_its_step(name: str, machines: Machines, tmp_path: Path) -> None:
    wrong = WRONG[name]
    one = built(wrong.write(tmp_path / "wrong"), wrong.module, tmp_path / "built")
    skipped = {Step.HOSTILE, Step.DEATH} - {wrong.step}  # which take the longest
    found = report(one, machines, wrong.device, skipped, SHORT)
    assert list(found.failures) == [wrong.step], found.as_dict()
    failure = found.failures[wrong.step]
    assert re.search(wrong.says, f"{failure.detail}\n{failure.printed}"), failure
    for step, outcome in found.outcomes.items():
        if NEEDS.get(step) is wrong.step:
            assert outcome.result == "not reached"
    assert machines.take().check("uname -r"), "the machine is back"
