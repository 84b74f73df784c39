# SPDX-License-Identifier: Apache-2.0
"""What the documents and the examples show passes the type checkers, which find the usual mistakes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FOUND = re.compile(r"(\w+)\.py:(\d+)(?::\d+)?(?: -|:) (error.*)", re.MULTILINE)
Complaint = tuple[str, int, str]  # program, line, why
STRICT = '{"typeCheckingMode": "strict"}\n'

MISTAKES = """\
import rnic

attr = rnic.QPAttr(qp_state=rnic.QPState.INIT, port_num=1)
attr.pkey_index = 0
attr.pkey_idx = 0  # wrong
attr.path_mtu = 1024  # wrong
attr.cap = rnic.QPCap(max_send_wr=5)
rnic.QPAttr(state=rnic.QPState.INIT)  # wrong
init = rnic.QPInitAttr(qp_type=rnic.QPType.UD)
init.cap.max_send_wr = 3
init.cap.max_send_wrs = 3  # wrong
init.cap = 3  # wrong
rnic.SRQAttr(max_wr=5).srq_limits = 3  # wrong
rnic.SRQInitAttr().attr.max_wr = "5"  # wrong


def connected(a: rnic.QP, b: rnic.QP, conn: rnic.Connection) -> rnic.Region:
    rnic.connect_qps(a, b, access=rnic.AccessFlags.REMOTE_READ, show=print)
    rnic.connect_qps(a, b, retries=3)  # wrong
    try:
        return conn.next_region()
    except rnic.LostError as error:
        print(error.reason, rnic.Config(raw=True).raw)
        raise


def started(conn: rnic.Connection, remote: rnic.Region) -> tuple[rnic.Batch, rnic.Result]:
    with conn.batch() as batch:
        return batch, batch.write(b"x", remote)


def begun(conn: rnic.aio.Connection) -> rnic.aio.Batch:
    return conn.batch()


for name in dir(rnic.aio):
    print(name)
"""


def mypy(folder: Path) -> str:
    options = ("--strict", "--no-error-summary", f"--cache-dir={folder.parent / 'cache'}")
    return checked("mypy", *options, *map(str, sorted(folder.glob("*.py"))), folder=folder)


def pyright(folder: Path) -> str:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is missing: pip install 'pyright[nodejs]'")
    if lacks := checked("pyright", "--version", folder=folder):
        pytest.skip(f"pyright does not run here: {lacks}")
    (folder / "pyrightconfig.json").write_text(STRICT)
    return checked("pyright", "--pythonpath", sys.executable, folder=folder)


def checked(tool: str, *options: str, folder: Path) -> str:
    """What it complains of, nothing if it does not."""
    command = [sys.executable, "-m", tool, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.fixture(scope="module", params=[mypy, pyright])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Complaint]:
    """What a checker complains of."""
    folder = tmp_path_factory.mktemp("types") / "programs"
    folder.mkdir()
    (folder / "mistakes.py").write_text(MISTAKES)
    for example in (ROOT / "examples").glob("*.py"):
        (folder / example.name).write_text(example.read_text())
    for document in DOCUMENTS:
        for number, program in enumerate(PROGRAM.findall(document.read_text())):
            (folder / f"{document.stem}_{number}.py").write_text(program)
    assert (folder / "README_0.py").exists()
    return [(program, int(line), why) for program, line, why in FOUND.findall(request.param(folder))]


@pytest.mark.one_in(2)
def test_programs_of_documents_and_examples_are_typed(said: list[Complaint]) -> None:
    assert [one for one in said if one[0] != "mistakes"] == []


def test_the_usual_mistakes_are_found(said: list[Complaint]) -> None:
    wrong = {n for n, line in enumerate(MISTAKES.splitlines(), 1) if line.endswith("# wrong")}
    assert {line for program, line, _ in said if program == "mistakes"} == wrong, said
