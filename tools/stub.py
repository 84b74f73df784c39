# SPDX-License-Identifier: Apache-2.0
"""Write the binding's stub with its docstrings: `stub.py nic.pyi nic.pyx OUT DEPFILE`.

Editors read the stub, as they cannot look into the extension module.  The docstrings stand in the Cython
sources alone; the build puts them into the stub that is installed.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from textwrap import dedent

CLASS = re.compile(r"^(?:cdef )?class (\w+)")
DEF = re.compile(r"^ *(?:def|cpdef(?: \w+)?) (\w+)\(")
ATTRIBUTE = re.compile(r"^    cdef (?:readonly|public) .*?(\w+)(?: = .*?)? +#: (.*)")
FIELD = re.compile(r"^    (\w+): ")
INCLUDE = re.compile(r'^include "(.*)"', re.MULTILINE)

Docs = dict[tuple[str, str], list[str]]
"""Class ("" of none) and name ("" the class itself): the lines of the docstring, as they stand."""


def docs_of(source: str) -> Docs:
    """What a Cython source says of its classes, functions and attributes."""
    found: Docs = {}
    lines, owner = source.splitlines(), ""
    for at, line in enumerate(lines):
        if told := ATTRIBUTE.match(line):
            found[owner, told[1]] = [f'"""{told[2]}"""']
            continue
        if line[:1].strip():
            owner = ""
        if begins := CLASS.match(line):
            owner, name = begins[1], ""
        elif begins := DEF.match(line) or FIELD.match(line):
            name = begins[1]
        else:
            continue
        if text := string_behind(lines, at):
            found.setdefault((owner, name), text)
    return found


def string_behind(lines: list[str], at: int) -> list[str]:
    """The docstring below a header, which may take several lines; none if there is no such."""
    while CLASS.match(lines[at]) is None and FIELD.match(lines[at]) is None and not ends_header(lines[at]):
        at += 1
    text = lines[at + 1 : at + 2]
    if not text or not text[0].lstrip().startswith('"""'):
        return []
    while text[-1].count('"""') < (2 if len(text) == 1 else 1):
        text.append(lines[at + 1 + len(text)])
    return dedent("\n".join(text)).splitlines()


def ends_header(line: str) -> bool:
    """A line that ends the header of a function."""
    return line.partition("  #")[0].rstrip().endswith(":")


def filled(stub: str, docs: Docs) -> str:
    """The stub with the docstrings."""
    lines = stub.splitlines()
    for node, owner in reversed(list(nodes(ast.parse(stub)))):
        name = node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else ""
        if isinstance(node, ast.FunctionDef):
            name = node.name
        text = docs.get((owner, name))
        if text is None:
            continue
        inside = isinstance(node, ast.ClassDef) and node.body[0].lineno > node.lineno
        last = first_line(node.body[0]) - 1 if inside else node.end_lineno or 0  # type: ignore[union-attr]
        margin = 0 if isinstance(node, ast.AnnAssign) else 4
        if lines[last - 1].endswith(": ..."):
            lines[last - 1] = lines[last - 1].removesuffix(" ...")
        lines[last:last] = [(" " * (node.col_offset + margin) + line).rstrip() for line in text]
    return "\n".join(lines) + "\n"


def first_line(node: ast.stmt) -> int:
    """Decorators are ahead of a definition."""
    ahead = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return min([node.lineno, *(one.lineno for one in ahead)])


def nodes(tree: ast.Module) -> list[tuple[ast.ClassDef | ast.FunctionDef | ast.AnnAssign, str]]:
    """Classes, functions and attributes in their order, each with its class."""
    found: list[tuple[ast.ClassDef | ast.FunctionDef | ast.AnnAssign, str]] = []
    for one in tree.body:
        if isinstance(one, ast.FunctionDef):
            found.append((one, ""))
        elif isinstance(one, ast.ClassDef):
            found.append((one, one.name))
            inside = [item for item in one.body if isinstance(item, ast.FunctionDef | ast.AnnAssign)]
            setters = [item for item in inside if isinstance(item, ast.FunctionDef) and is_setter(item)]
            found += [(item, one.name) for item in inside if item not in setters]
    return found


def is_setter(node: ast.FunctionDef) -> bool:
    """Which has no docstring of its own."""
    return any(isinstance(one, ast.Attribute) and one.attr == "setter" for one in node.decorator_list)


def main(stub: Path, source: Path, out: Path, depfile: Path) -> None:
    """Write it, and what it depends on."""
    sources = [source, *(source.parent / name for name in INCLUDE.findall(source.read_text()))]
    docs: Docs = {}
    for one in sources:
        docs |= docs_of(one.read_text())
    out.write_text(filled(stub.read_text(), docs))
    depfile.write_text(f"{out}: {' '.join(map(str, [stub, *sources]))}\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
