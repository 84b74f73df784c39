# SPDX-License-Identifier: Apache-2.0
"""The kernel modules of examples/kernel that need no peer."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from modules import SOURCE, Box, built

from rnic.vm import Machine, images

pytestmark = pytest.mark.interop

PROGRAMS = Path(__file__).with_name("guest_procfile.py")
# A folder where modprobe finds the modules that depmod has found.
FOLDER = """set -e
folder=/run/course/lib/modules/$(uname -r)
mkdir -p $folder
cp {built}/base.ko {built}/user.ko $folder
touch $folder/modules.order $folder/modules.builtin $folder/modules.builtin.modinfo
depmod -b /run/course"""
# What is written to /proc/procfile, with Python's escapes, and how it is refused.
REFUSED = {
    "": "EINVAL",
    "\\n": "EINVAL",
    "ad one": "EINVAL",
    "add": "EINVAL",
    "add ": "EINVAL",
    "add one\\ntwo": "EINVAL",
    "add one\\0two": "EINVAL",
    "add \\33[2J": "EINVAL",
    "add " + "x" * 201: "EINVAL",
    "add " + "x" * 100_000: "EINVAL",
    "remove": "EINVAL",
    "remove one": "EINVAL",
    "remove 1 2": "EINVAL",
    "remove 99999999999999999999": "ERANGE",
    "remove 2": "ENOENT",
    "clear 1": "EINVAL",
    "clear ": "EINVAL",
}
MODPROBE = "modprobe -d /run/course"


@pytest.mark.parametrize("names", ["hello", "procfile", "base user", "devices"])
def test_ten_times_loaded_and_unloaded(box: Box, names: str) -> None:
    load = " && ".join(f"insmod {built()}/{name}.ko" for name in names.split())
    unload = " && ".join(f"rmmod {name}" for name in reversed(names.split()))
    with box.nothing_left():
        box.machine.check(f"for i in $(seq 10); do {load} && {unload} || exit; done")


def test_make_builds_with_the_headers_of_the_machines_kernel(tmp_path: Path) -> None:
    for name in ("Makefile", "hello.c"):
        shutil.copy(SOURCE / name, tmp_path)
    (tmp_path / "Kbuild").write_text("obj-m += hello.o\n")
    make = ["make", "-C", str(tmp_path), f"KDIR={images.headers()[1]}"]
    subprocess.run(make, check=True, capture_output=True, timeout=300)
    assert (tmp_path / "hello.ko").exists()
    subprocess.run([*make, "clean"], check=True, capture_output=True, timeout=300)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Kbuild", "Makefile", "hello.c"]


def test_checkpatch_has_nothing_to_say() -> None:
    folders = (Path("/usr/src"), images.headers()[1].parent)
    scripts = [path for folder in folders for path in folder.glob("linux-*/scripts/checkpatch.pl")]
    if not scripts:
        pytest.skip("no /usr/src/linux-*/scripts/checkpatch.pl (unpack Debian's linux-source there)")
    sources = sorted(map(str, (*SOURCE.glob("*.c"), *SOURCE.glob("*.h"))))
    command = ["perl", str(scripts[0]), "--no-tree", "--strict", "--terse", "--no-summary", "-f", *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# ---------------------------------------------------------------- hello


def test_hello_greets_whom_its_parameters_name(box: Box) -> None:
    with box.loaded("hello", whom="you", times=3):
        assert box.machine.check("cat /sys/module/hello/parameters/whom") == "you\n"
    assert box.log().count("hello: hello, you\n") == 3
    assert "hello: goodbye, you\n" in box.log()


def test_a_parameter_of_hello_is_changed_while_it_is_loaded(box: Box) -> None:
    with box.loaded("hello"):
        box.machine.check("printf 'see you' >/sys/module/hello/parameters/farewell")
        refused(box, "printf you >/sys/module/hello/parameters/whom")
    assert "hello: see you, world\n" in box.log()


@pytest.mark.parametrize("times", [0, 11, -1])
def test_hello_is_not_loaded_with_a_number_out_of_range(box: Box, times: int) -> None:
    box.machine.check("dmesg -C")
    assert "Invalid parameters" in refused(box, f"insmod {built()}/hello.ko times={times}")
    assert box.machine.check("dmesg --level err").endswith(f"hello: times={times} is not in 1..10\n")
    assert "hello: hello" not in box.log()


@pytest.mark.parametrize("seconds", [0, 86_401, 17_179_870])  # the last: too many jiffies
@pytest.mark.parametrize("name", ["rw", "blockdev"])
def test_a_time_limit_out_of_range_is_refused(box: Box, name: str, seconds: int) -> None:
    with box.nothing_left():
        assert box.machine.run(f"insmod {built()}/{name}.ko addr=127.0.0.1 timeout={seconds}")[0]
        assert "timeout" in box.log()


def test_hello_says_more_when_debugging_is_switched_on(box: Box) -> None:
    with box.loaded("hello"):
        pass
    assert "whom is at" not in box.log()
    with box.loaded("hello", dyndbg="+p"):
        assert "hello: whom is at" in box.machine.check("dmesg --level debug")


def test_modinfo_names_each_parameter_of_hello(box: Box) -> None:
    shown = box.machine.check(f"modinfo {built()}/hello.ko")
    assert re.findall(r"^parm: +(\w+):.*\((\w+)\)$", shown, re.M) == [
        ("whom", "charp"),
        ("times", "int"),
        ("farewell", "charp"),
    ]
    assert re.search(r"^license: +GPL$", shown, re.M)


# ---------------------------------------------------------------- procfile


def test_procfile_shows_what_was_added_and_not_removed(box: Box) -> None:
    with box.loaded("procfile"):
        assert lines(box) == ""
        for text in ("one", "two words", "drei: äöü"):
            command(box, f"add {text}")
        assert lines(box) == "1 one\n2 two words\n3 drei: äöü\n"
        command(box, "remove 2")
        assert lines(box) == "1 one\n3 drei: äöü\n"
        command(box, "clear")
        assert lines(box) == ""
        command(box, "add four")
        assert lines(box) == "4 four\n"


def test_procfile_refuses_what_is_no_command(box: Box) -> None:
    with box.loaded("procfile"):
        command(box, "add first")
        said = box.machine.check(program("write", *REFUSED)).split()
        assert dict(zip(REFUSED, said, strict=True)) == REFUSED
        assert box.machine.check(program("nowhere")) == "EFAULT\n"
        assert lines(box) == "1 first\n"


def test_procfile_has_a_limit(box: Box) -> None:
    with box.loaded("procfile", limit=2):
        for text in ("one", "two"):
            command(box, f"add {text}")
        assert box.machine.check(program("write", "add three")) == "ENOSPC\n"
        command(box, "remove 1")
        command(box, "add three")
        assert lines(box) == "2 two\n3 three\n"
    for limit in (0, 100_001):
        assert "Invalid parameters" in refused(box, f"insmod {built()}/procfile.ko limit={limit}")


def test_a_long_procfile_is_read_in_parts_and_loses_only_what_is_removed_meanwhile(box: Box) -> None:
    with box.loaded("procfile", limit=3000):
        box.machine.check(program("parts", 3000))


def test_processes_change_procfile_while_others_read_it(two_processors: Box) -> None:
    with two_processors.loaded("procfile"):
        two_processors.machine.check(program("crowd", 150), timeout=300)


def test_procfile_leaves_no_memory_behind(box: Box) -> None:
    def unreclaimable() -> int:
        return int(box.machine.check("awk '/^SUnreclaim/ {print $2}' /proc/meminfo"))

    lines, much = 10_000, 1500  # KiB that so many lines need at least
    before = unreclaimable()
    for _ in range(4):
        with box.loaded("procfile", limit=lines):
            box.machine.check(program("fill", lines))
            assert unreclaimable() > before + much
    assert unreclaimable() < before + much


def test_procfile_stays_loaded_while_its_file_is_open(box: Box) -> None:
    with box.loaded("procfile"):
        reader = box.machine.spawn(program("hold"), input=True)
        reader.expect("open")
        assert "in use" in refused(box, "rmmod procfile")
        reader.close_input()
        assert reader.wait(timeout=60)[0] == 0


# ---------------------------------------------------------------- base and user


def test_modprobe_loads_base_for_user_and_base_stays_as_long(box: Box) -> None:
    with box.nothing_left():
        box.machine.check(FOLDER.format(built=built()))
        box.machine.check(f"{MODPROBE} user add=5")
        assert box.machine.check("awk '$1 == \"base\" {print $3, $4}' /proc/modules") == "1 user,\n"
        assert counters(box) == "user 5\n"
        box.machine.check("echo -2 >/sys/module/user/parameters/add")
        assert counters(box) == "user 3\n"
        assert "in use by: user" in refused(box, "rmmod base")
        box.machine.check(f"{MODPROBE} -r user")  # and base with it
        assert not re.search(r"^(base|user) ", box.machine.check("lsmod"), re.M)
    assert "user: the sum was 3\n" in box.log()


def test_user_is_not_loaded_without_base(box: Box) -> None:
    box.machine.check("dmesg -C")
    assert "Unknown symbol" in refused(box, f"insmod {built()}/user.ko")
    assert "user: Unknown symbol base_register" in box.log()


def test_the_build_knows_what_base_exports_and_that_user_needs_it(box: Box) -> None:
    exported = re.findall(r"^\S+\t(\S+)\t\S*base\t(\S+)", (built() / "Module.symvers").read_text(), re.M)
    assert sorted(exported) == [
        ("base_register", "EXPORT_SYMBOL_GPL"),
        ("base_unregister", "EXPORT_SYMBOL_GPL"),
    ]
    assert box.machine.check(f"modinfo -F depends {built()}/user.ko") == "base\n"


def test_a_counter_takes_numbers_alone(box: Box) -> None:
    with base_and_user(box):
        for number in ("", "one", "1 2", "99999999999999999999"):
            refused(box, f"echo {shlex.quote(number)} >/sys/module/user/parameters/add")
        assert counters(box) == "user 0\n"


def test_a_counter_without_a_name_is_refused(box: Box) -> None:
    with box.loaded("base"):
        assert "Invalid parameters" in refused(box, f"insmod {built()}/user.ko name=")
        assert 'user: base takes no counter with the name "": -EINVAL\n' in box.log()
        assert counters(box) == ""


# ---------------------------------------------------------------- devices


def test_devices_shows_what_both_kinds_can_do(box: Box) -> None:
    with box.loaded("devices"):
        rxe, siw = devices(box)["rxe0"], devices(box)["siw0"]
    assert rxe["node type"] == "channel adapter"
    assert siw["node type"] == "RNIC"
    assert rxe["port 1"].startswith("active, roce over Ethernet, MTU 1024 (at most 4096), ")
    assert siw["port 1"].startswith("active, iwarp over Ethernet, ")
    assert siw["port 1"].endswith("1 of 1 GIDs")
    for name, shown in (("rxe0", rxe), ("siw0", siw)):
        guid = box.machine.check(f"cat /sys/class/infiniband/{name}/node_guid")
        assert shown["node GUID"] == guid.strip().replace(":", "")
        about = box.machine.check(f"ibv_devinfo -v -d {name}")
        for limit in ("max_qp", "max_qp_wr", "max_cqe", "max_sge_rd"):
            assert re.search(rf"\b{limit}:\s+{shown[limit]}\n", about), limit
        assert shown["fast registration"].startswith("yes, ")
        assert shown["firmware"] == "none"


@pytest.mark.parametrize("kind", ["rxe", "siw"])
def test_devices_sees_a_device_come_change_and_go(box: Box, kind: str) -> None:
    name = f"{kind}7"
    with network_device(box, "rnic7"), box.loaded("devices"):
        assert name not in devices(box)
        box.machine.check(f"rdma link add {name} type {kind} netdev rnic7")
        try:
            assert devices(box)[name]["port 1"].startswith("active, ")
            box.machine.check("ip link set rnic7 down")
            box.logged(f"devices: {name} port 1: port error\n")
            assert devices(box)[name]["port 1"].startswith("down, ")
            box.machine.check("ip link set rnic7 up")
            box.logged(f"devices: {name} port 1: port active\n")
            assert devices(box)[name]["port 1"].startswith("active, ")
            assert int(devices(box)[name]["events"]) >= 2
            box.machine.check(f"rdma dev set {name} name other7")
            name = "other7"
            assert name in devices(box)
        finally:
            box.machine.check(f"rdma link del {name}")
        assert name not in devices(box)
        assert {"rxe0", "siw0"} <= devices(box).keys()
    log = box.log()
    for said in ("a new device, ", "its name is now other7"):
        assert f"devices: {kind}7: {said}" in log
    assert "devices: other7: the device is gone, or we are, after " in log


def test_devices_is_told_of_a_device_whose_network_device_goes(box: Box) -> None:
    with box.loaded("devices"):
        with network_device(box, "rnic7"):
            box.machine.check("rdma link add rxe7 type rxe netdev rnic7")
            assert "rxe7" in devices(box)
        box.logged("devices: rxe7: the device is gone")
        assert "rxe7" not in devices(box)


def test_devices_come_and_go_while_the_list_is_read_and_the_module_leaves(two_processors: Box) -> None:
    box = two_processors
    with network_device(box, "rnic7"), box.nothing_left():
        turns = "i=0; while [ $i -lt 10 ]; do i=$((i+1)); {} done"
        links = box.machine.spawn(
            turns.format("rdma link add rxe7 type rxe netdev rnic7 && rdma link del rxe7 || exit;")
        )
        reads = box.machine.spawn(turns.format("cat /proc/rdma_devices >/dev/null 2>&1 || true;"))
        box.machine.check(turns.format(f"insmod {built()}/devices.ko && rmmod devices || exit;"), 120)
        for job in (links, reads):
            rc, out = job.wait(timeout=120)
            assert rc == 0, out


# ---------------------------------------------------------------- words of these tests


def refused(box: Box, command: str) -> str:
    """A command that must fail; what it prints."""
    rc, out = box.machine.run(command)
    assert rc != 0, out
    return str(out)


def program(word: str, *words: object) -> str:
    """The command for a program that uses /proc/procfile."""
    return shlex.join(["python3", str(PROGRAMS), word, *map(str, words)])


def command(box: Box, text: str) -> None:
    box.machine.check(f"echo {shlex.quote(text)} >/proc/procfile")


def lines(box: Box) -> str:
    return box.machine.check("cat /proc/procfile")


def counters(box: Box) -> str:
    return box.machine.check("cat /sys/module/base/parameters/counters")


@pytest.fixture(scope="module")
def two_processors() -> Iterator[Box]:
    """A guest in which two processes may be in a module at the same moment."""
    with Machine(cpus=2, accelerator="tcg") as machine:
        yield Box(machine)


@contextmanager
def base_and_user(box: Box, **parameters: object) -> Iterator[None]:
    with box.nothing_left():
        box.load("base")
        box.load("user", **parameters)
        yield
        box.unload("user")
        box.unload("base")


@contextmanager
def network_device(box: Box, name: str) -> Iterator[None]:
    """A pair of network devices in the guest, with addresses, up."""
    box.machine.check(
        f"ip link add {name} type veth peer name {name}peer"
        f" && ip link set {name}peer up && ip link set {name} up"
    )
    try:
        yield
    finally:
        box.machine.check(f"ip link del {name}")


def devices(box: Box) -> dict[str, dict[str, str]]:
    """What /proc/rdma_devices says of each device."""
    text = box.machine.check("cat /proc/rdma_devices")
    return {
        name: dict(re.findall(r"^  (.+?): (.*)$", about, re.M))
        for name, about in re.findall(r"^(\S+)\n((?:  .*\n)+)", text, re.M)
    }
