# SPDX-License-Identifier: Apache-2.0
"""A peer of the course with a fault, for modules that must bear it: rogue.py PROGRAM FAULT ARGUMENT...

wrong-number   a server answers with the number of a question that nobody asked
wrong-service  a client wants a service that there is not
wrong-kind     a client sends messages that are no questions
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def _wrong_number(peer: ModuleType) -> None:
    right = peer.answer

    def answer(data: bytes) -> Any:
        found = right(data)
        return found._replace(number=found.number + 1)

    peer.answer = answer  # type: ignore[attr-defined]


def _wrong_service(peer: ModuleType) -> None:
    peer.Service = SimpleNamespace(ECHO=77)  # type: ignore[attr-defined]


def _wrong_kind(peer: ModuleType) -> None:
    peer.Kind = SimpleNamespace(ASK=77, ANSWER=peer.Kind.ANSWER)  # type: ignore[attr-defined]


FAULTS = {"wrong-number": _wrong_number, "wrong-service": _wrong_service, "wrong-kind": _wrong_kind}


def main() -> None:
    """Run the program, but for its fault."""
    program, fault, *words = sys.argv[1:]
    path = Path(program)
    sys.path.insert(0, str(path.parent))
    peer = import_module(path.stem)
    FAULTS[fault](peer)
    sys.argv = [program, *words]
    peer.main()


if __name__ == "__main__":
    main()
