# SPDX-License-Identifier: Apache-2.0
"""The example programs of RDMA-CM as commands; either end can be the original of the same name.

rping      a client's memory is read and written by the server        rping(1)
ucmatose   many connections at once, messages both ways               ucmatose(1)
udaddy     the same with datagrams                                    udaddy(1)
mckey      datagrams to a multicast group                             mckey(1)
simple     one message each way, with ids that wait                   rdma_server(1), rdma_client(1)
node       an id with the messages that ucmatose, udaddy and mckey send
party      many connections at once: what ucmatose and udaddy share
waiting    events and completions are waited for together, and not for ever
options    what several of them have on the command line
"""

from rnic.cli.cm.mckey import mckey
from rnic.cli.cm.rping import rping
from rnic.cli.cm.simple import rdma_client, rdma_server
from rnic.cli.cm.ucmatose import ucmatose
from rnic.cli.cm.udaddy import udaddy

__all__ = ["mckey", "rdma_client", "rdma_server", "rping", "ucmatose", "udaddy"]
