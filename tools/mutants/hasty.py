# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: a failure is enough, nobody wants its smallest example, or to remember it."""

from hypothesis import Phase, settings

settings.register_profile("hasty", phases=[Phase.explicit, Phase.generate], database=None, derandomize=True)
settings.load_profile("hasty")
