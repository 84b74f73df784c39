# SPDX-License-Identifier: Apache-2.0
"""Dask over rnic: `rnic://host:port` addresses for scheduler, workers and clients.

    pip install 'rnic[dask]'

    with LocalCluster(protocol="rnic://") as cluster, Client(cluster) as client: ...

No import is needed: distributed finds the Backend by its entry point.  docs/dask.md tells what works.
Arrays go from the memory of one process to that of the other, without a copy in Python; frames.py has the
bytes on the wire.  Nothing is encrypted, and `require_encryption` is refused.
"""

try:
    import distributed as _distributed  # noqa: F401 - for its absence to be said plainly
except ImportError as error:
    raise ImportError("rnic.dask needs Dask's distributed: pip install 'rnic[dask]'") from error

from rnic.dask.backend import Backend
from rnic.dask.comm import Comm
from rnic.dask.connector import Connector
from rnic.dask.listener import Listener

__all__ = ["Backend", "Comm", "Connector", "Listener"]
