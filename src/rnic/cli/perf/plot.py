# SPDX-License-Identifier: Apache-2.0
"""A picture of the results: bandwidth or latency over the message size, and percentiles."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import click

from rnic.cli.params import Failure, show_size
from rnic.cli.perf import report
from rnic.cli.perf.report import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_T = TypeVar("_T")
SUFFIXES = (".svg", ".png")
MOST = 8  # curves, or labels of an axis
OVER_SIZE = ("p50", "p90", "p99", "p99.9", "p99.99")
INCHES = (6.2, 4.4)  # of a panel
TEXT_INCHES = 1.4


def checked(path: Path) -> Path:
    """The path, if a picture can be made there; before anything is measured."""
    if path.suffix not in SUFFIXES:
        raise click.UsageError(f"--plot {path}: a picture is {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise click.UsageError(f"--plot {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK) or path.is_dir():
        raise click.UsageError(f"--plot {path}: it cannot be written")
    if importlib.util.find_spec("matplotlib") is None:
        raise Failure("--plot draws with matplotlib, which is not installed: pip install 'rnic[plot]'")
    return path


def draw(records: list[Record], path: Path) -> None:
    """Writes the picture."""
    from matplotlib import rc_context  # slow to import, and optional
    from matplotlib.figure import Figure

    panels = LATENCY_PANELS if records[0]["metric"] == "lat" else STREAM_PANELS
    width, height = len(panels) * INCHES[0], INCHES[1] + TEXT_INCHES
    figure = Figure(figsize=(width, height), layout="constrained")
    text, plots = figure.subfigures(2, 1, squeeze=False, height_ratios=(TEXT_INCHES, INCHES[1]))[:, 0]
    text.text(0.01, 0.95, report.heading(records[0]), va="top", family="monospace", size=9)
    for axes, panel in zip(plots.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes, records)
        axes.grid(True, which="major", alpha=0.4)
    with rc_context({"svg.fonttype": "none"}), whole(path) as file:  # text stays text
        figure.savefig(file, format=path.suffix[1:])


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that has its name when it is whole; whatever comes in between, there is none else."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            yield file
            Path(file.name).chmod(0o666 & ~umask())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def umask() -> int:
    """What new files are not given."""
    os.umask(mask := os.umask(0o077))
    return mask


def thinned(values: list[_T]) -> list[_T]:
    """Few enough to be told apart, the last among them."""
    return values[::-1][:: -(-len(values) // MOST)][::-1]


def over_size(axes: Axes, records: list[Record], title: str, unit: str) -> None:
    """Message size along, a figure up, both in powers."""
    sizes = [record["bytes"] for record in records]
    axes.set_title(title)
    axes.set_xlabel("message size")
    axes.set_ylabel(unit)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = thinned(sizes)
    axes.set_xticks(shown, [show_size(size) for size in shown], rotation=30)
    axes.minorticks_off()


def curve(axes: Axes, records: list[Record], label: str, value: Callable[[Record], float]) -> None:
    """A figure of each record."""
    axes.plot([record["bytes"] for record in records], list(map(value, records)), "o-", ms=4, label=label)


def bandwidth(axes: Axes, records: list[Record]) -> None:
    """Average and peak."""
    over_size(axes, records, report.title(records[0]), "10^9 bytes/s")
    curve(axes, records, "average", lambda record: record["bandwidth_bytes_per_s"] / 1e9)
    curve(axes, records, "peak", lambda record: record["peak_bandwidth_bytes_per_s"] / 1e9)
    axes.legend()


def lone_bandwidth(axes: Axes, records: list[Record]) -> None:
    """What comes through when each message waits for the one before."""
    over_size(axes, records, "bandwidth of one message at a time", "10^9 bytes/s")
    curve(axes, records, "average", lambda record: record["bandwidth_bytes_per_s"] / 1e9)


def message_rate(axes: Axes, records: list[Record]) -> None:
    """Messages a second."""
    over_size(axes, records, "message rate", "10^6 messages/s")
    curve(axes, records, "average", lambda record: record["messages_per_s"] / 1e6)


def latency_of(name: str, record: Record) -> float:
    """Microseconds."""
    value: float = record["latency_us"][name]
    return value


def latency(axes: Axes, records: list[Record]) -> None:
    """Some percentiles over the size."""
    over_size(axes, records, report.title(records[0]), "microseconds")
    for name in OVER_SIZE:
        curve(axes, records, name, partial(latency_of, name))
    axes.legend()


def percentiles(axes: Axes, records: list[Record]) -> None:
    """A curve for each of some sizes; from label to label the samples beyond are a tenth."""
    for record in thinned(records):
        found = [
            (1 / (1 - percent / 100), us) for percent, us in record["latency_distribution"] if percent < 100
        ]
        along, values = zip(*found, strict=True)
        axes.plot(along, values, label=show_size(record["bytes"]))
    labels = [0, 50, 90, 99, 99.9, 99.99, 99.999]
    axes.set_title("latency by percentile")
    axes.set_xlabel("percentile")
    axes.set_ylabel("microseconds")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1 / (1 - percent / 100) for percent in labels], [f"{percent:g}" for percent in labels])
    axes.minorticks_off()
    axes.legend(title="message size", loc="upper left", bbox_to_anchor=(1, 1))


STREAM_PANELS = (bandwidth, message_rate)
LATENCY_PANELS = (latency, percentiles, lone_bandwidth)
