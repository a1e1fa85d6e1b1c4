"""Objects that a forked child leaves as they are."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

from penstock.driverkit.lazy_engine import LeftInChildren
from tests.support_programs import run_python

PROGRAM = """
import gc, os, sys
from penstock.driverkit.lazy_engine import LeftInChildren

class Made:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        os.write(1, f"{self.name} {'child' if os.getpid() != parent else 'parent'}\\n".encode())

parent = os.getpid()
left = LeftInChildren()
known, other = Made("known"), Made("other")
left.add(known)
child = os.fork()
if child == 0:
    del other
    known = None
    gc.collect()
    late = Made("late")
    left.add(late)
    del late
    sys.exit(0)
os.waitpid(child, 0)
del known
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_destroys_none_of_them_even_when_it_ends() -> None:
    done = run_python("-c", PROGRAM, check=True)
    assert sorted(done.stdout.split("\n")) == ["", "known parent", "late child", "other child",
        "other parent"]  # fmt: skip


def test_objects_left_in_children_are_held_weakly() -> None:
    class Made:
        pass

    left, made = LeftInChildren(), Made()
    left.add(made)
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
