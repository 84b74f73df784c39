# SPDX-License-Identifier: Apache-2.0
"""In containers of every kind it works by some way, or says what is in the way; nothing hangs or crashes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest

from containers import namesake, seccomp
from containers.box import CLONE, Box
from packages import need_package

TESTS = Path(__file__).resolve().parents[1]
ENV = {**os.environ, "PYTHONPATH": str(TESTS), "RNIC_LOCAL": "on"}
ROOT = os.geteuid() == 0
SOAK = bool(os.environ.get("RNIC_SOAK"))
NOBODY = 65534
LIMIT = 180  # seconds, on a machine that has other things to do
MIB = 1 << 20
Answer = dict[str, Any]

needs_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")
needs_filters = pytest.mark.skipif(bool(seccomp.missing()), reason=f"this machine lacks {seccomp.missing()}")


def subsets(*names: str) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(names, n) for n in range(len(names) + 1)))


def sample(cases: list[Any], n: int) -> list[Any]:
    """All of them in a soak; else the same few each time."""
    return cases if SOAK else random.Random(1).sample(cases, n)


def answer(line: str, what: str) -> Answer:
    assert line, f"{what} has said nothing"
    found: Answer = json.loads(line)
    return found


def run(command: list[str], **more: Any) -> Answer:
    """To its end, which is in order; what it says."""
    made = subprocess.run(
        command, env=ENV, capture_output=True, text=True, timeout=LIMIT, check=False, **more
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return answer(made.stdout, made.stderr)


@contextmanager
def begun(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def between(server: Box, client: Box) -> tuple[Answer, Answer | None]:
    """What both say; None: the server was not asked."""
    with begun(server.command("serve")) as one:
        assert one.stdout
        heard = answer(one.stdout.readline(), "the server")
        if "port" not in heard:
            return heard, heard
        called = run(client.command("call", str(heard["port"])))
        if "works" not in called:
            return called, None
        return called, answer(one.stdout.readline(), "the server")


def allowed(*names: str) -> bool:
    """Whether this user can make such namespaces."""
    look = "import sys, namespaces; namespaces.unshare(int(sys.argv[1]))"
    flags = str(sum(CLONE[one] for one in names))
    found = subprocess.run([sys.executable, "-c", look, flags], env=ENV, capture_output=True, check=False)
    return found.returncode == 0


def need(*names: str) -> None:
    if names and not allowed(*names):
        pytest.skip(f"this user cannot make namespaces: {', '.join(names)}")


def has_cause(text: str, *words: str) -> bool:
    """An error of rnic's, which names what is in the way."""
    return text.startswith(("VerbsError: ", "RefusedError: ", "OSError: ")) and any(
        word in text for word in words
    )


# ------------------------------------------------------------------ namespaces


@pytest.mark.parametrize("names", sample(subsets("user", "pid", "net", "mount", "ipc"), 3), ids="+".join)
def test_two_processes_in_one_container(names: tuple[str, ...]) -> None:
    need(*names)
    assert run(Box(names).command("both")) == {"works": "called"}


@pytest.mark.parametrize(
    ("server", "client"),
    sample([(a, b) for a in subsets("user", "pid", "mount", "ipc") for b in subsets("user", "pid")], 2),
    ids="+".join,
)
def test_two_containers_on_one_network(server: tuple[str, ...], client: tuple[str, ...]) -> None:
    need(*server)
    need(*client)
    assert between(Box(server), Box(client)) == ({"works": "called"}, {"works": "served"})


@pytest.mark.parametrize("apart", ["server", "client"])
def test_two_networks_do_not_meet(apart: str) -> None:
    names = ("user", "net")
    need(*names)
    boxes = {"server": Box(), "client": Box(), apart: Box(names)}
    called, served = between(boxes["server"], boxes["client"])
    assert served is None
    assert has_cause(called["refused"], "nobody listens")


@needs_root
def test_a_stranger_of_the_peers_number_in_the_outer_namespace_is_not_read() -> None:
    """/proc is the outer namespace's: there the peer's pid is another process, of the same kind."""
    command = [sys.executable, "-m", "containers.namesake"]
    made = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=LIMIT, check=False)
    if made.returncode == namesake.IMPOSSIBLE:
        pytest.skip("this system does not let a process choose the pid of its child")
    assert made.returncode == 0, made.stdout + made.stderr


# ------------------------------------------------------------------ users


@needs_root
@pytest.mark.parametrize("names", sample(subsets("user", "pid", "net"), 2), ids="+".join)
@pytest.mark.parametrize("known", [True, False])
def test_nobody(names: tuple[str, ...], known: bool) -> None:
    """Mapped to root in the container, or to no user at all."""
    if "user" not in names and names:
        names = ("user", *names)
    assert run(Box(names, uid=NOBODY, map=known).command("both")) == {"works": "called"}


@needs_root
@pytest.mark.parametrize("server", [NOBODY, None])
def test_a_container_and_the_host_as_two_users(server: int | None) -> None:
    boxes = Box(("user", "pid"), uid=NOBODY), Box()
    one, other = boxes if server else boxes[::-1]
    assert between(one, other) == ({"works": "called"}, {"works": "served"})


# ------------------------------------------------------------------ system calls


