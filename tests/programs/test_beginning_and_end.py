# SPDX-License-Identifier: Apache-2.0
"""How a program begins under `rnic run`, and what is said when it has ended."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, OURS, compiled, free_port
from packages import need
from rnic.testing.pytest import Run
from ucma.under import needs_libraries

pytestmark = needs_libraries


@pytest.mark.parametrize("heap", ["on", "off"])
def test_errno_is_0_at_main(rnic_run: Run, tmp_path: Path, heap: str) -> None:
    """C says so, and a program that sets none itself may look (strtol, readdir)."""
    source = tmp_path / "main.c"
    source.write_text("#include <errno.h>\nint main(void) { return errno; }\n")
    program = rnic_run(compiled(tmp_path / "main", source), env={"RNIC_HEAP": heap})
    assert program.wait() == 0


VERBS = r"""
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    for (int i = 0; i < 3; i++)
        ibv_alloc_pd(context);
    if (!fork()) /* counted, too */
        _exit(!ibv_alloc_pd(ibv_open_device(list[0])));
    wait(NULL);
    if (argc > 1)
        kill(getpid(), atoi(argv[1]));
    return 3;
}
"""


@pytest.fixture
def verbs(tmp_path: Path) -> Path:
    source = tmp_path / "verbs.c"
    source.write_text(VERBS)
    return compiled(tmp_path / "verbs", source, *OURS)


@pytest.mark.parametrize("end", ["", "9"])
def test_it_says_which_failures_came_true(rnic_run: Run, verbs: Path, end: str) -> None:
    rules = ["alloc_pd@2=ENOMEM", "alloc_pd@8=EAGAIN", "reg_mr=EIO", "rdma_connect=EIO"]
    program = rnic_run(verbs, *filter(None, [end]), device=DEVICE, fail=rules)
    program.wait()
    ended = "was ended by signal 9 (SIGKILL)" if end else "ended with exit code 3"
    assert program.output.splitlines() == [
        f"rnic: {verbs} {ended}",
        "rnic: --fail alloc_pd@2=ENOMEM came true once",
        "rnic: --fail alloc_pd@8=EAGAIN never came true: ibv_alloc_pd() was called 4 times",
        "rnic: --fail reg_mr=EIO never came true: ibv_reg_mr() was never called",
        "rnic: --fail rdma_connect=EIO never came true: rdma_connect() was never called",
    ]


def test_it_says_that_calls_of_rdma_cm_failed(rnic_run: Run) -> None:
    need("rping", "rdmacm-utils")
    program = rnic_run("rping", "-s", "-C", 1, fail=["rdma_listen=ENOMEM", "rdma_bind_addr@9=EIO"])
    program.wait()
    assert "rnic: --fail rdma_listen=ENOMEM came true once\n" in program.output
    text = "rnic: --fail rdma_bind_addr@9=EIO never came true: rdma_bind_addr() was called once\n"
    assert text in program.output


def test_it_says_which_faults_came_true(rnic_run: Run) -> None:
    need("ibv_rc_pingpong", "ibverbs-utils")
    words = ("stdbuf", "-oL", "ibv_rc_pingpong", "-d", DEVICE, "-g", "0", "-p", free_port(), "-n", 20)
    server = rnic_run(*words, local="off", fault={"loss": 0.2, "reorder": 0, "seed": 7})
    server.wait_for("local address")
    client = rnic_run(*words, "127.0.0.1", local="off")
    # If the server's last ACK is lost, the client sends again, and the server has ended.
    assert client.wait() == 0 or "retry counter exceeded" in client.output
    assert server.wait() == 0
    assert "came true" not in client.output
    (lost,) = re.findall(r"^rnic: --fault loss=0.2 came true (\d+) times$", server.output, re.MULTILINE)
    assert int(lost) > 1
    assert "rnic: --fault reorder=0 never came true" in server.output


def test_a_signal_that_ends_a_program_is_named(rnic_run: Run, verbs: Path) -> None:
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL):
        program = rnic_run(verbs, int(number))
        assert program.wait() == 128 + number
        assert f"rnic: {verbs} was ended by signal {int(number)} ({number.name})" in program.output
    program = rnic_run(verbs, signal.SIGRTMIN + 3)
    program.wait()
    assert f"rnic: {verbs} was ended by signal {signal.SIGRTMIN + 3}\n" in program.output


def test_what_a_user_ends_or_what_ends_by_itself_says_nothing(rnic_run: Run, verbs: Path) -> None:
    for number in (signal.SIGINT, signal.SIGPIPE):  # shells say nothing of them either
        program = rnic_run(verbs, int(number))
        assert program.wait() == 128 + number
        assert program.output == ""
    assert rnic_run(verbs).wait() == 3
    program = rnic_run("sh", "-c", "echo ready; exec sleep 1000")
    program.wait_for("ready")
    program.send_signal(signal.SIGTERM)
    assert program.wait() == 128 + signal.SIGTERM
    assert program.output == "ready\n"
