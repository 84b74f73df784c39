# SPDX-License-Identifier: Apache-2.0
"""What the README and the examples show is what happens."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TWO_ENDS = {"rc_example.py", "multicast_example.py"}  # of which a second one must run


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def python(*args: str) -> str:
    """Run the interpreter; what it printed."""
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_programs() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_readme_programs_print_what_the_readme_says() -> None:
    printed = re.findall(r"It prints `(.*?)`", README)
    assert [python("-W", "error", "-c", program) for program in readme_programs()] == [
        f"{line}\n" for line in printed
    ]


@pytest.mark.parametrize(("index", "name"), list(enumerate(["hello.py", "messages.py"])))
def test_readme_programs_are_examples(index: int, name: str) -> None:
    example = (ROOT / "examples" / name).read_text()
    assert example.partition("import rnic\n")[2] == readme_programs()[index].partition("import rnic\n")[2]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path) -> None:
    if example.name not in TWO_ENDS:
        assert python(str(example))


def test_the_rc_example_at_both_ends() -> None:
    program, port = str(ROOT / "examples" / "rc_example.py"), str(free_port())
    server = subprocess.Popen(
        [sys.executable, program, "-d", "roce_lo", "-p", port], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == f"waiting on port {port} for TCP connection\n"
        said = python(program, "-d", "roce_lo", "-p", port, "127.0.0.1")
        rest, _ = server.communicate(timeout=300)
    finally:
        server.kill()
    assert said.splitlines() == [
        "Message is: 'SEND operation      '",
        "Contents of server's buffer: 'RDMA read operation '",
    ]
    assert rest == "Contents of server buffer: 'RDMA write operation'\n"
    assert server.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="the loopback interface needs a route for groups")
def test_the_multicast_example_at_both_ends() -> None:
    subprocess.run(["ip", "route", "replace", "multicast", "239.0.0.0/8", "dev", "lo"], check=True)
    program = [str(ROOT / "examples" / "multicast_example.py"), "-m", "239.77.8.9", "-b", "127.0.0.1"]
    member = subprocess.Popen([sys.executable, *program], stdout=subprocess.PIPE, text=True)
    try:
        assert member.stdout is not None
        assert member.stdout.readline() == "joined ::ffff:239.77.8.9\n"
        assert python(*program, "-s", "--pause", "0").endswith("10 messages sent\n")
        rest, _ = member.communicate(timeout=300)
    finally:
        member.kill()
    assert member.returncode == 0
    (line,) = set(rest.splitlines())
    assert re.fullmatch(r"100 bytes from queue pair \d+: b'to all'", line)
    assert len(rest.splitlines()) == 10


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_makefile_has_the_targets_that_the_documents_name() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for document in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"(?:^    |`)make ([a-z]+)", (ROOT / document).read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{document}: make {target}"
