# SPDX-License-Identifier: Apache-2.0
"""A handle of an XRC_RECV queue pair, which others may have open: calls mean the queue pair behind it."""

from __future__ import annotations

import errno

import pytest

import rnic
from rnic.errors import VerbsError


@pytest.mark.parametrize("opened", [False, True], ids=["created", "opened"])
def test_a_rate_limit_is_refused_in_words(opened: bool) -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.open_xrcd() as xrcd, xrcd.create_qp() as own:
        handle = xrcd.open_qp(own.qp_num) if opened else own
        with handle, pytest.raises(VerbsError, match="cannot be paced") as refused:
            handle.modify_rate_limit(rnic.RateLimitAttr(1))
        assert refused.value.errno == errno.EOPNOTSUPP
