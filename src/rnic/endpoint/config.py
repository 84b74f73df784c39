# SPDX-License-Identifier: Apache-2.0
"""The options of one end of a connection."""

from rnic.endpoint.hello import (
    CAPABILITIES,
    MAX_RECEIVE_SIZE,
    MAX_RECEIVES,
    MAX_REGIONS,
    MIN_RECEIVE_SIZE,
    MIN_RECEIVES,
    REMOTE_ACCESS,
    VERSIONS,
    Hello,
)
from rnic.enums import AccessFlags
from rnic.records import Record

MAX_SPIN = 0.001


class Config(Record):
    """The options of one end; the two ends may have different ones."""

    receive_size: int = 65536
    """Size of each receive buffer in bytes."""
    receives: int = 32
    """Number of receives that are kept posted."""
    send_size: int = 65536
    """The most bytes in one SEND, even if the peer accepts more."""
    max_message: int = 1 << 30
    """The longest message that this end accepts, in bytes. Its memory grows with the bytes that arrive."""
    announce: int | None = 1 << 20
    """A message of at least this many bytes is announced, and the peer READs it straight from its buffer;
    None: never.

    The peer must speak version 2 of the endpoint protocol, and `access` must contain REMOTE_READ.
    """
    max_backlog: int = 1 << 20
    """Bytes of messages that may wait for recv() before receives are held back, which makes the peer wait.

    An unfinished message counts, unless a thread or task waits in recv() or send().
    """
    max_regions: int = 1024
    """The most regions that the peer may share at a time."""
    access: AccessFlags = REMOTE_ACCESS
    """What the peer may do through the queue pair (qp_access_flags); without REMOTE_WRITE the peer cannot
    probe.
    """
    idle_interval: float | None = 10.0
    """Seconds without a sign of life after which this end probes the peer, or an eighth more; None: never."""
    spin: float = 150e-6
    """Seconds, at most 1 ms, for which a waiting call polls before it sleeps; 0: it sleeps at once.

    After polls that find nothing, calls poll less often.
    """
    raw: bool = False
    """Accept a peer that is not an rnic endpoint, and exchange plain SENDs with it, instead of
    refusing it.
    """

    def __post_init__(self) -> None:
        self._between("receive_size", MIN_RECEIVE_SIZE, MAX_RECEIVE_SIZE)
        self._between("send_size", MIN_RECEIVE_SIZE, MAX_RECEIVE_SIZE)
        self._between("receives", MIN_RECEIVES, MAX_RECEIVES)
        self._between("max_message", 0, (1 << 64) - 1)
        self._between("max_backlog", 1, None)
        if self.announce is not None:
            self._between("announce", 1, None)
        self._between("max_regions", 0, MAX_REGIONS)
        self._check_access()
        self._check_seconds("spin")
        if not 0 <= self.spin <= MAX_SPIN:
            raise ValueError(f"spin {self.spin}, it can be 0 to {MAX_SPIN} seconds")
        if self.idle_interval is not None:
            self._check_seconds("idle_interval")
            if not self.idle_interval > 0:  # nan is neither
                raise ValueError(f"idle_interval {self.idle_interval}, it must be above 0, or None")

    def _check_access(self) -> None:
        if not isinstance(self.access, int):
            cure = "such as AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE"
            raise TypeError(f"access is AccessFlags, {cure}, not {self.access!r}")
        if others := self.access & ~REMOTE_ACCESS:
            cure = f"it can be {REMOTE_ACCESS} or a part of these"
            raise ValueError(f"access contains {AccessFlags(others)}, {cure}")

    def _check_seconds(self, name: str) -> None:
        if not hasattr(value := getattr(self, name), "__float__"):
            raise TypeError(f"{name} is a number of seconds, not {value!r}")

    def _between(self, name: str, least: int, most: int | None) -> None:
        value = getattr(self, name)
        if not isinstance(value, int):
            raise TypeError(f"{name} is a whole number, not {value!r}")
        if value < least or (most is not None and value > most):
            span = f"{least} or more" if most is None else f"{least} to {most}"
            raise ValueError(f"{name} {value}, it can be {span}")

    @classmethod
    def given(cls, config: "Config | None", call: str) -> "Config":
        """The options of a call, the default ones for None. TypeError for what is no Config."""
        if config is None:
            return cls()
        if not isinstance(config, cls):
            cure = "such as rnic.Config(receives=64)"
            raise TypeError(f"{call}(): config is an rnic.Config, {cure}, not {config!r}")
        return config

    def hello(self, data: bytes = b"") -> Hello:
        """The hello that tells the peer these options, and the data of the program."""
        return Hello(
            *VERSIONS,
            self.access,
            self.receive_size,
            self.receives,
            self.max_regions,
            self.max_message,
            CAPABILITIES,
            data,
        )
