# SPDX-License-Identifier: Apache-2.0
"""Programs that only look at what kernels show of devices: those of infiniband-diags that send no MADs."""

from __future__ import annotations

from errno import ENOSPC
from pathlib import Path

import pytest

import rnic
from ibverbs.programs import DEVICE
from packages import need
from rnic.programs import surroundings, tree
from ucma.under import Program, needs_libraries

pytestmark = needs_libraries

PACKAGE = "infiniband-diags"


def said(folder: Path, *words: str) -> str:
    """What a program says that succeeds."""
    with Program(*words, within=folder) as program:
        return program.good()


def test_ibstat(folder: Path) -> None:
    need("ibstat", PACKAGE)
    text = said(folder, "ibstat", DEVICE)
    (device,) = (one for one in rnic.get_device_list() if one.name == DEVICE)
    assert f"CA '{DEVICE}'" in text
    assert f"Node GUID: 0x{device.guid:016x}" in text
    assert "State: Active" in text
    assert "Link layer: Ethernet" in text


def test_ibstat_of_names(folder: Path) -> None:
    need("ibstat", PACKAGE)
    adapters = {one.name for one in rnic.get_device_list() if one.node_type is rnic.NodeType.CA}
    assert set(said(folder, "ibstat", "-l").split()) == adapters  # libibumad knows no iWARP devices


def test_what_an_iwarp_device_is(folder: Path) -> None:
    own = "/sys/class/infiniband/iwarp_lo"
    assert said(folder, "cat", f"{own}/node_type", f"{own}/ports/1/link_layer") == "4: RNIC\nEthernet\n"
    assert said(folder, "ls", f"{own}/ports/1/gids") == "0\n"


def test_ibstatus(folder: Path) -> None:
    need("ibstatus", PACKAGE)
    text = said(folder, "ibstatus", DEVICE)
    assert f"Infiniband device '{DEVICE}' port 1 status" in text
    assert "0000:0000:0000:0000:0000:ffff:7f00:0001" in text
    assert "4: ACTIVE" in text


class FullDisk:
    """An attempt to write there."""

    def __init__(self, *_: object) -> None:
        raise OSError(ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", [(tree, "add"), (surroundings, "Server")], ids=["tree", "socket"])
def test_full_disk_is_named(where: tuple[object, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*where, FullDisk)
    with pytest.raises(OSError, match="No space left") as caught, surroundings.serve():
        pass
    assert "/rnic-run-" in caught.value.filename
    assert not Path(caught.value.filename).exists()


def test_empty_entries_of_tables_are_one_file(tmp_path: Path) -> None:
    (device,) = (one for one in rnic.get_device_list() if one.name == DEVICE)
    tree.make(tmp_path)
    with rnic.open_device(device) as context:
        tree.add(tmp_path, 0, device, context)
    gids = list((tmp_path / f"sys/class/infiniband/{DEVICE}/ports/1/gids").iterdir())
    used = [gid for gid in gids if gid.read_text().strip("0:\n")]
    assert 0 < len(used) < len(gids)
    assert len({gid.stat().st_ino for gid in gids}) == len(used) + 1
