# SPDX-License-Identifier: Apache-2.0
"""A guest and rnic on the two ends of one wire."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capture import Capture
from ends import End, KernelEnd

from rnic.vm import Job, Machine

if TYPE_CHECKING:
    from siw_ends import CmEnd
    from tshark_check import Report
    from tshark_iwarp import Report as StreamReport

    from ucma.under import Program

VERBS_PORT = 7471
OURS = {"rxe": "roce", "siw": "iwarp"}  # the guest's kind of device, and rnic's
BY_READ = 0x40  # as siw's rtr_type: the RTR message is a READ
# How siw may ask for a connection, as its module parameters (rnic.vm.siw): 2 is the revision it prefers.
SIW = {
    "revision 2": "",
    "revision 1": "mpa_version=1",
    "CRC": "mpa_crc_required=1",
    "equals": "peer_to_peer=1",
    "equals by READ": f"peer_to_peer=1 rtr_type={BY_READ}",
}
_SIW_DEFAULTS = "mpa_version=2 mpa_crc_required=0 mpa_crc_strict=0 peer_to_peer=0 rtr_type=192"
MAX_HEADERS = 80  # what rxe sets aside for headers when it derives its MTU from the netdev's


def path_mtus(mtu: int) -> list[int]:
    """The path MTUs that the kernel allows on a network device with this MTU."""
    return [m for m in (256, 512, 1024, 2048, 4096) if m + MAX_HEADERS <= mtu]


class Link:
    """kind: of the guest's device, rxe or siw.

    reference: both ends are the kernel's, in one guest; it shows what the kernel alone makes of a test.
    """

    def __init__(self, mtu: int, kind: str = "rxe", *, reference: bool = False) -> None:
        self.mtu, self.kind, self.reference = mtu, kind, reference
        self.path_mtus = path_mtus(mtu)
        self.guest = Machine(transport=kind, mtu=mtu, cpus=2 if reference else 1, accelerator="tcg")
        self.device = f"{OURS[kind]}_{self.guest.netdev}"  # rnic's
        self.guest_ip = {"ipv4": self.guest.ip, "ipv6": self.guest.ip6}
        self.host_ip = {"ipv4": self.guest.host_ip, "ipv6": self.guest.host_ip6}
        self._ports = itertools.count(18515)
        self._verbs: Job | None = None
        self._context: Any = None
        self.stalled = ""  # how a test has seen that the guest's kernel does not go on

    def lost(self) -> str:
        """What there is to show of a guest that is of no more use; of one that lives and goes on ""."""
        return self.stalled or self.guest.lost()

    def kernel_sent(self) -> int:
        """How many packets the guest's rxe has sent."""
        return int(self.guest.check("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"))

    def kernel_end(self, family: str, **options: Any) -> End:
        """A QP of the guest's kernel; see KernelEnd for the options."""
        if self._verbs is None:
            script = Path(__file__).with_name("guest_verbs.py").resolve()
            self._verbs = self.guest.spawn(f"python3 -u '{script}' {VERBS_PORT}")
            self._verbs.expect("ready")
        return KernelEnd((self.guest.ip, VERBS_PORT), self.guest_ip[family], **options)

    def rnic_end(self, family: str, **options: Any) -> End:
        """A QP of rnic in this process."""
        if self.reference:
            return self.kernel_end(family, **options)
        from rnic_end import RnicEnd

        return RnicEnd(self.context, self.host_ip[family], **options)

    def siw_end(self, **options: Any) -> CmEnd:
        """A queue pair of the guest's siw; see SiwEnd for the options."""
        from siw_ends import PORT, SiwEnd

        if self._verbs is None:
            script = Path(__file__).with_name("guest_siw.py").resolve()
            self._verbs = self.guest.spawn(f"python3 -u '{script}' {PORT}")
            self._verbs.expect("ready")
        return SiwEnd((self.guest.ip, PORT), **options)

    def iwarp_end(self, **options: Any) -> CmEnd:
        """A queue pair of rnic's iWARP device in this process."""
        from siw_ends import RnicSiwEnd

        return RnicSiwEnd(self.device, **options)

    @property
    def context(self) -> Any:
        """rnic's device on this link, opened."""
        if self._context is None:
            import rnic

            self._context = rnic.open_device(self.device)
        return self._context

    def kernel_gid_index(self, family: str) -> int:
        return self.guest.gid_index(self.guest_ip[family])

    def rnic_gid_index(self, family: str) -> int:
        from rnic_end import gid_index

        return gid_index(self.context, self.host_ip[family])

    def rnic_faults(self, **faults: Any) -> None:
        """Lose, duplicate or reorder what rnic sends (see rnic.Faults); nothing without arguments."""
        if not self.reference:
            from rnic import Faults

            self.context.set_faults(Faults(**faults) if faults else None)

    def kernel_faults(self, *, loss: float = 0, duplicate: float = 0, reorder: float = 0) -> None:
        """Lose, duplicate or reorder what the guest sends; nothing without arguments."""
        if loss or duplicate or reorder:
            # netem sends a packet that it reorders at once, and all others after the delay.
            netem = f"loss {loss:%} duplicate {duplicate:%} delay 1ms reorder {reorder:%}"
            self.guest.check(f"tc qdisc replace dev eth0 root netem limit 100000 {netem}")
        else:
            self.guest.run("tc qdisc del dev eth0 root")

    def set_siw(self, parameters: str = "") -> None:
        """Give siw these parameters, "name=value ...", and all others their defaults."""
        for name, value in (word.split("=") for word in f"{_SIW_DEFAULTS} {parameters}".split()):
            self.guest.check(f"echo {value} >/sys/module/siw/parameters/{name}")

    @contextmanager
    def guest_down(self) -> Iterator[None]:
        """Meanwhile the guest's end of the link is down."""
        self.guest.check("ip link set eth0 down")
        try:
            yield
        finally:
            self.guest.check(
                "ip link set eth0 up; until grep -q up /sys/class/net/eth0/operstate; do sleep .05; done"
            )

    def port(self) -> int:
        """A TCP port that no test has used yet."""
        return next(self._ports)

    def guest_listens(self, port: int) -> None:
        """Return when something in the guest listens on the port."""
        self.guest.check(_listens(port), timeout=60)

    def host_listens(self, port: int) -> None:
        """Return when something on this machine listens on the port."""
        subprocess.run(["sh", "-c", _listens(port)], check=True, timeout=60)

    def program_listens(self, process: Program, port: int) -> None:
        """Return when an id of a program of rnic's has bound the port: of iWARP's, when it listens."""
        if self.kind == "siw":
            self.host_listens(port)
        else:
            process.listens(port)

    def close(self) -> None:
        try:
            if self._context is not None:
                self._context.close()
        finally:
            self.guest.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Wire:
    """A capture of a link's packets, and tshark as a second reader of them."""

    def __init__(self, link: Link, path: Path) -> None:
        what = "tcp" if link.kind == "siw" else "udp port 4791"
        self._link, self._capture = link, Capture(link.guest.netdev, path, what)

    def check_iwarp(self, allow: Sequence[str] = ()) -> StreamReport:
        """End the capture; of what both ends sent on iWARP, tshark must read what rnic.capture does."""
        from tshark_iwarp import check_iwarp

        from rnic.capture import read_pcap

        report = check_iwarp(read_pcap(self._capture.stop()), allow, self._link.guest_ip.values())
        print(f"{report.assert_clean().units} FPDUs: {dict(report.opcodes)}")
        return report

    def check(self) -> list[Report]:
        """End the capture; nothing that rnic sent may puzzle tshark or differ from what rnic.wire reads.

        The reports of what rnic and what the kernel sent.
        """
        from tshark_check import RXE_IPV6_CHECKSUM, check_records

        from rnic.capture import Record, read_pcap
        from rnic.wire import Packet

        ours: list[Record] = []
        theirs: list[Record] = []
        hosts = {ip_address(ip) for ip in self._link.host_ip.values()}
        for record in read_pcap(self._capture.stop()):
            packet = Packet.parse(record.data, record.linktype)
            (ours if ip_address(packet.ip.src) in hosts else theirs).append(record)
        self._count()
        reports = [check_records(ours), check_records(theirs, allow=[RXE_IPV6_CHECKSUM])]
        for sender, report in zip(("rnic", "the kernel"), reports, strict=True):
            print(f"from {sender}: {report.assert_clean()}")
        return reports

    def _count(self) -> None:
        """Nothing that the kernel sent was refused as malformed."""
        counters = self._link.context.counters()
        refusals = ("drop_short", "drop_bad_version", "drop_bad_opcode", "drop_bad_icrc", "drop_malformed")
        refused = {name: counters[name] for name in refusals if counters[name]}
        assert not refused, f"{refused} of {counters['rx_packets']} packets"

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self._capture.stop()


def _listens(port: int) -> str:
    return f"until grep -qE ':{port:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done"
