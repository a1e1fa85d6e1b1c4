"""What came out of operation vectors, by run and by case."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

Outcome: TypeAlias = Literal["passed", "failed", "not_covered"]


class RunResult(msgspec.Struct, frozen=True):
    """One run of one case; *message* says why it failed or was not covered."""

    specification: str
    case: str
    run: str
    outcome: Outcome
    message: str = ""


class Report(msgspec.Struct, frozen=True):
    """Counts of cases, and of runs.

    A case failed if one of its runs did; it is not covered if its plain run is not; else it passed.
    *uncovered* has every run that was not covered, of passed cases too.
    """

    passed: int
    failed: int
    not_covered: int
    failures: tuple[RunResult, ...]
    uncovered: tuple[RunResult, ...]
    runs: dict[str, int]

    @classmethod
    def of(cls, results: Iterable[RunResult]) -> Report:
        """The counts of *results*."""
        outcomes: dict[tuple[str, str], Outcome] = {}
        runs: dict[str, int] = {"passed": 0, "failed": 0, "not_covered": 0}
        failures, uncovered = [], []
        for result in results:
            key = result.specification, result.case
            runs[result.outcome] += 1
            outcome = outcomes.setdefault(key, "passed")
            if result.outcome == "failed":
                failures.append(result)
                outcomes[key] = "failed"
            elif result.outcome == "not_covered":
                uncovered.append(result)
                if result.run == "plain" and outcome != "failed":
                    outcomes[key] = "not_covered"
        found = list(outcomes.values())
        return cls(
            found.count("passed"),
            found.count("failed"),
            found.count("not_covered"),
            tuple(failures),
            tuple(uncovered),
            runs,
        )
