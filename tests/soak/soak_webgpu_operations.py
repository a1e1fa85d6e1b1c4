"""Random operations and chains on the device `webgpu-software`, against the device `reference`:

    python -m tests.soak.soak_webgpu_operations [--count N] [--least M] [--seed S]
        [--jobs J] [--show F] [--only FAMILY ...]

Goes on until the device has computed *count* models, and *least* of every family that it supports
any of; models that it refuses do not count. Exit code 1 where results differ (integers have to be
equal, floats within the bound of `exact`) and where a model that it supports does not compile. Each
batch runs in a process of its own, so that an abort of wgpu is a failure with the model's number.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Final

from tests.soak.families import soak
from tests.support_compiler_trials import Trial, tried_on
from tests.support_webgpu import REASON, software

COUNT: Final = 5_000
LEAST: Final = 100

device: Final = cache(software)


def attempt(family: str, number: int) -> Trial:
    """The outcome on the software adapter, which compiles every shader."""
    # No shader comes twice, and the user's own cache of them is to stay as it is.
    os.environ["MESA_SHADER_CACHE_DISABLE"] = "true"
    return tried_on(device(), family, number)


def where() -> str:
    from penstock.drivers.webgpu import engine
    from penstock.drivers.webgpu.installation import SOFTWARE

    return engine.opened(SOFTWARE).adapter


if __name__ == "__main__":
    if REASON is not None:
        sys.exit(f"webgpu-software cannot be used: {REASON}")
    sys.exit(soak(__spec__.name, attempt, COUNT, LEAST, where))
