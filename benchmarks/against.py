"""Compares this code with another commit: runs the same benchmarks on both in alternating rounds.

It reports ratios of the two, not times.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import ROOT, Row

ROUNDS: Final = 7
LONGEST_S: Final = 1800


def compared(names: Sequence[str], ref: str, *, quick: bool) -> list[Row]:
    """For each measure of *names* that both versions have: this code's median over that of *ref*.

    *ref* is a commit, branch or tag of this repository. The note shows both medians. The benchmarks
    of this code measure both versions, each round in a new process. Raises `RuntimeError` if *ref*
    is no commit or a round fails.
    """
    sides: dict[str, Path] = {"new": ROOT / "src"}
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    with checked_out(ref) as tree:
        sides["old"] = tree / "src"
        for turn in range(ROUNDS):
            order = list(sides) if turn % 2 == 0 else list(reversed(sides))
            for side in order:
                for row in measured(names, sides[side], quick=quick):
                    key = (row["benchmark"], row["measure"], row["unit"])
                    found.setdefault(key, {}).setdefault(side, []).append(row["value"])
    rows = []
    for (benchmark, measure, unit), values in found.items():
        if len(values) < 2:
            continue
        new, old = (statistics.median(values[side]) for side in ("new", "old"))
        note = f"{new:.3f} {unit}, {ref} {old:.3f}"
        if old:
            rows.append(Row(benchmark, measure, new / old, "x", note=note))
        else:
            rows.append(Row(benchmark, measure, new - old, unit, note=note))
    return rows


@contextmanager
def checked_out(ref: str) -> Iterator[Path]:
    """The files of *ref*, checked out in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="penstock-against-") as place:
        tree = Path(place) / "tree"
        git("worktree", "add", "--detach", str(tree), ref)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str) -> None:
    done = subprocess.run(
        [shutil.which("git") or "git", *words],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    if done.returncode:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr.strip()}")


def measured(names: Sequence[str], source: Path, *, quick: bool) -> list[dict[str, Any]]:
    """The rows of one round that measures the package below *source*."""
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "rows.json"
        words = [sys.executable, "-m", "benchmarks", *names, "--json", str(target)]
        path = os.pathsep.join([str(source), str(ROOT)])
        done = subprocess.run(
            [*words, *["--quick"] * quick],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        if not target.exists():
            raise RuntimeError(f"a round on {source} failed: {done.stderr[-2000:]}")
        rows: list[dict[str, Any]] = json.loads(target.read_bytes())["rows"]
        return rows
