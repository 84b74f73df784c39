# SPDX-License-Identifier: Apache-2.0
"""What C headers declare: the compiler tells types by DWARF, prototypes by -aux-info, macros by -E -dD."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from elftools.dwarf.die import DIE
from elftools.elf.elffile import ELFFile

HEADER = re.compile(r"/((?:infiniband|rdma)/[\w/-]+\.h)$")
AGGREGATES = ("DW_TAG_structure_type", "DW_TAG_union_type", "DW_TAG_class_type")
WORDS = {"DW_TAG_structure_type": "struct", "DW_TAG_union_type": "union", "DW_TAG_enumeration_type": "enum"}


@dataclass(frozen=True)
class Member:
    """One at the end of a path: wr.rdma.rkey."""

    offset: int
    size: int
    type: str


@dataclass
class Declared:
    """What stands in some headers themselves, and not in those that they include."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Of "struct ibv_wc" and its like, bytes."""
    members: dict[str, dict[str, Member]] = field(default_factory=dict)
    constants: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """The enumeration, "" for an unnamed one, the type that it is kept as, and the value."""
    functions: dict[str, str] = field(default_factory=dict)
    inline: set[str] = field(default_factory=set)
    macros: dict[str, str] = field(default_factory=dict)
    """The value of a constant, another text as it stands, "macro of 2" for two arguments."""


def run(*command: str | Path, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}"
    return done.stdout


def declared(headers: tuple[str, ...], folder: Path, include: Path | None, language: str = "c") -> Declared:
    """What headers of an include folder declare, or the system's own; folder is for the compiler's files."""
    source = folder / "source"
    source.write_text("".join(f"#include <{name}>\n" for name in headers))
    where = (f"-I{include}",) if include else ()
    compiler = ("gcc" if language == "c" else "g++", "-w", *where, "-x", language, source)
    found = Declared()
    names = set(headers) if include is None else None
    run(*compiler, "-c", "-g", "-fno-eliminate-unused-debug-types", "-o", folder / "object")
    with (folder / "object").open("rb") as file:
        read_types(ELFFile(file), names, found)
    if language == "c":  # the other knows no -aux-info
        run(*compiler, "-fsyntax-only", "-aux-info", folder / "prototypes")
        read_functions((folder / "prototypes").read_text(), names, found)
        read_macros(run(*compiler, "-E", "-dD"), names, found)
        evaluate(found, headers, folder, where)
    return found


def wanted(path: str, names: set[str] | None) -> bool:
    """Is a file one of the headers?  None: any that the system does not have."""
    here = HEADER.search(path)
    if not here:
        return False
    return here[1] in names if names else not path.startswith("/usr/include")


# ---------------------------------------------------------------- types


def read_types(elf: ELFFile, names: set[str] | None, found: Declared) -> None:
    for unit in elf.get_dwarf_info().iter_CUs():
        files = file_names(unit)
        for die in unit.get_top_DIE().iter_children():
            if "DW_AT_declaration" in die.attributes or "DW_AT_decl_file" not in die.attributes:
                continue
            if not wanted(files[die.attributes["DW_AT_decl_file"].value], names):
                continue
            if die.tag == "DW_TAG_enumeration_type":
                read_enumeration(die, found)
            elif die.tag in AGGREGATES and "DW_AT_name" in die.attributes:
                found.sizes[text(die)] = die.attributes["DW_AT_byte_size"].value
                found.members[text(die)] = dict(members(die, "", 0))


def file_names(unit: object) -> dict[int, str]:
    program = unit.dwarfinfo.line_program_for_CU(unit)  # type: ignore[attr-defined]
    folders = [b""] * (program.header.version < 5) + [
        getattr(one, "DW_LNCT_path", one) for one in program["include_directory"]
    ]
    names = {}
    for i, one in enumerate(program["file_entry"], start=int(program.header.version < 5)):
        names[i] = f"{folders[one.dir_index].decode()}/{one.name.decode()}"
    return names


def read_enumeration(die: DIE, found: Declared) -> None:
    for one in die.iter_children():
        found.constants[name(one)] = name(die), text(target(die)), one.attributes["DW_AT_const_value"].value


