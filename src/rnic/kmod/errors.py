# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with modules, in words for the person who writes them."""


class KmodError(RuntimeError):
    """It cannot be done: the first line says why and what to do, the others what a program printed."""
