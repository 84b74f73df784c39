# SPDX-License-Identifier: Apache-2.0
"""`python -m rnic` is the command `rnic`."""

from rnic.cli import main

main()
