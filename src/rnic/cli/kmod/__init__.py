# SPDX-License-Identifier: Apache-2.0
"""`rnic kmod`: kernel modules, made, built, loaded and tested (rnic.kmod); docs/kmod.md is for users.

command    the commands
report     how a test's result is shown
"""

from rnic.cli.kmod.command import kmod

__all__ = ["kmod"]
