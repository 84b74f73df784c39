# SPDX-License-Identifier: Apache-2.0
"""What `import rnic` costs, in what can be counted; and that nobody notices how the cost was cut."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rnic
import rnic.wire

# What the connections of rnic.connect() and rnic.listen() need; the test fails when this grows unseen.
ROOMS = {"_nic", "cm", "conn", "endpoint", "mpa", "rdmacm", "verbs", "wire"}
LEAVES = {"enums", "errors", "later", "log", "notebook", "records", "sizes", "threads", "times", "wording"}
WIRE = {"bits", "cm_msg", "cm_names", "crc", "ddp", "error", "header", "icrc", "mad", "mpa", "rdmap"}
CALLED = 13  # classes of records that there is one of, after the import: each had its __init__ compiled
COSTLY = {
    "asyncio",
    "click",
    "dataclasses",
    "hashlib",
    "inspect",
    "logging",
    "random",
    "secrets",
    "subprocess",
}

LOOK = """
import json, sys
import rnic
def is_called(record):
    return getattr(getattr(vars(record)["__init__"], "__code__", None), "co_filename", "") == "<string>"
def made(module):
    things = vars(module).values()
    return [one for one in things if isinstance(one, type) and one.__module__ == module.__name__]
ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "rnic"}
classes = {one for module in ours.values() for one in made(module)}
records = [one for one in classes if "__record__" in vars(one)]
print(json.dumps({
    "modules": sorted(sys.modules),
    "called": [one.__name__ for one in records if is_called(one)],
    "records": len(records),
    "decorated": [one.__name__ for one in classes - {*records} if "__dataclass_fields__" in vars(one)],
}))
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
    assert found["decorated"] == [], "dataclass compiles every method of theirs; let them be Records"
    assert len(found["called"]) <= CALLED < found["records"], found["called"]


def test_calls_import_nothing() -> None:
    """They may be made where files cannot be read."""
    fresh("""
import sys, threading
import rnic
class Blind:
    def find_spec(self, name, path=None, target=None):
        raise AssertionError(name)
sys.meta_path.insert(0, Blind())
def serve():
    with server.accept(60) as peer:
        peer.send(peer.recv(60))
with rnic.listen("127.0.0.1", 0) as server:
    thread = threading.Thread(target=serve)
    thread.start()
    with rnic.connect("127.0.0.1", server.port) as conn:
        conn.send(b"message")
        assert conn.recv(60) == b"message"
    thread.join()
flags = rnic.AccessFlags(0)
with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(4) as cq:
    init = rnic.QPInitAttr(cq, cq)
    with pd.create_qp(init) as qp, pd.reg_mr(bytearray(8), rnic.AccessFlags.LOCAL_WRITE) as mr:
        qp.modify(rnic.QPAttr(qp_state=rnic.QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=flags))
        repr([qp.query(), ctx.query_device(), ctx.query_device_ex(), ctx.query_port(1), mr, cq.poll(1)])
""")


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
