# SPDX-License-Identifier: Apache-2.0
"""`rnic kv` in processes of its own: a server, and clients of each kind."""

from __future__ import annotations

import json

import pytest

from cli.commands import Result, Start

HOST = "127.0.0.1"


@pytest.fixture
def server(rnic: Start) -> list[object]:
    """The options that a client of it needs; it is killed at the end."""
    command = rnic("kv", "serve", "--port", 0, "--slots", 64, "--value-size", "1K")
    port = command.listening()
    assert command.client == ["client:", "rnic", "kv", "list", HOST, "-p", str(port)]
    return ["--port", port]


def failed(result: Result, words: str, status: int = 1) -> None:
    assert (result.status, words in result.err, "Traceback" in result.err) == (status, True, False), result


def test_put_get_list_delete(rnic: Start, server: list[object]) -> None:
    def kv(name: str, *args: object) -> Result:
        return rnic("kv", name, HOST, *args, *server).wait()

    assert kv("put", "colour", "green") == Result(0, "", "")
    assert kv("put", "b", "-") == Result(0, "", "")  # the standard input, which is empty
    assert kv("get", "colour", "b") == Result(0, "green\n\n", "")
    assert kv("get", "-r", "colour") == Result(0, "green", "")
    assert kv("list") == Result(0, "b\ncolour\n", "")
    assert json.loads(kv("list", "--json").out) == [{"key": "b"}, {"key": "colour"}]
    missing = kv("get", "b", "none", "--json")
    failed(missing, "rnic: no such key: none\n")
    (b, none) = json.loads(missing.out)
    assert (b["value"], none) == ("", {"key": "none", "version": 0})
    failed(kv("put", "b", "x", "--if-version", b["version"] + 8), f"the key has version {b['version']}")
    put = json.loads(kv("put", "b", "x", "--if-version", b["version"], "--json").out)
    assert put["version"] != b["version"]
    failed(kv("delete", "b", "none"), "rnic: no such key: none\n")
    assert json.loads(kv("delete", "colour", "--json").out) == [{"key": "colour", "deleted": True}]
    assert kv("list") == Result(0, "", "")
    failed(kv("put", "b", "v" * 1025), "a value of 1025 bytes: the store takes 1024 at most")
    failed(kv("put", "k" * 65, "v"), "a key of 65 bytes")


def test_values_that_are_no_text(rnic: Start, server: list[object]) -> None:
    assert (
        rnic("kv", "put", HOST, "k", b"\xff\x1b[2J".decode(errors="surrogateescape"), *server).wait().status
        == 0
    )
    assert (
        json.loads(rnic("kv", "get", HOST, "k", "--json", *server).wait().out)[0]["value_base64"]
        == "/xtbMko="
    )


def test_bench(rnic: Start, server: list[object]) -> None:
    result = rnic("kv", "bench", HOST, "-n", 100, "--json", *server).wait()
    assert result.status == 0, result
    found = json.loads(result.out)
    assert [row["call"] for row in found["calls"]] == ["put", "get", "get, no such key"]
    assert all(row["count"] == 100 and row["per_second"] > 0 for row in found["calls"])
    shown = rnic("kv", "bench", HOST, "-n", 100, *server).wait()
    assert shown.out.startswith("call ")
    assert "values of 100 bytes; 0 torn reads" in shown.out
    assert rnic("kv", "list", HOST, *server).wait() == Result(0, "", "")
    failed(rnic("kv", "bench", HOST, "--value-size", "2K", *server).wait(), "the store takes 1024 at most")


@pytest.mark.parametrize(
    ("args", "words", "status"),
    [
        (["get", HOST], "Missing argument 'KEY...'", 2),
        (["put", HOST, "k"], "Missing argument 'VALUE'", 2),
        (["get", HOST, "k", "--json", "--raw"], "exclude each other", 2),
        (["serve", "--slots", 0], "0 is not from 1", 2),
        (["serve", "--host", "192.0.2.1"], "rnic: ", 1),
        (["serve", "--host", "::"], "listen at one", 1),
        (["list", HOST, "-p", 9], "rnic: ", 1),
        (["list", HOST, "-p", 0], "cannot be 0", 2),
    ],
)
def test_what_does_not_work(rnic: Start, args: list[object], words: str, status: int) -> None:
    failed(rnic("kv", *args).wait(), words, status)
