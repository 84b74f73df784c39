# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin, in suites of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rnic.testing.pytest as plugin
from packages import need
from ucma.under import needs_libraries

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.own_way

FIXTURES = """
    import rnic
    import rnic.testing

    def test_device(rnic_device):
        assert rnic_device.query_port().state is rnic.PortState.ACTIVE

    def test_pair(rnic_pair):
        a, b = rnic_pair.a, rnic_pair.b
        b.qp.post_recv(rnic.RecvWR())
        a.qp.post_send(rnic.SendWR(opcode=rnic.WROpcode.SEND, send_flags=rnic.SendFlags.SIGNALED))
        a.wait_ok(), b.wait_ok()
"""

PROGRAMS = """
    import pathlib
    import signal
    import time
    import pytest

    def test_output_and_exit_code(rnic_run):
        program = rnic_run("sh", "-c", "echo now ready; echo $RNIC_FAULT $RNIC_FAIL $RNIC_EVENTS $M; exit 7",
                           fault={"loss": 0.01, "seed": 7}, fail=["reg_mr=EIO", "alloc_pd@2=ENOMEM"],
                           event="port_down@5s", env={"M": "more"})
        assert program.wait_for("now (ready)")[1] == "ready"
        assert program.wait() == program.returncode == 7
        assert program.output.splitlines()[1] == (
            "loss=0.01,seed=7 reg_mr=EIO;alloc_pd@2=ENOMEM port_down@5s more")

    def test_names(rnic_run):
        program = rnic_run("sh", "-c", "ls /sys/class/infiniband || echo $RNIC_NAMES", name=["a=lo", "b=lo"],
                           device=["b", "a"], rate="100g", local="off")
        assert program.wait() == 0

    def test_surroundings(rnic_run, tmp_path):
        program = rnic_run("sh", "-c", "pwd; cat; echo $N ${SHELL-none} $RNIC_LIMITS $RNIC_LOCAL",
                           cwd=tmp_path, stdin="given ", env={"N": 1, "SHELL": None},
                           limits={"max_qp": 4, "max_cq": 8}, local=False)
        assert program.wait() == 0
        assert program.output == f"{tmp_path}\\ngiven 1 none max_qp=4,max_cq=8 off\\n"
        assert "exit code 0" in repr(program) and "given 1 none" in repr(program)

    def test_not_started(rnic_run):
        wrong = [rnic_run("true", fail="regmr=EIO"), rnic_run("true", local="maybe"), rnic_run("nope")]
        for program in wrong:
            with pytest.raises(RuntimeError, match="was not started"):
                program.wait()
        assert rnic_run("sh", "-c", "exit 125").wait() == 125  # the program's own
        assert rnic_run("sh", "-c", "exit 125", fail="reg_mr=EIO").wait() == 125

    def test_limits_of_waits(rnic_run):
        program = rnic_run("sh", "-c", "echo begun; exec sleep 1000", timeout=0.01)
        with pytest.raises(TimeoutError, match="runs still"):
            program.wait()
        assert program.returncode is None
        with pytest.raises(TimeoutError, match="has not printed"):
            program.wait_for("never")
        program.wait_for("begun", timeout=60)
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM
        with pytest.raises(RuntimeError, match="has ended without"):
            program.wait_for("never")

    def test_ends_with_the_test(rnic_run):
        program = rnic_run("sh", "-c", "trap '' TERM; echo $$ begun; sleep 1000; sleep 1000")
        pid = program.wait_for(r"(\\d+) begun")[1]
        with open("pid", "w") as file:
            file.write(pid)

    def test_has_ended():
        with open("pid") as file:
            stat = pathlib.Path("/proc", file.read(), "stat")
        while stat.exists() and ") Z " not in stat.read_text():  # killed, but not waited for by init yet
            time.sleep(0.001)
"""


def test_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FIXTURES)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


@needs_libraries
def test_programs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "END", 0.1)
    pytester.makepyfile(PROGRAMS)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=7)


@needs_libraries
def test_the_page_has_a_test_that_passes(pytester: pytest.Pytester) -> None:
    need("ibv_rc_pingpong", "ibverbs-utils")
    page = (Path(__file__).parents[2] / "docs/testing.md").read_text()
    pytester.makepyfile(page.split("```python\n")[1].split("```")[0])
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


FAILING = """
    def test_fails(rnic_run):
        words = ("sh", "-c", "echo last words; kill -SEGV $$")
        program = rnic_run(*words, fail="reg_mr@2=EIO", fault={"loss": 0.5})
        assert program.wait() == 0

    def test_passes(rnic_run):
        assert rnic_run("true", fail="reg_mr=EIO").wait() == 0
"""


@needs_libraries
def test_a_failure_says_what_became_of_the_programs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING)
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(
        [
            "*- rnic run -*",
            "<Program *: exit code 139; its last words: *last words*",
            "rnic: sh was ended by signal 11 (SIGSEGV)*",
            "rnic: --fail reg_mr@2=EIO never came true: ibv_reg_mr() was never called",
            "rnic: --fault loss=0.5 never came true",
        ]
    )
    assert "exit code 0" not in found.stdout.str()


def test_plugin_does_not_import_rnic_until_a_fixture_is_used() -> None:
    text = "import sys, _rnic_pytest; assert not [name for name in sys.modules if name.startswith('rnic')]"
    subprocess.run([sys.executable, "-c", text], check=True, cwd=Path(os.sep))


def test_fixtures_are_listed_with_their_words(pytester: pytest.Pytester) -> None:
    found = pytester.runpytest_inprocess("--fixtures")
    found.stdout.fnmatch_lines(["rnic_device*", "*An open device*", "rnic_pair*", "rnic_run*"])


def test_importing_rnic_imports_no_pytest() -> None:
    text = "import sys, rnic.testing; rnic.testing.Pair; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], check=True, cwd=Path(os.sep))
