# SPDX-License-Identifier: Apache-2.0
"""`rnic devices` and `rnic info`: what devices there are, and what they can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address
from typing import TypeVar

import click
from rich.console import Console

import rnic
from rnic.cli import completion, devinfo, screen
from rnic.cli.command import command
from rnic.cli.params import Failure
from rnic.rdmacm.routes import addresses
from rnic.wording import WHY_NO_DEVICE

T = TypeVar("T")
TAB = 8  # columns
FRAMES = "rnic.query/1"  # the extension that tells where frames go
NO_DEVICES = f"there are no devices, {WHY_NO_DEVICE}"


@command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def devices(as_json: bool) -> None:
    """List the RDMA devices of this machine: a RoCE one and an iWARP one for each network interface that has
    an address.

    There is a line for each address.  GID is its index in the device's GID table, which verbs and the option
    -g of many programs ask for; iWARP needs none.  MTU is the most payload of a packet.

    \b
    rnic devices
    rnic devices --json | jq -r '.[].name'
    """
    found = rnic.get_device_list()
    if as_json:
        records = [
            {
                "name": device.name,
                "node_guid": devinfo.guid(device.guid),
                "transport": devinfo.TRANSPORTS.get(int(device.transport), "invalid"),
                "netdev": device.netdev,
                "provider": device.provider,
            }
            for device in found
        ]
        click.echo(json.dumps(records, indent=2))
        return
    if not found:
        raise Failure(NO_DEVICES)
    headings = ("device", "interface", "state", "MTU", "type", "GID", "address")
    failed: list[rnic.Device] = []
    rows = [row for rows in _each(found, _rows, failed) for row in rows]
    if rows:
        screen.table(Console(highlight=False), headings, rows, tight=True)
    if failed:
        raise SystemExit(1)


def _rows(device: rnic.Device) -> list[tuple[str, ...]]:
    """A row for each address of the device; only RoCE's are named by an index of the GID table."""
    with device.open() as ctx:
        port, gids = ctx.query_port(1), list(ctx.query_gid_table())
    state = devinfo.PORT_STATES.get(int(port.state), "invalid").removeprefix("PORT_")
    start = (device.name, device.netdev, state, str(128 << int(port.active_mtu)))
    if int(device.transport) != 0:
        known = [str(ip) for index, ip in addresses() if index == device.index]
        return [(*start, devinfo.TRANSPORTS[int(device.transport)], "-", ip) for ip in known]
    return [
        (*start, devinfo.GID_TYPES[int(one.gid_type)], str(one.gid_index), _address(one.gid)) for one in gids
    ]


def _address(gid: rnic.GID) -> str:
    """A GID as people write it: an IPv4 address where it holds one."""
    ip = IPv6Address(bytes(gid.raw))
    return str(ip.ipv4_mapped or ip)


@command()
@click.argument("device", required=False, shell_complete=completion.devices)
@click.option(
    "-d",
    "--ib-dev",
    shell_complete=completion.devices,
    help="The device, as an option like ibv_devinfo's.",
    hidden=True,
)
@click.option("-v", "--verbose", is_flag=True, help="All attributes, and the GID table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (always all attributes).")
def info(device: str | None, ib_dev: str | None, verbose: bool, as_json: bool) -> None:
    """Show a device, or all of them, as ibv_devinfo does.

    \b
    rnic info
    rnic info roce_lo -v
    rnic info --json | jq '.[].ports[].gids'
    """
    wanted = device or ib_dev
    found = [one for one in rnic.get_device_list() if wanted in (None, one.name)]
    if not found:
        names = ", ".join(one.name for one in rnic.get_device_list())
        raise Failure(f"no device {wanted}; there are: {names}" if wanted and names else NO_DEVICES)
    failed: list[rnic.Device] = []
    if as_json:
        click.echo(json.dumps(list(_each(found, _record, failed)), indent=2))
    else:
        for lines in _each(found, lambda one: _lines(one, verbose), failed):
            show(lines)
            click.echo()
    if failed:
        raise SystemExit(1)


def show(lines: list[str]) -> None:
    """As ibv_devinfo does, with tabs; on a terminal that has no room for that, without them."""
    columns = screen.width()
    if columns is None or max(len(line.expandtabs()) for line in lines) <= columns:
        click.echo("\n".join(lines))
        return
    for line in lines:
        depth = (len(line.expandtabs()) - len(line.strip().expandtabs())) // TAB
        screen.say("  " * depth + " ".join(line.split()), 2 * depth + 2)


def _each(
    found: list[rnic.Device], show: Callable[[rnic.Device], T], failed: list[rnic.Device]
) -> Iterator[T]:
    """What there is to show of each device; one that cannot be opened now is named."""
    for device in found:
        try:
            shown = show(device)
        except rnic.VerbsError as error:
            click.echo(f"rnic: {device.name}: {error}", err=True)
            failed.append(device)
        else:
            yield shown


def _lines(device: rnic.Device, verbose: bool) -> list[str]:
    """One device in ibv_devinfo's layout."""
    with device.open() as ctx:
        attr = ctx.query_device()
        extended = ctx.query_device_ex()
        lines = list(devinfo.device_lines(device, attr, extended, verbose=verbose))
        if verbose and _has_frames(ctx, extended):
            lines += devinfo.frame_lines(extended, ctx.query_raw_packet())
        for number in range(1, attr.phys_port_cnt + 1):
            port, gids = ctx.query_port(number), list(ctx.query_gid_table())
            lines += devinfo.port_lines(device, number, port, gids, verbose=verbose)
    return lines


def _record(device: rnic.Device) -> dict[str, object]:
    """One device for JSON."""
    with device.open() as ctx:
        attr = ctx.query_device()
        gids = list(ctx.query_gid_table())
        ports = [
            devinfo.port_record(number, ctx.query_port(number), gids)
            for number in range(1, attr.phys_port_cnt + 1)
        ]
        record = devinfo.device_record(device, attr, ports)
        extended = ctx.query_device_ex()
        if _has_frames(ctx, extended):
            record["raw_packet"] = devinfo.frame_record(extended, ctx.query_raw_packet())
        return record


def _has_frames(ctx: rnic.Context, extended: rnic.DeviceAttrEx) -> bool:
    """Whether the device has RAW_PACKET queue pairs, and tells where their frames go."""
    return FRAMES in ctx.extensions and bool(extended.rss_caps.supported_qpts)
