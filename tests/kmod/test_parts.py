# SPDX-License-Identifier: Apache-2.0
"""Folders, skeletons, what compilers and kernels say: all that needs neither of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmod.wrong import WRONG
from rnic.kmod import KmodError, course, loading, log, skeleton
from rnic.kmod.build import complaints
from rnic.kmod.folder import Folder
from rnic.kmod.grade import SECONDS, Built, Round, rounds
from rnic.kmod.roles import Client, Listener, Role, WrongError
from rnic.kmod.steps import NEEDS, PASSED, Report, Step
from rnic.kmod.taken import is_taken, names
from rnic.vm import Result

# ---------------------------------------------------------------- folders


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_kbuild_says_which_modules_there_are_and_of_what(tmp_path: Path) -> None:
    text = "# obj-m += not.o\nobj-m += one.o two.o  # both\ntwo-y := a.o b.o\nobj-m += three.o\n"
    found = Folder(written(tmp_path, Kbuild=text))
    assert found.modules == {"one": ("one.c",), "two": ("a.c", "b.c"), "three": ("three.c",)}
    assert found.made_from == ""


def test_a_makefile_will_do(tmp_path: Path) -> None:
    assert Folder(written(tmp_path, Makefile="obj-m := one.o\n")).chosen() == "one"


def test_lines_may_be_continued_and_indented(tmp_path: Path) -> None:
    text = "ifneq ($(KERNELRELEASE),)\n\tobj-m := \\\n\t\tone.o\n\tone-y := a.o \\\n\t\tb.o\nendif\n"
    assert Folder(written(tmp_path, Kbuild=text)).modules == {"one": ("a.c", "b.c")}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no Kbuild"),
        ({"Kbuild": "# nothing\n"}, "makes no module"),
    ],
)
def test_a_folder_without_modules_is_told(files: dict[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(KmodError, match=says):
        Folder(written(tmp_path, **files))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(KmodError, match="no such folder; rnic kmod new makes one"):
        Folder(tmp_path / "none")


def test_of_several_modules_one_is_named_unless_the_folder_was_made_for_it(tmp_path: Path) -> None:
    found = Folder(written(tmp_path, Kbuild="obj-m += one.o two.o\n"))
    with pytest.raises(KmodError, match="several modules, name one with --module: one, two"):
        found.chosen()
    assert found.chosen("two") == "two"
    with pytest.raises(KmodError, match="no module three; it has one, two"):
        found.chosen("three")
    made = "# Made by: rnic kmod new two --from user\nobj-m += one.o two.o\n"
    assert Folder(written(tmp_path, Kbuild=made)).chosen() == "two"


def test_a_module_is_built_again_when_what_it_includes_is_newer(tmp_path: Path) -> None:
    files = {"Kbuild": "obj-m += one.o\n", "one__c": '#include "one.h"\n', "one__h": ""}
    found = Folder(written(tmp_path, **files))
    assert not found.is_built("one")
    file = found.file("one")
    file.touch()
    assert found.is_built("one")
    later = file.stat().st_mtime + 1
    os.utime(tmp_path / "one.h", (later, later))
    assert not found.is_built("one")


# ---------------------------------------------------------------- skeletons

SOURCE = """\
/*
 * small: something small.
 */
static void helper_done(void *context);

static int helper(int a)
{
	return a;
}

static int work(int a)
{
	/* -- your part: work with a -- */
	int b = helper(a);

	return call(helper_done, b);
	/* -- end -- */
}

static struct thing *find(int a)
{
	/* -- your part: find it -- */
	return NULL;
	/* -- end -- */
}

static void helper_done(void *context)
{
	/* -- your part: note that it is done -- */
	note(context);
	/* -- end -- */
}

static blk_status_t queue(struct thing *thing)
{
	/* -- your part: queue it -- */
	return BLK_STS_OK;
	/* -- end -- */
}

