# SPDX-License-Identifier: Apache-2.0
"""What users of `rnic run` can ask for, each with a real program."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import rnic
from ibverbs.programs import both_ends, environment, run
from packages import need, need_package
from rnic import testing
from rnic._nic import nic
from rnic.cli.main import run as rnic_command
from ucma.under import HOST, Program, call, needs_libraries
from waiting import until

pytestmark = [pytest.mark.own_way, needs_libraries]

HERE = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pingpong and events, built as users do where rdma-core's development files are not installed."""
    if not shutil.which("cc"):
        need_package("gcc")
    folder = tmp_path_factory.mktemp("programs")
    words = subprocess.check_output([sys.executable, "-m", "rnic", "config", "--cflags", "--libs"], text=True)
    for name in ("pingpong", "events"):
        subprocess.run(["cc", *shlex.split(words), HERE / f"{name}.c", "-o", folder / name], check=True)
    return folder


def said(*words: object, status: int = 0, options: str = "") -> str:
    with Program(*words, options=tuple(shlex.split(options))) as program:
        assert program.wait() == status, program.text
        return program.text


def alone(*words: object, status: int = 0, **variables: str) -> str:
    """What a program says without `rnic run`, which starts more slowly, by the variables that it sets."""
    done = subprocess.run(
        list(map(str, words)),
        env=environment(RNIC_VERBS_DEBUG="0", **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], str]]:
    """What `rnic run` says of options that it does not take."""

    def say(options: str) -> str:
        assert rnic_command(["run", *shlex.split(options), "true"]) == 125
        return capsys.readouterr().err

    before = dict(os.environ)
    yield say
    os.environ.clear()
    os.environ.update(before)


# ---------------------------------------------------------------- rnic config


def test_programs_built_without_rdma_core_run_by_themselves(programs: Path) -> None:
    assert subprocess.run([programs / "pingpong", "roce_lo"], check=False, timeout=300).returncode == 0


def test_words_for_the_compiler_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    def words(*options: str) -> str:
        assert rnic_command(["config", *options]) == 0
        return capsys.readouterr().out

    assert "-I" in words("--cflags")
    assert "-l:libibverbs.so.1" not in words("--cflags")
    assert "-l:libibverbs.so.1" in words("--libs")
    assert "-I" not in shlex.split(words("--libs"))
    assert "librdmacm" not in words("--libs")
    assert shlex.split(words("--libs", "--rdmacm"))[-1] == "-l:librdmacm.so.1"


# ---------------------------------------------------------------- faults


def test_a_program_overcomes_faults_that_it_knows_nothing_of(programs: Path) -> None:
    faults = "loss=0.05,duplicate=5%,reorder=0.05,delay=0.05,flip=0.05,seed=7"
    alone(programs / "pingpong", "roce_lo", RNIC_FAULT=faults)


def test_a_program_whose_packets_are_all_lost_is_told(programs: Path) -> None:
    text = said(programs / "pingpong", "roce_lo", options="--fault loss=1", status=1)
    assert "transport retry counter exceeded" in text


def test_faults_of_the_python_api_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_FAULT", "loss=1")
    with rnic.open_device("roce_lo", local=False) as ctx:
        monkeypatch.delenv("RNIC_FAULT")
        with testing.End(ctx=ctx) as a, testing.End("roce_lo", local=False) as b:
            testing.connect(a.qp, b.qp, testing.Options(timeout=8, retry_cnt=1))
            a.qp.post_send(rnic.SendWR(opcode=rnic.WROpcode.SEND, send_flags=rnic.SendFlags.SIGNALED))
            (wc,) = a.wait()
            assert wc.status is rnic.WCStatus.RETRY_EXC_ERR
            assert ctx.counters().fault_lost > 0


def test_connections_are_made_by_the_server_whose_packets_are_not_lost() -> None:
    need("rping", "rdmacm-utils")
    words = ("stdbuf", "-oL", "rping", "-a", HOST, "-p", "7471", "-d")
    with Program(*words, "-s", options=("--fault", "loss=1")) as server:
        server.listens(7471)
        with Program(*words, "-c", options=("--fault", "loss=1")) as client:
            until(lambda: "RDMA_CM_EVENT_ESTABLISHED" in client.text, "the client is connected")


