"""What `bench --tune` says of the placements that it measured."""

from __future__ import annotations

import io

from rich.console import Console

from penstock.cli.bench import show_tuned
from penstock.cli.output import Output
from penstock.partitioning.placements import Measured, Tuned

WHY = "GeneralFailure: no kernel " + "figures " * 30


def test_why_a_candidate_failed_stands_below_the_table() -> None:
    candidates = (
        Measured("usual", 7_300_000, 20_000, 40),
        Measured("slow", 9_300_000, 10_000, 40),
        Measured("lame", 0, 0, 0, error=WHY),
    )
    stream = io.StringIO()
    tuned = Tuned(candidates, "usual", "is faster than slow")
    show_tuned(Output(console=Console(file=stream, width=2000)), tuned)
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines() if line.strip()]
    assert lines[-5:] == [
        "usual * 7.3 ms 0.020 ms",
        "slow 9.3 ms 0.010 ms",
        "lame failed",
        f"'lame' failed: {WHY.strip()}",
        "tuned (measured now): usual: is faster than slow",
    ]
