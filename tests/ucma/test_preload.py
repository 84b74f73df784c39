# SPDX-License-Identifier: Apache-2.0
"""What a program under `rnic run` sees of files: a program in Python, whose calls are those of libc."""

from __future__ import annotations

import ast
import errno
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from packages import need_package
from rnic.programs.surroundings import SOCKET
from rnic.testing.pytest import Run
from rnic.ucma.layouts import ANSWER
from ucma.under import Program, compiled, needs_libraries
from waiting import until

pytestmark = needs_libraries

HEAD = """
import errno, os, select, stat, struct, sys
DEVICE = "/dev/infiniband/rdma_cm"
def opened(flags=0):
    return os.open(DEVICE, os.O_RDWR | flags)
def command(fd, cmd, body, answer):
    return os.write(fd, struct.pack("=IHH", cmd, len(body), answer) + body)
import ctypes
room = ctypes.create_string_buffer(4096)
AT = ctypes.addressof(room)
def create(fd):
    command(fd, 0, struct.pack("=QQHB5s", 5, AT, 0x106, 0, b""), 4)
    return struct.unpack_from("=I", room)[0]
def destroy(fd, number):
    command(fd, 1, struct.pack("=QII", AT, number, 0), 4)
def resolve(fd, number):
    to = struct.pack("=HH4s20x", 2, 0x0900, bytes([127, 0, 0, 1]))
    command(fd, 3, bytes(28) + to + struct.pack("=II", number, 2000), 0)
def event(fd):
    command(fd, 12, struct.pack("=Q", AT), 4096)
    return struct.unpack_from("=QII", room)
def readable(fd, seconds=0):
    return bool(select.select([fd], [], [], seconds)[0])
"""


def script(text: str) -> None:
    """Runs it under `rnic run`: each line must be right."""
    with Program("python3", "-c", HEAD + textwrap.dedent(text)) as program:
        program.good()


def test_files_of_sysfs() -> None:
    script("""
        names = os.listdir("/sys/class/infiniband")
        assert "roce_lo" in names, names
        lo = "/sys/class/infiniband/roce_lo"
        assert open(lo + "/ports/1/link_layer").read() == "Ethernet\\n"
        assert open(lo + "/ports/1/gid_attrs/types/0").read() == "RoCE v2\\n"
        assert os.path.islink(lo) and os.path.isdir(lo) and os.access(lo, os.R_OK)
        assert os.listdir(lo + "/device/net") == ["lo"]
        assert os.path.realpath(lo).endswith("/infiniband/roce_lo")
        assert open("/sys/class/misc/rdma_cm/abi_version").read() == "4\\n"
        assert open("/sys/class/infiniband_verbs/uverbs0/ibdev").read().startswith("roce_")
        assert sorted(os.listdir("/dev/infiniband"))[0] == "rdma_cm"
        assert stat.S_ISCHR(os.stat("/dev/infiniband/uverbs0").st_mode)
    """)


def test_other_paths_are_left_alone() -> None:
    script("""
        assert "infiniband" not in os.listdir("/dev")
        assert not os.path.exists("/sys/class/infinibandx")
        assert not os.path.exists("/dev/infinibandx")
        assert os.path.exists("/sys/class/net/lo")
        assert "python3" in open("/proc/self/cmdline").read()
    """)


def test_device_file_looks_like_one() -> None:
    script("""
        fd = opened()
        assert stat.S_ISCHR(os.fstat(fd).st_mode) and stat.S_ISCHR(os.stat(DEVICE).st_mode)
        assert os.fstat(fd).st_rdev == os.stat(DEVICE).st_rdev
        assert os.get_inheritable(opened()) is False
    """)


def test_commands_and_events() -> None:
    script("""
        fd = opened()
        number = create(fd)
        assert not readable(fd)
        resolve(fd, number)
        assert readable(fd, 10)
        assert event(fd)[:2] == (5, number)
        assert not readable(fd)
        destroy(fd, number)
        try:
            destroy(fd, number)
        except OSError as error:
            assert error.errno == errno.ENOENT
        else:
            assert False
    """)


