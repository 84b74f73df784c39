# SPDX-License-Identifier: Apache-2.0
"""`rnic vm`: virtual machines with the Linux kernel's own RDMA devices (rnic.vm); docs/vm.md is for users.

command    the commands
pipes      a command in a machine whose input and output are this process' own
terminal   a shell in a machine, on this process' terminal
"""

from rnic.cli.vm.command import vm

__all__ = ["vm"]
