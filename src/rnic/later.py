# SPDX-License-Identifier: Apache-2.0
"""Import modules that few programs use when one of their names is first used (PEP 562).

    if TYPE_CHECKING:
        from package.rare import Thing
    else:
        __getattr__, __dir__ = later(__name__, "rare")

The import happens where the program names Thing. So do not list a module that connections or verbs need: they
run where files cannot be read, because no descriptor is left or the user has changed.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["later"]


def later(package: str, *modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`: `modules` are its own, and its `__all__` has their names."""
    space = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        for module in modules if name in space.get("__all__", ()) else ():
            found = vars(import_module(f"{package}.{module}"))
            if name in found:
                return space.setdefault(name, found[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*space, *space["__all__"]})

    return find, names
