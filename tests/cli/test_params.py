# SPDX-License-Identifier: Apache-2.0
"""Numbers and sizes on the command line and in output."""

import click
import pytest

from rnic.cli.params import number, show_rate, show_size, show_time, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64K", 65536),
        ("64k", 65536),
        ("1KiB", 1024),
        ("256M", 1 << 28),
        ("2GB", 2 << 30),
        ("0x1000", 4096),
        (" 1M ", 1 << 20),
        ("0100", 100),
    ],
)
def test_size_is_read(text: str, expected: int) -> None:
    assert size()(text) == expected


@pytest.mark.parametrize("text", ["", "M", "-1", "1.5M", "1X", "4096 bytes", "0x"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a size"):
        size()(text)


def test_size_above_the_maximum_is_refused() -> None:
    assert size(4096)("4K") == 4096
    with pytest.raises(click.BadParameter, match="4097 bytes are more than 4096"):
        size(4096)("4097")


def test_number_is_read_as_strtol_reads_it() -> None:
    assert number(0, 65535)("0x4853") == 18515
    assert number(-1)("-1") == -1
    for text in ("", "ten", "70000"):
        with pytest.raises(click.BadParameter):
            number(0, 65535)(text)


@pytest.mark.parametrize(
    ("length", "text"), [(0, "0 B"), (1, "1 B"), (1025, "1025 B"), (65536, "64 KiB"), (1 << 28, "256 MiB")]
)
def test_size_is_shown_exactly(length: int, text: str) -> None:
    assert show_size(length) == text


def test_rates_and_times_have_three_digits_and_a_unit() -> None:
    assert show_rate(1.23456e9) == "1.23 GB/s"
    assert show_rate(999) == "999 B/s"
    assert show_time(0.0000123) == "12.3 us"
    assert show_time(2) == "2 s"
    assert show_time(5e-9) == "5 ns"
