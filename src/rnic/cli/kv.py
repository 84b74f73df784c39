# SPDX-License-Identifier: Apache-2.0
"""`rnic kv`: the store of rnic.patterns.onesided, as a server and its clients."""

from __future__ import annotations

import base64
import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

import rnic
from rnic.cli import network, params, screen
from rnic.cli.cm import options
from rnic.cli.command import group
from rnic.cli.limits import raise_descriptors
from rnic.cli.params import Failure

if TYPE_CHECKING:
    from rnic.patterns.onesided import Store

PORT = 7473
host = click.argument("host")
keys = click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=os.fsencode)
port = options.port(PORT, "-p", "--port")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
timeout = click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="Give up after this many seconds, of each step.",
)


@group()
def kv() -> None:
    """A key-value store: clients look up by RDMA READs, and write by COMPARE_SWAP and WRITE. The server's
    program takes no part.

    \b
    rnic kv serve
    rnic kv put 127.0.0.1 colour green
    rnic kv get 127.0.0.1 colour
    rnic kv list 127.0.0.1
    rnic kv bench 127.0.0.1
    """


# ---------------------------------------------------------------------- the server


@kv.command()
@click.option(
    "--host",
    "address",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen at, one of this host. Whoever reaches it may read and change everything.",
)
@port
@click.option("--slots", type=params.number(1, 1 << 24), default=4096, show_default=True, help="Entries.")
@click.option(
    "--value-size",
    type=params.size(1 << 24),
    default="256",
    show_default=True,
    help="Bytes of the longest value. Memory is about twice that for each entry, and 200 bytes.",
)
def serve(address: str, port: int, slots: int, value_size: int) -> None:
    """Serve a store, in memory alone, until Ctrl-C."""
    from rnic.patterns.onesided import StoreMemory
    from rnic.patterns.onesided import serve as let_in

    raise_descriptors()
    with rnic.listen(address, port) as listener:
        memory = StoreMemory(listener.alloc, slots=slots, value_size=value_size)
        network.announce(
            address, listener.port, lambda at: ["rnic", "kv", "list", at, *network.port_words(listener.port)]
        )
        listener.serve(partial(let_in, shared=memory))


# ---------------------------------------------------------------------- clients


@contextmanager
def store_of(host: str, port: int, timeout: float) -> Iterator[Store]:
    """A client of the store there; its errors as lines."""
    from rnic.patterns.onesided import ConflictError, FullError, Store

    if port == 0:
        raise click.UsageError("a client needs the server's port, which cannot be 0")
    try:
        with rnic.connect(host, port, timeout=timeout) as conn:
            yield Store.over(conn, timeout)
    except (ConflictError, FullError, ValueError) as error:
        raise Failure(str(error)) from None


def shown(data: bytes) -> str:
    """Bytes as text; on a terminal without what would control it."""
    text = data.decode(errors="backslashreplace")
    if not sys.stdout.isatty():
        return text
    return "".join(one if one.isprintable() or one == "\n" else "\N{REPLACEMENT CHARACTER}" for one in text)


def record(key: bytes, **more: Any) -> dict[str, Any]:
    """A key for JSON."""
    return {"key": key.decode(errors="backslashreplace"), **more}


@kv.command()
@host
@keys
@port
@timeout
@as_json
@click.option("-r", "--raw", is_flag=True, help="Print the values as they are, without ends of lines.")
def get(host: str, keys: tuple[bytes, ...], port: int, timeout: float, as_json: bool, raw: bool) -> int:
    """Print the values of keys, a line for each. Bytes that are not UTF-8 are shown as \\xff. The exit code
    is 1 if one is not there.
    """
    if as_json and raw:
        raise click.UsageError("--json and --raw exclude each other")
    with store_of(host, port, timeout) as store:
        found = [(key, store.entry(key, timeout)) for key in keys]
    if as_json:
        rows = [
            record(key) | ({"version": 0} if one is None else {"version": one.version, **value_of(one.value)})
            for key, one in found
        ]
        click.echo(json.dumps(rows, indent=2))
    for key, one in found:
        if one is None:
            click.echo(f"rnic: no such key: {shown(key)}", err=True)
        elif raw:
            click.echo(one.value, nl=False)
        elif not as_json:
            click.echo(shown(one.value))
    return int(any(one is None for _, one in found))