static int small_init(void)
{
	return IS_ERR(find(1)) || queue(NULL) ? 1 : work(2);
}
module_init(small_init);
"""


def test_a_part_becomes_a_todo_and_what_its_function_returns() -> None:
    left = skeleton.without_parts(SOURCE)
    assert skeleton.count(SOURCE) == 4
    assert "\t/* TODO: work with a */\n\treturn -EOPNOTSUPP;\n}" in left
    assert "\t/* TODO: find it */\n\treturn ERR_PTR(-EOPNOTSUPP);\n}" in left
    assert "\t/* TODO: queue it */\n\treturn BLK_STS_NOTSUPP;\n}" in left
    assert "\t/* TODO: note that it is done */\n}" in left
    assert "your part" not in left
    assert "-- end --" not in left


def test_what_only_a_part_calls_may_be_unused() -> None:
    left = skeleton.without_parts(SOURCE)
    assert "static int __maybe_unused helper(int a)" in left
    assert "static void __maybe_unused helper_done(void *context)\n{" in left
    assert "static int work(int a)" in left
    assert "static int small_init(void)" in left


def test_a_source_without_parts_stays_as_it_is() -> None:
    text = SOURCE.replace("your part", "our part")
    assert skeleton.without_parts(text) == text


# ---------------------------------------------------------------- the course


def test_every_module_of_the_course_says_what_it_shows() -> None:
    lessons = course.lessons()
    assert {"hello", "client", "listener"} <= {lesson.name for lesson in lessons}
    assert all(lesson.about for lesson in lessons)
    assert {lesson.name for lesson in lessons if lesson.parts >= 3} >= course.PEERS.keys()


@pytest.mark.parametrize("lesson", [lesson.name for lesson in course.lessons()])
def test_a_new_module_has_all_files_that_its_sources_want(lesson: str, tmp_path: Path) -> None:
    made = course.new("mine", lesson, tmp_path / "mine")
    assert (made.chosen(), made.made_from) == ("mine", lesson)
    assert all((made.path / source).exists() for sources in made.modules.values() for source in sources)
    peers = [(made.path / name).read_text() for name in course.PEERS.get(lesson, ())]
    imported = {name for text in peers for name in re.findall(r"^from (\w+) import", text, re.MULTILINE)}
    there = {path.stem for path in course.folder().path.glob("*.py")}
    assert all((made.path / f"{name}.py").exists() for name in imported & there)
    assert not [path for path in made.path.iterdir() if "your part" in path.read_text()]


@pytest.mark.parametrize(
    ("name", "made_from", "says"),
    [
        ("mine", "none", "the course has no module none; it has hello"),
        ("Mine", "hello", "'Mine' is no name of a module"),
        ("../mine", "hello", "is no name of a module"),
        ("ib_core", "hello", "the kernel has a module ib_core of its own: give the module another name"),
        ("siw", "hello", "the kernel has a module siw of its own"),
        ("base", "user", "user is made of base.c among others"),
        ("agent", "listener", "listener is made of agent.c among others"),
    ],
)
def test_a_new_module_that_cannot_be_is_told(name: str, made_from: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(KmodError, match=says):
        course.new(name, made_from, tmp_path / "mine")


def test_the_names_of_a_kernels_modules_are_known_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel = tmp_path / "rnic/vm/kernel/lib/modules/6.1.0-0-fake"
    kernel.mkdir(parents=True)
    assert not is_taken("snd_pcm")
    (kernel / "modules.order").write_text("kernel/fs/ext4/ext4.ko\nkernel/sound/core/snd-pcm.ko.xz\n")
    (kernel / "modules.builtin.modinfo").write_bytes(
        b"loop.license=GPL\0loop.file=drivers/block/loop\0tcp-x.a=b.c"
    )
    assert names(kernel) == {"ext4", "snd_pcm", "loop", "tcp_x"}
    assert is_taken("snd_pcm")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    with pytest.raises(KmodError, match="exists already"):
        course.new("mine", "hello", tmp_path)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_modules_are_still_made_of_the_course(name: str, tmp_path: Path) -> None:
    assert WRONG[name].write(tmp_path / "wrong").chosen(WRONG[name].module)


# ---------------------------------------------------------------- what programs print

MAKE = """\
make: Entering directory '/usr/src/linux-headers-6.1'
warning: the compiler differs from the one used to build the kernel
  The kernel was built by: gcc-12 (Debian 12.2.0-14) 12.2.0
  You are using:           gcc 12.3.0
  CC [M]  /tmp/mine/mine.o
