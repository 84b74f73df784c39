# SPDX-License-Identifier: Apache-2.0
"""How the peers of the modules end: a failure is one line, and Ctrl-C needs none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

INTERRUPTED = 130  # what a shell says of a program that Ctrl-C has ended


def run(main: Callable[[], None]) -> None:
    """Run a program's main function. OSError has a reason that the user can understand, VerbsError too."""
    try:
        main()
    except OSError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
