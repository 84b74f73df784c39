# SPDX-License-Identifier: Apache-2.0
"""Writes libibverbs_values.json: enum values and struct fields of libibverbs, out of its own header.

    python tests/api/make_values.py [/usr/include/infiniband/verbs.h]

Debian's package libibverbs-dev has the header.  The compiler says what the values are; the tests need
only the list.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEADER = Path("/usr/include/infiniband/verbs.h")
STORE = Path(__file__).with_name("libibverbs_values.json")

# libibverbs' enum: the prefix that its members carry.
ENUMS = {
    "ibv_qp_state": "IBV_QPS_",
    "ibv_qp_type": "IBV_QPT_",
    "ibv_mtu": "IBV_",
    "ibv_mig_state": "IBV_MIG_",
    "ibv_port_state": "IBV_PORT_",
    "ibv_gid_type": "IBV_GID_TYPE_",
    "ibv_transport_type": "IBV_TRANSPORT_",
    "ibv_node_type": "IBV_NODE_",
    "ibv_atomic_cap": "IBV_ATOMIC_",
    "ibv_access_flags": "IBV_ACCESS_",
    "ibv_qp_attr_mask": "IBV_QP_",
    "ibv_srq_attr_mask": "IBV_SRQ_",
    "ibv_srq_type": "IBV_SRQT_",
    "ibv_ops_wr_opcode": "IBV_WR_",
    "ibv_ops_flags": "IBV_OPS_",
    "ibv_tm_cap_flags": "IBV_TM_CAP_",
    "ibv_wr_opcode": "IBV_WR_",
    "ibv_send_flags": "IBV_SEND_",
    "ibv_wc_status": "IBV_WC_",
    "ibv_wc_opcode": "IBV_WC_",
    "ibv_wc_flags": "IBV_WC_",
    "ibv_event_type": "IBV_EVENT_",
    "ibv_device_cap_flags": "IBV_DEVICE_",
    "ibv_create_cq_wc_flags": "IBV_WC_EX_",
    "ibv_cq_init_attr_mask": "IBV_CQ_INIT_ATTR_MASK_",
    "ibv_create_cq_attr_flags": "IBV_CREATE_CQ_ATTR_",
    "ibv_cq_attr_mask": "IBV_CQ_ATTR_",
    "ibv_values_mask": "IBV_VALUES_MASK_",
    "ibv_counter_description": "IBV_COUNTER_",
    "ibv_read_counters_flags": "IBV_READ_COUNTERS_ATTR_",
    "ibv_rate": "IBV_",
    "ibv_fork_status": "IBV_FORK_",
    "ibv_rereg_mr_flags": "IBV_REREG_MR_",
    "ibv_odp_general_caps": "IBV_ODP_",
    "ibv_odp_transport_cap_bits": "IBV_ODP_SUPPORT_",
    "ib_uverbs_advise_mr_advice": "IB_UVERBS_ADVISE_MR_ADVICE_",
    "ib_uverbs_advise_mr_flag": "IB_UVERBS_ADVISE_MR_FLAG_",
    "ibv_mw_type": "IBV_MW_",
    "ibv_qp_init_attr_mask": "IBV_QP_INIT_ATTR_",
    "ibv_qp_create_flags": "IBV_QP_CREATE_",
    "ibv_qp_create_send_ops_flags": "IBV_QP_EX_WITH_",
    "ibv_flow_attr_type": "IBV_FLOW_ATTR_",
    "ibv_flow_flags": "IBV_FLOW_ATTR_FLAGS_",
    "ibv_flow_spec_type": "IBV_FLOW_SPEC_",
    "ibv_rx_hash_function_flags": "IBV_RX_HASH_FUNC_",
    "ibv_rx_hash_fields": "IBV_RX_HASH_",
    "ibv_wq_type": "IBV_WQT_",
    "ibv_wq_flags": "IBV_WQ_FLAGS_",
    "ibv_wq_state": "IBV_WQS_",
    "ibv_wq_attr_mask": "IBV_WQ_ATTR_",
    "ibv_raw_packet_caps": "IBV_RAW_PACKET_CAP_",
}
# An enum without a name: its members by prefix.
NAMELESS = {"link_layer": "IBV_LINK_LAYER_"}
STRUCTS = [
    "ibv_wc",
    "ibv_send_wr",
    "ibv_recv_wr",
    "ibv_sge",
    "ibv_qp_attr",
    "ibv_qp_init_attr",
    "ibv_qp_cap",
    "ibv_ah_attr",
    "ibv_global_route",
    "ibv_device_attr",
    "ibv_port_attr",
    "ibv_gid_entry",
    "ibv_cq_init_attr_ex",
    "ibv_moderate_cq",
    "ibv_modify_cq_attr",
    "ibv_cq_moderation_caps",
    "ibv_values_ex",
    "ibv_counter_attach_attr",
    "ibv_mw_bind_info",
    "ibv_mw_bind",
    "ibv_packet_pacing_caps",
    "ibv_qp_rate_limit_attr",
    "ibv_ece",
    "ibv_flow_attr",
    "ibv_flow_spec_eth",
    "ibv_flow_spec_ipv4",
    "ibv_flow_spec_ipv4_ext",
    "ibv_flow_spec_ipv6",
    "ibv_flow_spec_tcp_udp",
    "ibv_flow_eth_filter",
    "ibv_flow_ipv4_filter",
    "ibv_flow_ipv4_ext_filter",
    "ibv_flow_ipv6_filter",
    "ibv_flow_tcp_udp_filter",
    "ibv_wq_attr",
    "ibv_rx_hash_conf",
]


def without_comments(text: str) -> str:
    """The header without comments and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"^\s*#.*$", "", text, flags=re.M)


