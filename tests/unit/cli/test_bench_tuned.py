"""What `bench --tune` says of the placements that it measured."""

from __future__ import annotations

import io

from rich.console import Console

from penstock.cli.bench import show_tuned
from penstock.cli.output import Output
from penstock.partitioning.plan import Measured, Tuned

NOT_PROVED = "within a step in each operation, but not proved as a whole: " + "figures " * 30


def test_why_a_candidate_is_out_stands_below_the_table_and_its_median_within() -> None:
    candidates = (
        Measured("usual", 7_300_000, 20_000, 40),
        Measured("brief, stepwise", 5_700_000, 10_000, 40, error=NOT_PROVED),
        Measured("lame", 0, 0, 0, error="GeneralFailure: no kernel"),
    )
    stream = io.StringIO()
    tuned = Tuned(candidates, "usual", "is faster than lame")
    show_tuned(Output(console=Console(file=stream, width=2000)), tuned)
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines() if line.strip()]
    assert lines[-6:] == [
        "usual * 7.3 ms 0.020 ms",
        "brief, stepwise 5.7 ms 0.010 ms",
        "lame failed",
        f"'brief, stepwise' is out: {NOT_PROVED.strip()}",
        "'lame' failed: GeneralFailure: no kernel",
        "tuned (measured now): usual: is faster than lame",
    ]
