# SPDX-License-Identifier: Apache-2.0
"""Clusters of processes: a scheduler, two workers and a client, all by rnic://."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

from dask_backend.comms import filled, pid, total
from waiting import PATIENCE, until

SIZE = 20_000_000


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Of a cluster whose two workers are processes."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, protocol="rnic://", dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def workers(client: Client) -> list[str]:
    found = list(client.scheduler_info()["workers"])
    assert all(address.startswith("rnic://127.0.0.1:") for address in found)
    return found


def test_arrays_are_scattered_computed_and_gathered(client: Client) -> None:
    first, second = workers(client)
    here = np.full(SIZE, 2, np.uint8)
    there = client.scatter(here, workers=first, direct=True)
    made = client.submit(filled, SIZE, 3, workers=second)
    assert client.submit(total, there, made, workers=first).result() == 5 * SIZE
    for direct in (True, False):  # from the workers, and by the scheduler
        found = client.gather([made, there], direct=direct)
        assert [int(array.sum()) for array in found] == [3 * SIZE, 2 * SIZE]


def test_many_small_tasks(client: Client) -> None:
    assert client.submit(sum, client.map(abs, range(-200, 0))).result() == 20100


def test_a_worker_that_is_killed(client: Client) -> None:
    """What it has had is computed again, elsewhere or by its successor."""
    first, second = workers(client)
    made = client.submit(filled, SIZE, 4, workers=[first, second], pure=False)
    wait(made)
    (holder,) = client.who_has(made)[made.key]
    os.kill(client.submit(pid, workers=[holder], pure=False).result(), signal.SIGKILL)
    assert client.submit(total, made).result(PATIENCE) == 4 * SIZE
    until(lambda: len(workers(client)) == 2, "the nanny starts another one")
    assert holder not in workers(client)


def test_the_program_of_the_document(root: Path, tmp_path: Path) -> None:
    """Its types are Dask's, which are not strict: so it is not among the programs that are checked."""
    (program,) = re.findall(
        r"^```py\n(.*?)^```", (root / "docs/dask.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == "45\n"


@contextmanager
def command(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`dask` with arguments, in a process that ends with the block."""
    with log.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-m", "dask", *words], stdout=file, stderr=file)
        try:
            yield child
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(PATIENCE)


def test_the_commands_of_dask_take_rnic_addresses(tmp_path: Path) -> None:
    """No import is needed: the entry point is enough."""
    place, log = tmp_path / "scheduler.json", tmp_path / "log"
    options = ["--no-dashboard", "--scheduler-file", str(place)]
    with ExitStack() as stack:
        stack.enter_context(
            command(
                "scheduler", "--protocol", "rnic", "--host", "127.0.0.1", "--port", "0", *options, log=log
            )
        )
        until(lambda: place.exists() and place.read_text().endswith("}"), "the scheduler listens")
        stack.enter_context(
            command("worker", "--protocol", "rnic", "--no-nanny", *options, log=tmp_path / "w")
        )
        client = stack.enter_context(Client(scheduler_file=str(place)))
        assert client.scheduler.address.startswith("rnic://127.0.0.1:")
        client.wait_for_workers(1, timeout=PATIENCE)
        assert client.submit(sum, [1, 2, 3]).result(PATIENCE) == 6
    assert "Traceback" not in log.read_text() + (tmp_path / "w").read_text()


@pytest.mark.parametrize("first", ["", "import rnic.dask"], ids=["at-once", "imported"])
def test_a_program_that_closes_nothing_ends_quietly(client: Client, first: str) -> None:
    """As with tcp://: distributed closes clients and clusters when the program ends."""
    scheduler = client.scheduler
    assert scheduler is not None
    program = f"""
{first}
from distributed import Client, LocalCluster
if __name__ == "__main__":
    client = Client({scheduler.address!r})
    print(client.submit(sum, [1, 2, 3]).result())
    cluster = LocalCluster(n_workers=1, protocol="rnic://", processes=False, dashboard_address=":0")
    other = Client(cluster)
    print(other.submit(sum, [1, 2]).result())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode) == ("6\n3\n", 0)
    assert "Traceback" not in done.stderr
