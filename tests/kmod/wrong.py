# SPDX-License-Identifier: Apache-2.0
"""Modules that are wrong in one way: the course's with a few words replaced."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rnic.kmod import course
from rnic.kmod.folder import Folder
from rnic.kmod.steps import Step


class Wrong(NamedTuple):
    """What is replaced, and how the test of the module ends."""

    module: str
    step: Step  # which fails
    says: str  # a part of why, as a pattern
    replaced: tuple[tuple[str, str, str], ...]  # file, old, new
    device: str = "rxe"

    def write(self, folder: Path) -> Folder:
        """Write the module into a new folder."""
        made = course.copy(folder, self.module)
        for name, old, new in self.replaced:
            text = (folder / name).read_text()
            assert text.count(old) == 1, old
            (folder / name).write_text(text.replace(old, new))
        return made


def _client(step: Step, says: str, *replaced: tuple[str, str], device: str = "rxe") -> Wrong:
    return Wrong("client", step, says, tuple(("client.c", *one) for one in replaced), device)


def _agent(step: Step, says: str, *replaced: tuple[str, str]) -> Wrong:
    return Wrong("listener", step, says, tuple(("agent.c", *one) for one in replaced))


_INIT = "static int __init client_init(void)\n{\n\tint ret;\n"
_EXIT = "static void __exit client_exit(void)\n{\n"
_ANSWERED = "\task->waiting = false;\n\tc->on_the_way--;\n"
_SENT = "\tspin_lock_bh(&c->lock);\n\task->sending = false;\n"
_ENDS = "\tclient_break(c, -EIO);\n"
_FLUSHED = "\t\tif (client_is_connected(c))\n\t\t\tclient_break(c, -ECONNRESET);\n\t\treturn;\n"
_DOWN = "\t\tclient_free_queues(c);\n\t\trdma_destroy_id(c->id);\n\t\tclient_become_idle(c);\n"

WRONG = {
    "does not compile": _client(
        Step.COMPILE, "it does not compile", (_INIT, _INIT.replace("int ret;", "int ret"))
    ),
    "compiles with a warning": _client(
        Step.COMPILE, "it compiles with warnings", (_INIT, f"{_INIT}\tint unused;\n")
    ),
    "its init fails": _client(
        Step.LOAD, "Cannot allocate memory", (_INIT, f"{_INIT}\n\tif (!addr)\n\t\treturn -ENOMEM;\n")
    ),
    "has no /proc file": _client(
        Step.PROC, "No such file", ('proc_create_data("rnic_client"', 'proc_create_data("rnic_cilent"')
    ),
    "wants another service": _client(
        Step.CONNECT, "refused: service 2 is not 1", ("cpu_to_be16(RNIC_ECHO)", "cpu_to_be16(RNIC_MEMORY)")
    ),
    "sends a byte less": _client(
        Step.MESSAGE,
        "the answer to 'a' is",
        (
            ".length = sizeof(struct rnic_message) + ask->length,",
            ".length = sizeof(struct rnic_message) + ask->length - 1,",
        ),
    ),
    "believes each number": _client(
        Step.HOSTILE,
        "died: Kernel panic",
        ("\tif (IS_ERR(ask)) {\n\t\tpr_err(", "\tif (!ask) {\n\t\tpr_err("),
    ),
    "does not look how work ended": _client(
        Step.DEATH, "the command still waits", (_ENDS, ""), (_FLUSHED, "\t\treturn;\n")
    ),
    "keeps its protection domain": _client(
        Step.UNLOAD,
        "RDMA objects are left",
        ("\tib_free_cq(c->cq);\n\tib_dealloc_pd(c->pd);\n", "\tib_free_cq(c->cq);\n"),
    ),
    "keeps a copy of each text": _client(
        Step.UNLOAD,
        "memory is left",
        (
            "memcpy(message->text, text, length);",
            "memcpy(message->text, kmemdup(text, length, GFP_KERNEL), length);",
        ),
    ),
    "never ends": _client(
        Step.UNLOAD,
        "rmmod has not ended",
        (_EXIT, f"{_EXIT}\twait_event(client.wait, client.state > CLIENT_BROKEN);\n"),
    ),
    "crashes when an answer comes": _client(
        Step.MESSAGE,
        "died: Kernel panic",
        (_ANSWERED, f"\task = ask->number ? ask : READ_ONCE(ask->cqe.done) ? NULL : ask;\n{_ANSWERED}"),
    ),
    "oopses in a command": _client(
        Step.MESSAGE,
        "BUG: kernel NULL pointer dereference",
        (
            "\tchar *text = kmalloc(RNIC_TEXT_MAX, GFP_KERNEL);\n",
            "\tchar *text = READ_ONCE(c->id) ? NULL : kmalloc(RNIC_TEXT_MAX, GFP_KERNEL);\n",
        ),
        ("\tif (!text)\n\t\treturn -ENOMEM;\n\tfor", "\tfor"),
    ),
    "sleeps where it must not": _client(
        Step.MESSAGE,
        "BUG: ",  # scheduling while atomic; or a processor that is stuck, of which the kernel tells later
        ("#include <linux/completion.h>\n", "#include <linux/completion.h>\n#include <linux/delay.h>\n"),
        (_SENT, f"{_SENT}\tmsleep(20);\n"),
    ),
    "answers with the first letter as it came": _agent(
        Step.MESSAGE, "the answer is", ("for (i = 0; i < length; i++)", "for (i = 1; i < length; i++)")
    ),
    "takes every service": Wrong(
        "listener",
        Step.HOSTILE,
        "is not refused",
        (("listener.c", "if (request->service != cpu_to_be16(RNIC_ECHO))", "if (!request->service)"),),
    ),
    "counts agents that have gone": _agent(
        Step.CONNECT,
        "says agents 1",
        ('"agents %u\\n", agents_now)', '"agents %u\\n", agents_ever)'),
    ),
    "keeps its id": _client(
        Step.UNLOAD,
        # An event of the id may come first, for the handler that has gone with the module.
        "RDMA objects are left|BUG: unable to handle page fault",
        (_DOWN, _DOWN.replace("\t\trdma_destroy_id(c->id);\n", "")),
    ),
}
