# SPDX-License-Identifier: Apache-2.0
"""A server that plays the kernel's part for librdmacm: the commands of /dev/infiniband/rdma_cm.

Programs that are linked with librdmacm write commands (rdma/rdma_user_cm.h) to that file. src/preload leads
the file here, to a socket. The ids, handshakes and events behind the commands are those of rnic.rdmacm; queue
pairs stay in the programs.

    with Server("/run/user/1000/rnic-run-1/ucma"):
        ...  # programs with RNIC_RUN=/run/user/1000/rnic-run-1 can connect
"""

from rnic.ucma.failures import Failing
from rnic.ucma.removals import Removal
from rnic.ucma.server import Server

__all__ = ["Failing", "Removal", "Server"]
