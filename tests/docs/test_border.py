# SPDX-License-Identifier: Apache-2.0
"""The binding, `rnic perf` and the benchmark reach devices through nic.h alone: by providers, verbs, and
extensions that they ask for by name.  So does the message machine (src/msg), which the binding has, too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BINDING = ROOT / "src/rnic/_nic"
NIC_H = (ROOT / "src/nic/nic.h").read_text()
NIC_EXT_H = (ROOT / "src/nic/nic_ext.h").read_text()
PXD = (BINDING / "nic.pxd").read_text()
FUNCTION = re.compile(r"\(\*(\w+)(?: \"(\w+)\")?\)\(")
C_FILES = [*BINDING.glob("*.[ch]"), *(ROOT / "bench" / name for name in ("native.c", "loops.h", "tcp.h"))]

# What there is without an object of a device.
GLOBAL = {
    *("rnic_provider", "rnic_provider_add", "rnic_provider_check", "rnic_extension"),
    "rnic_init_ah_from_wc",
    *(
        "rnic_counter_name",
        "rnic_counter_text",
        "rnic_vendor_err_name",
        "rnic_vendor_err_text",
        "rnic_enum_row",
    ),
    "rnic_explain",
    *("rnic_env_row", "rnic_env_device", "rnic_env_local", "rnic_env_pkeys", "rnic_env_check"),
    "rnic_env_mpa_crc",
    *("rnic_env_fail", "rnic_fail_hits", "rnic_fail_name"),
}
# Verbs that libibverbs has by another name.
OTHERWISE = {
    "attach_comp_cntr": "ibv_qp_attach_comp_cntr",
    "close": "ibv_close_device",
    "close_all": "ibv_close_device",
    "create_xrc_qp": "ibv_create_qp_ex",
    "poll_cq_ex": "ibv_start_poll",
    "post_send_whole": "ibv_wr_complete",
    "query_rt_values": "ibv_query_rt_values_ex",
}
BESIDE = {"failed_fd", "wait"}
"""What a library in front of a device needs in order to wait as libibverbs does; each is named in nic.h."""


def struct(name: str, text: str) -> set[str]:
    """The functions of a struct in C."""
    body = text.partition(f"struct {name} {{")[2].partition("\n};")[0]
    return {found[0] for found in FUNCTION.findall(body)}


def declared(name: str) -> set[str]:
    """The same in Cython's declarations."""
    body = re.split(r"\n    \S", PXD.partition(f"\n    struct {name}:\n")[2])[0]
    return {found[1] or found[0] for found in FUNCTION.findall(body)}


def test_every_verb_is_one_of_libibverbs() -> None:
    store = json.loads((ROOT / "tests/conformance/functions.json").read_text())
    known = {name for part in (store, store["newer"]) for name in part["functions"]["infiniband/verbs.h"]}
    verbs = struct("rnic_ops", NIC_H)
    assert len(verbs) > 80
    assert {OTHERWISE.get(verb, f"ibv_{verb}") for verb in verbs - BESIDE} <= known
    assert set(OTHERWISE) | BESIDE <= verbs


EXTENSIONS = re.findall(r"^struct (rnic_ext_\w+) {", NIC_EXT_H, re.MULTILINE)


@pytest.mark.parametrize("name", ["rnic_ops", "rnic_provider", *EXTENSIONS])
def test_the_binding_has_the_tables_of_the_header(name: str) -> None:
    assert struct(name, NIC_EXT_H if name in EXTENSIONS else NIC_H) == declared(name) != set()


@pytest.mark.parametrize("name", EXTENSIONS)
def test_every_extension_has_a_name_and_is_looked_up_once(name: str) -> None:
    macro = name.upper()
    assert re.search(rf'^#define {macro} "rnic\.\w+/\d+"$', NIC_EXT_H, re.MULTILINE)
    used = [
        path.name for path in BINDING.glob("*.px[i]") for _ in re.findall(rf"\b{macro}\b", path.read_text())
    ]
    assert used == ["context.pxi"]


def test_the_binding_declares_no_other_function() -> None:
    plain = re.findall(r'^    (?!struct |union )[\w *]*?\b(rnic_\w+)(?: "(\w+)")?\(', PXD, re.MULTILINE)
    assert {cname or name for name, cname in plain} == GLOBAL
    headers = {
        name
        for path in [*BINDING.glob("*.p[xy][dix]")]
        for name in re.findall(r'cdef extern from "([^"<]+)"', path.read_text())
    }
    assert headers == {"nic.h", "msg/msg.h", "perf.h", "Python.h"}
    msg_h = (ROOT / "src/msg/msg.h").read_text()
    assert re.findall(r'^#include "(.+)"', msg_h, re.MULTILINE) == ["nic.h"]


@pytest.mark.parametrize("path", C_FILES, ids=lambda path: path.name)
def test_compiled_loops_know_nothing_else(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r'^#include "(.+)"', text, re.MULTILINE)) <= {
        "nic.h",
        "perf.h",
        "samples.h",
        "loops.h",
        "tcp.h",
    }
    assert set(re.findall(r"\b(rnic_\w+)\(", text)) <= GLOBAL
