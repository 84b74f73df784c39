# SPDX-License-Identifier: Apache-2.0
"""rnic's headers for C programs declare what rdma-core's do, and their inline functions do the same.

Compared are each type's size, each member's offset and type, each enumerator, prototype and macro, as the
compiler sees them; and the output of programs/inline.c, which calls every inline function.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import rnic
from ibverbs.declared import Declared, Member, declared, run, version_of_the_system
from packages import lacking, need_package

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INCLUDE = ROOT / "src/ibverbs/include"
PROGRAMS = sorted((HERE / "programs").glob("*.c"))
VERSION = 44
"""The rdma-core that the headers are written for: with a newer one, what it has more is no difference."""
STANDARDS = ["c99", "c11", "c++17"]
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror")

# What programs include; other files are parts of verbs.h.  It comes first: it says what a pointer of
# ib_user_ioctl_verbs.h is.
HEADERS = (
    *(
        "infiniband/verbs.h",
        "infiniband/verbs_api.h",
        "infiniband/ib_user_ioctl_verbs.h",
        "infiniband/opcode.h",
    ),
    *("infiniband/sa.h", "infiniband/tm_types.h", "infiniband/ib.h", "infiniband/arch.h"),
    *("rdma/rdma_cma.h", "rdma/rdma_verbs.h"),
)
PACKAGES = ("libibverbs-dev", "librdmacm-dev")
HEADERS_LEFT_OUT = {
    "infiniband/efadv.h": "verbs of one vendor's device",
    "infiniband/manadv.h": "verbs of one vendor's device",
    "infiniband/mlx4dv.h": "verbs of one vendor's device",
    "infiniband/mlx5dv.h": "verbs of one vendor's device",
    "infiniband/mlx5_api.h": "verbs of one vendor's device",
    "infiniband/mlx5_user_ioctl_verbs.h": "verbs of one vendor's device",
    "infiniband/sa-kern-abi.h": "obsolete names of the kernel's rdma/ib_user_sa.h",
    "rdma/rdma_cma_abi.h": "what librdmacm and the kernel tell each other",
    "rdma/rsocket.h": "rsockets, a library of their own in librdmacm",
}
LEFT_OUT = {
    "struct ib_uverbs_query_port_resp_ex": "no verb has it; needs the kernel's rdma/ib_user_verbs.h",
    "___ibv_query_port": "what the macro ibv_query_port calls",
    "__ibv_reg_mr": "what the macro ibv_reg_mr calls",
    "__ibv_reg_mr_iova": "what the macro ibv_reg_mr_iova calls",
    "IBV_OPCODE": "what rdma-core's opcode.h is written with",
}
NEWER = {  # than rdma-core 44
    *("IBV_ACCESS_FLUSH_GLOBAL", "IBV_ACCESS_FLUSH_PERSISTENT", "IBV_WR_FLUSH", "IBV_WC_FLUSH"),
    *("IBV_FLUSH_GLOBAL", "IBV_FLUSH_PERSISTENT", "IBV_FLUSH_RANGE", "IBV_FLUSH_MR", "IBV_QP_EX_WITH_FLUSH"),
    *("ibv_wr_flush", "struct ibv_qp_ex: wr_flush"),
    *("IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS", "IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG"),
    "IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES",
}
NEWER |= set(re.findall(r"struct \w+|\w+", (INCLUDE / "infiniband/verbs/newer.h").read_text()))
OURS = re.compile(r"_(ibv|rdma|verbs|IBV)_\w+")  # what inline functions and macros are made of
LANGUAGES = ("c", "c++")
NAMES = [("c", "constants"), ("c++", "constants"), ("c", "functions"), ("c", "macros")]
COMPARED = [*((language, kind) for language in LANGUAGES for kind in ("sizes", "members")), *NAMES]
Both = Callable[[str], tuple[Declared, Declared]]

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason=lacking("gcc"))


def need_system() -> None:
    version = version_of_the_system()
    if not version:
        need_package(*PACKAGES)
    if version < VERSION:
        pytest.skip(f"rdma-core {version} is installed, the headers are those of {VERSION}")


def need_cxx(language: str) -> None:
    if language.startswith("c++") and not shutil.which("g++"):
        need_package("g++")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """What the system's headers declare in a language, and what ours do."""

    @cache
    def in_language(language: str) -> tuple[Declared, Declared]:
        need_system()
        need_cxx(language)
        folder = tmp_path_factory.mktemp("declared")
        return declared(HEADERS, folder, None, language), declared(HEADERS, folder, INCLUDE, language)

    return in_language


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Declared:
    return declared(HEADERS, tmp_path_factory.mktemp("ours"), INCLUDE)


