"""All extras install together, on each Python that Penstock supports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uv")

ROOT = Path(__file__).resolve().parents[2]
UNREACHABLE = (
    *("dns error", "Connection refused", "operation timed out", "error sending request"),
    "client error (Connect)",
)


def resolve(version: str, project: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Resolves all extras of *project* on Linux from metadata, with wheels alone."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", str(project), "--all-extras"),
            *("--python-version", version, "--python-platform", "x86_64-manylinux_2_28"),
            *(
                "--only-binary",
                ":all:",
                "--no-header",
                "--no-annotate",
                "--no-python-downloads",
                *more,
            ),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


def skip_if_unreachable(found: subprocess.CompletedProcess[str]) -> None:
    if found.returncode and any(words in found.stderr for words in UNREACHABLE):
        pytest.skip(f"the package index cannot be reached: {found.stderr[-200:]}")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_all_extras_resolve_together_to_the_locked_releases(version: str) -> None:
    locked = ROOT / "requirements.lock"
    found = resolve(version, ROOT / "pyproject.toml", "--constraints", str(locked))
    skip_if_unreachable(found)
    assert found.returncode == 0, found.stderr
    names = {line.partition("==")[0] for line in found.stdout.splitlines()}
    assert {"grpcio", "obstore", "onnxruntime", "openvino", "ray", "tuf"} <= names


def test_extras_that_exclude_each_other_are_noticed(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\nname = "contrary"\nversion = "1"\n[project.optional-dependencies]\n'
        'one = ["tuf>=6"]\ntwo = ["tuf<6"]\n'
    )
    found = resolve("3.11", project)
    skip_if_unreachable(found)
    assert found.returncode != 0
    assert "unsatisfiable" in found.stderr
