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
    "names": {"base"},
    "wire": {"base"},
    "queue": {"base"},
    "mem": {"base", "wire"},
    "qp": {"base", "wire", "queue", "mem", "link"},
    "roce": {"base", "wire", "queue", "mem", "link", "qp"},
    "raw": {"base", "wire", "queue", "mem", "link", "qp"},
    "iwarp": {"base", "wire", "queue", "mem", "link", "qp"},
    "link": {"base", "wire", "names"},
    "run": {"base", "queue", "link", "qp"},
    "net": {"base", "names", "wire", "queue", "qp", "roce", "raw", "iwarp", "link", "run"},
    "host": {"base", "names", "wire", "queue", "mem", "qp", "roce", "link", "run", "net"},
    "mad": {"base", "names", "wire", "queue", "qp", "roce", "link", "run", "net", "host"},
    "dev": {
        "base",
        "wire",
        "queue",
        "mem",
        "qp",
        "roce",
        "raw",
        "iwarp",
        "link",
        "run",
        "net",
        "host",
        "mad",
    },
    "verbs": {"base", "names", "wire", "queue", "mem", "qp", "roce", "raw", "iwarp", "link", "dev"},
}
# The headers that other rooms may include: base/, names/ and wire/ are toolboxes, and show all.
PUBLIC_HEADERS = {
    "link": {
        "link.h",
        *("udp/udp.h", "lane/lane.h", "group/group.h", "packet/packet.h", "tcp/tcp.h"),  # the links
        "udp/steerprog.h",  # what net/ opens them with
    },
    "queue": {"wq.h", "srq.h", "cq.h", "comp_cntr.h", "events.h", "moderation.h", "tag.h"},
    "mem": {"store.h", "mw.h", "remote.h", "persist.h", "mappings.h"},
    "qp": {"qp.h", "ah.h", "element.h", "tagged.h", "why.h", "xrc.h"},
    "roce": {"roce.h", "direct.h", "partition.h", "path.h"},
    "raw": {"raw.h", "counters_flow.h"},
    "iwarp": {"iwarp.h"},
    "run": {"run.h"},
    "net": {"net.h"},
    "host": {"host.h"},
    "mad": {"mads.h"},
    "dev": {"dev.h"},
    "verbs": set(),
}
LONGEST = 450  # lines of a Python file
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
    "_disk": set(),
    "capture": {"wire", "records"},
    "cm": {"wire", "errors", "log", "records"},
    "mpa": {"wire", "errors", "log", "records"},
    "endpoint": {"_nic", "enums", "records", "wording"},
    "verbs": {"_nic", "wire", "enums", "errors", "sizes", "times", "records", "notebook", "wording"},
    "rdmacm": {
        "_nic",
        "cm",
        "mpa",
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
    "dask": {"rnic", "aio"},
    "files": {"rnic", "_disk", "endpoint", "enums", "records", "wording"},
    "vm": set(),
    "kmod": {"vm"},
    "patterns": {"rnic", "_nic", "aio", "conn", "endpoint", "enums", "errors", "times", "records", "later"},
    "testing": {"_nic", "verbs", "enums", "errors", "rnic", "times", "records"},
    "ucma": {"rdmacm", "verbs", "enums", "errors", "log", "threads", "records"},
    "programs": {"rnic", "ucma", "verbs", "enums", "errors", "records"},
    "cli": {
        "rnic",
        "rdmacm",
        "files",
        "kmod",
        "patterns",
        "programs",
        "testing",
        "vm",
        "errors",
        "times",
        "records",
        "wording",
    },
}
# No public names: the measuring loops of `rnic perf`, and the environment.
MORE = {"cli/perf/native.py": {"_nic"}, "cli/environment.py": {"_nic"}, "programs/wishes.py": {"_nic"}}


def c_files() -> list[Path]:
    return sorted(p for room in C_ROOMS for p in (NIC / room).rglob("*.[ch]"))


def room_of(path: Path) -> str:
    """The folder of a file, or of its folder: link/ has one for each link."""
    return path.relative_to(NIC).parts[0]


@pytest.mark.parametrize("path", c_files(), ids=lambda p: str(p.relative_to(NIC)))
def test_includes_point_down(path: Path) -> None:
    room = room_of(path)
    used = set(re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE))
    assert used <= C_ROOMS[room] | {room}


def test_every_room_but_the_toolboxes_says_what_it_shows() -> None:
    assert set(PUBLIC_HEADERS) == set(C_ROOMS) - {"base", "names", "wire"}


