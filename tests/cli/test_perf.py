# SPDX-License-Identifier: Apache-2.0
"""`rnic perf`: every test and metric measures, what does not fit is refused, and no end waits for nobody."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

from cli import perf_ends
from cli.commands import ERASE, Command, Start
from rnic import QP, StreamAttr, VerbsError
from rnic.cli.params import Failure
from rnic.cli.perf import perf, plot, session
from rnic.cli.perf.end import End
from rnic.cli.perf.interpreted import PythonEnd
from rnic.cli.perf.plan import LOOPS, METRICS, TESTS
from rnic.cli.perf.progress import Progress
from rnic.cli.perf.samples import BUCKETS, Samples, bucket_of, value_of

PERCENTILES = ("min", "p50", "p75", "p90", "p95", "p99", "p99.9", "p99.99", "max")
EVERY = [f"{test} {metric}" for test in TESTS for metric in METRICS]
WITHOUT_END = 10**9  # operations
MEASURING = rf"\d of (60 s|{WITHOUT_END} operations)"  # on the client's terminal
PAGE = (Path(__file__).parents[2] / "docs/perf.md").read_text()


def measured(rnic: Start, *words: object) -> list[dict[str, Any]]:
    """The records of a run, all that it printed."""
    result = rnic("perf", *words, "--json").wait()
    assert (result.status, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


# ---------------------------------------------------------------------- what is measured


@pytest.mark.one_in(5)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("variable", "transport"),
    [("RNIC_LOCAL=off", "UDP"), ("RNIC_LOCAL=on", "shared memory"), ("RNIC_TRANSPORT=iwarp", "TCP")],
)
@pytest.mark.parametrize("words", EVERY)
def test_each_operation_has_each_metric(
    monkeypatch: pytest.MonkeyPatch, words: str, variable: str, transport: str, loop: str
) -> None:
    monkeypatch.setenv(*variable.split("="))
    (record,) = perf_ends.measured(f"{words} --loop {loop} -n 100")
    assert f"{record['test']} {record['metric']}" == words
    assert (record["loop"], record["iterations"], record["transport"]) == (loop, 100, transport)
    assert record["bandwidth_bytes_per_s"] == record["messages_per_s"] * record["bytes"] > 0
    if record["metric"] != "lat":
        assert record["peak_bandwidth_bytes_per_s"] >= record["bandwidth_bytes_per_s"]
        return
    us = record["latency_us"]
    assert [us[name] for name in PERCENTILES] == sorted(us[name] for name in PERCENTILES)
    assert us["min"] <= us["mean"] <= us["max"]
    assert ("half" in record["latency_is"]) == TESTS[record["test"]].bounces


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("words", ["send rate -q 2", "write-imm bw -s 64", "send bw -s 64 --bidirectional"])
def test_more_messages_than_receives_where_there_is_no_rnr(
    monkeypatch: pytest.MonkeyPatch, words: str, loop: str
) -> None:
    monkeypatch.setenv("RNIC_TRANSPORT", "iwarp")
    (record,) = perf_ends.measured(f"{words} --loop {loop} -n 5000")
    assert record["iterations"] >= 5000


def test_iwarp_has_no_path_mtu(rnic: Start) -> None:
    result = rnic("perf", "send", "lat", "--local", "-d", "iwarp_lo", "-m", 1024).wait()
    assert (result.status, result.out) == (1, "")
    assert "iWARP has no path MTU" in result.err


@pytest.mark.parametrize("crc", ["on", "off"])
def test_crcs_of_iwarp_are_switched_by_the_environment(monkeypatch: pytest.MonkeyPatch, crc: str) -> None:
    monkeypatch.setenv("RNIC_TRANSPORT", "iwarp")
    monkeypatch.setenv("RNIC_MPA_CRC", crc)
    asked: list[bool] = []
    attach = QP.attach_stream

    def note(qp: QP, sock: socket.socket, attr: StreamAttr) -> None:
        asked.append(attr.crc)
        attach(qp, sock, attr)

    monkeypatch.setattr(QP, "attach_stream", note)
    perf_ends.measured("send lat -n 10")
    assert asked == [crc == "on"] * 2


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    "words",
    [
        "send bw -e -q 2",
        "send lat -e",
        "read lat -e",
        "send bw --bidirectional -q 2",
        "write bw --bidirectional",
        "send bw -t 1 -s 100000",
        "send lat -s 5000 -I 0",
        "write-imm lat -R",
        "send bw -R -q 2",
        "write rate -q 2 -l 1 -Q 4",
        "send rate -l 7",
        "write bw -l 2 -t 2",
        "read bw",
    ],
)
def test_options(monkeypatch: pytest.MonkeyPatch, words: str, loop: str) -> None:
    """What single options do to the requests of a loop is shown in test_perf_loops.py."""
    monkeypatch.setenv("RNIC_LOCAL", "off")  # a request that takes no packet is not counted
    (record,) = perf_ends.measured(f"{words} -n 100 --loop {loop}")
    pairs = 2 if "-q 2" in words else 1
    assert record["queue_pairs"] == pairs
    assert record["iterations"] == 100 * pairs
    assert record["events"] == (" -e" in words)
    assert record["connected_by"] == ("RDMA-CM" if "-R" in words else "TCP")
    if "-R" in words:
        return  # ids of one process share a device, and so its counters
    client, server = record["counters"]["client"], record["counters"]["server"]
    payload, reads = 100 * pairs * record["bytes"], words.startswith("read")
    assert server["requests_executed"] >= 100 * pairs
    assert (server if reads else client)["tx_bytes"] > payload
    if record["bidirectional"] or (record["metric"] == "lat" and not reads):
        assert server["requests_sent"] >= 100 * pairs
        assert server["tx_bytes"] > payload
    else:
        assert "requests_sent" not in server
        assert "requests_executed" not in client
    assert record["bidirectional"] == ("--bid" in words)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("words", ["send bw", "write lat", "read rate"])
def test_duration_ends_it(words: str, loop: str) -> None:
    (record,) = perf_ends.measured(f"{words} -D 0.05 --loop {loop}")
    assert 0.05 <= record["seconds"] < 60  # on whatever machine
    assert record["iterations"] > 0  # how many is the machine's affair


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("words", ["write lat", "send lat -e", "write-imm lat", "write lat -e"])
def test_latency_to_the_completion(words: str, loop: str) -> None:
    (record,) = perf_ends.measured(f"{words} --to-completion -n 1000 --loop {loop}")
    assert record["latency_is"] == "an operation to its completion, from post to post"
    assert record["iterations"] == 1000
    assert record["signal_every"] == 1


def test_more_messages_than_a_byte_counts_and_receives_are_posted() -> None:
    """A ping-pong posts its receives again, and its marks begin again at 0."""
    for words in ("send lat", "write-imm lat", "write lat"):
        (record,) = perf_ends.measured(f"{words} -n 1500 --loop python")  # more than there are receives, too
        assert record["iterations"] == 1500


@pytest.mark.parametrize("words", ["send lat", "write lat"])
def test_ping_pong_knows_what_is_outstanding_from_size_to_size(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A run ends amid messages that are not signaled; the next one goes on from there."""
    ends: list[PythonEnd] = []

    def settle(end: PythonEnd) -> None:
        until = time.monotonic() + 60
        while end.out[0] > end.silent and time.monotonic() < until:
            end.take()
        ends.append(end)

    monkeypatch.setattr(PythonEnd, "settle", settle)
    plan = replace(perf_ends.plan(f"{words} -n 101 --loop python"), sizes=(2, 4, 8))
    assert [record["iterations"] for record in perf_ends.measured(plan)] == [101] * 3
    assert [end.out[0] - end.silent for end in ends] == [0, 0]


