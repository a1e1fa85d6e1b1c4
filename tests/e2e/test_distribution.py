"""The wheel and the sdist: built as a publisher builds them, installed into an empty environment as
a user installs them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from penstock.distribution import DISTRIBUTION
from tests.conftest import ROOT

TIMEOUT_SECONDS: Final = 300
DIGITS: Final = ROOT / "examples" / "digits"
BUILD_BACKEND: Final = ("hatchling", "editables")

pytestmark = pytest.mark.slow


def run(*command: object, at: Path) -> str:
    """What *command*, started in the directory *at*, prints; fails the test with both streams if
    the command fails.
    """
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PIP_", "PYTHON"))
    }
    done = subprocess.run(
        [*map(str, command)],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        cwd=at,
        env=clean
        | {
            "PENSTOCK_CACHE_DIR": str(at / "cache"),
            "PENSTOCK_STATE_DIR": str(at / "state"),
            "PENSTOCK_KEY_STORE": "file",
        },
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def locked(*names: str) -> list[str]:
    """The lock's entries, with their hashes, of *names* and of all that they need here without
    extras.
    """
    lock = re.sub(r"(?m)^#.*\n", "", (ROOT / "requirements.lock").read_text("utf-8"))
    entries = {re.split("[= ]", e)[0]: e for e in re.split(r"\n(?=\S)", lock.strip())}
    wanted, left = set[str](), list(names)
    while left:
        name = left.pop()
        if name in wanted:
            continue
        wanted.add(name)
        for line in distribution(name).requires or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                left.append(need.name.lower().replace("_", "-"))
    return [entries[name] for name in sorted(wanted - {DISTRIBUTION})]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the sdist, and with the wheel that was built from the sdist."""
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, ROOT, at=target)
    return target


def test_wheel_installs_into_an_empty_environment_and_reads_the_demo_picture(
    built: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name.startswith("penstock_nn-")
    pip = empty_environment(tmp_path, *locked(DISTRIBUTION))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    requirements = tmp_path / "wheel.txt"
    requirements.write_text(f"{wheel} --hash=sha256:{digest}\n", "utf-8")
    own = ("--no-index", "--no-deps", "--require-hashes")
    run(*pip, "install", "--quiet", *own, "-r", requirements, at=tmp_path)

    run(*pip, "check", at=tmp_path)
    program = tmp_path / "empty" / "bin" / "penstock"
    for network in ("digits_float32", "digits_int8"):
        answer = run(
            *(program, "run", DIGITS / f"{network}.tflite", DIGITS / "seven.png", "--json"),
            at=tmp_path,
        )
        assert json.loads(answer)["top"][0]["index"] == 7
    found = json.loads(run(program, "doctor", "--json", at=tmp_path))
    assert found["packages"][DISTRIBUTION] is not None
    assert found["problems"] == []


def test_pip_makes_the_same_wheel_of_the_sdist(built: Path, tmp_path: Path) -> None:
    """With the pinned build backend alone, as a user who installs the sdist."""
    (sdist,) = built.glob("*.tar.gz")
    pip = empty_environment(tmp_path, *locked(*BUILD_BACKEND))
    own = ("--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path)
    run(*pip, "wheel", "--quiet", *own, sdist, at=tmp_path)

    (made,) = tmp_path.glob("*.whl")
    (wheel,) = built.glob("*.whl")
    assert made.name == wheel.name
    assert contents(made) == contents(wheel)


def empty_environment(at: Path, *requirements: str) -> tuple[object, ...]:
    """The command pip for a new environment `empty` in the directory *at*, which has nothing but
    *requirements*.
    """
    run(sys.executable, "-m", "venv", "--without-pip", "empty", at=at)
    python = at / "empty" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    (at / "needed.txt").write_text("\n".join(requirements), "utf-8")
    options = ("--quiet", "--no-compile", "--require-hashes")
    run(*pip, "install", *options, "-r", at / "needed.txt", at=at)
    return pip


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_sdist_holds_every_tracked_file(built: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing tells which files are tracked")
    tracked = set(run("git", "ls-files", at=ROOT).splitlines())
    (sdist,) = built.glob("*.tar.gz")
    listed = run("tar", "-tzf", sdist, at=built).splitlines()
    held = {name.partition("/")[2] for name in listed}
    assert tracked - held == set()
