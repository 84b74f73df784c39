# SPDX-License-Identifier: Apache-2.0
"""The connection service of iWARP: TCP connections, and MPA's start-up on them (RFC 5044, RFC 6581).

`rnic.mpa` has the start-up without I/O. Here it gets sockets, a clock and queue pairs. When both frames were
exchanged, the socket goes to the queue pair. From then on the device alone reads and writes it, and reports
its end.
"""
