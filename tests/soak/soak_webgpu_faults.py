"""Runs on `webgpu-software` whose host process loses its adapter, hangs in a shader, or is killed:

    python -m tests.soak.soak_webgpu_faults [--count N] [--seed S]

Each fault happens *count* times. Every run must have its answer within its own call, from another
process or from `reference`, and the receipt must say why. No descriptor, mapping, thread, process
or memory may be left. The short version is tests/unit/drivers/webgpu/test_faults.py.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Final

from tests.support_webgpu import REASON
from tests.support_webgpu_faults import rounds

COUNT: Final = 200


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults of webgpu-software.")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if REASON is not None:
        sys.exit(f"webgpu-software cannot be used: {REASON}")
    found = rounds(arguments.count, arguments.seed, partial(print, flush=True))
    print("\n".join(found.lines()))
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
