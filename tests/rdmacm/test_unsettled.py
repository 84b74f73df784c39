# SPDX-License-Identifier: Apache-2.0
"""The names of closed ports: how long they stay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

import rnic.cm as cm
from rnic.cm.ib_cm import ANSWER_KEPT_NS
from rnic.rdmacm.ibcm.unsettled import Port, Unsettled

if TYPE_CHECKING:
    from rnic._nic import nic

SERVICE = 0x1060001


class Name:
    """A name of a port on the host."""

    service_id = SERVICE

    def __init__(self) -> None:
        self.ends: list[str] = []

    def close(self) -> None:
        self.ends.append("closed")


@pytest.fixture
def name() -> Name:
    return Name()


def question(service: int = SERVICE) -> cm.Resolution:
    """What a peer has asked, and nobody has answered."""
    one = cm.Resolution(cm.IbCm(1, 0xA0), 1, "peer", tid=1)
    one.state = cm.State.SIDR_REQ_RCVD
    one.req = SimpleNamespace(service_id=service)  # type: ignore[assignment]
    return one


def of(*questions: cm.Resolution) -> Unsettled:
    names = Unsettled(cast("cm.ConnTable", SimpleNamespace(exchanges=lambda: list(questions))))
    names.serve(SERVICE)
    return names


def test_a_name_stays_until_its_requests_are_answered(name: Name) -> None:
    asked = [question(), question(), question(SERVICE + 1)]
    names = of(*asked)
    names.keep(cast("nic.Listener", name), 0)
    asked[1].state = cm.State.IDLE
    names.release(1)
    assert not name.ends
    asked[0].state = cm.State.IDLE
    names.release(2)
    assert name.ends == ["closed"]
    assert names.deadline is None


def test_a_port_that_never_listened_is_closed_without_a_look_at_all_exchanges(name: Name) -> None:
    """Of n ids that are bound and call, that would be n looks at n exchanges."""
    names = Unsettled(cast("cm.ConnTable", SimpleNamespace()))  # which has none
    names.serve(SERVICE + 1)
    names.keep(cast("nic.Listener", name), 0)
    assert name.ends == ["closed"]


def test_a_name_goes_when_the_peer_no_longer_asks(name: Name) -> None:
    """The program never answers."""
    names = of(question())
    names.keep(cast("nic.Listener", name), 5)
    assert names.deadline == 5 + ANSWER_KEPT_NS
    names.release(4 + ANSWER_KEPT_NS)
    assert not name.ends
    names.release(5 + ANSWER_KEPT_NS)
    assert name.ends == ["closed"]
    assert names.deadline is None


def test_a_port_that_could_not_be_closed_is_closed_again(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question()
    names = of(asked)
    port = Port(cast("nic.Listener", name), names)

    def short(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Unsettled, "release", short)
        with pytest.raises(MemoryError):
            port.close()
    port.close()
    port.close()
    asked.state = cm.State.IDLE
    names.release(1)
    assert name.ends == ["closed"]
