"""The frame: what one run of generated code gets, as 64-bit words.

`run(frame)` executes the program and returns 0, or 1 if the run was stopped. Words are pointers,
unless said otherwise. A frame is used by one run at a time, and begins at a multiple of 64 bytes.
"""

from __future__ import annotations

from typing import Final

WHOLE: Final = 1 << 16
"""All of the work of a kernel."""


class Word:
    """The words of a frame, by place. Plain numbers: an enumeration takes as long to make as a
    module to import.
    """

    PORTS: Final = 0
    """Pointers to the inputs, and then to the outputs."""

    ARENA: Final = 1
    CONSTANTS: Final = 2

    STOP: Final = 3
    """An int32. The run ends soon after it is not 0, and its results are then of no use."""

    TIMES: Final = 4
    """An array of int64 for time stamps: when each kernel began and, at the end, when the last one
    ended; so for each image. Or null.
    """

    TEAM: Final = 5
    """The team, whose threads help with the run (`penstock.drivers.llvm.run.team`); null for none.
    """

    LOW: Final = 6
    """A number: the part [low, high) of the work of each kernel is executed, in 65536ths."""

    HIGH: Final = 7

    THREADS: Final = 8
    """A number: how many threads execute the run at most. Results do not depend on it."""

    IMAGES: Final = 9
    """A number: how many times the program runs, each on the next part of every port. Only
    programs that treat images separately read it.
    """

    KERNEL: Final = 10
    """A number, written by the run: the kernel that runs; the number of kernels when it ended."""

    ELSEWHERE: Final = 11
    """As KERNEL, written by the other threads of the run."""

    HEAD: Final = 12
    """A number. If it is not 0, the ports are objects, which have the pointer so many bytes from
    their beginning: then nobody needs to read the addresses of arrays one by one.
    """

    SLOTS: Final = 13
    """`SLOT_BYTES` for each kernel of each image, for what threads have claimed and finished; only
    used with a team.
    """

    ASLEEP: Final = 16
    """An int32: how many threads of the run sleep."""


SLOT_BYTES: Final = 16

WORDS: Final = 32
