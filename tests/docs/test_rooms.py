# SPDX-License-Identifier: Apache-2.0
"""Imports and #includes point down: docs/architecture.md draws the rooms, this holds them to it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NIC, PACKAGE = ROOT / "src/nic", ROOT / "src/rnic"

# What a room may use beside itself and nic.h.
C_ROOMS = {
    "base": set(),
    "wire": {"base"},
    "queue": {"base"},
    "mem": {"base", "wire"},
    "qp": {"base", "wire", "queue", "mem", "link"},
    "roce": {"base", "wire", "queue", "mem", "link", "qp"},
    "raw": {"base", "wire", "queue", "mem", "link", "qp"},
    "link": {"base", "wire"},
    "run": {"base", "queue", "link", "qp"},
    "dev": {"base", "wire", "queue", "mem", "qp", "roce", "raw", "link", "run"},
    "verbs": {"base", "wire", "queue", "mem", "qp", "roce", "raw", "link", "run", "dev"},
}
PY_ROOMS = {
    "enums": {"wording"},
    "errors": set(),
    "times": set(),
    "later": set(),
    "log": set(),
    "records": set(),
    "sizes": {"errors"},
    "threads": {"errors"},
    "wording": set(),
    "notebook": set(),
    "wire": {"later", "records"},
    "_nic": {"enums", "errors", "sizes", "times"},
    "capture": {"wire", "records"},
    "cm": {"wire", "errors", "log", "records"},
    "endpoint": {"_nic", "enums", "records"},
    "verbs": {"_nic", "enums", "errors", "sizes", "times", "records", "notebook"},
    "rdmacm": {
        "_nic",
        "cm",
        "verbs",
        "wire",
        "enums",
        "errors",
        "log",
        "threads",
        "times",
        "records",
        "wording",
    },
    "conn": {
        "_nic",
        "endpoint",
        "rdmacm",
        "verbs",
        "wire",
        "enums",
        "errors",
        "log",
        "threads",
        "times",
        "records",
        "wording",
        "notebook",
    },
    "aio": {"_nic", "conn", "endpoint", "rdmacm", "enums", "errors", "log", "times"},
    "testing": {"_nic", "verbs", "enums", "errors", "rnic", "times", "records"},
    "cli": {"rnic", "rdmacm", "errors", "times", "records", "wording"},
}
# No public names: the measuring loops of `rnic perf`, and the table of the environment.
MORE = {"cli/perf/native.py": {"_nic"}, "cli/environment.py": {"_nic"}}


def c_files() -> list[Path]:
    return sorted(p for room in C_ROOMS for p in (NIC / room).glob("*.[ch]"))


@pytest.mark.parametrize("path", c_files(), ids=lambda p: str(p.relative_to(NIC)))
def test_includes_point_down(path: Path) -> None:
    room = path.parent.name
    used = set(re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE))
    assert used <= C_ROOMS[room] | {room}


def test_every_folder_of_the_device_is_a_room() -> None:
    assert {p.name for p in NIC.iterdir() if p.is_dir()} == set(C_ROOMS)


def python_files() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE)


def imported_rooms(path: Path) -> set[str]:
    """Names behind "rnic." of what a module imports; "rnic" for the public face itself."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    ours = {name for name in names if name.split(".")[0] == "rnic"}
    return {name.split(".")[1] if "." in name else "rnic" for name in ours}


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    name = path.relative_to(PACKAGE)
    room = name.parts[0]
    assert imported_rooms(path) <= PY_ROOMS[room] | {room} | MORE.get(str(name), set())


# What ids, channels and endpoints may name of the InfiniBand communication manager: times, and counters.
OF_THE_MANAGER = {"rnic.cm.timing", "rnic.cm.Statistics"}


def above_the_connection_services() -> list[Path]:
    """rdmacm/ serves every transport; its folders are services, which service.py is the interface of."""
    return sorted((PACKAGE / "rdmacm").glob("*.py"))


def imported_names(path: Path) -> set[str]:
    """What a module imports, each name with its module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", above_the_connection_services(), ids=lambda p: p.name)
def test_one_table_alone_names_connection_services(path: Path) -> None:
    services = {f"rnic.rdmacm.{one.name}" for one in path.parent.iterdir() if (one / "__init__.py").exists()}
    names = {name for name in imported_names(path) if name.startswith((*services, "rnic.cm"))}
    own = {name for name in names if not any(name.startswith(allowed) for allowed in OF_THE_MANAGER)}
    assert services
    assert bool(own) is (path.name == "transports.py"), own


def test_no_c_file_of_the_device_knows_python() -> None:
    assert not [path for path in c_files() if "Python.h" in path.read_text()]
