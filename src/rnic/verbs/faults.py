# SPDX-License-Identifier: Apache-2.0
"""The fault injector of a software RNIC: it loses, delays and corrupts packets that the device sends."""

from collections.abc import Sequence

from rnic.records import Record

__all__ = ["Faults", "Lose"]


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
    """Faults in the packets that a device sends. Probabilities are between 0 and 1, drawn from the seed.

        ctx.set_faults(rnic.Faults(loss=0.01, seed=7))

    Context.set_faults() starts them; Context.counters() counts them (fault_lost ...).
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
    """Probability that a packet is sent delay_s later."""
    flip: float = 0.0
    """Probability that one bit of a packet is flipped."""
    mark: float = 0.0
    """Probability of an ECN mark, as from a congested router, if congestion control allows marks."""
    reorder_gap: int = 3
    """Packets that overtake one that is reordered."""
    delay_s: float = 0.001
    """The delay of a delayed packet, in seconds."""
    lose: Sequence[Lose] = ()
    """Particular packets to lose: at most eight."""

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder", "delay", "flip", "mark"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a probability, not {getattr(self, name)}")

    def as_struct(self) -> dict[str, int]:
        """The numbers of struct rnic_fault: parts per million, nanoseconds."""
        return {
            "seed": self.seed,
            "loss": round(self.loss * 1e6),
            "duplicate": round(self.duplicate * 1e6),
            "reorder": round(self.reorder * 1e6),
            "delay": round(self.delay * 1e6),
            "flip": round(self.flip * 1e6),
            "mark": round(self.mark * 1e6),
            "reorder_gap": self.reorder_gap,
            "delay_ns": round(self.delay_s * 1e9),
        }

    def rules(self) -> list[tuple[int, int, int]]:
        """(opcode, nth, count) of each packet to lose; opcode -1 stands for any."""
        return [(-1 if rule.opcode is None else rule.opcode, rule.nth, rule.count) for rule in self.lose]
