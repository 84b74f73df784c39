# SPDX-License-Identifier: Apache-2.0
"""The table of conformance cannot promise what is not there: functions, names, tests, places in the code."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import rnic
from conformance.table import (
    LIBRARIES,
    ROOT,
    Function,
    Statement,
    functions,
    listed,
    newer,
    packages,
    page,
    statements,
)

FUNCTIONS, STATEMENTS = functions(), statements()
HEADERS = {"verbs.toml": "infiniband/", "rdmacm.toml": "rdma/"}


@functools.cache
def sources(file: str) -> dict[str, str]:
    """Function of a Python or C file, a test or a helper: its text."""
    text = (ROOT / file).read_text()
    if file.endswith(".py"):
        found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        return {node.name: ast.get_source_segment(text, node) or "" for node in found}
    run = set(re.findall(r"\bRUN\((\w+)\);", text))
    body = r"^static void (?:test_)?(\w+)\(void\) (\{[^\n]*\}$|\{.*?^\})"
    bodies = re.findall(body, text, re.MULTILINE | re.DOTALL)
    return {name: body for name, body in bodies if name in run}


def text_of(name: str) -> str:
    """What a named test or helper consists of."""
    file, _, function = name.partition("::")
    assert (ROOT / file).is_file(), f"there is no {file}"
    assert function in sources(file), f"{file} has no {function}"
    return sources(file)[function]


def resolve(name: str) -> object:
    """What a dotted name from `rnic` on stands for."""
    first, *rest = name.split(".")
    assert first == "rnic"
    return functools.reduce(getattr, rest, rnic)


def calls(text: str, name: str) -> bool:
    """Whether a text uses the last part of a dotted name: calls it, or reads the attribute."""
    last = re.escape(name.rpartition(".")[2])
    return bool(re.search(rf"\b{last}\(" if callable(resolve(name)) else rf"\.{last}\b", text))


def by_name(row: Function) -> str:
    return row.name


@pytest.mark.parametrize("file", LIBRARIES)
def test_every_function_of_the_headers_has_its_line_and_no_other(file: str) -> None:
    declared = [
        name
        for headers in (listed(), newer()[1])
        for header, names in headers.items()
        if header.startswith(HEADERS[file])
        for name in names
    ]
    assert Counter(row.name for row in FUNCTIONS if row.file == file) == Counter(declared)


def test_the_list_is_what_the_headers_declare() -> None:
    spec = importlib.util.spec_from_file_location("list_functions", ROOT / "tools/list_functions.py")
    assert spec
    assert spec.loader
    command = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(command)
    try:
        here = {package: command.version(package) for package in packages()}
    except (OSError, subprocess.CalledProcessError):
        here = {}
    if here != packages():
        pytest.skip(f"these headers are not installed: {packages()}")
    assert {header: command.functions(command.preprocessed(header)) for header in listed()} == listed()


@pytest.mark.parametrize("row", FUNCTIONS, ids=by_name)
def test_a_line_says_one_thing(row: Function) -> None:
    assert [bool(row.rnic), bool(row.unneeded), bool(row.missing)].count(True) == 1
    assert bool(row.rnic) == bool(row.tests)
    assert row.rnic or not row.refused


@pytest.mark.parametrize("row", [row for row in FUNCTIONS if row.rnic], ids=by_name)
def test_a_supported_function_exists_and_its_tests_call_it(row: Function) -> None:
    resolve(row.rnic)
    if row.via:
        assert calls(text_of(row.via), row.rnic), f"{row.via} does not use {row.rnic}"
    helper = row.via.partition("::")[2]
    for test in row.tests:
        text = text_of(test)
        assert test.partition("::")[2].startswith("test_"), f"{test} is no test"
        used = re.search(rf"\b{helper}\b", text) if helper else calls(text, row.rnic)
        assert used, f"{test} does not use {helper or row.rnic}"


def test_what_is_said_to_be_missing_is_not_there() -> None:
    """By the name that it would have: that of C less the prefix, on any public class or module."""
    places = [
        rnic,
        rnic.rdmacm,
        *map(vars(rnic).get, rnic.__all__),
        *map(vars(rnic.rdmacm).get, rnic.rdmacm.__all__),
    ]
    there = {name for place in places for name in dir(place)}
    missing = {row.name: row.name.split("_", 1)[1] for row in FUNCTIONS if row.missing}
    found = [name for name, short in missing.items() if short in there]
    assert not found, f"these are there: name rnic's names and tests in the table: {', '.join(found)}"


@pytest.mark.parametrize("row", STATEMENTS, ids=lambda row: f"{row.clause}-{row.service}")
def test_a_statement_names_its_code_which_cites_it_and_its_tests(row: Statement) -> None:
    assert row.missing or (row.code and row.tests)
    if row.code:
        file, _, name = row.code.partition("::")
        text = (ROOT / file).read_text()
        assert re.search(rf"^[A-Za-z#}}].*\b{name}\b", text, re.MULTILINE), f"{file} defines no {name}"
        cited = re.search(rf"{re.escape(row.clause)}(?!\.?\d)", text)
        assert cited, f"{file} does not cite {row.clause}"
    for test in row.tests:
        text_of(test)


@pytest.mark.parametrize(
    ("check", "lie"),
    [
        (test_a_supported_function_exists_and_its_tests_call_it, {"rnic": "rnic.Context.query_prot"}),
        (test_a_supported_function_exists_and_its_tests_call_it, {"tests": ("tests/gone.py::test_it",)}),
        (
            test_a_supported_function_exists_and_its_tests_call_it,
            {"tests": ("tests/api/test_soft.py::test_that_is_gone",)},
        ),
        (
            test_a_supported_function_exists_and_its_tests_call_it,
            {"tests": ("tests/api/test_soft.py::test_bytes_arrive",)},
        ),
        (test_a_line_says_one_thing, {"missing": "not made yet"}),
    ],
    ids=["name", "file", "test", "call", "both"],
)
def test_a_lie_is_found(check: Callable[[Function], None], lie: dict[str, Any]) -> None:
    tests = ("tests/api/test_seam.py::test_context_queries",)
    honest = Function("ibv_query_port", "", "verbs.toml", "rnic.Context.query_port", tests)
    check(honest)
    with pytest.raises((AssertionError, AttributeError)):
        check(replace(honest, **lie))


@pytest.mark.parametrize(
    "lie",
    [
        {"clause": "9.9.9"},
        {"clause": "9.7.6.1"},
        {"code": "src/nic/roce/comp.c::nothing"},
        {"tests": ("tests/c/test_rc_retries.c::double_naks",)},
        {"code": ""},
    ],
    ids=["clause", "part of a clause", "place", "test", "nothing"],
)
def test_a_lie_about_the_specification_is_found(lie: dict[str, Any]) -> None:
    honest = Statement(
        clause="9.7.6",
        service="",
        specification="",
        text="",
        code="src/nic/roce/comp.c::comp_input",
        tests=("tests/c/test_rc_errors.c::responses_to_nothing_are_dropped",),
    )
    test_a_statement_names_its_code_which_cites_it_and_its_tests(honest)
    with pytest.raises(AssertionError):
        test_a_statement_names_its_code_which_cites_it_and_its_tests(replace(honest, **lie))


def test_the_documentation_prints_the_table() -> None:
    assert (ROOT / "docs/conformance.md").read_text() == page(), "print it again: make conformance"
