# SPDX-License-Identifier: Apache-2.0
"""What is said in the same words everywhere: members of enumerations, and what is wrong with an address.

The members are what ibv_wc_status_str(3) and its like are for.
"""

from enum import IntEnum, IntFlag

__all__ = [
    "WHY_NO_DEVICE",
    "Named",
    "NamedFlags",
    "Worded",
    "counted",
    "no_host",
    "nobody_listens",
    "place",
    "port_taken",
    "unknown_name",
]

WHY_NO_DEVICE = "as no network interface has an address, or RNIC_DEVICES names none of theirs"
"""Why a list of devices is empty."""

# The abbreviations in libibverbs' names; every other part of a name is a word already.
_WORDS = {
    "CA": "channel adapter",
    "COMM": "communication",
    "CQ": "CQ",
    "EEC": "EE context",
    "EECN": "EE context number",
    "ERR": "error",
    "EST": "established",
    "EXC": "retry counter exceeded",
    "GID": "GID",
    "INV": "invalid",
    "LEN": "length",
    "LID": "LID",
    "LOC": "local",
    "MIG": "migration",
    "MW": "memory window",
    "OP": "operation",
    "PKEY": "P_Key",
    "PROT": "protection",
    "QP": "QP",
    "RD": "RD",
    "RDD": "RDD",
    "REM": "remote",
    "REQ": "request",
    "RESP": "response",
    "RETRY": "",
    "RNDV": "rendezvous",
    "RNIC": "RNIC",
    "RNR": "receiver not ready",
    "SM": "subnet manager",
    "SQ": "send queue",
    "SRQ": "SRQ",
    "TM": "tag matching",
    "VIOL": "violation",
    "WQ": "WQ",
    "WQE": "work request",
    "WR": "work request",
}

_OF_NUMBERS = "bcdoxXneEfFgG%"  # the types that a format of a number ends in


def place(host: str, port: int | str) -> str:
    """Where a server is."""
    return f"{host} port {port}"


def counted(number: int, thing: str) -> str:
    """So many of a thing, whose plural ends with an s."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def nobody_listens(host: str, port: int) -> str:
    """A call was refused because there is no server."""
    return f"{place(host, port)}: nobody listens there"


def no_host(host: str, port: int) -> str:
    """No host of the local network has the address."""
    return f"{place(host, port)}: no host answers at this address: check it, and whether the host is up"


def unknown_name(host: str, port: int | str, error: OSError | UnicodeError) -> str:
    """A name has no address; `error` is the resolver's, or of the codec idna."""
    why = error.strerror if isinstance(error, OSError) else "it cannot be the name of a host"
    return f"{place(host, port)}: the host's name cannot be looked up: {why}: check it, or give an address"


def port_taken(host: str, port: int) -> str:
    """A server cannot listen because something else on this host has the port."""
    return f"{place(host, port)} is in use on this host: choose another port"


def _name(member: IntEnum | IntFlag) -> str:
    return member.name or hex(member)


def _format(member: IntEnum | IntFlag, format_spec: str) -> str:
    """The name, as wide as the format says; one that ends in a number's type, as "d" or "x", asks for the
    number.
    """
    if format_spec and format_spec[-1] in _OF_NUMBERS:
        return format(int(member), format_spec)
    return format(_name(member), format_spec)


class Named(IntEnum):
    """An enumeration whose members print as their names: `print(wc.status)` prints SUCCESS."""

    __str__, __format__ = _name, _format


class NamedFlags(IntFlag):
    """Flags that print as their names, as in LOCAL_WRITE|REMOTE_READ; no flag at all is 0x0."""

    __str__, __format__ = _name, _format


class Worded(Named):
    """An enumeration with `.text`."""

    @property
    def text(self) -> str:
        """The member in words, for people to read: LOC_LEN_ERR is "local length error"."""
        words = (_WORDS.get(part, part.lower()) for part in self.name.split("_"))
        return " ".join(word for word in words if word)
