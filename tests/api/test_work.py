# SPDX-License-Identifier: Apache-2.0
"""Work requests as objects: reusable, changeable, checked."""

from typing import Any

import pytest

import rnic
from api.conftest import Objects
from rnic import SGE, RecvWR, SendFlags, SendWR, WROpcode


def test_sge_of_a_region(objects: Objects) -> None:
    mr = objects.mr
    sges = (SGE(mr), SGE(mr, 96), SGE(mr, 1, 2), SGE(mr, 4096))
    assert [(s.addr - mr.addr, s.length, s.lkey, s.mr) for s in sges] == [
        (0, 4096, mr.lkey, mr),
        (96, 4000, mr.lkey, mr),
        (1, 2, mr.lkey, mr),
        (4096, 0, mr.lkey, mr),
    ]


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 1), (0, 4097), (4096, 1), (4097, None), (0, -1), (10, 2**64)]
)
def test_sge_outside_its_region(objects: Objects, offset: int, length: int | None) -> None:
    with pytest.raises(ValueError, match="are not all in"):
        SGE(objects.mr, offset, length)


def test_sge_forms_do_not_mix(objects: Objects) -> None:
    forms: list[dict[str, Any]] = [
        {},
        {"addr": 1},
        {"addr": 1, "length": 1},
        {"mr": objects.mr, "lkey": 1},
        {"addr": 1, "length": 1, "lkey": 1, "offset": 1},
    ]
    for form in forms:
        with pytest.raises(TypeError, match="SGE"):
            SGE(**form)


def test_values_that_do_not_fit_are_refused() -> None:
    forms: list[dict[str, Any]] = [
        {"wr_id": -1},
        {"wr_id": 2**64},
        {"rkey": 2**32},
        {"remote_addr": -1},
        {"imm_data": -1},
    ]
    for form in forms:
        with pytest.raises(OverflowError):
            SendWR(**form)
    with pytest.raises(ValueError, match="shorter than 4 GiB"):
        SGE(addr=0, length=2**32, lkey=0)


def test_a_work_request_reads_as_it_was_written() -> None:
    wr = SendWR(1, WROpcode.RDMA_READ, SendFlags.SIGNALED | SendFlags.FENCE, (), 2, 3, 4, 5, 6, 7)
    assert (wr.wr_id, wr.opcode, wr.send_flags, wr.sg_list) == (1, WROpcode.RDMA_READ, 3, ())
    fields = (wr.remote_addr, wr.rkey, wr.imm_data, wr.compare_add, wr.swap, wr.invalidate_rkey)
    assert fields == (2, 3, 4, 5, 6, 7)
    assert isinstance(wr.send_flags, SendFlags)
    wr.opcode, wr.send_flags, wr.sg_list = 2, 0, [SGE(addr=1, length=9, lkey=2)]
    assert repr(wr) == "<SendWR 1 SEND 9 bytes>"
    assert repr(RecvWR(4, wr.sg_list)) == "<RecvWR 4 9 bytes>"


def test_sg_lists_hold_sges(objects: Objects) -> None:
    wr = SendWR(sg_list=[SGE(objects.mr)])
    with pytest.raises(TypeError, match="sg_list holds SGEs, not MR"):
        wr.sg_list = [objects.mr]  # type: ignore[list-item]
    assert len(wr.sg_list) == 1


def test_one_request_stands_in_a_chain_once(objects: Objects) -> None:
    wr, other = SendWR(1), SendWR(2)
    with pytest.raises(ValueError, match="work request 0 stands twice"):
        objects.qp.post_send([wr, other, wr])
    receive = RecvWR()
    with pytest.raises(ValueError, match="stands twice"):
        objects.qp.post_recv([receive, receive])
    assert objects.recorder.take() == []
    objects.qp.post_send([other, wr])
    objects.qp.post_recv(receive)
    assert len(objects.recorder.take()) == 3


def test_a_chain_holds_one_kind(objects: Objects) -> None:
    with pytest.raises(TypeError, match="a chain of SendWR cannot hold RecvWR"):
        objects.qp.post_send([SendWR(), RecvWR()])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        objects.qp.post_recv(None)  # type: ignore[arg-type]
    objects.qp.post_send([])
    objects.qp.post_send(SendWR(i) for i in range(3))
    assert len(objects.recorder.take()) == 3


def test_poll_wants_a_number(objects: Objects) -> None:
    for n in (0, -1):
        with pytest.raises(ValueError, match="at least one"):
            objects.cq.poll(n)


def test_nobody_makes_what_the_device_makes() -> None:
    for cls in (rnic.WC, rnic.MR, rnic.Context):
        with pytest.raises(TypeError):
            cls()
