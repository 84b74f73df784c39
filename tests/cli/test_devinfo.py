# SPDX-License-Identifier: Apache-2.0
"""The layout of ibv_devinfo: every line as the original prints it (tabs expanded) for the same attributes."""

import json
from types import SimpleNamespace

from rnic.cli import devinfo

DEVICE = SimpleNamespace(name="roce_eth0", netdev="eth0", transport=0)
ATTR = SimpleNamespace(
    fw_ver="0.1.0",
    node_guid=0x5054_00FF_FE12_3456,
    sys_image_guid=0x5054_00FF_FE12_3456,
    vendor_id=0xFFFFFF,
    vendor_part_id=0,
    hw_ver=0,
    phys_port_cnt=1,
    max_mr_size=0xFFFF_FFFF_FFFF_FFFF,
    page_size_cap=0xFFFF_F000,
    max_qp=16384,
    max_qp_wr=32768,
    device_cap_flags=1 << 10 | 1 << 12 | 1 << 30,
    max_sge=32,
    max_sge_rd=32,
    max_cq=1024,
    max_cqe=65536,
    max_mr=4096,
    max_pd=4096,
    max_qp_rd_atom=128,
    max_res_rd_atom=1024,
    max_qp_init_rd_atom=128,
    atomic_cap=1,
    max_mw=0,
    max_mcast_grp=0,
    max_mcast_qp_attach=0,
    max_ah=0,
    max_srq=0,
    max_srq_wr=0,
    max_srq_sge=0,
    max_pkeys=1,
    local_ca_ack_delay=15,
    max_inline_data=256,
)
PORT = SimpleNamespace(
    state=4,
    max_mtu=5,
    active_mtu=3,
    gid_tbl_len=2,
    port_cap_flags=0x10000,
    max_msg_sz=0x7FFFFFFF,
    bad_pkey_cntr=0,
    qkey_viol_cntr=0,
    pkey_tbl_len=1,
    lid=0,
    sm_lid=0,
    lmc=0,
    max_vl_num=1,
    sm_sl=0,
    subnet_timeout=0,
    init_type_reply=0,
    active_width=1,
    active_speed=1,
    phys_state=5,
    link_layer=2,
)
GIDS = [
    SimpleNamespace(
        gid=SimpleNamespace(raw=bytes.fromhex("fe80000000000000505400fffe123456")), gid_index=0, gid_type=2
    ),
    SimpleNamespace(
        gid=SimpleNamespace(raw=bytes(10) + b"\xff\xff\x0a\x4d\x00\x02"), gid_index=1, gid_type=2
    ),
]

# ibv_devinfo of rdma-core 44 prints this for such a device.
SHORT = """\
hca_id:\troce_eth0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t0.1.0
\tnode_guid:\t\t\t5054:00ff:fe12:3456
\tsys_image_guid:\t\t\t5054:00ff:fe12:3456
\tvendor_id:\t\t\t0xffffff
\tvendor_part_id:\t\t\t0
\thw_ver:\t\t\t\t0x0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t0
\t\t\tport_lid:\t\t0
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tEthernet
""".expandtabs()

VERBOSE_LINES = """\
\tmax_mr_size:\t\t\t0xffffffffffffffff
\tpage_size_cap:\t\t\t0xfffff000
\tmax_qp:\t\t\t\t16384
\tdevice_cap_flags:\t\t0x40001400
\t\t\t\t\tPORT_ACTIVE_EVENT
\t\t\t\t\tRC_RNR_NAK_GEN
\t\t\t\t\tUnknown flags: 0x40000000
\tatomic_cap:\t\t\tATOMIC_HCA (1)
\tmax_total_mcast_qp_attach:\t0
\tlocal_ca_ack_delay:\t\t15
\t\t\tmax_msg_sz:\t\t0x7fffffff
\t\t\tport_cap_flags:\t\t0x00010000
\t\t\tmax_vl_num:\t\t1 (1)
\t\t\tactive_width:\t\t1X (1)
\t\t\tactive_speed:\t\t2.5 Gbps (1)
\t\t\tphys_state:\t\tLINK_UP (5)
\t\t\tGID[  0]:\t\tfe80::5054:ff:fe12:3456, RoCE v2
\t\t\tGID[  1]:\t\t::ffff:10.77.0.2, RoCE v2
""".expandtabs()


def lines(*, verbose: bool) -> list[str]:
    return [
        *devinfo.device_lines(DEVICE, ATTR, verbose=verbose),
        *devinfo.port_lines(DEVICE, 1, PORT, GIDS, verbose=verbose),
    ]


def test_short_layout_is_ibv_devinfos() -> None:
    assert lines(verbose=False) == SHORT.splitlines()


def test_verbose_layout_holds_every_line_of_the_short_one_and_more() -> None:
    verbose = lines(verbose=True)
    assert set(SHORT.splitlines()) <= set(verbose)
    assert [line for line in VERBOSE_LINES.splitlines() if line not in verbose] == []


def test_timestamps_are_shown_by_their_mask_and_clock() -> None:
    extended = SimpleNamespace(completion_timestamp_mask=(1 << 64) - 1, hca_core_clock=1_000_000)
    shown = list(devinfo.clock_lines(extended))
    wanted = "\tcompletion timestamp_mask:\t\t\t0xffffffffffffffff\n\thca_core_clock:\t\t\t1000000kHZ"
    assert shown == wanted.expandtabs().splitlines()
    assert "        core clock not supported" in lines(verbose=True)


def test_receive_queues_that_cannot_be_shared_have_no_limits() -> None:
    assert not any("max_srq_wr" in line for line in lines(verbose=True))


def test_unknown_numbers_are_shown_not_hidden() -> None:
    assert devinfo.named(devinfo.PORT_STATES, 17) == "invalid (17)"
    assert devinfo.mtu(9) == "invalid MTU (9)"


def test_json_has_names_numbers_and_the_gid_table() -> None:
    port = devinfo.port_record(1, PORT, GIDS)
    record = json.loads(json.dumps(devinfo.device_record(DEVICE, ATTR, [port])))
    assert record["hca_id"] == "roce_eth0"
    assert record["node_guid"] == "5054:00ff:fe12:3456"
    assert record["max_qp"] == 16384
    assert record["device_caps"] == ["PORT_ACTIVE_EVENT", "RC_RNR_NAK_GEN", "Unknown flags: 0x40000000"]
    assert record["ports"][0]["state"] == "PORT_ACTIVE"
    assert record["ports"][0]["active_mtu"] == 1024
    assert record["ports"][0]["gids"][1] == {"index": 1, "gid": "::ffff:10.77.0.2", "type": "RoCE v2"}
