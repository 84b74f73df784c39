# SPDX-License-Identifier: Apache-2.0
"""The commands on hosts with IPv6 alone, without addresses, and with the loopback interface down."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from cli.commands import SECONDS, Start
from cli.test_doctor import by_name, within
from packages import need
from rnic import get_device_list
from rnic.cli import network
from rnic.cli.lab3.skeleton import solution
from rnic.cli.main import run
from rnic.cli.params import Failure

RNIC = f"{sys.executable} -m rnic"
IPV6_ALONE = "ip addr del 127.0.0.1/8 dev lo"
# The other end of the link has a link-local address that is not valid yet: nobody asked for that one.
IPV6_LINK = """
ip link add va type veth peer name vb
ip addr add 2001:db8::7/64 dev va nodad
ip link set va addrgenmode none
ip link set va up
ip link set vb up
"""
SERVERS = [
    "pingpong rc",
    "pingpong ud",
    "pingpong srq",
    "pingpong xrc",
    "perf write lat",
    "perf read bw -R",
    "rping -s",
    "ucmatose",
    "udaddy",
    "rdma-server",
    "lab3 receiver",
]
CLIENTS = [
    "pingpong rc 127.0.0.1",
    "perf write lat 127.0.0.1",
    "rping -c -a 127.0.0.1",
    "ucmatose -s 127.0.0.1",
    "udaddy -s 127.0.0.1",
    "rdma-client",
    "mckey -m 239.1.2.3",
    "lab3 sender 127.0.0.1 /etc/hostname --id a",
]
# Runs the server, and then what it says is its client.
MEET = """
import shlex, subprocess, sys  # -1 is a pipe, -3 /dev/null
rnic = [sys.executable, "-m", "rnic"]
server = subprocess.Popen([*rnic, *sys.argv[1:]], stderr=-1, stdout=-3, text=True)
where, client = server.stderr.readline(), server.stderr.readline()
print(where + client, end="", flush=True)
words = shlex.split(client.removeprefix("client: rnic "))
asked = subprocess.run([*rnic, *words], stdin=subprocess.DEVNULL).returncode
if asked:
    server.kill()
