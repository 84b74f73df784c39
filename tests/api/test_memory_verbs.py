# SPDX-License-Identifier: Apache-2.0
"""The verbs of memory and domains reach the provider with the right values, and give back what they take."""

import ctypes
import errno
import gc
from typing import Any

import pytest

import rnic
from api.conftest import Objects
from rnic import AccessFlags, AdviseMRAdvice, AdviseMRFlags, ReregMRFlags

MASK = {"iova": 1, "fd": 2, "dm": 4, "alloc": 8, "lock": 16}


def test_device_attributes(objects: Objects) -> None:
    attr = objects.ctx.query_device_ex()
    assert attr.orig_attr == objects.ctx.query_device()
    assert attr.odp_caps == rnic.ODPCaps(
        rnic.ODPGeneralCap.SUPPORT | rnic.ODPGeneralCap.SUPPORT_IMPLICIT,
        rnic.ODPTransportCap.SEND,
        rnic.ODPTransportCap.RECV,
        rnic.ODPTransportCap.WRITE,
    )
    assert (attr.completion_timestamp_mask, attr.hca_core_clock, attr.device_cap_flags_ex) == (33, 34, 7)
    assert (attr.xrc_odp_caps, attr.max_dm_size) == (rnic.ODPTransportCap.READ, 9)
    assert objects.ctx.cmd_fd == -1


def test_every_kind_of_registration(objects: Objects) -> None:
    pd, memory = objects.pd, bytearray(100)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with objects.ctx.alloc_dm(rnic.AllocDMAttr(64, 3)) as dm:
        for mr in (
            pd.reg_mr_iova(memory, 77, AccessFlags.LOCAL_WRITE),
            pd.reg_mr_iova(iova=5, addr=address, length=4),
            pd.reg_dmabuf_mr(10, 20, 30, 40, AccessFlags.REMOTE_READ),
            pd.reg_dm_mr(dm, 8, 16),
            pd.alloc_null_mr(),
            pd.reg_mr(memory, 1, lock=True),
            pd.alloc_mr(50, 1, lock=True),
        ):
            mr.close()
    assert [line for line in objects.recorder.take() if not line.startswith("dereg")] == [
        "alloc_dm 64 align=3",
        f"reg_mr_ex mask={MASK['iova']} access=1 length=100 iova=77 fd=-1 offset=0",
        f"reg_mr_ex mask={MASK['iova']} access=0 length=4 iova=5 fd=-1 offset=0",
        f"reg_mr_ex mask={MASK['fd']} access=4 length=20 iova=30 fd=40 offset=10",
        f"reg_mr_ex mask={MASK['dm']} access=32 length=16 iova=0 fd=-1 offset=8",
        "alloc_null_mr",
        f"reg_mr_ex mask={MASK['lock']} access=1 length=100 iova=0 fd=-1 offset=0",
        f"reg_mr_ex mask={MASK['lock'] | MASK['alloc']} access=1 length=50 iova=0 fd=-1 offset=0",
        "free_dm",
    ]


def test_an_element_names_the_iova(objects: Objects) -> None:
    with objects.pd.reg_mr_iova(bytearray(100), 1000) as mr:
        assert rnic.SGE(mr, 10, 5).addr == 1010
        assert len(mr.buf) == 100


def test_device_memory(objects: Objects) -> None:
    with objects.ctx.alloc_dm(rnic.AllocDMAttr(64)) as dm:
        dm.copy_to(4, b"abcd")
        assert dm.copy_from(8, 12) == b"d" * 12
        with pytest.raises(TypeError):
            dm.copy_to(0, "text")
        mr = objects.pd.reg_dm_mr(dm, 0, 4)
        with pytest.raises(rnic.VerbsError, match="in use by MR"):
            dm.close()
        mr.close()
    assert objects.recorder.take()[1:3] == ["memcpy_to_dm 4 abcd", "memcpy_from_dm 8 12"]
    with pytest.raises(rnic.VerbsError, match="DM is closed"):
        dm.copy_from(0, 4)


def test_reregistration(objects: Objects) -> None:
    memory, flags = bytearray(10), ReregMRFlags
    with objects.ctx.alloc_pd() as other, objects.pd.reg_mr(bytearray(4), 1) as mr:
        mr.rereg(flags.CHANGE_TRANSLATION | flags.CHANGE_PD | flags.CHANGE_ACCESS, other, memory, 5)
        assert (mr.length, mr.pd) == (10, other)
        mr.rereg(flags.CHANGE_TRANSLATION, addr=mr.addr, length=3)
        memory.clear()
        assert mr.length == 3
    assert objects.recorder.take()[2:4] == [
        "rereg_mr lkey=768 flags=7 length=10 access=5",
        "rereg_mr lkey=768 flags=1 length=3 access=0",
    ]


