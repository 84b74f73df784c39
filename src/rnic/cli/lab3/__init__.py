# SPDX-License-Identifier: Apache-2.0
"""`rnic lab3`: a file by RDMA WRITE to a receiver that pays with a secret key; docs/lab3.md is its protocol.

messages   what the two ends send: structures of C
protocol   both ends as tables, without I/O
line       a connection: messages, and what ends it        stream     what ends it over iWARP
sender     one end                     receiver   the other, for many senders
storage    a file that is there whole or not at all
exercise   the sender for students: solution and skeleton in one
grade      running a sender before the judge, and the report
judge      a receiver that looks at every step of a sender
chunk      the memory that it offers        cases      the files and regions that it tries
child      the sender's process             slow       the RNIC in there, as late as may be
command    the command line
"""

from rnic.cli.lab3.command import lab3

__all__ = ["lab3"]
