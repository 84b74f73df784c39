# SPDX-License-Identifier: Apache-2.0
"""Enumerations whose members can be said in words: what ibv_wc_status_str(3) and its like are for."""

from enum import IntEnum

__all__ = ["Worded"]

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


class Worded(IntEnum):
    """An enumeration with `.text`."""

    @property
    def text(self) -> str:
        """The member in words, for people to read: LOC_LEN_ERR is "local length error"."""
        words = (_WORDS.get(part, part.lower()) for part in self.name.split("_"))
        return " ".join(word for word in words if word)
