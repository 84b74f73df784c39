# SPDX-License-Identifier: Apache-2.0
"""The command `rnic` before anything of rnic is imported.

From here on, until a command begins to work, SIGINT ends the process as it ends a program in C.  There is
nothing to clean up yet, and a traceback would only show which import it met.
"""

import _signal as signal  # type: ignore[import-not-found] # the module signal takes long to import

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """The command line; ends the process."""
    import gc

    gc.disable()  # until the command begins to work: what is imported stays
    from rnic.cli import main

    main()
