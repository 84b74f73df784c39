# SPDX-License-Identifier: Apache-2.0
"""Copying files over connections of rnic.aio: what `rnic cp` and `rnic serve` do.

records.py has the bytes on the wire, state.py what a peer may say when, both without I/O. tree.py reaches
files below a folder and nowhere else, reading.py and writing.py are the two sides of the disk. sender.py and
receiver.py are the ends of a copy; client.py and server.py are who asks and who answers.
"""

from rnic.files.client import copy_from, copy_to
from rnic.files.options import Options, Report
from rnic.files.server import Rights, Server
from rnic.files.state import CopyError

__all__ = ["CopyError", "Options", "Report", "Rights", "Server", "copy_from", "copy_to"]
