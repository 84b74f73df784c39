# SPDX-License-Identifier: Apache-2.0
"""What `import rnic` costs, in what can be counted; and that nobody notices how the cost was cut."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rnic
import rnic.wire
from rnic.records import Record

# What the connections of rnic.connect() and rnic.listen() need; the test fails when this grows unseen.
ROOMS = {"_nic", "cm", "conn", "endpoint", "rdmacm", "verbs", "wire"}
LEAVES = {"enums", "errors", "later", "records", "sizes", "threads", "times", "wording"}
WIRE = {"bits", "cm_msg", "cm_names", "error", "header", "icrc", "mad"}
DATACLASSES = 106
COSTLY = {"asyncio", "click", "hashlib", "secrets", "subprocess"}

LOOK = """
import json, sys
import rnic
def made(module):
    things = vars(module).values()
    return [one for one in things if isinstance(one, type) and one.__module__ == module.__name__]
ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "rnic"}
classes = [one for module in ours.values() for one in made(module) if "__dataclass_fields__" in vars(one)]
written = [f"{one.__module__}.{one.__name__}" for one in classes if one.__dataclass_params__.frozen
           and one.__module__ != "rnic.records" and {"__eq__", "__hash__", "__repr__"} & set(vars(one))]
print(json.dumps({"modules": sorted(sys.modules), "dataclasses": len(set(classes)), "written": written}))
"""


def fresh(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, text=True)
    return ran.stdout


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(fresh(LOOK))
    return seen


def test_what_is_imported(found: dict[str, Any]) -> None:
    ours = [name.split(".") for name in found["modules"] if name.startswith("rnic.")]
    assert {name[1] for name in ours} == ROOMS | LEAVES
    assert {name[2] for name in ours if name[1] == "wire" and len(name) > 2} == WIRE
    assert not COSTLY & set(found["modules"])


def test_how_much_is_compiled(found: dict[str, Any]) -> None:
    assert found["dataclasses"] <= DATACLASSES
    assert found["written"] == [], "these are no Records, or have methods that Record has"


def records() -> list[type[Record]]:
    importlib.import_module("rnic.wire.packet")
    found, seen = [Record], []
    while found:
        below = found.pop().__subclasses__()
        found += below
        seen += [one for one in below if "__dataclass_fields__" in vars(one)]
    return sorted(seen, key=lambda one: (one.__module__, one.__name__))


def filled(cls: type[Any], values: list[object]) -> Any:
    """One with any values at all: what they may be is not asked here."""
    made = object.__new__(cls)
    for field, value in zip(dataclasses.fields(cls), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made


@pytest.mark.parametrize("cls", records(), ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_a_record_is_what_dataclass_makes(cls: type[Any]) -> None:
    fields = dataclasses.fields(cls)
    alike = [(f.name, object, dataclasses.field(repr=f.repr, compare=f.compare)) for f in fields]
    twin = dataclasses.make_dataclass(cls.__qualname__, alike, frozen=True)
    values: list[object] = [f"value {number}" for number in range(len(fields))]
    one = filled(cls, values)
    for changed in range(-1, len(fields)):
        others = [f"{value}, another" if number == changed else value for number, value in enumerate(values)]
        other = filled(cls, others)
        if "__repr__" not in vars(cls):
            assert repr(other) == repr(twin(*others))
        assert hash(other) == hash(twin(*others))
        assert (one == other) == (twin(*values) == twin(*others))
    assert one != twin(*values)
    assert one != tuple(values)
    if fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, fields[0].name, None)


def test_a_record_in_itself_has_a_text() -> None:
    inside: list[object] = []
    attr = rnic.QPInitAttr(qp_context=inside)
    inside.append(attr)
    assert "qp_context=[...]" in repr(attr)


def test_a_program_may_derive_from_a_record() -> None:
    @dataclasses.dataclass(frozen=True)
    class Mine(rnic.QPCap):
        more: int = 0

    assert Mine(more=1) == Mine(more=1) != Mine(more=2)
    assert Mine() != rnic.QPCap()
    assert repr(Mine()).endswith("max_inline_data=256, more=0)")


# -------------------------------------------------------------------- names that are imported later


def later_names() -> list[tuple[str, str]]:
    """(module, name) of what rnic.wire imports later, as type checkers see it."""
    tree = ast.parse(Path(rnic.wire.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", alias.name) for node in imports for alias in node.names]


@pytest.mark.parametrize(("module", "name"), later_names())
def test_a_name_is_its_modules(module: str, name: str) -> None:
    assert getattr(rnic.wire, name) is getattr(importlib.import_module(module), name)


def test_a_star_brings_all_names() -> None:
    fresh("from rnic.wire import *; import rnic.wire as w; assert set(w.__all__) <= {*globals()}")
    fresh("from rnic import *; import rnic; assert set(rnic.__all__) <= {*globals()}")
    fresh("import rnic.wire as w; assert set(w.__all__) <= set(dir(w)), set(w.__all__) - set(dir(w))")


def test_modules_are_still_attributes() -> None:
    fresh("import rnic; rnic.wire.packet.Packet; rnic.wire.opcode.TABLE")


def test_a_function_keeps_its_name_from_the_module_of_that_name() -> None:
    fresh("import rnic.wire.packet, rnic.wire; assert callable(rnic.wire.icrc)")
    fresh("import rnic.wire; rnic.wire.Packet; from rnic.wire import icrc; assert callable(icrc)")


def test_a_name_that_is_none() -> None:
    with pytest.raises(AttributeError, match=r"module 'rnic\.wire' has no attribute 'Packer'"):
        getattr(rnic.wire, "Packer")  # noqa: B009 - mypy knows that there is none


def test_threads_may_ask_at_once() -> None:
    fresh("""
import threading, rnic
names = ["Packet", "AETH", "IPv4", "Opcode", "LinkType", "BTH", "TABLE", "Transport"]
found, begin = [], threading.Barrier(len(names))
def ask(name):
    begin.wait()
    found.append((name, getattr(rnic.wire, name)))
threads = [threading.Thread(target=ask, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sorted(name for name, _ in found) == sorted(names)
assert all(thing is getattr(rnic.wire, name) for name, thing in found)
""")
