"""Programs that tests run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_python(
    *arguments: object,
    check: bool = False,
    timeout: float = 240,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Python with *arguments* in a new process; its output is captured as text."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout,
        cwd=cwd,
        env=env,
        input=input,
    )
