# SPDX-License-Identifier: Apache-2.0
"""`rnic devices` and `rnic info` on this machine's own devices."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from cli.commands import Start
from rnic import get_device_list
from rnic.cli.devices import info
from rnic.records import replace


def test_devices_lists_the_loopback_device(rnic: Start) -> None:
    result = rnic("devices").wait()
    assert (result.status, result.err) == (0, "")
    assert [line.split()[0] for line in result.out.splitlines()][:2] == ["device", "roce_lo"]
    assert "\x1b" not in result.out


def test_devices_has_a_line_for_each_address_with_what_a_program_asks_for(rnic: Start) -> None:
    lines = [line.split() for line in rnic("devices").wait().out.splitlines()]
    assert ["roce_lo", "lo", "ACTIVE", "4096", "RoCE", "v2", "0", "127.0.0.1"] in lines
    assert ["iwarp_lo", "lo", "ACTIVE", "4096", "iWARP", "-", "127.0.0.1"] in lines


def test_devices_as_json(rnic: Start) -> None:
    records = json.loads(rnic("devices", "--json").wait().out)
    (loopback,) = (record for record in records if record["name"] == "roce_lo")
    assert loopback["netdev"] == "lo"
    assert loopback["transport"] == "InfiniBand"


def test_info_is_laid_out_as_ibv_devinfo(rnic: Start) -> None:
    short = rnic("info", "roce_lo").wait().out
    verbose = rnic("info", "roce_lo", "-v").wait().out
    assert short.startswith("hca_id: roce_lo\n        transport:                      InfiniBand (0)\n")
    assert set(short.splitlines()) < set(verbose.splitlines())
    assert "state:                  PORT_ACTIVE (4)" in short
    assert "GID[  0]:               ::ffff:127.0.0.1, RoCE v2" in verbose
    assert re.search("raw packets: {20}(by the network device|within one context alone: .*needs)", verbose)


def test_info_of_all_devices_as_json_agrees_with_devices(rnic: Start) -> None:
    records = json.loads(rnic("info", "--json").wait().out)
    devices = json.loads(rnic("devices", "--json").wait().out)
    assert {r["hca_id"]: r["node_guid"] for r in records} == {d["name"]: d["node_guid"] for d in devices}
    loopback = next(record for record in records if record["hca_id"] == "roce_lo")
    assert loopback["raw_packet"]["wire"] is not bool(loopback["raw_packet"]["why"])
    assert loopback["ports"][0]["gids"][0] == {"index": 0, "gid": "::ffff:127.0.0.1", "type": "RoCE v2"}


def test_an_interface_has_a_device_of_each_transport(rnic: Start) -> None:
    records = json.loads(rnic("devices", "--json").wait().out)
    names = [record["name"] for record in records]
    assert names == [f"roce_{record['netdev']}" for record in records[: len(records) // 2]] + [
        f"iwarp_{record['netdev']}" for record in records[len(records) // 2 :]
    ]
    (own,) = (record for record in records if record["name"] == "iwarp_lo")
    assert (own["netdev"], own["transport"]) == ("lo", "iWARP")
    verbose = rnic("info", "iwarp_lo", "-v").wait().out
    assert verbose.startswith("hca_id: iwarp_lo\n        transport:                      iWARP (1)\n")
    assert re.search(r"max_mcast_grp: +0\n", verbose)
    assert re.findall(r"GID\[ +(\d)\]", verbose) == ["0"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_device_that_cannot_be_opened_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Its address may be tentative, or the interface has just gone."""
    loopback = next(one for one in get_device_list() if one.name == "roce_lo")
    monkeypatch.setattr("rnic.get_device_list", lambda: [replace(loopback, name="roce_gone"), loopback])
    result = CliRunner().invoke(info, options)
    assert result.exit_code == 1
    assert result.stderr.startswith("rnic: roce_gone: open_device: ")
    assert "roce_lo" in result.stdout
    assert "roce_gone" not in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        "info",
        "info roce_lo",
        "info iwarp_lo",
        "demo --size 1M",
        "perf send lat --local -n 5",
        "pingpong rc -p 0",
    ],
)
def test_a_wrong_value_of_the_environment_is_refused_by_whatever_opens_a_device(
    rnic: Start, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("RNIC_MPA_CRC", "maybe")
    result = rnic(*command.split()).wait()
    assert result.status == 1
    assert "open_device: RNIC_MPA_CRC is 'maybe', neither on nor off [EINVAL]" in result.err


def test_unknown_device_is_named(rnic: Start) -> None:
    result = rnic("info", "mlx5_0").wait()
    assert result.status == 1
    assert re.fullmatch("rnic: no device mlx5_0; there are: .*roce_lo.*\n", result.err)


def test_reader_that_leaves_early_sees_no_traceback(rnic: Start) -> None:
    command = rnic("info", "-v", "--json")
    assert command.process.stdout is not None
    command.process.stdout.close()
    assert command.process.stderr is not None
    assert command.process.stderr.read() == ""
    command.process.wait(120)