# ---------------------------------------------------------------- declarations


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("language", "kind"), COMPARED)
def test_nothing_of_the_system_is_missing(both: Both, language: str, kind: str) -> None:
    theirs, ours = (set(getattr(one, kind)) for one in both(language))
    if version_of_the_system() == VERSION:
        assert theirs - ours <= set(LEFT_OUT)
    assert ours & theirs


@pytest.mark.parametrize(("language", "kind"), COMPARED)
def test_nothing_is_invented(both: Both, language: str, kind: str) -> None:
    theirs, ours = (set(getattr(one, kind)) for one in both(language))
    assert {name for name in ours - theirs if not OURS.fullmatch(name)} <= NEWER


@pytest.mark.parametrize(
    ("language", "kind"), [one for one in COMPARED if one[1] not in ("sizes", "members")]
)
def test_declarations_are_the_same(both: Both, language: str, kind: str) -> None:
    theirs, ours = (getattr(one, kind) for one in both(language))
    assert {name: ours[name] for name in ours if name in theirs and ours[name] != theirs[name]} == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_members_are_where_the_system_has_them(both: Both, language: str) -> None:
    theirs, ours = both(language)
    different: dict[str, tuple[Member | None, Member | None]] = {}
    for name in ours.members.keys() & theirs.members.keys():
        for member in ours.members[name].keys() | theirs.members[name].keys():
            a, b = theirs.members[name].get(member), ours.members[name].get(member)
            known = a is None and f"{name}: {member}" in NEWER
            newer_system = b is None and version_of_the_system() > VERSION
            if a != b and not known and not newer_system:
                different[f"{name}: {member}"] = a, b
    assert different == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_sizes_are_those_of_the_system(both: Both, language: str) -> None:
    theirs, ours = both(language)
    every = ours.sizes.keys() & theirs.sizes.keys() - {name.partition(":")[0] for name in NEWER}
    if version_of_the_system() > VERSION:
        every = {name for name in every if len(theirs.members[name]) == len(ours.members[name])}
    assert {name: ours.sizes[name] for name in every if ours.sizes[name] != theirs.sizes[name]} == {}


def test_newer_members_lie_behind_those_of_the_system(both: Both) -> None:
    theirs, ours = both("c")
    if version_of_the_system() > VERSION:
        pytest.skip("the system has them too")
    newer = [name.split(": ") for name in NEWER if ":" in name]
    assert newer
    for structure, member in newer:
        assert ours.members[structure][member].offset >= theirs.sizes[structure]


def test_every_header_of_the_packages_is_there_or_left_out_for_a_reason() -> None:
    need_system()
    if version_of_the_system() != VERSION or not shutil.which("dpkg"):
        pytest.skip(f"needs Debian's packages of rdma-core {VERSION}: {' '.join(PACKAGES)}")
    listed = run("dpkg", "-L", *PACKAGES)
    theirs = set(re.findall(r"^/usr/include/(.+\.h)$", listed, re.MULTILINE))
    assert theirs == set(HEADERS) | set(HEADERS_LEFT_OUT)
    assert {name for name in theirs if (INCLUDE / name).exists()} == set(HEADERS)


def test_the_installed_package_has_them() -> None:
    installed = Path(rnic.__file__).parent / "include"
    files = {path.relative_to(INCLUDE) for path in INCLUDE.rglob("*.h")}
    assert {path.relative_to(installed) for path in installed.rglob("*.h")} == files
    assert all((installed / path).read_bytes() == (INCLUDE / path).read_bytes() for path in files)


# ---------------------------------------------------------------- programs


def compiler(standard: str) -> tuple[str, ...]:
    need_cxx(standard)
    cxx = standard.startswith("c++")
    return "g++" if cxx else "gcc", f"-std={standard}", "-x", "c++" if cxx else "c"


