# SPDX-License-Identifier: Apache-2.0
"""The fault injector of a software RNIC: what its link does to the packets that it sends."""

from collections.abc import Sequence

from rnic.records import Record

__all__ = ["Faults", "Lose"]


class Lose(Record):
    """Lose particular packets: of this opcode, the nth from now on and count - 1 after it."""

    opcode: int | None = None
    """Opcode of the base transport header (IBA 9.2.1), None: any packet."""
    nth: int = 1
    """Counted from 1."""
    count: int = 1

    def __post_init__(self) -> None:
        if self.nth < 1 or self.count < 1:
            raise ValueError("nth and count begin at 1")


class Faults(Record):
    """What happens to packets on their way out; probabilities between 0 and 1, drawn from the seed.

    Context.set_faults() puts it in force; Context.counters() counts what it did (fault_lost ...).
    """

    seed: int = 1
    loss: float = 0.0
    """The packet is lost."""
    duplicate: float = 0.0
    """It is sent twice."""
    reorder: float = 0.0
    """It leaves after reorder_gap later packets, or after delay_s when there are none."""
    delay: float = 0.0
    """It leaves delay_s later."""
    flip: float = 0.0
    """One of its bits is flipped."""
    mark: float = 0.0
    """It is marked as by a congested router (ECN), where congestion control lets it be."""
    reorder_gap: int = 3
    delay_s: float = 0.001
    """Seconds."""
    lose: Sequence[Lose] = ()
    """At most eight."""

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
