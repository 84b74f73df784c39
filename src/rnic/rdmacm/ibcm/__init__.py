# SPDX-License-Identifier: Apache-2.0
"""The connection service of InfiniBand and RoCE: IBA chapter 12, over queue pair 1.

`rnic.cm` has the protocol without I/O. Here it gets datagrams, a clock, queue pairs and addresses.
"""
