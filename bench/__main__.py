# SPDX-License-Identifier: Apache-2.0
"""`python bench` is `python bench/run.py`."""

import sys

from run import main

sys.exit(main())
