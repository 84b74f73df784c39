# SPDX-License-Identifier: Apache-2.0
"""What calls of libibverbs leave alone, and how they fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, LIBRARY, OURS, compiled, run

pytestmark = pytest.mark.own_way


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manners")
    return compiled(folder / "manners", Path(__file__).parent / "programs/manners.c", *OURS, "-pthread")


@pytest.mark.parametrize("local", ["on", "off"])
def test_calls_behave_as_with_drivers_of_hardware(program: Path, local: str) -> None:
    assert run(program, DEVICE, RNIC_LOCAL=local, RNIC_VERBS_DEBUG="0").text == ""


LEFT = """
import _ctypes, ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
library.ibv_open_device.restype = ctypes.c_void_p
assert library.ibv_open_device(ctypes.c_void_p(library.ibv_get_device_list(None)[0]))
_ctypes.dlclose(library._handle)
assert sys.argv[1] in open("/proc/self/maps").read(), "the device's thread has no code any more"
if not (child := os.fork()):
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_library_that_is_unloaded_with_an_open_device_stays() -> None:
    assert run(sys.executable, "-c", LEFT, LIBRARY).text == ""


@pytest.mark.parametrize("explain", ["0", "1"])
def test_waits_go_on_after_signals_as_read_does(tmp_path: Path, explain: str) -> None:
    program = compiled(tmp_path / "signals", Path(__file__).parent / "programs/signals.c", *OURS, "-pthread")
    assert run(program, DEVICE, RNIC_VERBS_DEBUG=explain).text == ""


@pytest.mark.parametrize("explain", ["0", "1"])
def test_a_wait_that_drives_ends_and_goes_on_as_read_does(tmp_path: Path, explain: str) -> None:
    program = compiled(tmp_path / "driving", Path(__file__).parent / "programs/driving.c", *OURS, "-pthread")
    assert run(program, DEVICE, RNIC_VERBS_DEBUG=explain).text == ""


def test_two_threads_read_each_completion_of_an_extended_queue_once(tmp_path: Path) -> None:
    program = compiled(tmp_path / "pollers", Path(__file__).parent / "programs/pollers.c", *OURS, "-pthread")
    assert run(program, DEVICE).text == "0 changed, 0 lost or doubled\n"
