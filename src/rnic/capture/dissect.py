# SPDX-License-Identifier: Apache-2.0
"""A line per packet, for people: `python -m rnic.capture.dissect FILE ...`.

0.019720  10.77.255.9 → 10.77.255.8  RC_ACK  QP 0x000011 PSN 7274962  ACK, 24 credits, MSN 1
0.017050  10.77.255.8:46422 → 10.77.255.9:7471  SEND  queue 0 MSN 1 MO 0  16 B  last

A datagram to queue pair 1 shows its message: `CM REP 0xfad84ccc to 0x80c3da37 QP 0x000017 PSN 1999110`.
iWARP has a line for each frame of MPA's start-up and each FPDU, where it is complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from rnic.capture.gso import split_records
from rnic.capture.iwarp import Streams, is_tcp
from rnic.capture.pcap import PcapError, Record, read_pcap
from rnic.wire import DETH, GSI_QPN, NotRoCEError, Packet, WireError, describe_mad


def describe(record: Record) -> str:
    """Describe a captured frame in one line, without the time. It never raises, whatever the bytes are."""
    cut = f"  [{len(record.data)} of {record.length} bytes captured]" if record.truncated else ""
    try:
        packet = Packet.parse(record.data, record.linktype)
    except NotRoCEError as error:
        return f"not RoCEv2: {error}{cut}"
    except WireError as error:
        return f"malformed: {error}{cut}"
    line = f"{packet}{_management(packet)}"
    expected = packet.expected_icrc()
    if expected != packet.transport.icrc:
        return f"{line}  [ICRC {packet.transport.icrc:#010x}, should be {expected:#010x}]"
    return line


def _management(packet: Packet) -> str:
    """Describe a datagram to the general services interface."""
    if packet.bth.dqpn != GSI_QPN or packet.header(DETH) is None:
        return ""
    return f"  {describe_mad(packet.payload)}"


def dissect(records: Iterable[Record]) -> Iterator[str]:
    """A line for each packet, with seconds since the first record; a UDP_SEGMENT batch gives a line for each
    of its packets.
    """
    start: int | None = None
    streams = Streams()
    for record in split_records(records):
        if start is None:
            start = record.time_ns
        for line in _lines(record, streams):
            yield f"{(record.time_ns - start) / 1e9:12.6f}  {line}"


def _lines(record: Record, streams: Streams) -> list[str]:
    """Of a segment of TCP, a line for each of the frames and FPDUs that are complete with it."""
    if not is_tcp(record):
        return [describe(record)]
    try:
        return streams.take(record).lines()
    except WireError as error:
        return [f"malformed: {error}"]


def dissect_file(source: str | os.PathLike[str] | BinaryIO) -> Iterator[str]:
    """The lines of a pcap or pcapng file. Raises `PcapError` where the file is broken."""
    return dissect(read_pcap(source))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the files; returns 1 if one of them cannot be read."""
    failed = 0
    for path in sys.argv[1:] if argv is None else argv:
        try:
            for line in dissect_file(path):
                print(line)
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return failed
        except (OSError, PcapError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