# ---------------------------------------------------------------- failures

FAILURES = {
    "create_cq@1=ENOMEM": "ibv_create_cq: Cannot allocate memory",
    "create_qp@2=EAGAIN": "ibv_create_qp: Resource temporarily unavailable",
    "create_qp_ex@1=ENOMEM": "ibv_create_qp: Cannot allocate memory",
    "modify_qp@3=EINVAL": "RTR: Invalid argument",
    "post_send=ENOMEM": "ibv_post_send: Cannot allocate memory",
    "poll_cq=EIO": "ibv_poll_cq: Input/output error",
    "reg_mr:100%=EAGAIN,seed=3": "ibv_reg_mr: Resource temporarily unavailable",
    "req_notify_cq@2=5": "ibv_req_notify_cq: Input/output error",
    "get_cq_event@1=EIO": "ibv_get_cq_event: Input/output error",
    "query_gid=ENODATA": "ibv_query_gid: No data available",
    "destroy_qp@2=EBUSY": "ibv_destroy_qp: Device or resource busy",
    "dealloc_pd=EBUSY": "ibv_dealloc_pd: Device or resource busy",
}


@pytest.mark.parametrize(("rule", "text"), FAILURES.items(), ids=FAILURES)
def test_a_call_fails(rule: str, text: str, programs: Path) -> None:
    """By the variable, as `rnic run` gives it."""
    assert alone(programs / "pingpong", "roce_lo", status=1, RNIC_FAIL=rule) == f"{text}\n"


def test_waiting_for_an_event_fails(programs: Path) -> None:
    text = alone(programs / "events", status=1, RNIC_FAIL="get_async_event=EINTR")
    assert text == "ibv_get_async_event: Interrupted system call\n"


def test_failures_reach_a_program_under_the_command(programs: Path) -> None:
    text = said(programs / "pingpong", options="--fail create_qp@9=EIO --fail alloc_pd=ENOMEM", status=1)
    assert text.startswith("ibv_alloc_pd: Cannot allocate memory\nrnic: ")
    need("ibv_rc_pingpong", "ibverbs-utils")
    assert "Couldn't create CQ" in said("ibv_rc_pingpong", options="--fail create_cq=ENOMEM", status=1)


def test_failures_at_random_are_the_same_with_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hits(rule: str) -> list[bool]:
        monkeypatch.setenv("RNIC_FAIL", rule)
        (failure,) = nic.env_fail()
        return [failure.hits(n) for n in range(1, 10001)]

    first = hits("reg_mr:10%=EAGAIN,seed=3")
    assert 800 < sum(first) < 1200
    assert hits("reg_mr:0.1=EAGAIN,seed=3") == first != hits("reg_mr:10%=EAGAIN,seed=4")
    assert hits("reg_mr@2=EAGAIN") == [n == 2 for n in range(1, 10001)]


def test_a_call_of_librdmacm_fails() -> None:
    need("rping", "rdmacm-utils")
    words = ("rping", "-c", "-a", HOST, "-p", "7472", "-C", "1")
    text = said(*words, options="--fail rdma_resolve_addr@1=ENOMEM", status=255)
    assert "rdma_resolve_addr: Cannot allocate memory" in text


def test_a_failure_of_one_client_does_not_hinder_the_next() -> None:
    need("rdma_client", "rdmacm-utils")
    with Program("rdma_server", "-s", HOST, "-p", "7473") as server:
        server.listens(7473)
        words = ("rdma_client", "-s", HOST, "-p", "7473")
        assert "rdma_connect: " in said(*words, options="--fail rdma_connect@1=ENOMEM", status=255)
        call(*words)
        server.good()


# ---------------------------------------------------------------- events


def test_a_port_goes_down(programs: Path) -> None:
    assert alone(programs / "events", RNIC_EVENTS="port_down@1ms") == "port error\ndown\n"


