"""Which operations each of LiteRT's kernel sets computes, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.drivers.xnnpack.engine import Kernels
from penstock.interrupts import polled
from penstock.ir import Operation

HEAVY: Final = frozenset(
    {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"}
)
"""Operations for which it is worth to change the kernel set; the others stay with that of the one
before.
"""


def grouped(
    operations: Sequence[Operation], pending: Sequence[int], allowed: Sequence[Sequence[Kernels]]
) -> Iterator[tuple[Kernels, list[int]]]:
    """The operations *pending*, whose order is one in which they can run, by kernel set: each group
    has, in that order, all that can be computed by then, so that few follow. *allowed* are the
    kernel sets of each operation, the faster first.

    Takes time in proportion to the operations, however many groups they make.
    """
    makers = {i: at for at in pending for i in operations[at].outputs}
    readers: dict[int, list[int]] = {at: [] for at in pending}
    missing: dict[int, int] = {}
    ready: dict[Kernels, list[int]] = {"xnnpack": [], "builtin": []}

    def now_ready(at: int) -> None:
        # A light operation stays with the kernels of the one before, where these compute it at all.
        is_heavy = operations[at].type in HEAVY
        for kernels in allowed[at][:1] if is_heavy else allowed[at]:
            ready[kernels].append(at)

    for at in polled(pending):
        before = {makers[i] for i in operations[at].inputs if i in makers}
        missing[at] = len(before)
        for maker in before:
            readers[maker].append(at)
        if not before:
            now_ready(at)
    done: set[int] = set()
    for first in pending:
        if first in done:
            continue
        kernels = allowed[first][0]
        members: list[int] = []
        queue = ready[kernels]
        while queue:
            at = queue.pop()
            if at in done:
                continue
            done.add(at)
            members.append(at)
            for reader in readers[at]:
                missing[reader] -= 1
                if not missing[reader]:
                    now_ready(reader)
        yield kernels, sorted(members)