def test_large_messages_are_fewer_by_default() -> None:
    plan = perf_ends.plan("write bw -a")
    assert [plan.count(size) for size in (2, 1 << 20, 1 << 23, 1 << 30)] == [5000, 4096, 512, 100]
    assert perf_ends.plan("write bw -a -n 7").count(1 << 23) == 7


def test_record_is_what_the_page_says() -> None:
    (record,) = perf_ends.measured("send lat -s 2K -m 512 -n 100")
    assert (record["bytes"], record["mtu"], record["schema"]) == (2048, 512, 1)
    rows = re.findall(r"^\| (`.*?) \|", PAGE.split("## JSON")[1], re.MULTILINE)
    keys = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
    assert sorted(keys) == sorted(record)
    (stream,) = perf_ends.measured("send bw -n 100")
    assert set(stream) == set(record)
    assert set(record["latency_us"]) == {*PERCENTILES, "mean", "stdev"}
    spread = record["latency_distribution"]
    assert spread[:2] == [[0, record["latency_us"]["min"]], [50, record["latency_us"]["p50"]]]
    assert spread[-1] == [100, record["latency_us"]["max"]]
    for side in ("client", "server"):
        assert set(record["cpu"][side]) == {"percent", "main_thread_percent"}
        assert record["counters"][side]["tx_packets"] > 0
        assert set(record[side]) == {"rnic", "python", "kernel", "cpu", "cpus", "device"}
        assert record[side]["device"] == "roce_lo"