def body(text: str, kind: str, name: str) -> str:
    """What stands between the braces of that struct or enum."""
    start = re.search(rf"\b{kind} {name} {{", text)
    if start is None:
        raise SystemExit(f"no {kind} {name} in the header")
    depth, at = 1, start.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[start.end() : at - 1]


def members(text: str) -> list[str]:
    """The names that an enum's body defines."""
    return [part.split("=")[0].strip() for part in text.split(",") if part.strip()]


def fields(text: str) -> list[str]:
    """The names that a struct's body declares, those of unions and structs inside it included."""
    return re.findall(r"(\w+)(?:\[\w+\])?\s*[;,]", text)


def values(header: Path, names: list[str]) -> dict[str, int]:
    """What the compiler says that the names stand for."""
    lines = "\n".join(f'printf("{name} %lld\\n", (long long){name});' for name in names)
    program = f'#include <stdio.h>\n#include "{header}"\nint main(void) {{\n{lines}\nreturn 0;\n}}\n'
    with tempfile.TemporaryDirectory() as scratch:
        source, binary = Path(scratch, "values.c"), Path(scratch, "values")
        source.write_text(program)
        subprocess.run(["cc", "-o", str(binary), str(source)], check=True)
        output = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def main() -> None:
    header = Path(sys.argv[1]) if len(sys.argv) > 1 else HEADER
    shared = header.parents[1] / "rdma" / "ib_user_ioctl_verbs.h"  # what libibverbs takes from the kernel
    text = without_comments(header.read_text() + shared.read_text())
    groups = {group: members(body(text, "enum", group)) for group in ENUMS}
    for group, prefix in NAMELESS.items():
        groups[group] = sorted(set(re.findall(rf"\b{prefix}\w+", text)))
    found = values(header, [name for names in groups.values() for name in names])
    prefixes = ENUMS | NAMELESS
    store = {
        "enums": {
            group: {name.removeprefix(prefixes[group]): found[name] for name in names}
            for group, names in groups.items()
        },
        "fields": {name: fields(body(text, "struct", name)) for name in STRUCTS},
    }
    STORE.write_text(json.dumps(store, indent=1) + "\n")


if __name__ == "__main__":
    main()
