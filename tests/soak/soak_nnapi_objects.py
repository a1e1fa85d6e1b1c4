"""NNAPI's object model against the lowering: python -m tests.soak.soak_nnapi_objects [--count N]
[--seed S].

Every model of the operation vectors, and of their derived runs, built call by call, values first
and values last, must be the model that the lowering makes of it at once. Then such models changed
at random: whatever their calls meet is an `NnapiError`, and what the lowering takes, the calls
take. Prints figures; exit code 1 when one did not, with its place.
"""

from __future__ import annotations

import argparse
import collections
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.nnapi.description import NnapiModel
from penstock.testing.vectors import Case, load_directory
from penstock.testing.vectors.derive import runs_of
from tests.conftest import CORPUS, NO_CORPUS
from tests.soak.soak_nnapi import mutated
from tests.unit.nnapi.replay import difference

COUNT = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak and returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.soak.soak_nnapi_objects", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if CORPUS is None or not (CORPUS / "conformance" / "nnapi").is_dir():
        print(NO_CORPUS)
        return 2
    listed = [
        case
        for specification in load_directory(CORPUS / "conformance" / "nnapi")
        for case in specification.cases
    ]
    failures: list[str] = []
    outcomes: collections.Counter[str] = collections.Counter()
    for case in listed:
        for run in runs_of(case):
            _compare(f"{case.name} ({run.kind})", run.model, bool, outcomes, failures)
    print(f"models:   {sum(outcomes.values())} of the operation vectors")
    cases: dict[str, list[Case]] = {}
    for case in listed:
        for operation in case.operations:
            cases.setdefault(operation, []).append(case)
    for seed in range(options.seed, options.seed + options.count):
        model = mutated(cases, seed).model
        matters = _never if _has_empty(model) else _is_loss
        _compare(f"seed {seed}", model, matters, outcomes, failures)
    print(f"changed:  {options.count} from seed {options.seed}")
    print(f"outcomes: {', '.join(f'{n} {k}' for k, n in outcomes.most_common())}")
    for message in failures[:20]:
        print(f"FAILED {message}")
    print(f"failures: {len(failures)}")
    return 1 if failures else 0


def _compare(
    name: str,
    model: NnapiModel,
    matters: Callable[[str], bool],
    outcomes: collections.Counter[str],
    failures: list[str],
) -> None:
    try:
        found = difference(model)
    except Exception:  # noqa: BLE001  # each is a finding
        failures.append(f"{name}: {traceback.format_exc(limit=-3)}")
        return
    outcomes[found.partition(":")[0] or "agree"] += 1
    if matters(found):
        failures.append(f"{name}: {found}")


def _is_loss(found: str) -> bool:
    """Calls sort operations, and have no lifetime that contradicts what was called: they may take
    more.
    """
    return bool(found) and found not in {"accepted", "another digest"}


def _never(found: str) -> bool:
    return False


def _has_empty(model: NnapiModel) -> bool:
    """Whether an operand has no element. Calls cannot say so: their 0 is an unknown dimension."""
    return any(
        0 in (operand.dimensions or ())
        for subgraph in (model.main, *model.referenced)
        for operand in subgraph.operands
    )


if __name__ == "__main__":
    sys.exit(main())
