# SPDX-License-Identifier: Apache-2.0
"""Kernel modules: made of a course's, built, loaded, and tested against a peer (`rnic kmod`, docs/kmod.md).

    from rnic.kmod import Module

    module = Module.new("mine", made_from="hello")
    print(module.load("whom=you"))  # in a machine of rnic.vm, which is started
    print(module.unload())

module           what programs use, and `rnic kmod`
course           the modules of the course, which are this package's data
skeleton, taken  a new module: a course's with the parts to fill in left out; names that it cannot have
folder, build    a folder with modules, and building them
place            where modules run: in a machine (rnic.vm) or on this computer
loading          load and unload, and what the kernel said
log              the kernel's log: since when, and whether the kernel is in trouble
steps, report    what is tested, and how it went
grade            the test of a module, step by step
scratch          the folder that it is built in
roles            how the modules of each kind are spoken to
peer, rogue      the process that is their peer; what it is with a fault
"""

from rnic.kmod.course import Lesson, lessons
from rnic.kmod.errors import KmodError
from rnic.kmod.module import Module
from rnic.kmod.steps import Outcome, Report, Step

__all__ = ["KmodError", "Lesson", "Module", "Outcome", "Report", "Step", "lessons"]
