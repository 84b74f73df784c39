# SPDX-License-Identifier: Apache-2.0
"""Changes of Python sources, found in the syntax tree: the same kinds as in C."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.mutants.change import Change, make

OPERATORS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.And: ("and", ("or",)),
    ast.Or: ("or", ("and",)),
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("//",)),
    ast.FloorDiv: ("//", ("*",)),
    ast.Div: ("/", ("*",)),
    ast.Mod: ("%", ("//",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}


class Places:
    """Where a node lies in a source; ast counts lines and bytes of UTF-8."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def changes(path: str, source: str) -> Iterator[Change]:
    """Every change of a file; annotations, docstrings and texts of messages are left as they are."""
    places = Places(source)
    for node in _behaviour(ast.parse(source)):
        for start, end, new in _of(node, places):
            yield make(path, source, start, end, new)


def _behaviour(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, without what tells rather than does."""
    yield node
    if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
        return  # a promise, which does nothing
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list") or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _behaviour(child)


Edit = tuple[int, int, str]


def _of(node: ast.AST, places: Places) -> Iterator[Edit]:
    yield from _operators(node, places)
    yield from _values(node, places)
    yield from _conditions(node, places)
    if isinstance(node, ast.AugAssign | ast.Assign | ast.Delete | ast.Continue | ast.Break):
        yield from _dropped(node, places)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _dropped(node, places)


def _operators(node: ast.AST, places: Places) -> Iterator[Edit]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield from _between(op, left, right, places)
        case ast.BoolOp(op=op, values=values):
            yield from _between(op, values[0], values[1], places)
        case ast.BinOp(left=left, op=op, right=right) | ast.AugAssign(target=left, op=op, value=right):
            yield from _between(op, left, right, places)


def _values(node: ast.AST, places: Places) -> Iterator[Edit]:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield places.start(node), places.end(node), f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield places.start(node), places.end(node), str(not value)
        case ast.Constant(value=int() as value):
            yield places.start(node), places.end(node), str(value + 1)
            if value:
                yield places.start(node), places.end(node), str(value - 1)


def _conditions(node: ast.AST, places: Places) -> Iterator[Edit]:
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
            yield places.start(test), places.end(test), f"(not ({ast.unparse(test)}))"


def _between(op: ast.AST, left: ast.expr, right: ast.expr, places: Places) -> Iterator[Edit]:
    """The operator between two operands is written in between, among parentheses perhaps."""
    text, others = OPERATORS.get(type(op), ("", ()))
    start, end = places.end(left), places.start(right)
    at = places.source.find(text, start, end) if text else -1
    if at >= 0:
        yield from ((at, at + len(text), other) for other in others)


def _dropped(node: ast.stmt, places: Places) -> Iterator[Edit]:
    """A statement in a function; what a class or a module assigns is a definition."""
    if node.col_offset >= 8 or (node.col_offset == 4 and not isinstance(node, ast.Assign)):
        yield places.start(node), places.end(node), "pass"