print(server.stderr.read(), asked, server.wait())
"""


def on(host: str, command: str, up: bool = True) -> tuple[int, str, str]:
    """A command on a host that was made by a script; exit code, stdout and stderr."""
    need("ip", "iproute2")
    result = within("sh", "-ec", f"{host}\nexec {command}", up=up)
    if "veth" in host and "RTNETLINK" in result.err:
        pytest.skip(f"no veth interfaces: {result.err}")
    return result.status, result.out, result.err


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", ["demo --size 1M", "perf write lat --local -n 100"])
def test_two_processes_meet_over_ipv6(command: str) -> None:
    status, out, err = on(IPV6_ALONE, f"{RNIC} {command}")
    assert (status, err) == (0, "")
    assert "roce_lo" in out


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["roce_va", "iwarp_va"])
def test_the_processes_of_a_demo_meet_where_its_device_is(device: str) -> None:
    status, out, err = on(IPV6_LINK, f"{RNIC} demo --size 1M -d {device}")
    assert (status, err) == (0, "")
    assert f" over {device}\n" in out


@pytest.mark.one_in(4)  # so each host is tried with others of the servers
@pytest.mark.parametrize("server", [one for one in SERVERS if "lab3" not in one and "-R" not in one])
@pytest.mark.parametrize("host", [IPV6_ALONE, IPV6_LINK, IPV6_ALONE + IPV6_LINK], ids=["::1", "both", "IPv6"])
def test_a_server_says_what_its_client_is(server: str, host: str) -> None:
    few = {"perf": "-n 10", "rping": "-C 2", "pingpong": "-s 1024"}.get(server.split()[0], "")
    meet = shlex.join([sys.executable, "-c", MEET, *server.split(), *few.split()])
    status, out, err = on(host, meet)
    assert status == 0, err
    address = "2001:db8::7" if host != IPV6_ALONE else "::1"
    where, client, *_, end = out.splitlines()
    assert where.startswith("listening on port ")
    assert address in where
    assert address in client or "veth" in host
    assert end.split()[-2:] == ["0", "0"], (out, err)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("command", ["devices", "demo", "perf write lat --local", *SERVERS, *CLIENTS])
def test_a_host_without_addresses_has_a_cure(command: str, up: bool) -> None:
    host = "ip addr flush dev lo" if up else ":"
    status, _, err = on(host, f"{RNIC} {command}", up)
    assert status in (1, 3), err
    assert err.splitlines()[-1].startswith("rnic: ")
    assert ("ip addr add" if up else "ip link set lo up") in err
    assert err.count("rnic doctor") == 1


def test_grading_needs_no_ipv4(tmp_path: Path) -> None:
    script = tmp_path / "sender.py"
    script.write_text(solution())
    status, out, err = on(IPV6_ALONE, f"{RNIC} lab3 grade {script}")
    assert (status, err) == (0, ""), out


def test_a_receiver_of_lab3_says_who_can_send(rnic: Start, tmp_path: Path) -> None:
    server = rnic("lab3", "receiver", "--once", "-p", 0, "--dir", tmp_path)
    server.listening()
    words = [{"FILE": "/etc/hostname", "NAME": "alice"}.get(word, word) for word in server.client[2:]]
    assert (rnic(*words).wait().status, server.wait().status) == (0, 0)


def test_doctor_tries_ipv6_where_that_is_all() -> None:
    status, out, _ = on(IPV6_ALONE, f"{RNIC} doctor --json")
    assert status == 0
    assert by_name(out)["UDP segmentation"].found == "3 packets in one call"
    assert by_name(out)["C programs"].state.value != "degraded"


def test_doctor_says_that_the_loopback_interface_is_down() -> None:
    _, out, _ = on(IPV6_LINK, f"{RNIC} doctor --json", up=False)
    found = by_name(out)["loopback interface"]
    assert (found.state.value, found.cure) == ("missing", "ip link set lo up")


def test_a_servers_addresses_begin_with_those_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["127.0.0.1", "::1", "fe80::1", "2001:db8::7", "192.0.2.7"]
    monkeypatch.setattr(network, "addresses", lambda: [(1, ip_address(one)) for one in known])
    assert (
        network.reached_at("") == network.reached_at("::") == ["192.0.2.7", "2001:db8::7", "127.0.0.1", "::1"]
    )
    assert network.reached_at("0.0.0.0") == ["192.0.2.7", "127.0.0.1"]
    assert network.reached_at("127.0.0.5") == ["127.0.0.5"]


def test_an_address_of_a_link_has_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "addresses", lambda: [(1, ip_address("fe80::1"))])
    assert network.reached_at("::") == ["fe80::1%lo"]
    assert network.here() == "fe80::1%lo"


def test_a_device_whose_interface_has_lost_its_addresses_has_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    device = get_device_list()[0]
    monkeypatch.setattr(network, "addresses", lambda: [(device.index + 1, ip_address("192.0.2.7"))])
    words = f"{device.name}: the network interface {device.netdev} has no address: `ip addr add "
    with pytest.raises(Failure, match=re.escape(words)):
        network.here(device)


def test_a_failure_without_descriptors_is_told() -> None:
    """What is wrong with the host cannot be asked for then."""
    program = "import resource; from rnic.cli.main import _fail; "
    program += "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); _fail('so')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
    assert done.stderr == "rnic: so\n"


def test_what_both_ends_need_is_in_the_clients_command(rnic: Start) -> None:
    server = rnic("pingpong", "rc", "-p", 0, "-s", "8K", "--iters", 7, "-c", "-d", "roce_lo")
    port = server.listening()
    assert server.client[:4] == ["client:", "rnic", "pingpong", "rc"]
    assert server.client[5:] == ["-s", "8192", "-n", "7", "-c", "-p", str(port)]
    good = rnic(*server.client[2:]).wait()
    assert (good.status, server.wait().status) == (0, 0)


def test_a_client_of_perf_is_told_what_the_server_insists_on(rnic: Start) -> None:
    server = rnic("perf", "write", "lat", "-p", 0, "-n", 50, "--loop", "python")
    server.listening()
    assert rnic(*server.client[2:]).wait().status == 0
    assert server.wait().status == 0


@pytest.mark.parametrize("words", ["-d nosuch", "GID 99", "-d roce_lo GID 99"])
@pytest.mark.parametrize(
    "command",
    [
        *(f"pingpong {kind}{end}" for kind in ("rc", "uc", "ud", "srq", "xrc") for end in ("", " 192.0.2.1")),
        *(f"perf write lat{end}" for end in ("", " 192.0.2.1", " --local")),
    ],
)
def test_what_does_not_exist_is_refused_at_once(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anybody is called: the client's host does not answer."""
    index = "-x" if "perf" in command else "-g"
    assert run([*command.split(), *words.replace("GID", index).split()]) == 1
    assert capsys.readouterr().err.startswith(
        "rnic: open_device: no device nosuch" if "nosuch" in words else "rnic: query_gid: "
    )
