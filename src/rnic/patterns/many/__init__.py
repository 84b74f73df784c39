# SPDX-License-Identifier: Apache-2.0
"""Many producers and one ring: each writer claims a slot of the reader's memory by COMPARE_SWAP, and WRITEs
its record there.

    with rnic.listen(host, port) as listener:                  # the reader
        reader = ManyReader(listener, slots=1024, size=256)
        ...                                                    # a thread: listener.serve(reader.serve)
        record = reader.get()

    with rnic.connect(host, port) as conn:                     # each writer
        writer = ManyWriter.over(conn)
        writer.put(b"record")

Records of one writer come in the order of its calls. A claim says whose it is. So when a writer dies in the
middle of a record, the reader learns of it by the end of the connection, and skips what that writer has
claimed. A claim is made by COMPARE_SWAP of the slot itself, not by FETCH_ADD of a tail: a number that a dead
writer has taken from a tail would be nobody's.

    layout  the reader's memory, byte by byte
    reader  who has the ring
    writer  each of those who put records there
"""

from rnic.patterns.many.reader import AsyncManyReader, ManyReader
from rnic.patterns.many.writer import AsyncManyWriter, ManyWriter

__all__ = ["AsyncManyReader", "AsyncManyWriter", "ManyReader", "ManyWriter"]
