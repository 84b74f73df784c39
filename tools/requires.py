# SPDX-License-Identifier: Apache-2.0
"""Print requirements out of pyproject.toml, one a line: `requires.py build run dev`.

build   what building the wheel needs (build-system.requires)
run     what rnic needs at run time (project.dependencies)
other   the optional group of that name (project.optional-dependencies)

pip can install a project's extras only together with the project; with this the Makefile installs tools
once, and the project whenever a source changes.
"""

import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def requirements(groups: list[str]) -> list[str]:
    """The requirements of the groups, in order; KeyError names a group that is not there."""
    with PYPROJECT.open("rb") as file:
        tables = tomllib.load(file)
    known = {
        "build": tables["build-system"]["requires"],
        "run": tables["project"].get("dependencies", []),
        **tables["project"].get("optional-dependencies", {}),
    }
    return [line for group in groups for line in known[group]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
