# SPDX-License-Identifier: Apache-2.0
"""The structs of rnic.ucma.layouts are those of the kernel's headers, as a C compiler lays them out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from packages import need_package
from rnic.ucma import layouts
from rnic.ucma.layouts import Cmd, Layout

HEADER = Path("/usr/include/rdma/rdma_user_cm.h")
STRUCTS = {
    "rdma_ucm_cmd_hdr": layouts.HEADER,
    "rdma_ucm_create_id": layouts.CREATE_ID,
    "rdma_ucm_destroy_id": layouts.OF_ID,
    "rdma_ucm_bind_ip": layouts.BIND_IP,
    "rdma_ucm_bind": layouts.BIND,
    "rdma_ucm_resolve_ip": layouts.RESOLVE_IP,
    "rdma_ucm_resolve_addr": layouts.RESOLVE_ADDR,
    "rdma_ucm_resolve_route": layouts.RESOLVE_ROUTE,
    "rdma_ucm_query": layouts.QUERY,
    "rdma_ucm_query_route_resp": layouts.ROUTE_RESP,
    "rdma_ucm_query_addr_resp": layouts.ADDR_RESP,
    "rdma_ucm_query_path_resp": layouts.PATH_RESP,
    "rdma_ucm_conn_param": layouts.CONN_PARAM,
    "rdma_ucm_ud_param": layouts.UD_PARAM,
    "rdma_ucm_ece": layouts.ECE,
    "rdma_ucm_connect": layouts.CONNECT,
    "rdma_ucm_listen": layouts.LISTEN,
    "rdma_ucm_accept": layouts.ACCEPT,
    "rdma_ucm_reject": layouts.REJECT,
    "rdma_ucm_disconnect": layouts.DISCONNECT,
    "rdma_ucm_init_qp_attr": layouts.INIT_QP_ATTR,
    "rdma_ucm_notify": layouts.NOTIFY,
    "rdma_ucm_join_ip_mcast": layouts.JOIN_IP_MCAST,
    "rdma_ucm_join_mcast": layouts.JOIN_MCAST,
    "rdma_ucm_get_event": layouts.GET_EVENT,
    "rdma_ucm_event_resp": layouts.EVENT_RESP,
    "rdma_ucm_set_option": layouts.SET_OPTION,
    "rdma_ucm_migrate_id": layouts.MIGRATE_ID,
    "rdma_ucm_resolve_ib_service": layouts.RESOLVE_IB_SERVICE,
    "rdma_ucm_write_cm_event": layouts.WRITE_CM_EVENT,
    "ib_user_path_rec": layouts.PATH_REC,
    "ib_path_rec_data": layouts.PATH_DATA,
    "ib_uverbs_ah_attr": layouts.AH_ATTR,
    "ib_uverbs_qp_attr": layouts.QP_ATTR,
}
NEWER = {"rdma_ucm_resolve_ib_service", "rdma_ucm_write_cm_event", "RESOLVE_IB_SERVICE", "WRITE_CM_EVENT"}
"""Of Linux 6.17: older headers do not have them."""
# Names that a Layout has of its own: for what is there twice, in a struct inside, or at an index.
OTHER_NAMES = {
    "ib_uverbs_ah_attr": {
        "dgid": "grh.dgid",
        "flow_label": "grh.flow_label",
        "sgid_index": "grh.sgid_index",
        "hop_limit": "grh.hop_limit",
        "traffic_class": "grh.traffic_class",
        "reserved": "grh.reserved",
        "reserved2": "reserved",
    },
    "rdma_ucm_resolve_ib_service": {"service": "ib_service"},
    "rdma_ucm_query_route_resp": {"route0": "ib_route[0]", "route1": "ib_route[1]"},
}
# The layout of these ends with a padding that has no name.
PADDED = {"rdma_ucm_bind_ip": 40, "rdma_ucm_join_ip_mcast": 48}


def expressions(name: str, layout: Layout) -> list[tuple[str, int]]:
    """What C says of a struct, and what it has to be."""
    names = OTHER_NAMES.get(name, {})
    found = [(f"sizeof(struct {name})", PADDED.get(name, layout.size))]
    found += [(f"offsetof(struct {name}, {names.get(one, one)})", layout.offset(one)) for one in layout.names]
    return found


def test_layouts_are_those_of_the_header(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not HEADER.exists():
        need_package("gcc", "linux-libc-dev")
    left_out = NEWER if "rdma_ucm_write_cm_event" not in HEADER.read_text() else set()
    wanted = [
        pair for name, layout in STRUCTS.items() if name not in left_out for pair in expressions(name, layout)
    ]
    wanted += [(f"RDMA_USER_CM_CMD_{one.name}", one.value) for one in Cmd if one.name not in left_out]
    source = tmp_path / "layouts.c"
    lines = ["#include <stddef.h>", "#include <rdma/rdma_user_cm.h>"]
    lines += [f'_Static_assert({text} == {value}, "{text}");' for text, value in wanted]
    source.write_text("\n".join([*lines, ""]))
    done = subprocess.run([compiler, "-fsyntax-only", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
