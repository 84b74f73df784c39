# SPDX-License-Identifier: Apache-2.0
"""The stub of the binding that is installed tells editors what the binding's own docstrings say."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.stub import docs_of, filled

from rnic._nic import nic

SOURCE = Path(__file__).parents[2] / "src/rnic/_nic/nic.pyi"
INSTALLED = Path(nic.__file__).with_name("nic.pyi")
INTERNAL = {"PerfEnd"}  # no names of rnic: their attributes need not say what they are
Documented = ast.ClassDef | ast.FunctionDef


class Bare(ast.NodeTransformer):
    """Takes the docstrings out."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def told(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names of the stub, with what it says of each."""
    for one in tree.body:
        if isinstance(one, Documented) and not one.name.startswith("_"):
            yield one.name, ast.get_docstring(one) or ""
        if not isinstance(one, ast.ClassDef) or one.name.startswith("_"):
            continue
        for item, then in zip(one.body, [*one.body[1:], None], strict=True):
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_") and not is_setter(item):
                yield f"{one.name}.{item.name}", ast.get_docstring(item) or ""
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                says = isinstance(then, ast.Expr) and isinstance(then.value, ast.Constant)
                yield f"{one.name}.{item.target.id}", ast.unparse(then) if then and says else ""


def is_setter(node: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "setter" for one in node.decorator_list)


def test_it_is_the_stub_of_the_sources_and_docstrings() -> None:
    assert ast.dump(Bare().visit(ast.parse(INSTALLED.read_text()))) == ast.dump(
        Bare().visit(ast.parse(SOURCE.read_text()))
    )


TOLD = dict(told(ast.parse(INSTALLED.read_text())))


@pytest.mark.parametrize("name", sorted(TOLD))
def test_it_says_what_each_name_is(name: str) -> None:
    owner, _, attribute = name.partition(".")
    thing = getattr(getattr(nic, owner), attribute) if attribute else getattr(nic, owner)
    if isinstance(thing, type) or inspect.isroutine(thing):
        assert (inspect.getdoc(thing) or "").endswith(TOLD[name])  # behind the signature
    assert TOLD[name] or owner in INTERNAL


def test_docstrings_are_found_where_cython_has_them() -> None:
    source = '''\
cdef class One(Base):
    """A class.

    Of two lines.
    """

    cdef readonly int number    #: How many.
    cdef int hidden

    def call(self, first,
             second=()):  # with a remark
        """Call it."""
        return 1

    @property
    def silent(self):
        return 2


def function(int a):
    """No class's."""
'''
    stub = """\
class One(Base):
    @property
    def number(self) -> int: ...
    def call(
        self, first: int, second: int = ...
    ) -> int: ...
    @property
    def silent(self) -> int: ...

class Two: ...

def function(a: int) -> None: ...
"""
    assert (
        filled(stub, docs_of(source))
        == '''\
class One(Base):
    """A class.

    Of two lines.
    """
    @property
    def number(self) -> int:
        """How many."""
    def call(
        self, first: int, second: int = ...
    ) -> int:
        """Call it."""
    @property
    def silent(self) -> int: ...

class Two: ...

def function(a: int) -> None:
    """No class's."""
'''
    )
