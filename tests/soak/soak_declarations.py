"""What drivers declare, on random operations:

    python -m tests.soak.soak_declarations [--count N] [--seed S] [--jobs J] [--show F]

Half of the models are ordinary, half unusual; each operation in turn. Exit code 1 when an engine
refuses or crashes on what it said yes to, or computes it farther off than the class that it
declares. tests/differential/test_declarations.py judges a few.
"""

from __future__ import annotations

import sys
import time

from tests.differential.declarations import Declarations
from tests.differential.draw import Drawn
from tests.differential.registry import draw_single, draw_unusual, every_case
from tests.golden.engine_grid import ENGINES
from tests.soak.chunks import each_chunk, parsed

COUNT = 20_000
CHUNK = 100
SHOWN = 40


def main() -> int:
    arguments = parsed("Declarations of accuracy on random operations.", COUNT, SHOWN)
    began, compared, lines = time.monotonic(), 0, list[str]()
    for count, found in each_chunk(run_chunk, arguments, CHUNK):
        compared += count
        lines += found
    elapsed = time.monotonic() - began
    print(
        f"{arguments.count} models on {len(ENGINES)} engines, {compared} results compared in "
        f"{elapsed:.0f} s"
    )
    for line in lines[: arguments.show]:
        print(f"FAILED: {line}")
    print(f"{len(lines)} failures")
    return 1 if lines or compared < arguments.count // 4 else 0


def run_chunk(bounds: tuple[int, int]) -> tuple[int, list[str]]:
    compared, lines = 0, list[str]()
    with Declarations() as engines:
        for seed in range(*bounds):
            key, drawn = draw(seed)
            count, found = engines.ask(drawn)
            compared += count
            kinds = ", ".join(sorted(kind.name for kind in drawn.kinds)) or "ordinary"
            lines += [f"{seed} {key} ({kinds}), {line}\n{drawn.listing}" for line in found]
    return compared, lines


def draw(seed: int) -> tuple[str, Drawn]:
    """The model number *seed*: its operation, and itself."""
    keys = sorted(every_case())
    number, round_ = seed % len(keys), seed // len(keys)
    drawn = (draw_unusual if round_ % 2 else draw_single)(keys[number], [round_])
    return keys[number], drawn


if __name__ == "__main__":
    sys.exit(main())
