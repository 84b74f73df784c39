# SPDX-License-Identifier: Apache-2.0
"""`python -m rnic` is the command `rnic`."""

from _rnic_command import main

main()
