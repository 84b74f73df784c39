# SPDX-License-Identifier: Apache-2.0
"""A device of another provider beside the software RNIC's. part0 has the verbs that every device has, creates
address handles, and has no extension (tests/c/recorder_partial.c).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import rnic
from rnic import AccessFlags, QPState, SendFlags
from rnic._nic import nic
from rnic.cli.devices import devices, info
from rnic.rdmacm.registry import registry
from rnic.records import replace

MODULE = sys.modules["rnic.rdmacm.registry"]  # of which the package shows the registry alone
LACKS = "not supported by devices of provider partial"


@pytest.fixture(scope="session")
def provider(recorder_library: ctypes.CDLL) -> ctypes.CDLL:
    """It stays to the end of the process; its device is listed while a test uses it."""
    recorder_library.recorder_partial.restype = ctypes.c_void_p
    recorder_library.recorder_incomplete.restype = ctypes.c_void_p
    nic.add_provider(recorder_library.recorder_partial())
    return recorder_library


@pytest.fixture
def device(provider: ctypes.CDLL) -> Iterator[rnic.Device]:
    provider.recorder_list_partial(True)
    (found,) = (one for one in rnic.get_device_list() if one.provider == "partial")
    yield found
    provider.recorder_list_partial(False)


@pytest.fixture
def ctx(device: rnic.Device) -> Iterator[rnic.Context]:
    with device.open() as opened:
        yield opened


def test_a_list_that_fails_leaves_the_devices_of_others(provider: ctypes.CDLL) -> None:
    provider.recorder_list_fails(-errno.EIO)
    try:
        assert rnic.get_device_list()
        rnic.open_device("roce_lo").close()
    finally:
        provider.recorder_list_fails(0)


def test_its_devices_are_listed_behind_the_others(device: rnic.Device) -> None:
    found = rnic.get_device_list()
    assert {one.provider for one in found[:-1]} == {"soft"}
    assert found[-1] == device
    assert (device.name, device.netdev, device.index) == ("part0", "", 0)


@pytest.mark.parametrize("which", ["part0", 0x1122334455667788, "1122:3344:5566:7788"])
@pytest.mark.usefixtures("device")
def test_it_is_opened_like_any_other(which: str | int) -> None:
    with rnic.open_device(which) as ctx, rnic.open_device("roce_lo") as soft:
        assert (ctx.name, ctx.provider, ctx.extensions) == ("part0", "partial", ())
        assert soft.provider == soft.device.provider == "soft"
        assert "rnic.cm/1" in soft.extensions


def test_what_the_provider_says_of_an_open_is_raised(device: rnic.Device, ctx: rnic.Context) -> None:
    with pytest.raises(rnic.VerbsError, match="open_device: it is open") as caught:
        device.open()
    assert (caught.value.errno, ctx.closed) == (errno.EBUSY, False)
    with pytest.raises(rnic.VerbsError, match="there is no provider mlx5") as caught:
        replace(device, provider="mlx5").open()
    assert caught.value.errno == errno.ENODEV


def test_what_it_has_works(ctx: rnic.Context) -> None:
    assert ctx.query_device().fw_ver == "rec 1"
    assert ctx.query_device_ex().orig_attr == ctx.query_device()  # as libibverbs does without the other call
    assert ctx.query_gid(1, 1) == rnic.GID("10.0.0.1")
    with (
        ctx.alloc_pd() as pd,
        ctx.create_comp_channel() as channel,
        ctx.create_cq(8, channel) as cq,
        pd.reg_mr(bytearray(64), AccessFlags.LOCAL_WRITE) as mr,
        pd.create_qp(rnic.QPInitAttr(cq, cq)) as qp,
        pd.create_ah(rnic.AHAttr(rnic.GID("10.0.0.1"))),
    ):
        qp.modify(rnic.QPAttr(qp_state=QPState.INIT))
        cq.req_notify()
        qp.post_recv(rnic.RecvWR(1, [rnic.SGE(mr)]))
        for n in range(100):  # and more regions than are kept before it is looked which can go
            with pd.reg_mr(bytearray(64), AccessFlags.LOCAL_WRITE) as other:
                qp.post_send(rnic.SendWR(n, send_flags=SendFlags.SIGNALED, sg_list=[rnic.SGE(other)]))
            assert [wc.wr_id for wc in cq.poll(4)] == [n]


def test_an_imported_context_is_its_own(ctx: rnic.Context) -> None:
    with rnic.open_device("roce_lo") as soft:
        with rnic.import_device(ctx.cmd_fd) as again:
            assert (again.provider, again.device) == ("partial", ctx.device)
            assert again.query_device() == ctx.query_device()
        with rnic.import_device(soft.cmd_fd) as again:
            assert again.provider == "soft"
    assert not ctx.closed


@pytest.mark.usefixtures("ctx")
def test_a_descriptor_of_no_provider_is_refused_as_the_first_one_says() -> None:
    with (
        Path(os.devnull).open() as file,
        pytest.raises(rnic.VerbsError, match="not the cmd_fd of a context") as caught,
    ):
        rnic.import_device(file.fileno())
    assert caught.value.errno == errno.EINVAL


class Made:
    """Objects of part0."""

    def __init__(self, ctx: rnic.Context) -> None:
        self.ctx = ctx
        self.pd = ctx.alloc_pd()
        self.cq = ctx.create_cq(8)
        self.mr = self.pd.reg_mr(bytearray(64), AccessFlags.LOCAL_WRITE)
        self.qp = self.pd.create_qp(rnic.QPInitAttr(self.cq, self.cq))
        self.ah = self.pd.create_ah(rnic.AHAttr(rnic.GID("10.0.0.1")))

    def close(self) -> None:
        for one in (self.ah, self.qp, self.mr, self.cq, self.pd):
            one.close()


@pytest.fixture
def made(ctx: rnic.Context) -> Iterator[Made]:
    objects = Made(ctx)
    yield objects
    objects.close()


# Verbs that part0 lacks, and what it has no extension for.
MISSING: dict[str, Callable[[Made], Any]] = {
    "query_pkey": lambda m: m.ctx.query_pkey(1, 0),
    "query_rt_values_ex": lambda m: m.ctx.query_rt_values_ex(),
    "query_comp_cntr_caps": lambda m: m.ctx.query_comp_cntr_caps(),
    "get_async_event": lambda m: m.ctx.get_async_event(0),
    "create_cq_ex": lambda m: m.ctx.create_cq_ex(rnic.CQInitAttrEx(4)),
    "resize_cq": lambda m: m.cq.resize(4),
    "modify_cq": lambda m: m.cq.modify(rnic.ModifyCQAttr()),
    "create_qp_ex": lambda m: m.ctx.create_qp_ex(rnic.QPInitAttrEx(m.cq, m.cq, pd=m.pd)),
    "query_qp": lambda m: m.qp.query(),
    "modify_qp_rate_limit": lambda m: m.qp.modify_rate_limit(rnic.RateLimitAttr(1)),
    "query_qp_data_in_order": lambda m: m.qp.query_data_in_order(rnic.WROpcode.RDMA_WRITE),
    "set_ece": lambda m: m.qp.set_ece(rnic.ECE()),
    "query_ece": lambda m: m.qp.query_ece(),
    "attach_mcast": lambda m: m.qp.attach_mcast("239.1.2.3"),
    "create_srq": lambda m: m.pd.create_srq(),
    "create_srq_ex": lambda m: m.ctx.create_srq_ex(rnic.SRQInitAttrEx(m.pd)),
    "open_xrcd": lambda m: m.ctx.open_xrcd(),
    "alloc_mw": lambda m: m.pd.alloc_mw(rnic.MWType.TYPE_1),
    "create_counters": lambda m: m.ctx.create_counters(),
    "create_comp_cntr": lambda m: m.ctx.create_comp_cntr(),
    "rereg_mr": lambda m: m.mr.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=0),
    "alloc_null_mr": lambda m: m.pd.alloc_null_mr(),
    "reg_dmabuf_mr": lambda m: m.pd.reg_dmabuf_mr(0, 8, 0, AccessFlags.LOCAL_WRITE),
    "import_mr": lambda m: m.pd.import_mr(1),
    "advise_mr": lambda m: m.pd.advise_mr(rnic.AdviseMRAdvice.PREFETCH, 0, [rnic.SGE(m.mr)]),
    "alloc_dm": lambda m: m.ctx.alloc_dm(rnic.AllocDMAttr(64)),
    "import_dm": lambda m: m.ctx.import_dm(1),
    "import_pd": lambda m: m.ctx.import_pd(1),
    "alloc_td": lambda m: m.ctx.alloc_td(),
    "alloc_parent_domain": lambda m: m.ctx.alloc_parent_domain(rnic.ParentDomainInitAttr(m.pd)),
    "create_wq": lambda m: m.ctx.create_wq(rnic.WQInitAttr(m.pd, m.cq)),
    # Extensions.
    "query_counters": lambda m: m.ctx.counters(),
    "query_qp_stats": lambda m: m.qp.statistics(),
    "set_fault": lambda m: m.ctx.set_faults(rnic.Faults(loss=0.5)),
    "set_pkeys": lambda m: m.ctx.set_pkeys([0xFFFF]),
    "cm_listen": lambda m: m.ctx.cm_listen(1),
    "cm_slot": lambda m: m.ctx.cm_slot(),
    "cm_watch": lambda m: m.ctx.cm_watch(1),
    "cm_watch_service": lambda m: m.ctx.cm_watch_service(1, "10.0.0.1"),
    "alloc_mr": lambda m: m.pd.alloc_mr(64, AccessFlags.LOCAL_WRITE),
    "query_ah": lambda m: m.ah.query(),
    "query_raw": lambda m: m.ctx.query_raw_packet(),
}


@pytest.mark.parametrize("verb", MISSING)
def test_what_it_lacks_is_said_in_words(made: Made, verb: str) -> None:
    with pytest.raises(rnic.VerbsError) as caught:
        MISSING[verb](made)
    error = caught.value
    assert (error.errno, error.verb, error.strerror) == (errno.EOPNOTSUPP, verb, LACKS)


@pytest.mark.parametrize(("lacks", "why"), [
    ("poll_cq", "provider incomplete lacks poll_cq, which every provider has"),
    ("destroy_ah", "provider incomplete has create_ah, but lacks destroy_ah"),
    ("name", "a provider has a name, list, open and ops"),
])  # fmt: skip
def test_an_incomplete_provider_is_not_added(provider: ctypes.CDLL, lacks: str, why: str) -> None:
    with pytest.raises(rnic.VerbsError, match=why) as caught:
        nic.add_provider(provider.recorder_incomplete(lacks.encode()))
    assert caught.value.errno == errno.EINVAL


def test_a_name_is_given_once(provider: ctypes.CDLL) -> None:
    with pytest.raises(rnic.VerbsError, match="there is a provider partial already") as caught:
        nic.add_provider(provider.recorder_partial())
    assert caught.value.errno == errno.EEXIST


# ---------------------------------------------------------------- connections


@pytest.fixture
def instead_of_lo(device: rnic.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """part0 is the one device of the loopback interface."""
    monkeypatch.setattr(MODULE, "get_device_list", lambda: [replace(device, index=1, netdev="lo")])
    monkeypatch.setattr(registry, "_agents", {})


@pytest.mark.usefixtures("instead_of_lo")
@pytest.mark.parametrize(
    "call",
    [lambda: rnic.connect("127.0.0.1", 7), lambda: rnic.listen("127.0.0.1", 0), lambda: rnic.listen("::", 0)],
)
def test_connections_say_what_the_device_lacks(call: Callable[[], Any]) -> None:
    with pytest.raises(
        rnic.VerbsError, match="part0: RDMA-CM is not supported by devices of provider partial"
    ) as caught:
        call()
    assert caught.value.errno == errno.EOPNOTSUPP


def test_connections_use_the_first_device_of_an_interface(
    device: rnic.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = rnic.get_device_list()
    loopback = next(one for one in listed if one.netdev == "lo")
    both = [*listed, replace(device, index=loopback.index, netdev="lo")]
    monkeypatch.setattr(MODULE, "get_device_list", lambda: both)
    with rnic.listen("127.0.0.1", 0) as listener, rnic.listen("::", 0):
        assert {one.provider for one in registry.get_devices()} == {"soft"}
        assert listener.port > 0


# ---------------------------------------------------------------- commands


def run(command: click.Command, *words: str) -> Result:
    """A command in this process, which has the provider."""
    result = CliRunner().invoke(command, words)
    assert result.exception is None or isinstance(
        result.exception, SystemExit | click.ClickException | OSError
    )
    return result


@pytest.mark.usefixtures("device")
def test_devices_lists_it() -> None:
    assert "part0" in run(devices).stdout
    records = json.loads(run(devices, "--json").stdout)
    assert (records[-1]["name"], records[-1]["provider"]) == ("part0", "partial")


@pytest.mark.usefixtures("device")
def test_info_shows_what_there_is() -> None:
    result = run(info, "part0", "-v")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("hca_id: part0\n")
    assert "raw packets" not in result.stdout
    (record,) = json.loads(run(info, "part0", "--json").stdout)
    assert record["hca_id"] == "part0"
    assert "raw_packet" not in record
    assert run(info, "--json").exit_code == 0


SCRIPT = """
import ctypes, sys
from rnic._nic import nic
library = ctypes.CDLL(sys.argv[1])
library.recorder_partial.restype = ctypes.c_void_p
nic.add_provider(library.recorder_partial())
library.recorder_list_partial(True)
from rnic.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


def test_perf_says_what_the_device_lacks(recorder_library: ctypes.CDLL) -> None:
    perf = [
        sys.executable,
        "-c",
        SCRIPT,
        recorder_library._name,
        *shlex.split("perf write bw -t 4 -d part0 -x 1 -p"),
    ]
    with subprocess.Popen([*perf, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = re.match(r"listening on port (\d+)", server.stderr.readline())
        assert found
        client = subprocess.run([*perf, found[1], "127.0.0.1"], capture_output=True, text=True, timeout=300)
        said = server.communicate(timeout=300)[1]
    assert (client.returncode, server.returncode, client.stdout) == (1, 1, "")
    assert f"alloc_mr: {LACKS}" in client.stderr + said
    assert "Traceback" not in client.stderr + said


def test_it_cannot_close_a_context_with_all_that_is_left(ctx: rnic.Context) -> None:
    with ctx.alloc_pd() as pd:
        with pytest.raises(rnic.VerbsError, match=LACKS) as caught:
            ctx.close(force=True)
        assert (caught.value.errno, pd.closed, ctx.closed) == (errno.EOPNOTSUPP, False, False)
