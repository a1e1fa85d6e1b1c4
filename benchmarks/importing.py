"""Import time of `penstock` over Python and NumPy, beside LiteRT's. One process per import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

from benchmarks.measuring import Row, interleaved, medians

NAME = "import"
LIMIT_MS = 30.0

TIMED = """
import numpy, time
began = time.perf_counter()
{statement}
print((time.perf_counter() - began) * 1000)
"""

STATEMENTS = {
    "nothing": "pass",
    "import penstock": "import penstock",
    "penstock, with load and compile": "import penstock; penstock.load; penstock.compile",
    "LiteRT's interpreter": "import ai_edge_litert.interpreter",
}


def rows(*, quick: bool) -> list[Row]:
    """Milliseconds of each import after NumPy's, without the time of an empty program."""
    chosen = {
        name: statement
        for name, statement in STATEMENTS.items()
        if not name.startswith("LiteRT") or find_spec("ai_edge_litert") is not None
    }
    subjects: dict[str, Callable[[], float]] = {
        name: child(statement) for name, statement in chosen.items()
    }
    interleaved(subjects, 1)
    found = medians(interleaved(subjects, 5 if quick else 25))
    return [
        Row(
            NAME,
            name,
            value - found["nothing"],
            "ms",
            LIMIT_MS if name == "import penstock" else None,
        )
        for name, value in found.items()
        if name != "nothing"
    ]


def child(statement: str) -> Callable[[], float]:
    """Runs the statement in a fresh interpreter and returns its milliseconds."""

    def run() -> float:
        command = [sys.executable, "-c", TIMED.format(statement=statement)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return run
