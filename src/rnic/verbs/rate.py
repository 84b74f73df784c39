# SPDX-License-Identifier: Apache-2.0
"""Static rates: the codes of AHAttr.static_rate, and their speeds."""

from rnic.wording import Named

__all__ = ["Rate"]


class Rate(Named):
    """The highest rate of a path (IBA 9.11; ibv_rate_to_mbps(3)); RATE_MAX: the rate of the port."""

    RATE_MAX = 0
    """As fast as the port."""
    RATE_2_5_GBPS = 2
    """2.5 Gbit/s."""
    RATE_5_GBPS = 5
    """5 Gbit/s."""
    RATE_10_GBPS = 3
    """10 Gbit/s."""
    RATE_20_GBPS = 6
    """20 Gbit/s."""
    RATE_30_GBPS = 4
    """30 Gbit/s."""
    RATE_40_GBPS = 7
    """40 Gbit/s."""
    RATE_60_GBPS = 8
    """60 Gbit/s."""
    RATE_80_GBPS = 9
    """80 Gbit/s."""
    RATE_120_GBPS = 10
    """120 Gbit/s."""
    RATE_14_GBPS = 11
    """14 Gbit/s."""
    RATE_56_GBPS = 12
    """56 Gbit/s."""
    RATE_112_GBPS = 13
    """112 Gbit/s."""
    RATE_168_GBPS = 14
    """168 Gbit/s."""
    RATE_25_GBPS = 15
    """25 Gbit/s."""
    RATE_100_GBPS = 16
    """100 Gbit/s."""
    RATE_200_GBPS = 17
    """200 Gbit/s."""
    RATE_300_GBPS = 18
    """300 Gbit/s."""
    RATE_28_GBPS = 19
    """28 Gbit/s."""
    RATE_50_GBPS = 20
    """50 Gbit/s."""
    RATE_400_GBPS = 21
    """400 Gbit/s."""
    RATE_600_GBPS = 22
    """600 Gbit/s."""
    RATE_800_GBPS = 23
    """800 Gbit/s."""
    RATE_1200_GBPS = 24
    """1200 Gbit/s."""

    @property
    def mult(self) -> int | None:
        """The rate as a multiple of 2.5 Gbit/s (ibv_rate_to_mult(3)); None if it is not one, where libibverbs
        has -1.
        """
        return _MULTS.get(self)

    @property
    def mbps(self) -> int | None:
        """Mbit/s on the wire (ibv_rate_to_mbps(3)); None for RATE_MAX, where libibverbs has -1."""
        return _MBPS.get(self)

    @classmethod
    def from_mult(cls, mult: int) -> "Rate":
        """The rate of this multiple of 2.5 Gbit/s (mult_to_ibv_rate(3)); RATE_MAX if there is none."""
        return next((rate for rate, known in _MULTS.items() if known == mult), cls.RATE_MAX)

    @classmethod
    def from_mbps(cls, mbps: int) -> "Rate":
        """The rate of exactly this many Mbit/s (mbps_to_ibv_rate(3)); RATE_MAX if there is none."""
        return next((rate for rate, known in _MBPS.items() if known == mbps), cls.RATE_MAX)


_MULTS = {
    Rate.RATE_2_5_GBPS: 1,
    Rate.RATE_5_GBPS: 2,
    Rate.RATE_10_GBPS: 4,
    Rate.RATE_20_GBPS: 8,
    Rate.RATE_30_GBPS: 12,
    Rate.RATE_40_GBPS: 16,
    Rate.RATE_60_GBPS: 24,
    Rate.RATE_80_GBPS: 32,
    Rate.RATE_120_GBPS: 48,
    Rate.RATE_28_GBPS: 11,
    Rate.RATE_50_GBPS: 20,
    Rate.RATE_400_GBPS: 160,
    Rate.RATE_600_GBPS: 240,
    Rate.RATE_800_GBPS: 320,
    Rate.RATE_1200_GBPS: 480,
}
_MBPS = {
    Rate.RATE_2_5_GBPS: 2500,
    Rate.RATE_5_GBPS: 5000,
    Rate.RATE_10_GBPS: 10000,
    Rate.RATE_20_GBPS: 20000,
    Rate.RATE_30_GBPS: 30000,
    Rate.RATE_40_GBPS: 40000,
    Rate.RATE_60_GBPS: 60000,
    Rate.RATE_80_GBPS: 80000,
    Rate.RATE_120_GBPS: 120000,
    Rate.RATE_14_GBPS: 14062,
    Rate.RATE_56_GBPS: 56250,
    Rate.RATE_112_GBPS: 112500,
    Rate.RATE_168_GBPS: 168750,
    Rate.RATE_25_GBPS: 25781,
    Rate.RATE_100_GBPS: 103125,
    Rate.RATE_200_GBPS: 206250,
    Rate.RATE_300_GBPS: 309375,
    Rate.RATE_28_GBPS: 28125,
    Rate.RATE_50_GBPS: 53125,
    Rate.RATE_400_GBPS: 425000,
    Rate.RATE_600_GBPS: 637500,
    Rate.RATE_800_GBPS: 850000,
    Rate.RATE_1200_GBPS: 1275000,
}
