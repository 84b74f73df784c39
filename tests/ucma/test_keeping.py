# SPDX-License-Identifier: Apache-2.0
"""Devices that stay open for the next id."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from rnic.rdmacm.registry import registry
from rnic.ucma import Server, keeping
from ucma.client import Device, resolved
from waiting import until

EVER = 10**15  # ns


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that ids have opened, one after another."""
    names: list[str] = []
    module = importlib.import_module("rnic.rdmacm.registry")  # a name that the package has, too
    open_device = module.open_device

    def count(device: Any) -> Any:
        names.append(device.name)
        return open_device(device)

    until(lambda: not registry.agents(), "no other test's device is open")
    monkeypatch.setattr(module, "open_device", count)
    return names


def use(device: Device) -> None:
    """As fi_getinfo(3) of libfabric does."""
    device.destroy_id(resolved(device, 9))


def test_ids_one_after_another_open_a_device_once(
    device: Device, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "STAY_NS", EVER)
    for _ in range(20):
        use(device)
    assert len(opened) == 1


def test_a_device_that_nobody_uses_is_closed(
    device: Device, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "STAY_NS", 10**7)
    for count in (1, 2):
        use(device)
        until(lambda: not registry.agents(), "the device is closed")
        assert len(opened) == count


def test_a_device_that_is_removed_is_not_kept(
    device: Device, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "STAY_NS", EVER)
    use(device)
    with registry.lock:
        (agent,) = registry.agents()
        for one in list(agent.ids):
            one.device_removed(agent)
    until(lambda: not registry.agents(), "the device is closed")
    use(device)
    assert len(opened) == 2


def test_the_end_of_the_server_closes_what_is_kept(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "STAY_NS", EVER)
    with Server(str(tmp_path / "ucma")), Device(str(tmp_path / "ucma")) as device:
        use(device)
        assert registry.agents()
    until(lambda: not registry.agents(), "the device is closed")
    assert len(opened) == 1