def test_page_has_every_option() -> None:
    options = [param for param in perf.params if isinstance(param, click.Option) and not param.hidden]
    section = PAGE.split("## Options")[1].split("## ")[0]
    for option in options:
        assert f"`{', '.join(option.opts)}`" in section


# ---------------------------------------------------------------------- as a command


@pytest.mark.parametrize("words", ["write lat", "send bw --loop python -R"])
def test_json_is_all_that_is_printed(rnic: Start, words: str) -> None:
    (record,) = measured(rnic, *words.split(), "--local", "-n", 100)
    assert record["iterations"] == 100


def test_all_sizes_are_powers_of_two_in_columns_with_units(
    rnic: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "off")
    result = rnic("perf", "write", "bw", "--local", "-a", "-n", 3).wait()
    assert (result.status, result.err) == (0, "")
    heading, _, table = result.out.partition(" #bytes")
    assert "UDP; device roce_lo; MTU 4096 bytes" in heading
    titles, *rows = table.splitlines()
    assert titles.strip().split("] ") == [
        "#iterations BW peak[MB/sec",
        "BW average[MB/sec",
        "MsgRate[Mpps",
        "CPU client[%",
        "CPU server[%]",
    ]
    assert [int(row.split()[0]) for row in rows] == [1 << power for power in range(1, 24)]


def test_server_and_client_print_the_same(rnic: Start) -> None:
    server = rnic("perf", "send", "lat", "-p", 0, "-s", 8)
    client = rnic("perf", "send", "lat", "127.0.0.1", "-p", server.listening(), "-s", 8, "-n", 100).wait()
    served = server.wait()
    assert (client.status, client.err, served.status, served.err) == (0, "", 0, "")
    assert client.out == served.out
    for text in ("SEND latency: half of a round trip", "native, polling", "t_typical[usec]", "99.99%[usec]"):
        assert text in client.out


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_server_listens_where_it_is_told(rnic: Start, address: str) -> None:
    server = rnic("perf", "send", "lat", "-p", 0, "--bind", address)
    port = server.listening()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 60)
    client = rnic("perf", "send", "lat", address, "-p", port, "-n", 100).wait()
    assert (client.status, client.err, server.wait().status) == (0, "", 0)


