# SPDX-License-Identifier: Apache-2.0
"""An id that was destroyed: its calls say so, and make nothing that nobody would destroy."""

from __future__ import annotations

import pytest

from rdmacm.ends import joined
from rnic import QPState
from rnic.errors import VerbsError


def test_a_destroyed_id_makes_no_queue_pair() -> None:
    with joined() as pair:
        pair.client.destroy()
        with pytest.raises(VerbsError, match="was destroyed"):
            pair.client.create_qp()
        assert pair.client.qp is None


def test_a_destroyed_id_tells_no_attributes() -> None:
    with joined() as pair:
        pair.client.destroy()
        with pytest.raises(VerbsError, match="was destroyed"):
            pair.client.init_qp_attr(QPState.INIT)
