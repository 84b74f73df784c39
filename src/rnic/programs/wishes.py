# SPDX-License-Identifier: Apache-2.0
"""What a user of `rnic run` asks for beside the program, as variables of the environment (nic_env.h).

Names and rates are for all that a program meets: its own devices, the files of sysfs, the server of
RDMA-CM. Faults, failures, events and limits are for the program alone: the server has devices of its own,
whose work is to go well.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from rnic._nic import nic
from rnic.errors import VerbsError
from rnic.ucma import Removal
from rnic.verbs.device import Device, get_device_list, open_device

SHARED = {"local": "RNIC_LOCAL", "device": "RNIC_DEVICES", "name": "RNIC_NAMES", "rate": "RNIC_RATE"}
OWN = {"limits": "RNIC_LIMITS", "fault": "RNIC_FAULT", "fail": "RNIC_FAIL", "event": "RNIC_EVENTS"}
_MOST_LIMITS = 1 << 16  # bytes of a file of limits: all names need some hundred
_BETWEEN = {"name": ",", "event": ",", "fail": ";"}


class WishError(ValueError):
    """Something that cannot be had."""


def accept(options: dict[str, Any]) -> dict[str, str]:
    """Put what all share into this process' environment, and return the variables for the program alone.

    What the environment has for the program alone is taken out of it. Raises WishError for a value that no
    device understands, and for devices that there are not.
    """
    own = {variable: os.environ.pop(variable, "") for variable in OWN.values()}
    for option, value in options.items():
        if value is None or value == ():
            continue
        text = limits(value) if isinstance(value, Path) else _BETWEEN.get(option, "").join(value)
        variable = SHARED.get(option) or OWN[option]
        _check(f"--{option}: ", variable, text)
        (os.environ if option in SHARED else own)[variable] = text
    for variable, text in (os.environ | own).items():
        if text and variable.startswith("RNIC_"):
            _check("", variable, text)
    _look_for(options)
    _try_limits(own[OWN["limits"]])
    return {variable: text for variable, text in own.items() if text}


def _check(option: str, variable: str, text: str) -> None:
    try:
        nic.env_check(variable, text)
    except VerbsError as error:
        said = _plain(error, variable) if option else str(error.strerror)
        raise WishError(f"{option}{said}") from None


def shared() -> dict[str, str]:
    """The variables that this process has, too."""
    return {variable: os.environ[variable] for variable in SHARED.values() if os.environ.get(variable)}


def failures(own: dict[str, str]) -> list[nic.Failure]:
    """The calls that are to fail."""
    found: list[nic.Failure] = _with(OWN["fail"], own.get(OWN["fail"], ""), nic.env_fail)
    return found


def removals(own: dict[str, str]) -> list[Removal]:
    """The devices that are to be removed: these events concern RDMA-CM, too."""
    found = []
    for event in own.get(OWN["event"], "").split(","):
        what, _, time = event.partition("@")
        device, _, name = what.rpartition(":")
        if name.strip() == "device_removal":
            unit = 1e6 if time.endswith("ms") else 1e9
            found.append(Removal(device.strip(), round(float(time.rstrip("ms ") or 0) * unit)))
    return found


def limits(file: Path) -> str:
    """The attributes in a TOML file. Raises WishError if it is none, or has something else."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_LIMITS + 1)
        if len(text) > _MOST_LIMITS:
            raise ValueError(f"it has more than {_MOST_LIMITS} bytes")
        found = tomllib.loads(text.decode())
    except (OSError, ValueError) as error:
        raise WishError(f"--limits: {file}: {error}") from None
    if not all(type(value) is int for value in found.values()):
        raise WishError(f"--limits: {file}: its lines are names and numbers, as max_qp = 4")
    return ",".join(f"{name}={value}" for name, value in found.items())


def _look_for(options: dict[str, Any]) -> None:
    """Each device that is named has to be there."""
    everything = _all_devices()
    for name in options.get("name") or ():
        netdev = name.partition("=")[2].partition(":")[0].strip()
        if netdev not in [device.netdev for device in everything]:
            raise WishError(f"--name: no network interface {netdev} has an IP address")
    for name in (options.get("device") or "").split(","):
        _look_in(everything, "device", name)
    shown = get_device_list()
    for event in options.get("event") or ():
        for one in event.split(","):
            _look_in(shown, "event", one.partition(":")[0] if ":" in one else "")


def _look_in(devices: list[Device], option: str, name: str) -> None:
    names = [device.name for device in devices]
    if name.strip() and name.strip() not in names:
        known = ", ".join(names) or "none"
        raise WishError(f"--{option}: there is no device {name.strip()}; there are: {known}")


def _all_devices() -> list[Device]:
    """Also those that --device leaves out."""
    chosen = os.environ.pop(SHARED["device"], None)
    try:
        return get_device_list()
    finally:
        if chosen is not None:
            os.environ[SHARED["device"]] = chosen


def _plain(error: VerbsError, variable: str) -> str:
    """What is wrong, without the variable, which the user has not set."""
    return (error.strerror or str(error)).removeprefix(f"{variable}: ")


def _try_limits(text: str) -> None:
    def attempt() -> None:
        open_device(get_device_list()[0]).close()

    variable = OWN["limits"]
    if text and get_device_list():
        try:
            _with(variable, text, attempt)
        except VerbsError as error:
            raise WishError(f"--limits: {_plain(error, variable)}") from None


def _with(variable: str, text: str, call: Any) -> Any:
    """What a call returns while this process has a variable."""
    os.environ[variable] = text
    try:
        return call()
    finally:
        del os.environ[variable]