@pytest.mark.parametrize("room", sorted(PUBLIC_HEADERS))
def test_other_rooms_include_public_headers_alone(room: str) -> None:
    include = re.compile(rf'^#include "{room}/([\w/]+\.h)"', re.MULTILINE)
    used = {name for p in c_files() if room_of(p) != room for name in include.findall(p.read_text())}
    assert used == PUBLIC_HEADERS[room]


def test_messages_know_the_border_of_the_device_alone() -> None:
    used = {
        name
        for path in (ROOT / "src/msg").glob("*.[ch]")
        for name in re.findall(r'^#include "([\w/.]+)"', path.read_text(), re.MULTILINE)
    }
    assert used == {"nic.h", "base/bytes.h", "msg/msg.h", "msg/frame.h", "msg/machine.h"}


def test_every_folder_of_the_device_is_a_room() -> None:
    assert {p.name for p in NIC.iterdir() if p.is_dir()} == set(C_ROOMS)


def python_files() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE)


def test_no_python_file_is_long() -> None:
    long = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if lines(path) > LONGEST}
    assert not long


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


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


# ---------------------------------------------------------------- the picture

PICTURE = (ROOT / "docs/architecture.md").read_text().partition("```mermaid\n")[2].partition("```")[0]
# Two rooms of one name: that of the device has a "c" ahead in the picture, and that of Python a "py".
LEAVES = {"enums", "errors", "records", "later", "log", "notebook", "sizes", "threads", "times", "wording"}


def drawn_rooms() -> dict[str, str]:
    """What a name in the picture stands for: "nic/link" for a room in C, "link" for one in Python."""
    python, c = PICTURE.split("subgraph c[")
    rooms = {"leaves": "leaves", "face": "rnic"}
    rooms |= dict(re.findall(r'^ +(\w+)\["(\w+)/ :', python, re.MULTILINE))
    rooms |= {name: f"nic/{room}" for name, room in re.findall(r'^ +(\w+)\["(\w+)/ :', c, re.MULTILINE)}
    return rooms | {"nich": "nic.h", "msg": "msg"}


def drawn_arrows() -> set[tuple[str, str]]:
    rooms = drawn_rooms()
    found = re.findall(r"^ +(\w+) --[->] (\w+)$", PICTURE, re.MULTILINE)
    return {(rooms[a], rooms[b]) for a, b in found}


def providers() -> set[tuple[str, str]]:
    """Behind nic.h are the rooms that have a provider."""
    rooms = {
        room_of(p)
        for p in c_files()
        if re.search(r"^const struct rnic_provider ", p.read_text(), re.MULTILINE)
    }
    return {("nic.h", f"nic/{room}") for room in rooms}


def used_by_python() -> set[tuple[str, str]]:
    """Which room imports which, and what the public names of `rnic` are made of."""
    arrows = {("rnic", used) for used in imported_rooms(PACKAGE / "__init__.py")}
    for path in python_files():
        room = path.relative_to(PACKAGE).parts[0]
        if str(path.relative_to(PACKAGE)) not in MORE:
            arrows |= {(room, used) for used in imported_rooms(path)}
    for path in (PACKAGE / "_nic").glob("*.p[yx]*"):
        arrows |= {
            ("_nic", used) for used in re.findall(r"^from rnic\.(\w+)", path.read_text(), re.MULTILINE)
        }
    joined = {("leaves" if a in LEAVES else a, "leaves" if b in LEAVES else b) for a, b in arrows}
    bound = {("_nic", "nic.h"), ("_nic", "msg"), ("msg", "nic.h")}  # see tests/docs/test_border.py, too
    return {(a, b) for a, b in joined if a != b} | bound | providers()


def used_by_c() -> set[tuple[str, str]]:
    arrows = set()
    for path in c_files():
        used = set(re.findall(r'^#include "(\w+)/', path.read_text(), re.MULTILINE))
        arrows |= {(f"nic/{room_of(path)}", f"nic/{room}") for room in used - {room_of(path)}}
    return arrows


def reachable(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows, and what can be reached by several of them."""
    found = set(arrows)
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


def test_the_picture_has_the_rooms_of_the_code() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()} - LEAVES
    assert set(drawn_rooms().values()) == folders | {f"nic/{room}" for room in C_ROOMS} | {
        "nic.h",
        "msg",
        "leaves",
        "rnic",
    }


def test_the_arrows_of_the_picture_are_those_of_the_code() -> None:
    drawn, used = drawn_arrows(), used_by_python() | used_by_c()
    missing, invented = used - reachable(drawn), drawn - used
    assert not missing, f"the code has {missing}, the picture does not"
    assert not invented, f"the picture has {invented}, the code does not"
    assert not {(a, b) for a, b in reachable(drawn) if a == b}, "a circle"
