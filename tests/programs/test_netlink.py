# SPDX-License-Identifier: Apache-2.0
"""rdma(8), which asks by netlink, and what such a socket answers to nonsense."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rnic
from ibverbs.programs import DEVICE
from packages import need, need_package
from rnic.programs.netlink import Attr, Cmd, kind
from ucma.under import Program, needs_libraries

pytestmark = needs_libraries

HEADER = Path("/usr/include/rdma/rdma_netlink.h")
ASK = """
import socket, struct, sys
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20) as s:
    s.bind((0, 0))
    s.settimeout(60)
    request = bytes.fromhex(sys.argv[1])
    if sys.argv[2] == "sendmsg":
        s.sendmsg([request[:7], request[7:]], [], 0, (0, 0))
    else:
        s.sendto(request, (0, 0))
    kind, answer = 0, b""
    while kind not in (2, 3) or answer:
        answer = answer or s.recv(4096)
        length, kind, flags, seq, pid = struct.unpack_from("=IHHII", answer)
        print(kind, struct.unpack_from("=i", answer, 16)[0] if kind in (2, 3) else length)
        assert len(answer) >= length and pid == s.getsockname()[0] and seq == 0
        answer = answer[length + 3 & ~3:]
"""
GET, DUMP = "0114", "0503"  # the type of a request, and its flags: REQUEST, ACK, DUMP


def said(folder: Path, *words: str) -> str:
    """What rdma says."""
    need("rdma", "iproute2")
    with Program("rdma", *words, within=folder) as program:
        return program.good()


def test_links_are_listed(folder: Path) -> None:
    links = {one["ifname"]: one for one in json.loads(said(folder, "-j", "link", "show"))}
    assert links.keys() == {device.name for device in rnic.get_device_list()}
    link = links[DEVICE]
    assert (link["port"], link["state"], link["physical_state"]) == (1, "ACTIVE", "LINK_UP")
    assert (link["netdev"], link["netdev_index"]) == ("lo", socket.if_nametoindex("lo"))


def test_a_link_is_shown(folder: Path) -> None:
    assert f"link {DEVICE}/1 state ACTIVE" in said(folder, "link", "show", f"{DEVICE}/1")


def test_devices_are_listed(folder: Path) -> None:
    devices = {one["ifname"]: one for one in json.loads(said(folder, "-j", "dev", "show"))}
    (device,) = (one for one in rnic.get_device_list() if one.name == DEVICE)
    assert devices[DEVICE]["node_guid"] == device.guid_str
    assert devices[DEVICE]["node_type"] == "ca"
    assert devices["iwarp_lo"]["node_type"] == "rnic"


def test_what_nobody_answers_is_an_error(folder: Path) -> None:
    need("rdma", "iproute2")
    with Program("rdma", "resource", "show", within=folder) as program:
        assert program.wait() != 0
        assert "not supported" in program.text


NONSENSE = {
    "shorter than a header": ("1000000001", 22),
    "nothing at all": ("", 22),
    "an attribute that is too long": (f"18000000{GET}0500" + "00" * 8 + "ff00010000000000", 22),
    "an attribute of no length": (f"18000000{GET}0500" + "00" * 8 + "0000010000000000", 22),
    "a device that is not there": (f"18000000{GET}0500" + "00" * 8 + "08000100ffffff00", 95),
    "another type of message": ("10000000ffff0500" + "00" * 8, 95),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("call", ["sendto", "sendmsg"])
@pytest.mark.parametrize(("request_bytes", "errno"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused(request_bytes: str, errno: int, call: str, folder: Path) -> None:
    with Program(sys.executable, "-c", ASK, request_bytes, call, within=folder) as program:
        assert program.good().split() == ["2", str(-errno)]


STRANGER = """
import socket
def opened(protocol):
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
with opened(20) as s, opened(2) as t:
    s.bind((0, 0))
    t.bind((0, 0))
    try:
        t.sendto(bytes.fromhex("1400000003000200") + bytes(12), s.getsockname())
    except ConnectionRefusedError:
        pass
    s.setblocking(False)
    try:
        print(s.recv(8192))
    except BlockingIOError:
        print("nothing")
"""


def test_other_sockets_cannot_answer(folder: Path) -> None:
    with Program(sys.executable, "-c", STRANGER, within=folder) as program:
        assert program.good().split() == ["nothing"]


def test_all_devices_at_once(folder: Path) -> None:
    with Program(
        sys.executable, "-c", ASK, f"10000000{GET}{DUMP}" + "00" * 8, "sendmsg", within=folder
    ) as program:
        lines = program.good().splitlines()
    assert len(lines) == len(rnic.get_device_list()) + 1
    assert lines[-1] == "3 0"


def dumped(folder: Path, messages: int) -> str:
    """What a program sees of so many messages, all of them devices."""
    (folder / "netlink").mkdir()
    (folder / "netlink" / f"{kind(Cmd.GET)}").write_bytes(
        struct.pack("=IHHII100x", 116, kind(Cmd.GET), 2, 7, 7) * messages
    )
    request = f"10000000{GET}{DUMP}" + "00" * 8
    with Program(sys.executable, "-c", ASK, request, "sendto", within=folder) as program:
        program.wait()
        return program.text


def test_hundreds_of_devices(tmp_path: Path) -> None:
    lines = dumped(tmp_path, 600).splitlines()
    assert lines == [f"{kind(Cmd.GET)} 116"] * 600 + ["3 0"]


def test_more_devices_than_a_socket_has_room_for_are_an_error(tmp_path: Path) -> None:
    assert "No buffer space available" in dumped(tmp_path, 100000)


def enumerators() -> Iterator[tuple[str, int]]:
    yield from ((f"RDMA_NLDEV_CMD_{one.name}", int(one)) for one in Cmd)
    yield from ((f"RDMA_NLDEV_ATTR_{one.name}", int(one)) for one in Attr)


def test_numbers_are_the_kernels(tmp_path: Path) -> None:
    if not shutil.which("cc") or not HEADER.exists():
        need_package("gcc", "linux-libc-dev")
    checks = "".join(f'_Static_assert({name} == {value}, "{name}");\n' for name, value in enumerators())
    source = tmp_path / "numbers.c"
    source.write_text(f"#include <rdma/rdma_netlink.h>\n{checks}")
    subprocess.run(["cc", "-fsyntax-only", source], check=True)
