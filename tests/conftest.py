# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import namespaces
from waiting import until

# Most tests look at the protocols. RNIC_LOCAL=on: but for those marked "wire" or "own_way", by shared memory.
# RNIC_TRANSPORT=iwarp: nor those marked "roce", over TCP.
os.environ.setdefault("RNIC_LOCAL", "off")
ROCE_PORT = ":12B7 "  # as /proc/net has it
FEWER = 3  # by shared memory every third case of a test, as all have been over the wire; RNIC_SOAK=1: all

# A shell ignores SIGINT for what it starts in the background, and so would each program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # and nohup(1) this one
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# An example may take any time: the machine may be busy with something else.
settings.register_profile("rnic", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rnic")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made, and none of them is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Without root a worker begins in its namespace: once it has threads it could not enter one."""
    begin = [sys.executable, namespaces.__file__]
    if os.geteuid() == 0 or subprocess.run([*begin, "true"], check=False).returncode:
        return
    python = shlex.join([*begin, sys.executable])
    specs[:] = [type(spec)(f"{spec}//python={python}") for spec in specs]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Files are given out in a way that outlives a worker."""
    if config.getvalue("dist") != "loadfile":
        return None
    from workers import Files  # where xdist is

    return Files(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        from workers import let_go_in_children  # likewise

        let_go_in_children()
    config.addinivalue_line("markers", "wire: looks at what goes over the wire, or comes from there")
    config.addinivalue_line(
        "markers", "own_way: says which way its bytes go, whatever RNIC_LOCAL and RNIC_TRANSPORT say"
    )
    config.addinivalue_line("markers", "roce: needs what iWARP has not, or does otherwise")
    config.addinivalue_line("markers", "one_in(n): of its cases every n-th is taken, all with RNIC_SOAK=1")


def left_out(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    cases: Counter[str] = Counter()
    soak, local = os.environ.get("RNIC_SOAK"), os.environ["RNIC_LOCAL"] != "off"
    iwarp = os.environ.get("RNIC_TRANSPORT") == "iwarp"
    for item in items:
        sample = item.get_closest_marker("one_in")
        name = item.nodeid.partition("[")[0]
        same = item.get_closest_marker("wire") or item.get_closest_marker("own_way")
        if iwarp and item.get_closest_marker("roce"):
            same = item.get_closest_marker("roce")
        one_in = max(sample.args[0] if sample else 1, FEWER if local else 1)
        if ((local or iwarp) and same) or (cases[name] % one_in and not soak):
            yield item
        cases[name] += 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = set(left_out(items))
    if out:
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """As root, in a network namespace of our own.  The interop tests fetch packages first."""
    inside = os.geteuid() == 0 and not any(item.get_closest_marker("interop") for item in session.items)
    with suppress(OSError):
        if inside:
            namespaces.network_of_our_own()


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """What pytest and earlier modules keep is not looked at again by each of thousands of collections."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Ids share a device, which is open for longer than they: it keeps no faults for the next test."""
    if cm := sys.modules.get("rnic.rdmacm.registry"):
        for context in cm.registry.get_devices():
            with suppress(cm.VerbsError):  # its agent may close it meanwhile
                context.set_faults(None)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> Iterator[None]:
    """No module leaves a device open: that would get packets of those that come later.

    What a test before has left that failed, its report keeps until the end.
    """
    before = left_open()
    yield
    gc.collect()
    until(lambda: left_open() <= before, "the devices are closed")


def left_open() -> set[str]:
    """This process' sockets of RoCE; while an agent of the CM keeps its device they do not count."""
    cm = sys.modules.get("rnic.rdmacm.registry")
    tables = "".join(Path(f"/proc/thread-self/net/{name}").read_text() for name in ("udp", "udp6"))
    if ROCE_PORT not in tables or (cm and cm.registry.agents()):
        return set()
    sockets = {f"socket:[{row.split()[9]}]" for row in tables.splitlines() if ROCE_PORT in row}
    return sockets & set(own_descriptors())


def own_descriptors() -> Iterator[str]:
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            yield str(path.readlink())


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parent.parent