def value_of(value: bytes) -> dict[str, str]:
    """A value for JSON: as text if it is UTF-8, else in base 64."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


@kv.command()
@host
@click.argument("key", type=os.fsencode)
@click.argument("value", type=os.fsencode)
@port
@timeout
@as_json
@click.option(
    "--if-version",
    type=params.number(0),
    help="Only if the key has this version (get --json tells it); 0: if there is no such key.",
)
def put(
    host: str, key: bytes, value: bytes, port: int, timeout: float, as_json: bool, if_version: int | None
) -> None:
    """Set the value of a key; - takes it from the standard input."""
    data = sys.stdin.buffer.read() if value == b"-" else value
    with store_of(host, port, timeout) as store:
        version = store.put(key, data, version=if_version, timeout=timeout)
    if as_json:
        click.echo(json.dumps(record(key, version=version)))


@kv.command()
@host
@keys
@port
@timeout
@as_json
def delete(host: str, keys: tuple[bytes, ...], port: int, timeout: float, as_json: bool) -> int:
    """Delete keys. The exit code is 1 if one was not there."""
    with store_of(host, port, timeout) as store:
        found = [(key, store.delete(key, timeout=timeout)) for key in keys]
    if as_json:
        click.echo(json.dumps([record(key, deleted=done) for key, done in found], indent=2))
    for key, done in found:
        if not done:
            click.echo(f"rnic: no such key: {shown(key)}", err=True)
    return int(not all(done for _, done in found))


@kv.command("list")
@host
@port
@timeout
@as_json
def list_keys(host: str, port: int, timeout: float, as_json: bool) -> None:
    """Print all keys, sorted, a line for each."""
    with store_of(host, port, timeout) as store:
        found = sorted(store.keys(timeout))
    if as_json:
        click.echo(json.dumps([record(key) for key in found], indent=2))
        return
    for key in found:
        click.echo(shown(key))


@kv.command()
@host
@port
@timeout
@as_json
@click.option(
    "-n", "count", type=params.number(1), default=5000, show_default=True, help="Calls of each kind."
)
@click.option(
    "--value-size", type=params.size(1 << 24), default="100", show_default=True, help="Bytes of a value."
)
def bench(host: str, port: int, timeout: float, as_json: bool, count: int, value_size: int) -> None:
    """Measure put() and get() of one client; start more of them for a store that is busy.

    It puts up to 64 keys of its own, which begin with "bench-", and deletes them.
    """
    prefix, value = f"bench-{secrets.token_hex(8)}-".encode(), bytes(value_size)
    names = [prefix + b"%d" % number for number in range(min(64, count))]
    with store_of(host, port, timeout) as store:
        try:
            rows = [
                measured("put", lambda key: store.put(key, value, timeout=timeout), names, count),
                measured("get", lambda key: store.get(key, timeout), names, count),
            ]
        finally:
            for name in names:
                store.delete(name, timeout=timeout)
        rows.append(measured("get, no such key", lambda key: store.get(key, timeout), names, count))
        done = store.statistics()
    more = {"value_size": value_size, "torn": done.torn, "conflicts": done.conflicts}
    if as_json:
        click.echo(json.dumps({"calls": rows, **more}, indent=2))
        return
    lines = [
        (
            row["call"],
            str(row["count"]),
            *(f"{row[one] * 1e6:.1f}" for one in TIMES),
            f"{row['per_second']:.0f}",
        )
        for row in rows
    ]
    headings = ("call", "calls", "median us", "99 % us", "max us", "per second")
    screen.table(Console(highlight=False), headings, lines, right=True)
    screen.say(f"values of {value_size} bytes; {done.torn} torn reads, {done.conflicts} conflicts")


TIMES = ("median", "p99", "max")


def measured(call: str, do: Callable[[bytes], object], names: list[bytes], count: int) -> dict[str, Any]:
    """So many calls, one after the other; times in seconds."""
    times = []
    for number in range(count):
        begun = time.perf_counter()
        do(names[number % len(names)])
        times.append(time.perf_counter() - begun)
    times.sort()
    p99 = times[min(count - 1, count * 99 // 100)]
    found = dict(zip(TIMES, (statistics.median(times), p99, times[-1]), strict=True))
    return {"call": call, "count": count, **found, "per_second": count / sum(times)}