def test_a_port_comes_back(programs: Path) -> None:
    text = said(programs / "events", "roce_lo", 2, options="--event port_active@2ms --event port_down@1ms")
    assert text == "port error\nport active\nactive\n"


def test_a_device_fails(programs: Path) -> None:
    """As when the kernel takes a device away: work is flushed, calls answer EIO, and all can be destroyed.

    It is given more time, if it fails before the program has made what it needs.
    """
    for ms in (30, 300, 3000):
        with Program(programs / "events", options=("--event", f"device_fatal@{ms}ms")) as program:
            status, text = program.wait(), program.text
        if status == 0:
            break
    assert text.splitlines() == [
        "local catastrophic error",
        "receive: Work Request Flushed Error",
        "alloc_pd: Input/output error",
        "next event: Input/output error",
    ]


def test_an_event_of_one_device_of_two(programs: Path) -> None:
    for name, text in (("a", "P_Key change\nactive\n"), ("b", "port error\ndown\n")):
        wanted = "b:port_down,a:pkey_change"
        assert alone(programs / "events", name, 1, RNIC_NAMES="a=lo,b=lo", RNIC_EVENTS=wanted) == text


def test_work_that_meets_a_port_which_is_down_is_retried_in_vain(programs: Path) -> None:
    text = alone(programs / "pingpong", "roce_lo", status=1, RNIC_EVENTS="port_down")
    assert "transport retry counter exceeded" in text


def test_events_of_the_python_api() -> None:
    with rnic.open_device("roce_lo") as ctx:
        ctx.raise_event(rnic.EventType.PORT_ERR)
        ctx.raise_event(rnic.EventType.PORT_ACTIVE, after=0.001)
        events = [ctx.get_async_event(60).event_type for _ in range(2)]
        assert events == [rnic.EventType.PORT_ERR, rnic.EventType.PORT_ACTIVE]
        assert ctx.query_port().state is rnic.PortState.ACTIVE
        with pytest.raises(rnic.VerbsError, match="not one of a port"):
            ctx.raise_event(rnic.EventType.QP_FATAL)
        ctx.raise_event(rnic.EventType.SM_CHANGE, after=1000)  # which the context does not wait for


# ---------------------------------------------------------------- names, devices, rates


def test_devices_have_the_names_that_a_program_wants() -> None:
    need("ibv_devinfo", "ibverbs-utils")
    text = said("ibv_devinfo", options="--name mlx5_0=lo --name mlx5_1=lo --device mlx5_1,mlx5_0")
    names = [line.split()[1] for line in text.splitlines() if line.startswith("hca_id")]
    guids = [line.split()[1] for line in text.splitlines() if "node_guid" in line]
    assert names == ["mlx5_1", "mlx5_0"]
    assert len(set(guids)) == 2


def test_two_devices_on_one_interface_reach_each_other() -> None:
    need("ibv_rc_pingpong", "ibverbs-utils")
    named = {"RNIC_NAMES": "mlx5_0=lo,mlx5_1=lo"}
    both_ends("ibv_rc_pingpong", "-d", "mlx5_1", "-g", "0", "-n", "10", **named)


def test_connections_are_made_on_a_device_with_another_name() -> None:
    need("rping", "rdmacm-utils")
    options = ("--name", "mlx5_0=lo", "--name", "mlx5_1=lo")
    with Program("rping", "-s", "-a", HOST, "-p", "7473", "-C", "2", options=options) as server:
        server.listens(7473)
        with Program("rping", "-c", "-a", HOST, "-p", "7473", "-C", "2", "-v", options=options) as client:
            assert "ping data: rdma-ping-1" in client.good()
        server.good()