def members(die: DIE, path: str, base: int) -> list[tuple[str, Member]]:
    """Members of an aggregate, those of unnamed types in their place."""
    every = []
    for one in die.iter_children():
        if one.tag != "DW_TAG_member":
            continue
        offset = base + (
            one.attributes["DW_AT_data_member_location"].value
            if "DW_AT_data_member_location" in one.attributes
            else 0
        )
        here = ".".join(filter(None, (path, name(one))))
        kind = one.get_DIE_from_attribute("DW_AT_type")
        if kind.tag in AGGREGATES and not name(kind):
            every += members(kind, here, offset)
        else:
            every.append((here, Member(offset, size(kind), text(kind))))
    return every


def name(die: DIE) -> str:
    return die.attributes["DW_AT_name"].value.decode() if "DW_AT_name" in die.attributes else ""


def target(die: DIE) -> DIE | None:
    return die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None


def size(die: DIE) -> int:
    if "DW_AT_byte_size" in die.attributes:
        return int(die.attributes["DW_AT_byte_size"].value)
    to = target(die)
    count = 1
    if die.tag == "DW_TAG_array_type":
        for one in die.iter_children():
            count *= one.attributes["DW_AT_upper_bound"].value + 1
    return count * size(to) if to else 0


def text(die: DIE | None) -> str:
    """A type in words, names of typedefs resolved."""
    if die is None:
        return "void"
    to = target(die)
    if die.tag in WORDS:
        return f"{WORDS[die.tag]} {name(die) or size(die)}"
    if die.tag == "DW_TAG_pointer_type":
        return f"{text(to)} *"
    if die.tag == "DW_TAG_const_type":
        return f"const {text(to)}"
    if die.tag == "DW_TAG_array_type":
        return f"{text(to)}[{size(die)} bytes]"
    if die.tag == "DW_TAG_subroutine_type":
        return f"{text(to)} ({', '.join(text(target(one)) for one in die.iter_children())})"
    return text(to) if to else name(die)


# ---------------------------------------------------------------- functions and macros


def read_functions(info: str, names: set[str] | None, found: Declared) -> None:
    for path, kind, prototype in re.findall(r"^/\* (\S+):\d+:(\w+) \*/ (.*?;)", info, re.MULTILINE):
        if wanted(path, names):
            called = re.search(r"(\w+) \(", prototype)
            assert called, prototype
            found.functions[called[1]] = prototype
            if kind.endswith("F"):
                found.inline.add(called[1])


def read_macros(lines: str, names: set[str] | None, found: Declared) -> None:
    path = ""
    for line in lines.splitlines():
        if marker := re.match(r'# \d+ "([^"]*)"', line):
            path = marker[1]
        elif gone := re.match(r"#undef (\w+)", line):
            found.macros.pop(gone[1], None)
        elif (macro := re.match(r"#define (\w+)(\([^)]*\))? ?(.*)", line)) and wanted(path, names):
            if macro[2]:
                found.macros[macro[1]] = f"macro of {macro[2].count(',') + 1}"
            elif macro[3]:
                found.macros[macro[1]] = macro[3]


def evaluate(found: Declared, headers: tuple[str, ...], folder: Path, where: tuple[str, ...]) -> None:
    """Give macros that are constants their values."""
    numbers = [m for m, body in found.macros.items() if is_number(body, found)]
    prints = "".join(f'    printf("{m} %lld\\n", (long long)({m}));\n' for m in numbers)
    lines = "".join(f"#include <{one}>\n" for one in (*headers, "stdio.h"))
    program = folder / "values"
    text = f"{lines}int main(void) {{\n{prints}}}\n"
    run("gcc", "-w", *where, "-x", "c", "-", "-o", program, text=text)
    for line in run(program).splitlines():
        macro, value = line.split()
        found.macros[macro] = value


def is_number(body: str, found: Declared) -> bool:
    """Types, and members of members, are names alone."""
    if body.startswith("macro of"):
        return False
    return body in found.constants or not re.fullmatch(r"[A-Za-z_][\w.\[\]]*", body)


@cache
def version_of_the_system() -> int:
    """Of rdma-core, by the file name of its library, libibverbs.so.1.14.44.0; 0: it is not installed."""
    library = Path(run("gcc", "-print-file-name=libibverbs.so").strip())
    found = re.search(r"\.so\.1\.\d+\.(\d+)\.", str(library.resolve()))
    return int(found[1]) if found else 0