def on_a_terminal(seconds: int) -> tuple[str, dict[str, Any]]:
    """What a measurement shows while it runs, and what it prints."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rnic", "perf", "write", "lat", "--local", "-D", str(seconds), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=300, check=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    return shown, json.loads(done.stdout)


def test_progress_is_for_a_terminal() -> None:
    for seconds in (1, 3, 9):  # a busy machine is late with it
        shown, printed = on_a_terminal(seconds)
        assert "2 bytes: warming up" in shown
        assert shown.endswith("\r\x1b[K")
        assert printed["seconds"] >= seconds
        if re.search(rf"2 bytes: \d+\.\d of {seconds} s", shown):
            return
    pytest.fail("no progress was shown")


def test_progress_begins_with_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), iter((100.0, 105.0, 106.0, 108.5))
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("rnic.cli.perf.progress.monotonic", lambda: next(now))
    shown = Progress(perf_ends.plan("write lat -D 50"), stream)
    shown.begin(2)
    for operations in (0, 7, 9):
        shown.tick(operations)
    lines = stream.getvalue().split(ERASE)
    assert lines[1:] == [
        " 2 bytes: warming up",
        " 2 bytes: warming up",
        " 2 bytes: 0.0 of 50 s",
        " 2 bytes: 2.5 of 50 s",
    ]


def test_warm_up_is_a_tenth_and_not_hours() -> None:
    plans = [perf_ends.plan(f"write lat {words}") for words in ("", "-D 0.1", "-D 2", "-D 86400")]
    assert [plan.run(0, 2, True)["warmup_ns"] / 1e9 for plan in plans] == [0.05, 0.05, 0.2, 1]


def test_help_has_groups(rnic: Start) -> None:
    text = rnic("perf", "--help").wait().out
    for heading in ("What is measured:", "How it is done:", "Where:", "What is shown:"):
        assert f"\n{heading}\n" in text
    assert max(map(len, text.splitlines())) <= 80


# ---------------------------------------------------------------------- pictures


def test_plot_is_drawn_by_the_command(rnic: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "off")
    picture = tmp_path / "read.svg"
    result = rnic("perf", "read", "bw", "--local", "-a", "-n", 3, "--plot", picture).wait()
    assert (result.status, result.err) == (0, "")
    text = " ".join(ElementTree.parse(picture).getroot().itertext())
    for what in ("RDMA READ bandwidth", "message rate", "10^9 bytes/s", "message size", "8 MiB", "UDP"):
        assert what in text


@pytest.mark.parametrize("words", ["send lat", "write bw"])
def test_plot_of_one_size(tmp_path: Path, words: str) -> None:
    records = perf_ends.measured(f"{words} -n 100")
    plot.draw(records, tmp_path / "one.svg")
    root = ElementTree.parse(tmp_path / "one.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    if "lat" in words:
        text = " ".join(root.itertext())
        assert "latency by percentile" in text
        assert "99.99" in text
    plot.draw(records, tmp_path / "one.png")
    data = (tmp_path / "one.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > height > 300


def test_plot_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(Failure, match=r"pip install 'rnic\[plot\]'"):
        plot.checked(tmp_path / "a.svg")


def test_plot_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="there is no folder"):
        plot.checked(tmp_path / "nowhere" / "a.svg")


# ---------------------------------------------------------------------- what does not fit


def test_server_insists_on_its_options(rnic: Start) -> None:
    server = rnic("perf", "send", "lat", "-p", 0, "-s", 8)
    client = rnic("perf", "send", "lat", "127.0.0.1", "-p", server.listening(), "-s", 16).wait()
    assert client.status == 1
    assert client.err == "rnic: server: sizes is 8 at the server, 16 at the client\n"
    assert "sizes is 8 at the server" in server.wait().err


@pytest.mark.parametrize("device", ["roce_lo", "iwarp_lo"])
def test_rdma_cm_uses_the_device_that_is_named(rnic: Start, device: str) -> None:
    words = ["perf", "send", "lat", "--local", "-R", "-d", device, "-n", 10, "--json"]
    record = json.loads(rnic(*words).wait().out)
    assert (record["client"]["device"], record["server"]["device"]) == (device, device)
    assert record["connected_by"] == "RDMA-CM"


def test_server_says_which_of_its_options_rdma_cm_has_no_use_for(rnic: Start) -> None:
    server = rnic("perf", "send", "lat", "-p", 0, "-x", 0)
    client = rnic("perf", "send", "lat", "127.0.0.1", "-p", server.listening(), "-R").wait()
    why = "RDMA-CM chooses by address: -x of the server does not go with it\n"
    assert (client.status, client.err) == (1, f"rnic: server: -R: {why}")
    assert server.wait().err == f"rnic: -R: {why}"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("atomic-fadd lat -s 16 --local", "atomics have 8 bytes"),
        ("atomic-cas bw -a --local", "atomics have 8 bytes"),
        ("write lat -e --local", "polls its memory"),
        ("send lat -q 2 --local", "-q is for bw and rate"),
        ("send lat -t 2 --local", "-t is for bw and rate"),
        ("send lat -l 2 --local", "-l is for bw and rate"),
        ("send lat -Q 2 --local", "-Q is for bw and rate"),
        ("send bw -l 200 --local", "-l 200"),
        ("send bw -Q 200 --local", "-Q 200"),
        ("send bw -l 4 -Q 2 --local", "-Q goes with -l 1"),
        ("send bw --to-completion --local", "is for lat"),
        ("read lat --to-completion --local", "anyway"),
        ("send rate -Q 2 --local", "-Q goes with -l 1"),
        ("send bw -s 2G --local", "more than 1073741824"),
        ("send bw -t 0 --local", "not from 1"),
        ("send bw -D 0 --local", "0.01"),
        ("send bw -m 1000 --local", "'4096'"),
        ("send bw --local --plot a.pdf", ".svg or .png"),
        ("send rate --bidirectional --local", "--bidirectional is for bw"),
        ("send bw -n 5 -D 1 --local", "give one of them"),
        ("send bw -a -s 8 --local", "give one of them"),
        ("send bw -s 0 --local", "at least 1 byte"),
        ("read bw -I 8 --local", "INLINE"),
        ("send bw -R -m 512 --local", "-m does not go with it"),
        ("send bw -R -x 0 --local", "-x"),
        ("send bw HOST --local", "HOST does not go with it"),
        ("send bw --local -p 5", "-p does not go with it"),
        ("send bw HOST -p 0", "cannot be 0"),
        ("send bw HOST --bind ::1", "--bind is a server's"),
        ("send bw --local --bind ::1", "--bind is a server's"),
        ("recv bw --local", "recv"),
    ],
)
def test_what_does_not_fit_is_refused(words: str, why: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        perf.main(words.split(), standalone_mode=False)
    assert why in refused.value.format_message()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--bind", ""], "--bind takes an address"),
        ([""], "HOST is empty"),
        (["", "--local"], "HOST does not"),
    ],
)
def test_an_empty_address_is_none(words: list[str], why: str) -> None:
    with pytest.raises(click.UsageError, match=why):
        perf.main(["send", "bw", *words], standalone_mode=False)


def test_a_refusal_is_one_line_and_status_2(rnic: Start) -> None:
    result = rnic("perf", "send", "bw", "-s", 0, "--local").wait()
    assert (result.status, result.out) == (2, "")
    assert "Error: -s 0: a message needs at least 1 byte\n" in result.err


# ---------------------------------------------------------------------- the end of an end


def begun(rnic: Start, words: str) -> tuple[Command, Command]:
    """A server and a client that measure; as operations are counted, they have warmed up soon."""
    server = rnic("perf", *words.split(), "-p", 0)
    port = server.listening()
    client = rnic("perf", *words.split(), "127.0.0.1", "-p", port, "-n", WITHOUT_END, terminal=True)
    client.shows(MEASURING)
    return server, client


@pytest.mark.parametrize(
    ("words", "local"),
    [
        ("send lat", "on"),
        ("write bw", "off"),
        ("write bw", "on"),
        ("write lat --loop python", "on"),
        ("send bw --bidirectional", "off"),
    ],
)
def test_server_that_dies_ends_the_client(
    rnic: Start, monkeypatch: pytest.MonkeyPatch, words: str, local: str
) -> None:
    monkeypatch.setenv("RNIC_LOCAL", local)
    server, client = begun(rnic, words)
    server.process.kill()
    result = client.wait()
    assert (result.status, result.err) == (1, "rnic: the server is gone\n")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "words", ["send bw -e", "write lat", "read bw --loop python", "write bw --bidirectional"]
)
def test_client_that_dies_ends_the_server(rnic: Start, words: str) -> None:
    server, client = begun(rnic, words)
    client.process.kill()
    result = server.wait()
    assert (result.status, result.err) == (1, "rnic: the client is gone\n")


def test_client_hears_why_the_server_ends(rnic: Start) -> None:
    server, client = begun(rnic, "send bw --bidirectional")
    server.process.send_signal(signal.SIGINT)
    assert (server.wait().status, client.wait().err) == (130, "rnic: server: interrupted\n")


COUNTED, FOR_A_MINUTE = f"-n {WITHOUT_END}", "-D 60"


@pytest.mark.parametrize(
    ("words", "long"),
    [("write lat", COUNTED), ("send bw -e", FOR_A_MINUTE), ("write lat --loop python", COUNTED)],
)
def test_interrupt_ends_both(rnic: Start, words: str, long: str) -> None:
    command = rnic("perf", *words.split(), "--local", *long.split(), terminal=True)
    command.shows(MEASURING)
    (child,) = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children").read_text().split()
    command.process.send_signal(signal.SIGINT)
    result = command.wait()
    assert (result.status, result.err.strip()) == (130, "rnic: interrupted")
    assert not Path(f"/proc/{child}").exists()


def test_why_the_server_did_not_start_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho first >&2; echo 'rnic: boom' >&2; exit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(Failure) as failed:
        perf.main(["write", "lat", "--local"], standalone_mode=False)
    assert failed.value.message == "the server is gone: boom"


def test_server_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(session, "client", lambda *_: None)
    monkeypatch.setattr("rnic.cli.perf.command.QUIET", 0.1)
    with pytest.raises(Failure, match=r"the server has not ended within 0\.1 s"):
        perf.main(["write", "lat", "--local"], standalone_mode=False)


def test_completion_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's memory is not there: a READ's completion says so, in both loops."""
    honest = End._loops
    for loop in LOOPS:
        monkeypatch.setattr(End, "_loops", lambda self, at, n: honest(self, (at[0], at[1] ^ 1), n))
        with pytest.raises((Failure, VerbsError), match="REM_ACCESS_ERR"):
            perf_ends.measured(f"read bw -n 100 --loop {loop}")


# ---------------------------------------------------------------------- samples


def test_buckets_are_narrow_and_in_order() -> None:
    values = [*range(50000), *(1 << power for power in range(16, 36)), (1 << 36) - 1]
    buckets = [bucket_of(value) for value in values]
    assert buckets == sorted(buckets)
    assert buckets[-1] == bucket_of(1 << 50) == BUCKETS - 1
    assert all(abs(value_of(bucket_of(value)) - value) <= value / 2048 for value in values)


def test_percentiles_of_samples() -> None:
    samples = Samples()
    for value in range(1, 101):
        samples.add(value)
    assert samples.percentiles((0, 50, 99, 99.9, 100)) == [1, 50, 99, 100, 100]
    assert samples.steps() == [0, 50, 75, 87.5, 93.75, 96.875, 98.4375, 100]
    assert (samples.mean, samples.min, samples.max) == (50.5, 1, 100)
    assert round(samples.stdev, 2) == 28.87
