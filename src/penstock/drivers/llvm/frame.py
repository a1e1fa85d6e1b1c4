"""The frame: what one run of generated code gets, as 64-bit words.

`run(frame)` executes the share of one thread, and returns 0. Words are pointers, unless said
otherwise. A thread executes the part [low, high) of the work of each kernel, in 65536ths.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

WHOLE: Final = 1 << 16
"""All of the work of a kernel."""


class Word(IntEnum):
    """The words of a frame, by place."""

    PORTS = 0
    """Pointers to the inputs, and then to the outputs."""

    ARENA = 1
    CONSTANTS = 2

    STOP = 3
    """An int32. The run ends soon after it is not 0, and its results are then of no use."""

    TIMES = 4
    """An array of int64, for the time when each kernel began and when the last one ended; or
    null.
    """

    TEAM = 5
    """What the threads of a run share; null for one thread."""

    LOW = 6
    """A number: where the share of this thread begins."""

    HIGH = 7
    """A number: where it ends."""

    THREADS = 8
    """A number: of threads."""

    IMAGES = 9
    """A number: how many times the program runs, each on the next part of every port."""


WORDS: Final = len(Word)