COMPILES = [(p, how) for p in PROGRAMS for how in STANDARDS if how != "c++17" or "= {." not in p.read_text()]
"""Programs and standards: C++ 17 does not name members in initialisers."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("program", "standard"), COMPILES, ids=[f"{p.name}-{how}" for p, how in COMPILES])
def test_programs_compile_against_our_headers_alone(program: Path, standard: str) -> None:
    strict = (*compiler(standard), *STRICT, "-O1", f"-I{INCLUDE}")
    run(*strict, "-S", "-o", "/dev/null", program)
    used = run(*strict, "-M", program)
    elsewhere = re.findall(r"\S*/(?:infiniband|rdma)/\S+\.h", used.replace(str(INCLUDE), ""))
    assert not [path for path in elsewhere if path.startswith("/usr")]


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("header", HEADERS)
def test_each_header_stands_alone(header: str, standard: str) -> None:
    twice = f"#include <{header}>\n" * 2
    run(*compiler(standard), *STRICT, f"-I{INCLUDE}", "-fsyntax-only", "-", text=twice)


def test_the_kernel_header_may_come_first() -> None:
    if not Path("/usr/include/rdma/ib_user_ioctl_verbs.h").exists():
        need_package("linux-libc-dev")
    for order in (1, -1):
        two = ["#include <rdma/ib_user_ioctl_verbs.h>\n", "#include <infiniband/verbs.h>\n"][::order]
        run(*compiler("c11"), *STRICT, f"-I{INCLUDE}", "-fsyntax-only", "-", text="".join(two))


def test_every_inline_function_is_called_by_a_program(ours: Declared) -> None:
    texts = [(HERE / name).read_text() for name in ("programs/inline.c", "versions/newer.c")]
    called = {name for text in texts for name in re.findall(r"\b(\w+)\(", text)}
    assert len(ours.inline) > 100
    assert {name for name in ours.inline if not OURS.fullmatch(name)} <= called


@pytest.mark.parametrize("optimised", ["-O0", "-O2"])
def test_inline_functions_do_what_the_system_ones_do(optimised: str, tmp_path: Path) -> None:
    need_system()
    if version_of_the_system() != VERSION:
        pytest.skip(f"the output has sizes in it, of rdma-core {VERSION}")
    said = []
    for where in ([], [f"-I{INCLUDE}"]):
        run("gcc", "-w", optimised, *where, "-o", tmp_path / "inline", HERE / "programs/inline.c")
        said.append(run(tmp_path / "inline").splitlines())
    assert len(said[1]) > 5000
    assert [(a, b) for a, b in zip(*said, strict=True) if a != b] == []


# ---------------------------------------------------------------- libraries


def exported(ours: Declared) -> list[str]:
    return sorted(ours.functions.keys() - ours.inline)


def test_the_system_libraries_have_what_is_declared(ours: Declared, tmp_path: Path) -> None:
    need_system()
    names = [name for name in exported(ours) if name not in NEWER or version_of_the_system() != VERSION]
    assert len(names) > 100
    pointers = "".join(f"    (void (*)(void)){name},\n" for name in names)
    includes = "".join(f"#include <{name}>\n" for name in HEADERS)
    text = f"{includes}void (*all[])(void) = {{\n{pointers}}};\nint main(void) {{ return !all[0]; }}\n"
    program = tmp_path / "all"
    strict = ("-Wall", "-Wno-cast-function-type", "-Werror")
    run("gcc", *strict, f"-I{INCLUDE}", "-x", "c", "-", "-o", program, "-lrdmacm", "-libverbs", text=text)
    run(program)


@pytest.mark.parametrize("standard", ["c11", "c++17"])
@pytest.mark.parametrize("program", ["pingpong", "echo"])
def test_programs_link_with_the_system_libraries(program: str, standard: str, tmp_path: Path) -> None:
    need_system()
    source = HERE / f"programs/{program}.c"
    run(
        *compiler(standard),
        *(f"-I{INCLUDE}", source, "-o", tmp_path / program, "-lrdmacm", "-libverbs"),
    )
    assert subprocess.run([tmp_path / program], capture_output=True, timeout=300, check=False).returncode >= 0


def test_programs_without_a_device_say_so(tmp_path: Path) -> None:
    """pingpong, with rdma-core's library: the tables of a real context are used where there is a device."""
    need_system()
    source = HERE / "programs/pingpong.c"
    run("gcc", f"-I{INCLUDE}", source, "-o", tmp_path / "pingpong", "-libverbs")
    done = subprocess.run([tmp_path / "pingpong", "no such device"], timeout=300, check=False)
    assert done.returncode == 77
