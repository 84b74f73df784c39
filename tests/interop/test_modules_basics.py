# SPDX-License-Identifier: Apache-2.0
"""The kernel modules of examples/kernel that need no peer."""

from __future__ import annotations

import pytest
from modules import Box

pytestmark = pytest.mark.interop


def test_hello_greets_whom_its_parameter_names(box: Box) -> None:
    with box.loaded("hello", whom="you"):
        assert box.machine.check("cat /sys/module/hello/parameters/whom") == "you\n"
    assert "hello: hello, you\n" in box.log()
    assert "hello: goodbye, you\n" in box.log()