SYSFS = """
import os
at = "/sys/class/infiniband/mlx5_0"
assert os.listdir("/sys/class/infiniband") == ["mlx5_0"]
assert open(at + "/ports/1/rate").read() == "400 Gb/sec (4X)\\n"
slot = os.path.basename(os.path.realpath(at + "/device"))
assert slot == "ffff:01:00.0", slot
assert os.path.samefile(at + "/device", "/sys/devices/pciffff:00/" + slot)
read = lambda name: open(at + "/device/" + name).read().strip()
assert int(read("vendor"), 16) and int(read("device"), 16) and int(read("numa_node")) >= 0
assert "PCI_SLOT_NAME=" + slot in read("uevent")
assert os.listdir(at + "/device/infiniband") == ["mlx5_0"]
"""


def test_sysfs_has_a_card_in_a_slot() -> None:
    said("python3", "-c", SYSFS, options="--name mlx5_0=lo --device mlx5_0 --rate 400g")


def test_the_port_tells_the_rate_that_is_wanted() -> None:
    need("ibv_devinfo", "ibverbs-utils")
    text = alone("ibv_devinfo", "-v", "-d", "roce_lo", RNIC_RATE="100g")
    assert "4X (2)" in text
    assert "25.0 Gbps (32)" in text


# ---------------------------------------------------------------- limits


def test_limits_are_told_and_kept(tmp_path: Path, programs: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("max_qp = 1\nmax_cqe = 20\n")
    assert "ibv_create_qp: Cannot allocate memory" in said(
        programs / "pingpong", "roce_lo", options=f"--limits {file}", status=1
    )
    need("ibv_devinfo", "ibverbs-utils")
    text = said("ibv_devinfo", "-v", "-d", "roce_lo", options=f"--limits {file}").split()
    assert (text[text.index("max_qp:") + 1], text[text.index("max_cqe:") + 1]) == ("1", "20")


def test_each_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "RNIC_LIMITS",
        "max_pd=1,max_cq=1,max_qp=1,max_mr=1,max_mw=1,max_ah=1,max_srq=1,max_srq_wr=3,max_qp_wr=5,max_sge=2,"
        "max_inline_data=16,max_cqe=9",
    )
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(9) as cq:
        ah = rnic.AHAttr(dgid=ctx.query_gid(1, 0))

        def qp(**cap: int) -> rnic.QP:
            small = {
                "max_send_wr": 1,
                "max_recv_wr": 1,
                "max_send_sge": 1,
                "max_recv_sge": 1,
                "max_inline_data": 0,
            }
            return pd.create_qp(rnic.QPInitAttr(send_cq=cq, recv_cq=cq, cap=rnic.QPCap(**{**small, **cap})))

        for wrong in ({"max_send_wr": 6}, {"max_recv_wr": 6}, {"max_send_sge": 3}, {"max_inline_data": 17}):
            with pytest.raises(rnic.VerbsError, match="the device has"):
                qp(**wrong)
        with pytest.raises(rnic.VerbsError, match="allowed are 1 to 9"):
            ctx.create_cq(10)
        with pytest.raises(rnic.VerbsError, match="allowed are 1 to 3"):
            pd.create_srq(rnic.SRQInitAttr(rnic.SRQAttr(max_wr=4)))
        makers: tuple[Callable[[], AbstractContextManager[object]], ...] = (
            lambda: qp(max_send_wr=5),
            lambda: pd.alloc_mr(64, rnic.AccessFlags.LOCAL_WRITE),
            lambda: pd.alloc_mw(rnic.MWType.TYPE_2),
            lambda: pd.create_ah(ah),
            lambda: pd.create_srq(rnic.SRQInitAttr(rnic.SRQAttr(max_wr=3))),
        )
        with pytest.raises(rnic.VerbsError, match="1 protection domains, all that the device has"):
            ctx.alloc_pd()
        with pytest.raises(rnic.VerbsError, match="1 completion queues, all that the device has"):
            ctx.create_cq(1)
        for make in makers:
            with make(), pytest.raises(rnic.VerbsError, match="all that the device has"):
                make()


def test_generous_defaults_stay_below_the_limits(programs: Path) -> None:
    """libibverbs gives at least 64 bytes inline, which the device may not have."""
    alone(programs / "pingpong", "roce_lo", RNIC_LIMITS="max_qp_wr=8,max_inline_data=8")


# ---------------------------------------------------------------- what is not understood

