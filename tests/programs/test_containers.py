# SPDX-License-Identifier: Apache-2.0
"""Programs under `rnic run` without rights: as another user without capabilities, and in containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from containers import seccomp
from ibverbs.programs import DEVICE, free_port
from packages import need
from ucma.under import HOST, SECONDS, needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]
NOBODY += ["--no-new-privs"]
READ_ONLY = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
WITHOUT_TMP = [*READ_ONLY, "--unshare-all", "--cap-drop", "ALL", "--new-session"]
WITHOUT_SHM = [*READ_ONLY, "--tmpfs", "/dev/shm", "--remount-ro", "/dev/shm"]
# A server, and a client that calls until the server listens.
BOTH = "{server} & while sleep 0.05; do {client} && break; done; wait $!"
PAIRS = {
    "verbs": (f"ibv_rc_pingpong -d {DEVICE} -g 0 -n 50 -p PORT", "ibverbs-utils"),
    "connections": ("rping -a HOST -p PORT -C 3", "rdmacm-utils"),
    "perftest": (f"ib_write_bw -d {DEVICE} -F -n 20 -p PORT", "perftest"),
}
CASES = [
    ("nobody", "verbs"),
    ("read-only", "connections"),
    ("docker", "verbs"),
    ("nobody", "connections"),
    ("read-only", "perftest"),
    ("docker", "connections"),
]


def script(what: str) -> str:
    """Both ends of a program."""
    words, package = PAIRS[what]
    need(words.split()[0], package)
    words = words.replace("HOST", HOST).replace("PORT", str(free_port()))
    if what == "connections":
        return BOTH.format(server=f"{words} -s", client=f"{words} -c")
    return BOTH.format(server=words, client=f"{words} {HOST}")


def under(*words: str) -> list[str]:
    return [sys.executable, "-m", "rnic", "run", *words]


def run(box: list[str], *words: str, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A command of rnic in a box that this machine can make."""
    if not shutil.which(box[0]) or subprocess.run([*box, "true"], check=False, pass_fds=pass_fds).returncode:
        pytest.skip(f"this machine cannot do this: {' '.join(box)}")
    for fd in pass_fds:
        os.lseek(fd, 0, os.SEEK_SET)
    return subprocess.run(
        [*box, *under(*words)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        pass_fds=pass_fds,
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("how", "what"), CASES, ids="-".join)
def test_programs_without_rights(how: str, what: str) -> None:
    if how == "nobody":
        done = run(NOBODY, "sh", "-c", script(what))
    elif how == "read-only":
        done = run(WITHOUT_TMP, "sh", "-c", script(what))
    else:
        if lacks := seccomp.missing():
            pytest.skip(f"this machine lacks {lacks}")
        fd = os.memfd_create("filter")
        try:
            os.write(fd, seccomp.program("docker"))
            os.lseek(fd, 0, os.SEEK_SET)
            box = [WITHOUT_TMP[0], "--seccomp", str(fd), *WITHOUT_TMP[1:]]
            done = run(box, "sh", "-c", script(what), pass_fds=(fd,))
        finally:
            os.close(fd)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nowhere_to_write_is_told() -> None:
    done = run(WITHOUT_SHM, "true")
    assert done.returncode == 125
    assert "rnic: no folder for files of rnic: let /tmp, /dev/shm or $TMPDIR be writable" in done.stderr
