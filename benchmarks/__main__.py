"""Runs the benchmarks on one core and prints a table; `--json F` writes the same as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

MODULES = {
    "reference": "reference",
    "networks": "networks",
    "operations": "operations",
    "import": "importing",
    "load": "loading",
    "overhead": "overhead",
    "suppressor": "suppressor",
    "sealed": "sealed",
    "cache": "cache",
    "engines": "engines",
    "command": "command",
    "first": "first",
    "footprint": "footprint",
    "peaks": "peaks",
    "threads": "threads",
    "placement": "placement",
    "coverage": "coverage",
    "gpu": "gpu",
    "isolation": "isolation",
}
"""The module of each benchmark, by the benchmark's name."""


def main() -> int:
    """Runs the benchmarks. Returns 0: every limit holds, 1: one does not, 2: unknown name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help=f"only these: {', '.join(MODULES)}",
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, metavar="F", help="write the results here")
    parser.add_argument(
        "--against",
        metavar="REF",
        help="compare with the code of that commit, in one interleaved run: ratios of this code to "
        "it",
    )
    arguments = parser.parse_args()
    use_one_core()
    return run(
        arguments.names,
        quick=arguments.quick,
        target=arguments.json,
        against=arguments.against,
    )


def use_one_core() -> None:
    """Limits this process to one thread and one core. NumPy reads the variables when imported."""
    for name in THREADS:
        os.environ[name] = "1"
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def run(names: list[str], *, quick: bool, target: Path | None, against: str | None = None) -> int:
    if unknown := set(names) - set(MODULES):
        print(
            f"no benchmark is named {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}",
            file=sys.stderr,
        )
        return 2
    rows = []
    if against is not None:
        from benchmarks.against import compared

        rows = compared(names or list(MODULES), against, quick=quick)
        for row in rows:
            print(line(row), flush=True)
    for name in () if against is not None else names or MODULES:
        # Importing only what the requested benchmarks need keeps older commits measurable.
        found = import_module(f"benchmarks.{MODULES[name]}").rows(quick=quick)
        if not found:
            print(f"{name}: skipped, no test corpus (PENSTOCK_CORPUS)", file=sys.stderr)
        for row in found:
            print(line(row), flush=True)
        rows += found
    if target is not None:
        target.write_text(
            json.dumps({"machine": machine(), "rows": [r.to_dict() for r in rows]}, indent=2) + "\n"
        )
    return 1 if any(r.met is False for r in rows) else 0


def line(row: Any) -> str:
    """One row of the table."""
    limit = (
        ""
        if row.limit is None
        else f"at most {row.limit:g} {row.unit}: {'met' if row.met else 'NOT MET'}"
    )
    said = "; ".join(filter(None, (limit, row.note)))
    return (
        f"{row.benchmark:<10} {row.measure:<72.72} {row.value:>9.3f} {row.unit:<3} {said}".rstrip()
    )


def machine() -> dict[str, str]:
    from importlib.metadata import version

    from benchmarks.machine import processor

    return {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "processor": processor(),
    }


if __name__ == "__main__":
    sys.exit(main())
