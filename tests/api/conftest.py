# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a recording provider, and the objects of one connection on it."""

import ctypes
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import rnic
from api.recorder import Recorder, build
from rdmacm.ends import descriptors
from rnic import AccessFlags
from waiting import until


@pytest.fixture(scope="session")
def recorder_library(root: Path, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(root, tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def recorder(recorder_library: ctypes.CDLL) -> Iterator[Recorder]:
    before = descriptors()
    made = Recorder(recorder_library)
    yield made
    made.context = None
    gc.collect()
    until(lambda: descriptors() <= before, "the context leaves no descriptor")


@dataclass
class Objects:
    """One of each, on a recorder."""

    recorder: Recorder
    ctx: rnic.Context
    pd: rnic.PD
    channel: rnic.CompChannel
    cq: rnic.CQ
    mr: rnic.MR
    qp: rnic.QP
    memory: bytearray


@pytest.fixture
def objects(recorder: Recorder) -> Iterator[Objects]:
    memory = bytearray(4096)
    ctx = recorder.context
    with (
        ctx,
        ctx.alloc_pd() as pd,
        ctx.create_comp_channel() as channel,
        ctx.create_cq(64, channel) as cq,
        pd.reg_mr(memory, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE) as mr,
        pd.create_qp(rnic.QPInitAttr(cq, cq)) as qp,
    ):
        recorder.take()
        yield Objects(recorder, ctx, pd, channel, cq, mr, qp, memory)
