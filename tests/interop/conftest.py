# SPDX-License-Identifier: Apache-2.0
"""What the interop tests share: the guests, one after the other, and the capture of what passes between."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for every import mode of pytest

from ends import End, Path, connect
from link import SIW, Link, Wire
from modules import Box
from needs import NOT_RUN, missing, prepare
from program import LENGTH, MakePair, Pair
from sampling import combinations, one_in, soak
from siw_ends import CmEnd, JoinPair, join

import namespaces
from rnic.vm import Machine

HERE = pathlib.Path(__file__).parent
MTUS = (1500, 9000)  # of the network device; a guest is booted for each
FAMILIES = ("ipv4", "ipv6")
GUEST_LOST = "the guest was lost"
OTHER = {"rnic": "kernel", "kernel": "rnic"}
MakeEnds = Callable[..., AbstractContextManager[dict[str, CmEnd]]]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("interop")
    group.addoption("--all", action="store_true", help="every combination, not a sample (also: RNIC_SOAK=1)")
    group.addoption(
        "--reference", action="store_true", help="kernel against kernel: is a failure rnic's at all?"
    )
    group.addoption(
        "--one-in",
        type=int,
        default=1,
        metavar="N",
        help="of each test on each guest one case in N, at least one",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "siw: the guest's device is the kernel's iWARP, not its RoCE")
    config.addinivalue_line(
        "markers", "combinations(sample, **choices): see pytest_generate_tests in conftest.py"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that needs a link on every link, and one that asks for a family of addresses with both.

    One that is marked with combinations(sample, name=choices, ...) runs on each with so many combinations of
    the choices, or with all of them; choices that are a function are called with the link's MTU.
    """
    if "link" not in metafunc.fixturenames:
        return
    names = ["link"]
    kind = "siw" if metafunc.definition.get_closest_marker("siw") else "rxe"
    rows: list[tuple[Any, ...]] = [(mtu,) for mtu in MTUS]
    if marker := metafunc.definition.get_closest_marker("combinations"):
        names += marker.kwargs
        sample = None if soak(metafunc.config) else marker.args[0]
        rows = []
        for mtu in MTUS:
            columns = [choices(mtu) if callable(choices) else choices for choices in marker.kwargs.values()]
            rows += [(mtu, *row) for row in combinations(columns, sample, seed=mtu)]
    ids = ["-".join(map(str, (f"mtu{mtu}", *row))) for mtu, *row in rows]
    rows = [((kind, mtu), *row) for mtu, *row in rows]
    metafunc.parametrize(names, rows, indirect=["link"], ids=ids, scope="session")
    if "family" in metafunc.fixturenames and "family" not in names:
        metafunc.parametrize("family", FAMILIES)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open() -> None:
    """The devices of a link are open for as long as its guest lives."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests of one guest together, after all others, and of these the tests of one module.

    So a module's capture has all that its tests sent, and the test that reads it, the last one, sees all.
    """

    def guest(item: pytest.Item) -> Any:
        callspec = getattr(item, "callspec", None)
        return callspec.params.get("link") if callspec and item.path.is_relative_to(HERE) else None

    def place(item: pytest.Item) -> tuple[Any, ...]:
        return (guest(item), str(item.path), item.name.startswith("test_tshark")) if guest(item) else ()

    def test(item: pytest.Item) -> tuple[Any, ...]:
        return (item.path, getattr(item, "originalname", item.name), guest(item))

    chosen = set(one_in(config.getoption("--one-in"), items, test))
    if left := [item for item in items if item not in chosen]:
        config.hook.pytest_deselected(items=left)
    items[:] = sorted((item for item in items if item in chosen), key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say in one line why there is no lab here; among other tests, skip those that need it.

    Where there is one, what it lacks is fetched, and then the tap devices get a network namespace of their
    own: another process that opens them would be a member of their ports.
    """
    need = [item for item in session.items if item.get_closest_marker("interop")]
    if not need or session.config.option.collectonly:
        return
    if why := missing():
        if len(need) == len(session.items) and not hasattr(session.config, "workerinput"):
            pytest.exit(f"interop tests not run: this machine lacks {why}", returncode=NOT_RUN)
        for item in need:
            item.add_marker(pytest.mark.skip(reason=f"this machine lacks {why}"))
        return
    prepare()
    namespaces.network_of_our_own()


LOST = pytest.StashKey[str]()  # what the guest that a test lost had printed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure whose guest is lost shows what that guest printed last."""
    report = yield
    link = (getattr(item, "funcargs", None) or {}).get("link")
    if report.failed and link is not None and (console := link.lost()):
        item.stash[LOST] = console
        report.sections.append((GUEST_LOST, console))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A test that lost its guest runs once more, in a new guest, and the summary says so.

    The guest's kernel hangs, dies or stands still now and then, one time in many thousands of tests; what it
    had to say of rnic then, the second run says.
    """
    if "link" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if console := item.stash.get(LOST, ""):
        item.session._setupstate.teardown_exact(None)  # the guest, and all that used it
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        reports[0].user_properties.append((GUEST_LOST, console))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, console in getattr(report, "user_properties", ()):
                if name == GUEST_LOST and report.when == "setup":
                    terminalreporter.section(f"{GUEST_LOST} and the test run again: {report.nodeid}")
                    terminalreporter.write_line(console)


@pytest.fixture(scope="session")
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    """A guest with the kernel's device, and the tap device between it and rnic."""
    reference = bool(request.config.getoption("--reference", default=False))
    kind, mtu = request.param
    with Link(mtu, kind, reference=reference) as link:
        yield link


@pytest.fixture(scope="session")
def box() -> Iterator[Box]:
    """A guest with both of the kernel's devices, for the modules of examples/kernel."""
    with Machine(transport="both", accelerator="tcg") as machine:
        yield Box(machine)


@pytest.fixture(scope="module")
def wire(link: Link, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """What passes on the link while the tests of a module run."""
    with Wire(link, tmp_path_factory.mktemp("wire") / f"mtu{link.mtu}.pcap") as wire:
        yield wire


@pytest.fixture
def over_iwarp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of rnic's take its iWARP device where an address is also a RoCE device's."""
    monkeypatch.setenv("RNIC_TRANSPORT", "iwarp")


@pytest.fixture
def make_ends(link: Link) -> MakeEnds:
    """`with make_ends() as ends:` has an end of iWARP of "rnic" and of "kernel", not connected yet."""

    @contextmanager
    def make(**options: dict[str, Any]) -> Iterator[dict[str, CmEnd]]:
        with ExitStack() as stack:
            ends = {}
            for name, make_end in (("rnic", link.iwarp_end), ("kernel", link.siw_end)):
                ends[name] = make_end(length=LENGTH, **options.get(name, {}))
                stack.callback(ends[name].close)
            yield ends

    return make


@pytest.fixture
def join_pair(link: Link, make_ends: MakeEnds, monkeypatch: pytest.MonkeyPatch) -> Iterator[JoinPair]:
    """join_pair(asks, connects, siw, crc) gives (requester, responder) on iWARP.

    asks, connects: which end does, "rnic" or "kernel". siw: how the kernel's asks for connections.
    crc: whether rnic's wants CRCs. rnic, kernel: options of that end.
    """
    with ExitStack() as stack:

        def make(
            asks: str, connects: str, siw: str = "revision 2", crc: str = "on", **options: dict[str, Any]
        ) -> tuple[CmEnd, CmEnd]:
            link.set_siw(SIW[siw])
            monkeypatch.setenv("RNIC_MPA_CRC", crc)
            ends = stack.enter_context(make_ends(**options))
            addresses = {"rnic": link.host_ip["ipv4"], "kernel": link.guest_ip["ipv4"]}
            join(ends[connects], ends[OTHER[connects]], addresses[OTHER[connects]])
            return ends[asks], ends[OTHER[asks]]

        yield make


@pytest.fixture(params=["rnic_asks", "kernel_asks"])
def make_pair(request: pytest.FixtureRequest, link: Link, family: str) -> Iterator[MakePair]:
    """make_pair(...) gives (requester, responder), connected."""
    made: list[End] = []

    def make(
        path: Path | None = None,
        requester: dict[str, Any] | None = None,
        responder: dict[str, Any] | None = None,
    ) -> Pair:
        asks, answers = link.rnic_end, link.kernel_end
        if request.param == "kernel_asks":
            asks, answers = answers, asks
        made.append(asks(family, **{"length": LENGTH, **(requester or {})}))
        made.append(answers(family, **{"length": LENGTH, **(responder or {})}))
        connect(made[-2], made[-1], path or Path(link.path_mtus[-1]))
        return made[-2], made[-1]

    yield make
    for end in made:
        end.close()


@pytest.fixture
def pair(make_pair: MakePair) -> Pair:
    return make_pair()
