# SPDX-License-Identifier: Apache-2.0
"""`rnic perf` whose ends have devices of two kinds: both say so at once."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cli import perf_ends
from rnic.cli.params import Failure
from rnic.cli.perf import session
from rnic.cli.perf.line import Line
from rnic.cli.perf.progress import Progress

SOON = 5.0  # seconds, less than any wait of an end
IWARP, ROCE = session.Where("iwarp_lo"), session.Where("roce_lo")
WORDS = {
    "iwarp client": "the client's device iwarp_lo is iWARP, the server's roce_lo is RoCE",
    "iwarp server": "the client's device roce_lo is RoCE, the server's iwarp_lo is iWARP",
}


@pytest.mark.parametrize("way", ["", " -R"], ids=["by the line", "by RDMA-CM"])
@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        pytest.param(IWARP, ROCE, WORDS["iwarp client"], id="iwarp client"),
        pytest.param(ROCE, IWARP, WORDS["iwarp server"], id="iwarp server"),
        pytest.param(IWARP, session.Where(), WORDS["iwarp client"], id="server of no device"),
    ],
)
def test_devices_of_two_kinds_are_refused_at_once(
    mine: session.Where, theirs: session.Where, words: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RNIC_TRANSPORT", raising=False)
    asked, began = perf_ends.plan(f"send bw -n 5{way}"), time.monotonic()
    with perf_ends.lines() as (far, near), ThreadPoolExecutor(2) as threads:
        server = threads.submit(session.server, Line(far, "client"), {}, theirs, print)
        progress = Progress(asked, io.StringIO())
        client = threads.submit(session.client, Line(near, "server"), asked, mine, print, progress)
        failed = [one.exception(perf_ends.SECONDS) for one in (server, client)]
    assert time.monotonic() - began < SOON
    said = f"{words}: give both ends -d of one kind"
    assert all(isinstance(one, Failure) for one in failed), failed
    assert [str(one) for one in failed] == [said, f"server: {said}"]
