# SPDX-License-Identifier: Apache-2.0
"""The fixture that runs the command `rnic` is the command line's."""

from cli.conftest import rnic

__all__ = ["rnic"]
