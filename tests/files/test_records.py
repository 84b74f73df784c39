# SPDX-License-Identifier: Apache-2.0
"""The bytes on the wire, and the books of both ends."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnic._disk import Found
from rnic.files.options import Options
from rnic.files.packs import Small, pack, unpack
from rnic.files.records import (
    Alive,
    Complaint,
    Data,
    Done,
    Finish,
    Folder,
    Free,
    Open,
    Opened,
    Pack,
    Record,
    Stored,
    decode,
    encode,
    pack_paths,
    unpack_paths,
)
from rnic.files.state import CopyError, Incoming, Outgoing, Sum

EXAMPLES: list[Record] = [
    pack(7, b"a", [b"b", b"c", b""], [Found(2, 0o644, -5), Found(1, 0o644, 5), Found(0, 0, 0)], b"abc"),
    Data(1, 1 << 40, 1 << 20, 7, bytes(range(16))),
    Complaint("ä".encode(), b"no"),
    Folder(0, 0o755, 1, 0, b"x"),
    Finish(9),
    Alive(),
    Stored(3, 48),
]


def test_records_come_back() -> None:
    assert list(decode(encode(*EXAMPLES))) == EXAMPLES


def test_the_files_of_a_pack() -> None:
    (found,) = decode(encode(EXAMPLES[0]))
    assert isinstance(found, Pack)
    assert unpack(found) == [
        Small(7, 0o644, -5, 2, b"a/b", b"ab"),
        Small(8, 0o644, 5, 1, b"a/c", b"c"),
        Small(9, 0, 0, 0, b"a/", b""),
    ]
    assert [one.content for one in unpack(found._replace(contents=b"abd"))] == [None, None, None]


@given(st.integers(0, 5), st.binary(max_size=100), st.binary(max_size=10))
def test_any_table_is_one_of_files_or_refused(entries: int, table: bytes, contents: bytes) -> None:
    with suppress(CopyError):
        files = unpack(Pack(0, entries, bytes(16), b"", table, contents))
        assert (len(files), sum(one.size for one in files)) == (entries, len(contents))


def test_the_bytes_are_those_of_the_table() -> None:
    assert encode(Done(258, 2, b"no")).hex() == "120b000000" + "0201000000000000" + "02" + "6e6f"
    assert encode(Complaint(b"p", b"t")).hex() == "0d04000000" + "0100" + "70" + "74"


def test_what_is_cut_off_is_refused() -> None:
    message = encode(EXAMPLES[0])
    for length in range(1, len(message)):
        with pytest.raises(CopyError):
            list(decode(message[:length]))


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    try:
        found = list(decode(data))
    except CopyError:
        return
    assert encode(*found) == data


@given(st.lists(st.binary(max_size=20)))
def test_paths_come_back(paths: list[bytes]) -> None:
    assert unpack_paths(pack_paths(paths)) == paths


def test_paths_that_end_within_one_are_refused() -> None:
    with pytest.raises(CopyError, match="within a path"):
        unpack_paths(b"\5\0abc")
    with pytest.raises(ValueError, match="4096"):
        pack_paths([bytes(5000)])


def test_options_come_back() -> None:
    for flags in range(32):
        assert Options.of(flags).flags == flags
    with pytest.raises(ValueError, match="0x20"):
        Options.of(32)


# ---------------------------------------------------------------- books


def incoming() -> Incoming:
    books = Incoming(2, 100)
    entry = Open(0, 0, 0, 250, 0, b"f")
    books.entry(entry.id)
    books.begin(entry)
    return books


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Data(1, 0, 10, 0, bytes(16)), "not open"),
        (Data(0, 0, 10, 2, bytes(16)), "slot 2"),
        (Data(0, 0, 101, 0, bytes(16)), "101 bytes"),
        (Data(0, 0, 0, 0, bytes(16)), "0 bytes"),
        (Data(0, 200, 51, 0, bytes(16)), "250 bytes"),
        (Data(0, (1 << 64) - 1, 10, 0, bytes(16)), "250 bytes"),
    ],
)
def test_data_that_lie_are_refused(data: Data, why: str) -> None:
    with pytest.raises(CopyError, match=why):
        incoming().data(data)


def test_a_slot_is_used_once_until_it_is_free() -> None:
    books = incoming()
    data = Data(0, 0, 10, 0, bytes(16))
    books.data(data)
    with pytest.raises(CopyError, match="slot 0"):
        books.data(data)
    books.freed(0)
    books.data(data)


def test_entries_are_counted() -> None:
    books = incoming()
    with pytest.raises(CopyError, match="where 1 was due"):
        books.entry(0)
    with pytest.raises(CopyError, match="finished"):
        books.finish(1)
    books.end(0)
    with pytest.raises(CopyError, match="not open"):
        books.end(0)
    with pytest.raises(CopyError, match="finished"):
        books.finish(2)
    books.finish(1)


def test_so_many_files_are_open_at_a_time() -> None:
    books = Incoming(1, 100)
    for number in range(4):
        books.begin(Open(number, 0, 0, 0, 0, b""))
    with pytest.raises(CopyError, match="more than 4"):
        books.begin(Open(4, 0, 0, 0, 0, b""))


def test_only_what_was_offered_is_resumed() -> None:
    books = incoming()
    with pytest.raises(CopyError, match="not offered"):
        books.resume(0, 0)
    books.asked[0] = 100
    with pytest.raises(CopyError, match="not open"):
        books.data(Data(0, 0, 10, 0, bytes(16)))
    with pytest.raises(CopyError, match="not offered"):
        books.resume(0, 50)


def test_a_receiver_that_lies_is_refused() -> None:
    books = Outgoing(2)
    with pytest.raises(CopyError, match="slot 1"):
        books.freed(Free(1).slot)
    with pytest.raises(CopyError, match="not on its way"):
        books.done(0)
    with pytest.raises(CopyError, match="not asked"):
        books.opened(Opened(0, 0, 0, bytes(16)))
    with pytest.raises(CopyError, match="before"):
        books.finished()


def test_the_digest_of_a_file_knows_order_and_place() -> None:
    first, second = Data(0, 0, 1, 0, bytes(16)), Data(0, 1, 1, 1, bytes(16))
    sums = []
    for order in ((first, second), (second, first), (first,)):
        total = Sum()
        for one in order:
            total.add(one)
        sums.append(total.digest())
    assert len(set(sums)) == 3
