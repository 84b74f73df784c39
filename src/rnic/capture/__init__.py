# SPDX-License-Identifier: Apache-2.0
"""Capture files: read pcap and pcapng, write pcap, and print a line for each packet."""

from rnic.capture.gso import split_record, split_records
from rnic.capture.pcap import PcapError, PcapWriter, Record, parse_pcap, read_pcap

__all__ = ["PcapError", "PcapWriter", "Record", "parse_pcap", "read_pcap", "split_record", "split_records"]