def test_bad_pointers_and_descriptors_are_errors() -> None:
    script("""
        libc = ctypes.CDLL(None, use_errno=True)
        def write(where, length):
            return libc.write(fd, ctypes.c_void_p(where), ctypes.c_size_t(length)), ctypes.get_errno()
        def refused(cmd, body, answer=4):
            try:
                command(fd, cmd, body, answer)
            except OSError as error:
                return error.errno
        fd = opened()
        number = create(fd)
        for nowhere in (1, 4096, -4096):
            assert write(nowhere, 32) == (-1, errno.EFAULT)
            assert refused(0, struct.pack("=QQHB5s", 5, nowhere & 2**64 - 1, 0x106, 0, b"")) == errno.EFAULT
            assert refused(14, struct.pack("=QIIII", nowhere & 2**64 - 1, number, 0, 0, 1)) == errno.EFAULT
        import mmap
        two = mmap.mmap(-1, 8192)
        at = ctypes.addressof(ctypes.c_char.from_buffer(two))
        assert libc.mprotect(ctypes.c_void_p(at + 4096), ctypes.c_size_t(4096), 0) == 0
        two[4088:4096] = struct.pack("=IHH", 14, 24, 0)
        assert write(at + 4088, 32) == (-1, errno.EFAULT)
        assert refused(18, struct.pack("=QII", AT, number, 999)) == errno.ENOENT
        assert refused(18, struct.pack("=QII", AT, number, 0)) == errno.EINVAL
        destroy(fd, number)
    """)


def test_an_id_migrates_from_the_file_that_holds_it() -> None:
    script("""
        def migrate(to, number, fd):
            try:
                command(to, 18, struct.pack("=QII", AT, number, fd), 4)
            except OSError as error:
                return error.errno
        first, second, third = opened(), opened(), opened()
        number = create(first)
        assert migrate(third, number, second) == errno.EINVAL
        assert migrate(third, number + 1, first) == errno.ENOENT
        assert migrate(second, number, first) is None
        resolve(second, number)
        assert event(second)[:2] == (5, number)
        assert migrate(third, number, first) == errno.EINVAL
        assert migrate(second, number, second) is None
    """)


def test_event_of_a_destroyed_id_is_not_readable() -> None:
    script("""
        fd = opened(os.O_NONBLOCK)
        number = create(fd)
        resolve(fd, number)
        assert readable(fd, 10)
        destroy(fd, number)
        assert not readable(fd)
        try:
            event(fd)
        except BlockingIOError:
            pass
        else:
            assert False
    """)


def test_event_without_descriptors_is_announced_again() -> None:
    script("""
        import resource
        fd = opened()
        number = create(fd)
        resolve(fd, number)
        assert readable(fd, 10)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1, limits[1]))
        try:
            event(fd)
        except OSError as error:
            assert error.errno == errno.EMFILE
        else:
            assert False
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert readable(fd, 10)
        assert event(fd)[1] == number
        assert not readable(fd)
    """)


def test_copies_forks_and_other_programs() -> None:
    script("""
        fd = opened()
        number = create(fd)
        copy = os.dup(fd)
        os.close(fd)
        resolve(copy, number)
        os.dup2(copy, 300)
        assert event(300)[1] == number
        if (child := os.fork()) == 0:
            destroy(copy, number)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.set_inheritable(300, True)
        again = "import os; os.write(300, bytes([0, 0, 0, 0, 24, 0, 4, 0]) + bytes(24))"
        again = f"try:\\n {again}\\nexcept OSError as error: exit(error.errno - 22)\\nexit(1)"
        os.execvp("python3", ["python3", "-c", again])
    """)


def test_ordinary_descriptors_are_not_confused_with_it() -> None:
    script("""
        fd = opened()
        os.close(fd)
        reading, writing = os.pipe()
        assert fd in (reading, writing)
        assert os.write(writing, bytes(32)) == 32
        assert os.read(reading, 99) == bytes(32)
    """)


@pytest.mark.parametrize("length", [0, 4, 8, 31, 4096])
def test_nonsense(length: int) -> None:
    script(f"""
        fd = opened()
        for byte in (0, 1, 255):
            try:
                os.write(fd, bytes([byte]) * {length})
            except OSError as error:
                assert error.errno in (errno.EINVAL, errno.ENOSPC), error
            else:
                assert False
        destroy(fd, create(fd))
    """)


def test_bad_addresses_of_answers() -> None:
    script("""
        fd = opened()
        try:
            command(fd, 0, struct.pack("=QQHB5s", 5, 8, 0x106, 0, b""), 4)
        except OSError as error:
            assert error.errno == errno.EFAULT
        else:
            assert False
    """)