REFUSED = {
    "--fault los=1": "there is no fault los; did you mean loss?",
    "--fault xyz=1": "duplicate, reorder, delay, flip, mark, reset, stall, flip_header, chunk, seed, ...",
    "--fault loss=2": "loss is a probability between 0 and 1, not 2",
    "--fault loss": "loss has no value",
    "--fail creat_cq=ENOMEM": "there is no call creat_cq; did you mean create_cq, create_srq",
    "--fail create_cq=ENOMEMM": "there is no error ENOMEMM; did you mean ENOMEM?",
    "--fail create_cq@0=EIO": "0 is not the number of a call",
    "--fail create_cq": "create_cq has no error",
    "--fail reg_mr:2=EIO": "2 is no share of the calls",
    "--fail reg_mr:1%=EIO,sed=3": "behind the error can be seed=N",
    "--event port_dwn": "there is no event port_dwn; did you mean port_down, port_err?",
    "--event port_down@soon": "soon is no time",
    "--rate 410g": "no port has 410g; there are 400g and 800g",
    "--rate 1000g": "no port has 1000g; the fastest is 800g",
    "--rate fast": "fast is no rate",
    "--name mlx5_0": "a name stands before its network interface",
    "--name ../x=lo": "cannot be the name of a device",
    "--name a=lo --name a=lo": "two devices have the name a",
    "--name a=nope0": "no network interface nope0 has an IP address",
    "--device nope": "there is no device nope; there are: roce_",
    "--fault ''": "a fault is a name and a value",
    "--fault delay_s=abc": "--fault: delay_s is a time such as 0.01 or 10ms, not abc",
    "--fail reg_mr:1=EIO": "1% is one of a hundred",
    "--event mlx5_2:port_down@1s": "--event: there is no device mlx5_2; there are: roce_",
    "--name mlx5_2=lo --event roce_lo:port_down": "--event: there is no device roce_lo; there are:",
    "--limits /dev/zero": "it has more than 65536 bytes",
}


@pytest.mark.parametrize(("options", "text"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_is_refused(options: str, text: str, refused: Callable[[str], str]) -> None:
    assert text in refused(options)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("RNIC_LOCAL", "bad", "RNIC_LOCAL is 'bad', neither on nor off"),
        ("RNIC_RATE", "7q", "7q is no rate"),
        ("RNIC_PKEYS", "zz", "RNIC_PKEYS is 'zz', not numbers"),
        ("RNIC_EVENTS", "port_dwn", "there is no event port_dwn"),
    ],
)
def test_what_cannot_be_is_refused_in_the_environment(
    variable: str, value: str, text: str, refused: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert text in refused("")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("max_qp = 1000000000", "max_qp is 1000000000; allowed are 1 to"),
        ("max_pq = 1", "there is no limit max_pq; did you mean max_qp"),
        ('max_qp = "4"', "names and numbers"),
        ("max_qp", "limits.toml:"),
    ],
)
def test_limits_that_cannot_be_are_refused(
    line: str, text: str, tmp_path: Path, refused: Callable[[str], str]
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(line)
    assert text in refused(f"--limits {file}")


def test_a_wrong_value_in_the_environment_is_told_when_a_device_is_opened(programs: Path) -> None:
    env = environment(RNIC_FAIL="nonsense=1")
    done = subprocess.run([programs / "events"], env=env, capture_output=True, text=True, check=False)
    assert "RNIC_FAIL: there is no call nonsense" in done.stderr


def test_variables_for_a_shell_have_what_is_asked_for() -> None:
    words = ["run", "--env", "--fault", "loss=0.1", "--name", "x=lo", "--fail", "reg_mr=EIO"]
    text = subprocess.check_output([sys.executable, "-m", "rnic", *words], text=True)
    for line in ("RNIC_FAULT=loss=0.1", "RNIC_NAMES=x=lo", "RNIC_FAIL=reg_mr=EIO"):
        assert f"export {line}\n" in text
    assert run("sh", "-c", f"{text} test $RNIC_FAULT = loss=0.1").text == ""