@needs_filters
@pytest.mark.parametrize("profile", ["docker", "docker-old", "old-kernel"])
@pytest.mark.parametrize("what", ["alone", "both"])
def test_without_the_system_calls_that_engines_refuse(profile: str, what: str) -> None:
    assert "works" in run(Box(profile=profile).command(what))


@needs_filters
@needs_root
def test_nobody_in_all_namespaces_with_dockers_profile() -> None:
    box = Box(tuple(CLONE), uid=NOBODY, profile="docker-old")
    assert run(box.command("both")) == {"works": "called"}


@needs_filters
def test_without_memory_files_an_error_says_so() -> None:
    refused = run(Box(profile="no-memfd").command("alone"))["refused"]
    assert has_cause(refused, "memory file", "memfd_create"), refused
    assert "ENOSYS" in refused


@needs_filters
def test_the_filter_refuses_what_it_says() -> None:
    """Else the tests above show nothing."""
    script = """if True:
        import ctypes, os, errno
        from containers import namesake, seccomp
        seccomp.confine(seccomp.program("docker-old"))
        libc = ctypes.CDLL(None, use_errno=True)
        for refused in libc.unshare(0x10000000), libc.process_vm_readv(1, None, 0, None, 0, 0):
            assert (refused, ctypes.get_errno()) == (-1, errno.EPERM)
        pid = os.fork()
        pid or os._exit(7)
        assert os.waitpid(pid, 0)[1] == 7 << 8
        print("confined")
    """
    made = subprocess.run(
        [sys.executable, "-c", script], env=ENV, capture_output=True, text=True, check=False
    )
    assert made.stdout == "confined\n", made.stderr


# ------------------------------------------------------------------ limits


@pytest.mark.one_in(3)
@pytest.mark.parametrize("most", range(10, 72, 1 if SOAK else 20))
@pytest.mark.parametrize("what", ["alone", "both"])
def test_few_descriptors(what: str, most: int) -> None:
    found = run(Box(limits=(("nofile", most),)).command(what))
    causes = "Too many open files", "nobody listens", "no room for one more connection"
    assert "works" in found or has_cause(found["refused"], *causes), found


@pytest.mark.parametrize("what", ["alone", "both"])
def test_no_locked_memory(what: str) -> None:
    assert "works" in run(Box(limits=(("memlock", 0),)).command(what))


@pytest.mark.parametrize("more", sample([0, 1, 2, 4, 8, 16, 24, 32, 48, 64, 128], 2))
@pytest.mark.parametrize("what", ["alone", "both"])
def test_little_address_space(what: str, more: int) -> None:
    """So many MiB beside what the interpreter has."""
    statm = Path("/proc/self/statm").read_text().split()
    own = int(statm[0]) * os.sysconf("SC_PAGE_SIZE")
    found = run(Box(limits=(("as", min(own, 200 * MIB) + more * MIB),)).command(what))
    assert "works" in found or "refused" in found


# ------------------------------------------------------------------ file systems, by bubblewrap

BWRAP = shutil.which("bwrap") or ""
WHOLE = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
FILES = {
    "read-only": WHOLE,
    "read-only, without /dev/shm": [*WHOLE, "--perms", "0000", "--tmpfs", "/dev/shm"],
    "read-only, without /proc": ["--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/proc"],
    "read-only, without /sys": [*WHOLE, "--tmpfs", "/sys"],
    "in all namespaces": [*WHOLE, "--unshare-all"],
    "in all namespaces but the network's": [*WHOLE, "--unshare-all", "--share-net"],
    "without capabilities": [*WHOLE, "--cap-drop", "ALL"],
    "in a new session": [*WHOLE, "--new-session", "--die-with-parent"],
}


def wrapped(how: str, *what: str) -> list[str]:
    if not BWRAP:
        need_package("bubblewrap")
    command = [BWRAP, *FILES[how]]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"bwrap cannot do this here: {how}")
    return [*command, sys.executable, "-m", "containers.probe", *what]


@pytest.mark.parametrize("how", sample(list(FILES), 3))
def test_file_systems_without_rights(how: str) -> None:
    assert run(wrapped(how, "both")) == {"works": "called"}


@needs_filters
def test_bubblewrap_with_dockers_profile() -> None:
    """Its own way to install a filter."""
    fd = os.memfd_create("filter")
    try:
        os.write(fd, seccomp.program("docker"))
        os.lseek(fd, 0, os.SEEK_SET)
        command = wrapped("in all namespaces", "both")
        command[1:1] = ["--seccomp", str(fd)]
        assert run(command, pass_fds=[fd]) == {"works": "called"}
    finally:
        os.close(fd)


def test_a_container_calls_the_host() -> None:
    how = "in all namespaces but the network's"
    with begun(Box().command("serve")) as one:
        assert one.stdout
        port = answer(one.stdout.readline(), "the server")["port"]
        assert run(wrapped(how, "call", str(port))) == {"works": "called"}
        assert answer(one.stdout.readline(), "the server") == {"works": "served"}


def test_the_command_line_in_a_read_only_container() -> None:
    command = wrapped("read-only", "alone")[:-3]
    made = subprocess.run(
        [*command, "-m", "rnic", "devices"],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert "roce_lo" in made.stdout
