# SPDX-License-Identifier: Apache-2.0
"""One truth for names and values: rnic's Python, rnic's C and libibverbs agree."""

import importlib.util
import json
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rnic import enums
from rnic._nic import nic

# rnic's group of rows in C: its Python class, libibverbs' enum.
GROUPS = {
    "qp_state": (enums.QPState, "ibv_qp_state"),
    "qp_type": (enums.QPType, "ibv_qp_type"),
    "mtu": (enums.MTU, "ibv_mtu"),
    "mig_state": (enums.MigState, "ibv_mig_state"),
    "port_state": (enums.PortState, "ibv_port_state"),
    "link_layer": (enums.LinkLayer, "link_layer"),
    "gid_type": (enums.GIDType, "ibv_gid_type"),
    "transport": (enums.Transport, "ibv_transport_type"),
    "node_type": (enums.NodeType, "ibv_node_type"),
    "atomic_cap": (enums.AtomicCap, "ibv_atomic_cap"),
    "access_flags": (enums.AccessFlags, "ibv_access_flags"),
    "qp_attr_mask": (enums.QPAttrMask, "ibv_qp_attr_mask"),
    "srq_attr_mask": (enums.SRQAttrMask, "ibv_srq_attr_mask"),
    "srq_type": (enums.SRQType, "ibv_srq_type"),
    "ops_wr_opcode": (enums.OpsWROpcode, "ibv_ops_wr_opcode"),
    "ops_flags": (enums.OpsFlags, "ibv_ops_flags"),
    "tm_cap_flags": (enums.TMCapFlags, "ibv_tm_cap_flags"),
    "wr_opcode": (enums.WROpcode, "ibv_wr_opcode"),
    "send_flags": (enums.SendFlags, "ibv_send_flags"),
    "wc_status": (enums.WCStatus, "ibv_wc_status"),
    "wc_opcode": (enums.WCOpcode, "ibv_wc_opcode"),
    "wc_flags": (enums.WCFlags, "ibv_wc_flags"),
    "event_type": (enums.EventType, "ibv_event_type"),
    "device_cap": (enums.DeviceCap, "ibv_device_cap_flags"),
    "create_cq_wc_flags": (enums.CreateCQWCFlags, "ibv_create_cq_wc_flags"),
    "cq_init_attr_mask": (enums.CQInitAttrMask, "ibv_cq_init_attr_mask"),
    "create_cq_attr_flags": (enums.CreateCQAttrFlags, "ibv_create_cq_attr_flags"),
    "cq_attr_mask": (enums.CQAttrMask, "ibv_cq_attr_mask"),
    "values_mask": (enums.ValuesMask, "ibv_values_mask"),
    "counter_description": (enums.CounterDescription, "ibv_counter_description"),
    "read_counters_flags": (enums.ReadCountersFlags, "ibv_read_counters_flags"),
    "comp_cntr_type": (enums.CompCntrType, "ibv_comp_cntr_type"),
    "comp_cntr_op": (enums.QPAttachCompCntrOp, "ibv_qp_attach_comp_cntr_op"),
    "rereg_mr_flags": (enums.ReregMRFlags, "ibv_rereg_mr_flags"),
    "odp_general_caps": (enums.ODPGeneralCap, "ibv_odp_general_caps"),
    "odp_transport_caps": (enums.ODPTransportCap, "ibv_odp_transport_cap_bits"),
    "advise_mr_advice": (enums.AdviseMRAdvice, "ib_uverbs_advise_mr_advice"),
    "advise_mr_flags": (enums.AdviseMRFlags, "ib_uverbs_advise_mr_flag"),
    "mw_type": (enums.MWType, "ibv_mw_type"),
    "device_cap_ex": (enums.DeviceCapEx, ""),
    "placement_type": (enums.PlacementType, ""),
    "selectivity_level": (enums.SelectivityLevel, ""),
    "qp_init_attr_mask": (enums.QPInitAttrMask, "ibv_qp_init_attr_mask"),
    "qp_create_flags": (enums.QPCreateFlags, "ibv_qp_create_flags"),
    "qp_send_ops": (enums.SendOpsFlags, "ibv_qp_create_send_ops_flags"),
    "stream_rtr": (enums.StreamRTR, ""),
    "stream_end": (enums.StreamEnd, ""),
    "flow_attr_type": (enums.FlowAttrType, "ibv_flow_attr_type"),
    "flow_flags": (enums.FlowFlags, "ibv_flow_flags"),
    "flow_spec_type": (enums.FlowSpecType, "ibv_flow_spec_type"),
    "rx_hash_function": (enums.RxHashFunction, "ibv_rx_hash_function_flags"),
    "rx_hash_fields": (enums.RxHashFields, "ibv_rx_hash_fields"),
    "wq_type": (enums.WQType, "ibv_wq_type"),
    "wq_flags": (enums.WQFlags, "ibv_wq_flags"),
    "wq_state": (enums.WQState, "ibv_wq_state"),
    "wq_attr_mask": (enums.WQAttrMask, "ibv_wq_attr_mask"),
    "raw_packet_caps": (enums.RawPacketCaps, "ibv_raw_packet_caps"),
}

