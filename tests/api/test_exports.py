# SPDX-License-Identifier: Apache-2.0
"""Public names, the stub and what is there at run time agree."""

import ast
import inspect
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import rnic
from rnic._nic import nic


def stub_names() -> dict[str, set[str]]:
    """Class: its names in the stub; "" holds the functions."""
    names: dict[str, set[str]] = {"": set()}
    stub = Path(__file__).parents[2] / "src/rnic/_nic/nic.pyi"
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names[""].add(node.name)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            inside = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            declared = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            inside |= {target.id for target in declared if isinstance(target, ast.Name)}
            names[node.name] = inside - {"__init__", "__buffer__", "_repr_html_"}
    return names


def public(thing: object) -> set[str]:
    """Not what pytest adds: it rewrites the asserts of packages that bring it a plugin."""
    return {name for name in vars(thing) if name.isidentifier() and not name.startswith("_")}


def test_version_is_the_packages() -> None:
    assert rnic.__version__ == metadata.version("rnic")


def test_all_is_what_there_is() -> None:
    modules = {
        "programs",
        "ucma",
        "enums",
        "errors",
        "notebook",
        "verbs",
        "wire",
        "cm",
        "cli",
        "conn",
        "dask",
        "rdmacm",
        "capture",
        "endpoint",
        "files",
        "testing",
        "later",
        "mpa",
        "log",
        "records",
        "sizes",
        "threads",
        "times",
        "kmod",
        "vm",
        "wording",
    }
    for lazy in (rnic.aio, rnic.patterns):  # imported now, if nobody has asked for it yet
        assert inspect.ismodule(lazy)
    assert public(rnic) - modules == set(rnic.__all__)
    assert set(rnic.__all__) <= set(dir(rnic))
    with pytest.raises(AttributeError, match="no attribute 'aoi'"):
        getattr(rnic, "aoi")  # noqa: B009 - mypy knows that there is none


def test_asyncio_is_imported_by_who_asks_for_it() -> None:
    look = "'asyncio' in sys.modules"
    program = f"import sys, rnic; assert not {look}; rnic.aio.connect; assert {look}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_the_stub_has_every_class_and_every_name() -> None:
    stub = stub_names()
    own = {
        name: thing for name, thing in vars(nic).items() if getattr(thing, "__module__", "") == nic.__name__
    }
    classes = {name for name, thing in own.items() if inspect.isclass(thing)}
    assert classes == set(stub) - {""}
    for name in classes:
        dunders = {n for n in stub[name] if n.startswith("__")}
        assert public(getattr(nic, name)) == stub[name] - dunders, name
    functions = {name for name in own if not name.startswith("_")} - classes
    assert functions == stub[""]
