"""Every network and unit on every engine, on all together and dealt out in turn, in every accuracy
class; and every operation of every network by itself.

    python -m tests.soak.soak_engines [--only ID,...] [--arrangement first|together|alternating]

Prints what fails. What is known to (tests/golden/engine_gaps.py) is run too: it fails the soak once
it passes. tests/golden/test_engines.py runs the units and a dozen networks.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from typing import Any

from penstock.hal import AccuracyClass
from penstock.runtime.discovery import manager
from tests.golden.cases import Entry
from tests.golden.engine_gaps import ONNX_GAPS, gap_of
from tests.golden.engine_grid import ACCURACIES, ENGINES, Arrangement, arranged, check, groups_of

PASSES = "stands in tests/golden/engine_gaps.py, and passes"
ARRANGEMENTS: tuple[Arrangement, ...] = ("first", "together", "alternating")


def main() -> int:
    parser = argparse.ArgumentParser(description="Engine soak.")
    parser.add_argument("--only", default="", help="files, by id, separated by commas")
    parser.add_argument("--arrangement", choices=ARRANGEMENTS, action="append")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--most-macs", type=float, default=float("inf"))
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    engines = [e for e in arguments.engine or ENGINES if manager.by_name(e) is not None]
    for missing in set(arguments.engine or ENGINES) - set(engines):
        print(f"{missing} is not usable here")
    began, done, failures, known = time.monotonic(), Counter[str](), list[str](), 0
    for arrangement in arguments.arrangement or ARRANGEMENTS:
        sets = [(e,) for e in engines] if arrangement == "first" else [tuple(engines)]
        for names in sets:
            for kind in ("unit", "network"):
                for entry, cases in groups_of(kind, most_macs=arguments.most_macs):
                    if (only and entry["id"] not in only) or entry["id"] in ONNX_GAPS:
                        continue
                    for accuracy in ACCURACIES:
                        failure = tried(entry, cases, arrangement, names, accuracy)
                        done[arrangement] += 1
                        group = f"{entry['id']}-{cases[0]['group']}"
                        if (gap := gap_of(arrangement, group, names, accuracy)) is not None:
                            known += 1
                            print(f"known: {failure or f'{group} passes'} ({gap})", flush=True)
                            failure = "" if failure else f"{group}, {accuracy}: {PASSES}"
                        if failure:
                            failures.append(failure)
                            print(failure, flush=True)
            print(
                f"{arrangement} {'+'.join(names)}: {time.monotonic() - began:.0f} s so far",
                flush=True,
            )
    print(
        ", ".join(f"{count} {name}" for name, count in done.items())
        + f"; {known} known, {len(failures)} failed"
    )
    return 1 if failures else 0


def tried(
    entry: Entry,
    cases: list[dict[str, Any]],
    arrangement: Arrangement,
    names: tuple[str, ...],
    accuracy: AccuracyClass,
) -> str:
    """What went wrong, in a line; empty where nothing did."""
    try:
        check(entry, cases, arranged(arrangement, names), accuracy)
    except Exception as error:  # noqa: BLE001  # whatever goes wrong is the soak's result
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = str(error).splitlines()[0] if str(error) else ""
        return (
            f"{arrangement} {'+'.join(names)} {accuracy} {entry['id']}-{cases[0]['group']}: "
            f"{type(error).__name__}: {message[:300]} "
            f"({last.filename.rpartition('/')[2]}:{last.lineno})"
        )
    return ""


if __name__ == "__main__":
    sys.exit(main())
