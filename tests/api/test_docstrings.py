# SPDX-License-Identifier: Apache-2.0
"""Everything public says what it is: modules, functions, classes, and all that a class has."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import rnic
from rnic._nic import nic

MODULES = [
    "rnic",
    "rnic.aio",
    "rnic.capture",
    "rnic.endpoint",
    "rnic.rdmacm",
    "rnic.testing",
]
TOLD = re.compile(
    r"^    cdef (?:readonly|public) .*?(\w+)(?: = .*?)? +#: \S|^    (\w+): .*\n    \"\"\"\S", re.MULTILINE
)
BINDING = Path(__file__).parents[2] / "src/rnic/_nic"


def things() -> list[tuple[str, Any]]:
    """All that the modules offer, each once, under the first name that it has."""
    found: dict[int, tuple[str, Any]] = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            thing = getattr(module, name)
            found.setdefault(id(thing), (f"{module.__name__}.{name}", thing))
    return list(found.values())


def ours(cls: type) -> list[type]:
    """It and its bases, as far as they are of rnic."""
    return [one for one in cls.__mro__ if one.__module__.partition(".")[0] == "rnic"]


@cache
def strings(module: str) -> dict[str, set[str]]:
    """By class, "" for the module: the names with a string behind their definition."""
    tree = ast.parse(Path(sys.modules[module].__file__ or "").read_text())
    classes = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    return {"": set(followed(tree.body))} | {one.name: set(followed(one.body)) for one in classes}


def followed(body: list[ast.stmt]) -> Iterator[str]:
    for one, then in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            yield from followed(one.body)  # self.name = ...
        if isinstance(then, ast.Expr) and isinstance(then.value, ast.Constant):
            for target in one.targets if isinstance(one, ast.Assign) else [getattr(one, "target", None)]:
                if isinstance(target, ast.Name | ast.Attribute):
                    yield target.id if isinstance(target, ast.Name) else target.attr


@cache
def comments() -> dict[str, set[str]]:
    """By class of the binding: the names with a comment (#:) or a string, which Python shows nowhere."""
    found: dict[str, set[str]] = {}
    for path in BINDING.glob("*.px[id]"):
        for part in re.split(r"^(?=cdef class |class )", path.read_text(), flags=re.MULTILINE):
            if head := re.match(r"(?:cdef )?class (\w+)", part):
                found[head[1]] = {name for told in TOLD.findall(part) for name in told if name}
    return found


def is_told(cls: type, name: str, value: object) -> bool:
    """Whether it has a docstring, or the source says what it is."""
    if cls.__module__ == nic.__name__ and name in comments().get(cls.__name__, ()):
        return True
    if cls.__module__ != nic.__name__ and name in strings(cls.__module__).get(cls.__name__, ()):
        return True
    called = inspect.isroutine(value) or inspect.isclass(value) or isinstance(value, property)
    return (called or inspect.isgetsetdescriptor(value)) and bool(inspect.getdoc(value))


def untold(cls: type) -> set[str]:
    """The public names of a class that it and its bases do not tell of."""
    every = [(one, name, value) for one in ours(cls) for name, value in vars(one).items()]
    told = {name for one, name, value in every if is_told(one, name, value)}
    for one in ours(cls):
        if one.__module__ != nic.__name__:  # also of names that only classes below have
            told |= strings(one.__module__).get(one.__name__, set())
    return {name for _, name, _ in every if not name.startswith("_")} - told


@pytest.mark.parametrize(("name", "thing"), things(), ids=[name for name, _ in things()])
def test_it_says_what_it_is(name: str, thing: Any) -> None:
    if isinstance(thing, type):
        assert thing.__doc__
        assert untold(thing) == set()
    elif inspect.isroutine(thing) or inspect.ismodule(thing):
        assert thing.__doc__
    else:
        assert is_told_of_a_value(name.rpartition(".")[2])


def is_told_of_a_value(name: str) -> bool:
    """A module of rnic that has such a name tells of it."""
    modules = [one for one in sys.modules if one.startswith("rnic.") and name in vars(sys.modules[one])]
    return any(name in strings(one)[""] for one in modules if one != nic.__name__)


def test_every_module_says_what_it_is() -> None:
    for name in MODULES:
        assert importlib.import_module(name).__doc__


def test_what_is_not_told_is_found() -> None:
    class Silent(rnic.QPCap):
        """It tells of itself alone."""

        def asked(self) -> None: ...

    Silent.__module__ = "rnic.verbs.qp"
    assert untold(Silent) == {"asked"}
    assert "qp_num" in comments()["QP"]
    assert not is_told(nic.QP, "nobody", vars(nic.QP)["qp_num"])
