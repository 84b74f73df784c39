# SPDX-License-Identifier: Apache-2.0
"""`rnic doctor`: what works on this machine for this user, tried rather than guessed.

finding    what a check says
machine    kernel, processors, namespaces, memory, environment
network    devices, UDP 4791, segmentation, frames
pair       the local transport, between this process and one that it starts
tools      what only some people need: rdma-core, tshark, QEMU
command    the command line
"""

from rnic.cli.doctor.command import doctor, doctor_peer

__all__ = ["doctor", "doctor_peer"]
