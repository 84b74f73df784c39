# SPDX-License-Identifier: Apache-2.0
"""The compiled measuring loops: all that a command uses of rnic's inside, as nobody else needs them."""

from rnic._nic.nic import PerfEnd

__all__ = ["PerfEnd"]
