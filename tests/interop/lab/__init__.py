# SPDX-License-Identifier: Apache-2.0
"""The interop lab: a throwaway virtual machine with the Linux kernel's own RoCE v2 device, on a tap device.

host    what this machine must have, and running its commands
cache   the kernel and the guest's initial file system, made once
net     the tap device that host and guest share, and capturing on it
guest   the virtual machine, and running commands in it
agent   the guest's end of that (runs inside the guest only)

The guest's programs are this machine's own: its root file system is mounted read-only, so that python3,
ibv_rc_pingpong and this directory are at the same paths on both sides.
"""