def test_advice(objects: Objects) -> None:
    sges = [rnic.SGE(objects.mr, 1, 2), rnic.SGE(objects.mr)]
    objects.pd.advise_mr(AdviseMRAdvice.PREFETCH_WRITE, AdviseMRFlags.FLUSH, sges)
    first = f"{objects.mr.addr + 1},2,{objects.mr.lkey}"
    assert objects.recorder.take() == [f"advise_mr 1 flags=1 n=2 first={first}"]


def test_domains(objects: Objects) -> None:
    with objects.ctx.alloc_td() as td:
        for attr in (rnic.ParentDomainInitAttr(objects.pd, td), rnic.ParentDomainInitAttr(objects.pd)):
            with objects.ctx.alloc_parent_domain(attr) as parent:
                assert (parent.pd, parent.td) == (objects.pd, attr.td)
    lines = ["alloc_td", "alloc_parent_domain td=1", "dealloc_pd", "alloc_parent_domain td=0", "dealloc_pd"]
    assert objects.recorder.take() == [*lines, "dealloc_td"]


def test_import(objects: Objects) -> None:
    ctx = objects.ctx
    with ctx.import_pd(5) as pd, pd.import_mr(6) as mr, ctx.import_dm(7) as dm:
        assert (pd.handle, pd.imported, mr.imported, dm.handle, dm.imported) == (5, True, True, 7, True)
        key = mr.lkey
        assert not objects.mr.imported
    assert objects.recorder.take() == [
        "import_pd 5",
        "import_mr 6",
        "import_dm 7",
        "unimport_dm",
        f"unimport_mr lkey={key}",
        "unimport_pd",
    ]
    for thing in (objects.pd, objects.mr):
        with pytest.raises(rnic.VerbsError, match="was not imported") as caught:
            thing.unimport()
        assert caught.value.errno == errno.EINVAL


VERBS: dict[str, Any] = {
    "query_device_ex": lambda o: o.ctx.query_device_ex(),
    "reg_mr_ex": lambda o: o.pd.reg_mr_iova(bytearray(1)),
    "alloc_null_mr": lambda o: o.pd.alloc_null_mr(),
    "rereg_mr": lambda o: o.mr.rereg(ReregMRFlags.CHANGE_ACCESS),
    "advise_mr": lambda o: o.pd.advise_mr(0, 0, [rnic.SGE(o.mr)]),
    "alloc_dm": lambda o: o.ctx.alloc_dm(rnic.AllocDMAttr(4)),
    "alloc_td": lambda o: o.ctx.alloc_td(),
    "alloc_parent_domain": lambda o: o.ctx.alloc_parent_domain(rnic.ParentDomainInitAttr(o.pd)),
    "import_pd": lambda o: o.ctx.import_pd(1),
    "import_mr": lambda o: o.pd.import_mr(1),
    "import_dm": lambda o: o.ctx.import_dm(1),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_raises_what_the_provider_says_and_leaves_nothing(objects: Objects, verb: str) -> None:
    before = objects.recorder.alive
    objects.recorder.fail(verb, errno.EIO, "the disk is on fire")
    with pytest.raises(rnic.VerbsError, match="the disk is on fire") as caught:
        VERBS[verb](objects)
    assert caught.value.errno == errno.EIO
    gc.collect()
    assert objects.recorder.alive == before


def test_a_buffer_of_a_registration_that_fails_is_let_go(objects: Objects) -> None:
    memory = bytearray(8)
    for verb, call in (
        ("reg_mr_ex", lambda: objects.pd.reg_mr(memory, 1, lock=True)),
        ("rereg_mr", lambda: objects.mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=memory)),
    ):
        objects.recorder.fail(verb, errno.ENOMEM)
        with pytest.raises(rnic.VerbsError):
            call()
        memory.append(1)


def test_allocators_are_refused_in_words(objects: Objects) -> None:
    for extra in ({"alloc": len}, {"free": len}, {"pd_context": 1}):
        with pytest.raises(rnic.VerbsError, match="own memory") as caught:
            objects.ctx.alloc_parent_domain(rnic.ParentDomainInitAttr(objects.pd, **extra))
        assert caught.value.errno == errno.EOPNOTSUPP
    assert objects.recorder.take() == []


def test_what_takes_a_buffer_or_an_address_takes_one(objects: Objects) -> None:
    for arguments in ({}, {"addr": 1}, {"length": 1}, {"buffer": bytearray(1), "addr": 1, "length": 1}):
        with pytest.raises(TypeError, match="a buffer, or addr and length"):
            objects.pd.reg_mr_iova(**arguments)
        with pytest.raises(TypeError, match="a buffer, or addr and length"):
            objects.pd.reg_mr(lock=True, **arguments)