# Members that libibverbs gives to nobody; the values are those of the kernel's <rdma/ib_verbs.h>.
KERNELS_OWN = {
    "qp_type": {"GSI": 1},
    "access_flags": {"FLUSH_GLOBAL": 1 << 8, "FLUSH_PERSISTENT": 1 << 9},
    "wr_opcode": {"FLUSH": 14},
    "wc_opcode": {"FLUSH": 8},
    "device_cap_ex": {"FLUSH_GLOBAL": 1 << 38, "FLUSH_PERSISTENT": 1 << 39, "ATOMIC_WRITE": 1 << 40},
    "placement_type": {"GLOBAL": 1, "PERSISTENT": 2},
    "selectivity_level": {"RANGE": 0, "MR": 1},
    "qp_send_ops": {"FLUSH": 1 << 11},
    "odp_transport_caps": {"FLUSH": 1 << 6, "ATOMIC_WRITE": 1 << 7},
}

# Of extensions.
RNICS_OWN = {"stream_rtr", "stream_end"}

# What Debian's header does not have yet: rdma-core 64, ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3).
NEWER = {
    "ibv_comp_cntr_type": {"WRS": 0, "BYTES": 1},
    "ibv_qp_attach_comp_cntr_op": {
        "SEND": 1,
        "RECV": 2,
        "RDMA_READ": 4,
        "REMOTE_RDMA_READ": 8,
        "RDMA_WRITE": 16,
        "REMOTE_RDMA_WRITE": 32,
    },
}

# Fields of libibverbs that rnic leaves out on purpose: objects that it does not have.
LEFT_OUT = {
    "ibv_device_attr": {
        "max_ee_rd_atom",
        "max_ee_init_rd_atom",
        "max_ee",
        "max_rdd",
        "max_raw_ipv6_qp",
        "max_raw_ethy_qp",
        "max_total_mcast_qp_attach",
        "max_fmr",
        "max_map_per_fmr",
    },
    "ibv_port_attr": {"port_cap_flags2"},
    "ibv_send_wr": {"hdr", "hdr_sz", "mss", "tso"},
}

# Fields that libibverbs has elsewhere: in ibv_cq_ex, in ibv_qp_init_attr_ex.
EXTENDED = {"ibv_wc": {"flow_tag", "ip_version"}, "ibv_qp_init_attr": {"rwq_ind_tbl", "rx_hash_conf"}}


@pytest.fixture(scope="module")
def stored() -> Any:
    return json.loads(Path(__file__).with_name("libibverbs_values.json").read_text())


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for group, name, value in nic.enum_rows():
        found.setdefault(group, {})[name] = value
    return found


@pytest.fixture(scope="module")
def make_values() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_values", Path(__file__).with_name("make_values.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_group_of_the_core_has_its_class(rows: dict[str, dict[str, int]]) -> None:
    assert set(rows) == set(GROUPS)
    assert {cls.__name__ for cls, _ in GROUPS.values()} == set(enums.__all__)


@pytest.mark.parametrize("group", GROUPS)
def test_python_equals_the_core(group: str, rows: dict[str, dict[str, int]]) -> None:
    cls = GROUPS[group][0]
    assert {name: member.value for name, member in cls.__members__.items()} == rows[group]


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in RNICS_OWN])
def test_values_are_libibverbs_own(group: str, stored: Any) -> None:
    cls, theirs = GROUPS[group]
    known = (NEWER | stored["enums"]).get(theirs, {}) | KERNELS_OWN.get(group, {})
    for name, member in cls.__members__.items():
        assert known[name] == member, name


def test_no_enumeration_but_a_flag_has_two_names_for_a_value() -> None:
    for cls, _ in GROUPS.values():
        if issubclass(cls, IntEnum):
            assert len(cls) == len(cls.__members__)


def test_structs_have_libibverbs_fields_in_its_order(
    stored: Any, root: Path, make_values: ModuleType
) -> None:
    headers = [(root / "src/nic" / name).read_text() for name in ("nic.h", "nic_raw.h")]
    header = make_values.without_comments("".join(headers))
    for struct, theirs in stored["fields"].items():
        ours = make_values.fields(make_values.body(header, "struct", struct.replace("ibv_", "rnic_")))
        wanted = [name for name in theirs if name not in LEFT_OUT.get(struct, ())]
        if struct == "ibv_send_wr":
            arm = ours.index("flush")  # rnic's own
            del ours[arm - 5 : arm + 1]
        if struct == "ibv_device_attr":
            assert ours.pop() == "max_inline_data"
        assert [name for name in ours if name not in EXTENDED.get(struct, ())] == wanted, struct


def test_texts_of_the_core_are_whole() -> None:
    names = nic.counter_names()
    assert len(set(names)) == len(names) == len(nic.counter_texts())
    assert all(nic.counter_texts())
    causes = nic.vendor_err_texts()
    assert causes[0] == ("NONE", "")
    assert all(text for _, text in causes[1:])


def test_mtu_knows_its_bytes() -> None:
    assert [mtu.nbytes for mtu in enums.MTU] == [256, 512, 1024, 2048, 4096]


def test_names_are_formatted_as_texts_and_numbers_as_numbers() -> None:
    status = enums.WCStatus.LOC_LEN_ERR
    assert (
        f"{status:<12}|{status:>12}|{status:s}|{status:^13}"
        == "LOC_LEN_ERR | LOC_LEN_ERR|LOC_LEN_ERR| LOC_LEN_ERR "
    )
    assert f"{status:d}|{status:#04x}|{status:3d}" == "1|0x01|  1"
    assert f"{enums.AccessFlags(0):>4}" == " 0x0"
