# SPDX-License-Identifier: Apache-2.0
"""What stands for a datagram's service level, which RoCE does not have: the header that it came with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import rnic
from ibverbs.programs import DEVICE, run
from packages import need_package
from ucma.under import needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

SOURCE = Path(__file__).with_name("programs") / "datagram.c"
INCLUDE = Path(rnic.__file__).parent / "include"
UDP_IPV4, UDP_IPV6 = 10, 9  # as mlx5 says it
PRIORITY = 3


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cc"):
        need_package("gcc")
    made = tmp_path_factory.mktemp("datagram") / "datagram"
    library = Path(rnic.__file__).parent / "lib/libibverbs.so.1"
    subprocess.run(["cc", "-Wall", "-Werror", f"-I{INCLUDE}", SOURCE, library, "-o", made], check=True)
    return made


@pytest.mark.parametrize("local", ["on", "off"])
@pytest.mark.parametrize(("address", "level"), [("127.0.0.1", UDP_IPV4), ("::1", UDP_IPV6)])
def test_completion_tells_the_header(program: Path, address: str, level: int, local: str) -> None:
    (device,) = (one for one in rnic.get_device_list() if one.name == DEVICE)
    with rnic.open_device(device) as context:
        gids = {entry.gid: entry.gid_index for entry in context.query_gid_table()}
    if (index := gids.get(rnic.GID(address))) is None:
        pytest.skip(f"this host's loopback does not have {address}")
    said = run(program, DEVICE, str(index), RNIC_LOCAL=local).text
    assert said.split() == [str(level), str(PRIORITY), str(level)]
