# SPDX-License-Identifier: Apache-2.0
"""The fault injector of a software RNIC: it loses, delays and corrupts packets that the device sends, and
harms the connections of an iWARP device.
"""

from collections.abc import Sequence

from rnic.records import Record

__all__ = ["Faults", "Lose"]


_PROBABILITIES = ("loss", "duplicate", "reorder", "delay", "flip", "mark", "reset", "stall", "flip_header")


class Lose(Record):
    """Lose particular packets: the nth packet with this opcode from now on, and count - 1 after it."""

    opcode: int | None = None
    """Opcode of the base transport header (IBA 9.2.1); None: any packet."""
    nth: int = 1
    """Counted from 1."""
    count: int = 1
    """How many are lost."""

    def __post_init__(self) -> None:
        if self.nth < 1 or self.count < 1:
            raise ValueError("nth and count begin at 1")


class Faults(Record):
    """Faults in what a device sends. Probabilities are between 0 and 1, drawn from the seed.

        ctx.set_faults(rnic.Faults(loss=0.01, seed=7))

    Context.set_faults() starts them; Context.counters() counts them (fault_lost ...). RoCE and iWARP devices
    both have delay and flip. The other faults are of packets (RoCE) or of connections (iWARP), and refused on
    the other kind of device: TCP hides what happens to packets.
    """

    seed: int = 1
    """What chance is drawn from: the same seed gives the same faults."""
    loss: float = 0.0
    """Probability that a packet is lost."""
    duplicate: float = 0.0
    """Probability that a packet is sent twice."""
    reorder: float = 0.0
    """Probability that a packet is sent behind reorder_gap later ones, or after delay_s if none follow."""
    delay: float = 0.0
    """Probability that a packet is sent delay_s later; iWARP: that a write to the socket waits so long."""
    flip: float = 0.0
    """Probability that one bit of a packet is flipped; iWARP: of a segment (FPDU), behind its length."""
    mark: float = 0.0
    """Probability of an ECN mark, as from a congested router, if congestion control allows marks."""
    reorder_gap: int = 3
    """Packets that overtake one that is reordered."""
    delay_s: float = 0.001
    """The delay of a delayed packet, in seconds."""
    lose: Sequence[Lose] = ()
    """Particular packets to lose: at most eight."""
    reset: float = 0.0
    """iWARP: probability that the connection is reset instead of a write to the socket."""
    stall: float = 0.0
    """iWARP: probability that it stands still from a write on, as if the peer had vanished."""
    reset_after: int = 0
    """iWARP: each connection is reset behind so many bytes that this end writes; 0: it is not."""
    stall_after: int = 0
    """iWARP: each connection stands still behind so many bytes; 0: it does not."""
    chunk: int = 0
    """iWARP: each read and write of the socket has 1 to `chunk` bytes, by chance; 0: as many as there are."""
    flip_header: float = 0.0
    """iWARP: probability that one bit in a segment's header is flipped, and its CRC is right."""

    def __post_init__(self) -> None:
        for name in _PROBABILITIES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, not {getattr(self, name)}")

    def as_struct(self) -> dict[str, int]:
        """The numbers of struct rnic_fault: parts per million, nanoseconds."""
        shares = {name: round(getattr(self, name) * 1e6) for name in _PROBABILITIES}
        return {
            **shares,
            "seed": self.seed,
            "reorder_gap": self.reorder_gap,
            "delay_ns": round(self.delay_s * 1e9),
            "reset_after": self.reset_after,
            "stall_after": self.stall_after,
            "chunk": self.chunk,
        }

    def rules(self) -> list[tuple[int, int, int]]:
        """(opcode, nth, count) of each packet to lose; opcode -1 stands for any."""
        return [(-1 if rule.opcode is None else rule.opcode, rule.nth, rule.count) for rule in self.lose]