/tmp/mine/mine.c: In function 'mine_init':
/tmp/mine/mine.c:9:13: warning: unused variable 'b' [-Wunused-variable]
    9 |         int b;
      |             ^
  MODPOST /tmp/mine/Module.symvers
WARNING: modpost: missing MODULE_DESCRIPTION() in /tmp/mine/mine.o
  BTF [M] /tmp/mine/mine.ko
Skipping BTF generation for /tmp/mine/mine.ko due to unavailability of vmlinux
make: Leaving directory '/usr/src/linux-headers-6.1'
"""


def test_of_what_a_build_prints_the_complaints_are_kept() -> None:
    assert complaints(MAKE, Path("/tmp/mine")).splitlines() == [
        "mine.c:9:13: warning: unused variable 'b' [-Wunused-variable]",
        "    9 |         int b;",
        "      |             ^",
        "WARNING: modpost: missing MODULE_DESCRIPTION() in mine.o",
    ]


def test_a_build_that_is_well_has_no_complaints() -> None:
    lines = [line for line in MAKE.splitlines() if "mine.c" not in line and "modpost" not in line]
    assert complaints("\n".join(lines), Path("/tmp/mine")) == ""


OOPS = """\
[    1.0] rnic kmod: loading mine
[    2.0] mine: hello
[    3.0] BUG: kernel NULL pointer dereference, address: 0000000000000000
[    3.1] RIP: 0010:mine_init+0x1/0x1000 [mine]
[    3.2] ---[ end trace 0000000000000000 ]---
[    4.0] later"""


def test_the_log_since_a_module_was_loaded() -> None:
    assert log.since(OOPS).startswith("[    2.0] mine: hello\n")
    assert log.since("no mark\n") == "no mark"
    assert log.behind(OOPS, OOPS[: OOPS.index("[    3.0]")]) == OOPS[OOPS.index("[    3.0]") :]


def test_trouble_is_an_oops_with_its_lines() -> None:
    found = log.trouble(OOPS)
    assert log.first(found) == "BUG: kernel NULL pointer dereference, address: 0000000000000000"
    assert found.splitlines()[-1].endswith("---[ end trace 0000000000000000 ]---")


@pytest.mark.parametrize(
    "line",
    [
        "mine: WARNING is no kernel's word",
        "mine: warning: no answer yet",
        "WARNING: the server is late",
        "debug: state 3",
        "mine: BUG: no such number",
        "oops, no memory",
        "mine: double free of receive-slab-3",
    ],
)
def test_what_a_module_prints_is_no_trouble(line: str) -> None:
    assert log.trouble(f"[    1.0] {line}\n") == ""


@pytest.mark.parametrize(
    "line",
    [
        "BUG: scheduling while atomic: swapper/0/0/0x00000102",
        "BUG kmalloc-64 (Tainted: G           OE     ): Object already free",
        "kernel BUG at drivers/infiniband/core/cq.c:329!",
        "WARNING: CPU: 0 PID: 7 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [insmod:7]",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "INFO: task insmod:7 blocked for more than 120 seconds.",
        "general protection fault, probably for non-canonical address 0x6b6b: 0000 [#1] PREEMPT SMP",
        "divide error: 0000 [#1] PREEMPT SMP NOPTI",
        "list_del corruption. prev->next should be ffff, but was 0000",
    ],
)
def test_what_the_kernel_prints_of_itself_is_trouble(line: str) -> None:
    assert log.trouble(f"[    1.0] mine: hello\n[   42.150342] {line}\n").endswith(line)


# ---------------------------------------------------------------- reports


def test_a_step_is_not_reached_when_the_one_that_it_needs_has_not_passed() -> None:
    report = Report("rxe", tuple(Step))
    assert [step for step in Step if report.can_be_reached(step)] == [Step.COMPILE]
    assert set(NEEDS) == set(Step) - {Step.COMPILE}
    assert report.as_dict()["steps"]["unload"] == "not reached"


class Says:
    """A stand-in for a machine whose commands all print the same."""

    name = "box"
    machine = SimpleNamespace(devices=["rxe0"], dead=False)

    def __init__(self, out: str) -> None:
        self.out = out
        self.bad = 0

    def run(self, *_: object) -> Result:
        return Result(0, self.out)

    def check(self, *_: object) -> str:
        return self.out

    def log(self) -> str:
        return self.out

    def troubles(self) -> int:
        self.bad, before = 512, self.bad
        return before


def role(kind: type[Role], out: str) -> Any:
    return kind(cast(Any, Says(out)), "mine", "rxe", 1)


def test_a_proc_file_that_does_not_end_is_wrong() -> None:
    with pytest.raises(WrongError, match="does not end: more than 65536 bytes"):
        role(Client, "state\n" * 20000).read_proc()


def test_what_should_be_a_number_and_is_none_is_wrong() -> None:
    with pytest.raises(WrongError, match="says received 'many', which is no number"):
        role(Client, "received many\n").until_more("received", 0)
    with pytest.raises(WrongError, match="says asks '', which is no number"):
        role(Listener, "asks\n").serve_texts()


def test_a_warning_that_the_log_has_lost_is_trouble(tmp_path: Path) -> None:
    folder = Folder(written(tmp_path, Kbuild="obj-m += mine.o\n"))
    tried = Round(Built(folder, "mine", PASSED), "", cast(Any, Says("[    1.0] mine: text 7\n")), 1, str)
    tried.steps = {Step.LOAD: lambda: None}
    assert "it has warned or oopsed" in tried.run(()).failures[Step.LOAD].detail


def test_a_machine_without_the_device_is_told(tmp_path: Path) -> None:
    folder = Folder(written(tmp_path, Kbuild="obj-m += client.o\n"))
    machines = cast(Any, SimpleNamespace(take=lambda: Says("")))
    with pytest.raises(
        KmodError, match="box has no siw0, but rxe0: start it by rnic vm up box --transport both"
    ):
        next(rounds(Built(folder, "client", PASSED), machines, 1))


def test_a_wait_is_longer_than_any_of_the_course() -> None:
    texts = [path.read_text() for path in course.folder().path.glob("*.[ch]")]
    longest = max(
        int(ms) for text in texts for ms in re.findall(r"^#define \w+_MS\s+(\d+)", text, re.MULTILINE)
    )
    assert 1.5 * longest / 1000 <= SECONDS


def test_the_words_of_a_step_fit_the_table() -> None:
    assert max(len(step.value) for step in Step) <= 20


def test_a_peer_ends_with_who_started_it(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    script = f"""
import os, signal
from types import SimpleNamespace
from rnic.kmod.peer import Peer
machine = SimpleNamespace(keeper=os.getpid())
print(Peer("peer", machine, "rxe", {str(tmp_path / "peer.py")!r}).expect("[0-9]+", 60)[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    limit = time.monotonic() + 60
    while Path("/proc", done.stdout.strip(), "cwd").exists() and time.monotonic() < limit:
        time.sleep(0.01)
    assert done.stdout.strip().isdigit()
    assert not Path("/proc", done.stdout.strip(), "cwd").exists()


@pytest.mark.parametrize("step", [Step.LOAD, Step.UNLOAD])
def test_a_machine_that_has_a_modules_file_without_the_module_is_not_used_again(
    step: Step, tmp_path: Path
) -> None:
    folder = Folder(written(tmp_path, Kbuild="obj-m += client.o\n"))
    machine = SimpleNamespace(
        **vars(Says.machine), spawn=lambda _: SimpleNamespace(rc=0, wait=lambda: (0, ""))
    )
    box = Says("")
    box.machine = machine
    tried = Round(Built(folder, "client", PASSED), "", cast(Any, box), 1, str)
    tried.steps = {Step.LOAD: lambda: None, Step.UNLOAD: tried.unload}
    box.troubles = lambda: 0  # type: ignore[method-assign]
    failures = tried.run({Step.UNLOAD} - {step}).failures
    assert tried.is_spoilt == bool(failures) == (step is Step.UNLOAD)


def test_a_machine_in_which_loading_hangs_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise loading.StuckError("not finished after 60 s")

    monkeypatch.setattr(loading, "load", load)
    folder = Folder(written(tmp_path, Kbuild="obj-m += mine.o\n"))
    box = Says("")
    box.troubles = lambda: 0  # type: ignore[method-assign]
    tried = Round(Built(folder, "mine", PASSED), "", cast(Any, box), 1, str)
    assert tried.run(()).failures[Step.LOAD].detail == "not finished after 60 s"
    assert tried.is_spoilt