UNREAD = """
    import fcntl, termios
    from pathlib import Path
    os.kill(parent, signal.SIGSTOP)
    def stands_still():
        stats = [one.read_text() for one in Path(f"/proc/{parent}/task").glob("*/stat")]
        return {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}
    while not stands_still():  # else it may read the command yet
        time.sleep(0.01)
    thread.start()
    while not struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))[0]:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("before", ["", UNREAD], ids=["that has read all", "that leaves a command unread"])
def test_end_of_the_server_is_an_error(before: str, tmp_path: Path) -> None:
    found = tmp_path / "found"
    text = f"""
    import signal, threading, time
    codes = []
    def code(call):
        try:
            call()
        except OSError as error:
            return error.errno
    fd = opened()
    thread = threading.Thread(target=lambda: codes.append(code(lambda: create(fd))))
    number = create(fd)
    parent = os.getppid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    {before}
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)
    if thread.ident:
        thread.join()
    for call in (lambda: event(fd), lambda: create(fd), lambda: event(fd), opened):
        codes.append(code(call))
    with open("{found}.new", "w") as file:
        file.write(repr(codes))
    os.rename("{found}.new", "{found}")
    """
    with Program("python3", "-c", HEAD + textwrap.dedent(text)) as program:
        program.wait()
        until(found.exists, "the program has seen it")
    *codes, last = ast.literal_eval(found.read_text())
    assert last == errno.ENODEV
    assert codes == [errno.EIO] * (4 if before else 3)


def test_files_are_opened_and_messages_sent_on_a_small_stack(tmp_path: Path) -> None:
    with Program(compiled("smallstack", tmp_path)) as program:
        assert program.good() == "handled\n"


EARLY = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void first(void) {
    (void)!access("/sys/class/infiniband", F_OK);
    unsetenv("RNIC_RUN");
}
"""


@pytest.mark.parametrize("options", [(), ("-Wl,-z,initfirst",)], ids=["with libc", "ahead of libc"])
def test_calls_ahead_of_the_constructor(options: tuple[str, ...], tmp_path: Path) -> None:
    """Another library's may come first, and even before libc has the environment."""
    early = tmp_path / "early.so"
    words = ["cc", "-shared", "-fPIC", *options, "-xc", "-", "-o", early]
    if not shutil.which("cc") or subprocess.run(words, input=EARLY, text=True, check=False).returncode:
        need_package("gcc")
    with Program("sh", "-c", f"LD_PRELOAD=$LD_PRELOAD:{early} exec ls /sys/class/infiniband") as program:
        assert "roce_lo" in program.good()


WISH = """
import ctypes
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))
print(signal.value)
"""


def test_parent_of_another_namespace_is_not_rnic_run(tmp_path: Path) -> None:
    words = ["unshare", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare of Debian's util-linux, and namespaces of users")
    with Program(*words, sys.executable, "-c", WISH, within=tmp_path) as program:
        assert program.good() == "0\n"


@pytest.mark.parametrize("heap", ["on", "off"])
def test_error_of_a_library_stays_until_it_is_asked_for(tmp_path: Path, heap: str) -> None:
    program = compiled("errors", tmp_path, "-ldl")
    with Program(program, options=("--heap", heap)) as one:
        assert "no_such_library" in one.good()


class Broken:
    """A server that breaks off within each answer, behind that many bytes and two descriptors."""

    def __init__(self, folder: Path, length: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._answer = ANSWER.pack(0, 0, 0, 8, 1)[:length]
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with suppress(OSError), self._listener.accept()[0] as sock, Path(os.devnull).open() as passed:
            while (received := socket.recv_fds(sock, 4096, 1))[0]:
                for fd in received[1]:
                    with socket.socket(fileno=fd) as answers:
                        socket.send_fds(answers, [self._answer], [passed.fileno()] * 2)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # the program may never have come
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize("length", [1, ANSWER.size - 1, ANSWER.size])
def test_descriptors_of_an_answer_that_breaks_off_are_closed(tmp_path: Path, length: int) -> None:
    text = """
        fd = opened()
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            try:
                create(fd)
            except OSError as error:
                assert error.errno == errno.EIO, error
            else:
                raise AssertionError("it has an answer")
        assert os.listdir("/proc/self/fd") == before
    """
    words = (sys.executable, "-c", HEAD + textwrap.dedent(text))
    with Broken(tmp_path, length), Program(*words, within=tmp_path) as program:
        program.good()


def test_a_copy_that_another_thread_makes_is_not_forgotten(tmp_path: Path) -> None:
    sources = Path(__file__).parents[2] / "src"
    program = compiled("marks", tmp_path, f"-I{sources}", "-D_GNU_SOURCE", "-Wno-unused-function")
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "it is one\n"


FOUND = """\
glob: /sys/class/infiniband/roce_lo/node_type
glob: /sys/class/infiniband/roce_lo
glob: /sys/class/infiniband
glob: /dev/infiniband/rdma_cm
glob: /sys/class
nftw: /sys/class/infiniband/roce_lo
ftw: /sys/class/infiniband/roce_lo
freopen: 1: CA
openat above: 1: CA
fstatat above: there
openat: 1: CA
openat of the device file: it is one
open in the folder above: 1: CA
glob: infiniband/roce_lo
"""


def test_all_ways_to_a_file_lead_there(rnic_run: Run, tmp_path: Path) -> None:
    program = rnic_run(compiled("ways", tmp_path, "-D_GNU_SOURCE"), "roce_lo", device="roce_lo")
    assert program.wait() == 0
    assert program.output == FOUND
