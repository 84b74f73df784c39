# SPDX-License-Identifier: Apache-2.0
"""The kernel's log: what came since a module was loaded, and what shows that the kernel is in trouble."""

from __future__ import annotations

import re

# What the kernel prints of itself when something is wrong with it, and what ends that.  Modules print, too,
# and often "warning: " or "debug: ": it must be the beginning of a line, behind the time, as the kernel's is.
SPLAT = re.compile(
    r"^(?:\[[ .\d]+\]\s*)?(?:"
    r"BUG: |BUG \S+ \(|kernel BUG at |WARNING: (?:CPU: |possible |suspicious |bad )|Oops: |Kernel panic - |"
    r"general protection fault|INFO: task .* blocked|INFO: rcu|rcu: INFO: |watchdog: BUG: |refcount_t: |"
    r"UBSAN: |Unable to handle|list_(?:add|del) corruption|NMI watchdog: |"
    r"[a-z][\w -]*: [0-9a-f]{4} \[#\d+\])"  # such as "divide error: 0000 [#1]"
)
_END = re.compile(r"---\[ end ")
MOST = 25  # lines of trouble that are shown
_MARK = "rnic kmod: "


def mark(text: str) -> str:
    """The shell command that writes a line into the log, from where since() shows it."""
    return f"echo '<6>{_MARK}{text}' >/dev/kmsg"


def since(log: str) -> str:
    """What came after the last mark; all, if there is none."""
    lines = log.splitlines()
    marks = [number for number, line in enumerate(lines) if _MARK in line]
    return "\n".join(lines[marks[-1] + 1 if marks else 0 :])


def behind(log: str, earlier: str) -> str:
    """What has come since an earlier look."""
    last = earlier.rstrip("\n").rpartition("\n")[2]
    return log.rpartition(f"{last}\n")[2] if last else log


def trouble(log: str) -> str:
    """The lines in which the kernel says that it is in trouble; "" if it is not."""
    lines = log.splitlines()
    begin = next((number for number, line in enumerate(lines) if SPLAT.search(line)), None)
    if begin is None:
        return ""
    end = next((n + 1 for n in range(begin, len(lines)) if _END.search(lines[n])), len(lines))
    return "\n".join(lines[begin:end][:MOST])


def first(trouble: str) -> str:
    """What it is, in a line without the time."""
    lines = trouble.splitlines()
    return re.sub(r"^\[[ .\d]+\]\s*", "", lines[0])


def tail(log: str) -> str:
    """The last lines."""
    return "\n".join(log.splitlines()[-MOST:])
