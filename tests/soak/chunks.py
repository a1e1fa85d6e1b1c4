"""Models by number, drawn and judged in chunks by several processes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def parsed(description: str, count: int, show: int) -> argparse.Namespace:
    """What the command line says: *count* models from number *seed* on in *jobs* processes, *show*
    failures.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count, help="how many models")
    parser.add_argument("--seed", type=int, default=0, help="number of the first one")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--show", type=int, default=show, help="failures to show")
    return parser.parse_args()


def each_chunk(
    run: Callable[[tuple[int, int]], T], arguments: argparse.Namespace, size: int
) -> Iterator[T]:
    """What *run* gives for each chunk of at most *size* numbers, first and last bound, in any
    order.
    """
    first, last = arguments.seed, arguments.seed + arguments.count
    chunks = [(at, min(at + size, last)) for at in range(first, last, size)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        yield from pool.imap_unordered(run, chunks)
