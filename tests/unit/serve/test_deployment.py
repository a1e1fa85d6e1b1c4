"""The files of `examples/serving`: their options are those of the program, and what they start
answers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.commands import COMMANDS, find
from penstock.cli.declarations import signature_of
from penstock.cli.parsing import parse
from penstock.knobs import KNOBS
from tests.conftest import ROOT
from tests.support_serving import relu_file

EXAMPLES = ROOT / "examples" / "serving"
CONTAINER = (EXAMPLES / "Containerfile").read_text("utf-8")
UNIT = (EXAMPLES / "penstock.service").read_text("utf-8")
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--net"]


def has_namespaces() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode == 0
    )


def values_of(words: list[str]) -> dict[str, object]:
    """The options of the command line *words*, without the program's name."""
    found = find(words)
    assert found is not None
    name, rest = found
    values = parse(signature_of(COMMANDS[name].load()).parameters, rest)
    assert values is not None
    return values


def test_container_listens_beyond_itself_and_serves_its_volume() -> None:
    entry, command = (
        json.loads(re.findall(rf"(?m)^{name} (\[.*\])$", CONTAINER)[-1])
        for name in ("ENTRYPOINT", "CMD")
    )
    values = values_of([*entry, *command][1:])
    assert (values["host"], values["models"]) == ("0.0.0.0", ["/models"])
    assert f"EXPOSE {values['port']} {values['grpc_port']}" in CONTAINER
    assert "STOPSIGNAL SIGTERM" in CONTAINER


def test_unit_gives_requests_the_time_that_the_server_does() -> None:
    (line,) = re.findall(r"(?m)^ExecStart=\S+ (.*)$", UNIT)
    values = values_of(line.split())
    (stop,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", UNIT)
    assert isinstance(values["drain"], float)
    assert float(stop) > values["drain"]


def test_settings_in_both_files_exist() -> None:
    named = set(re.findall(r"PENSTOCK_(\w+)=", CONTAINER + UNIT))
    assert named
    assert {name.lower() for name in named} <= set(KNOBS)


@pytest.mark.skipif(not has_namespaces(), reason="this system gives users no namespaces")
@pytest.mark.parametrize("name", ["Containerfile", "penstock.service"])
def test_server_of_the_file_answers_from_a_read_only_root_and_keeps_its_cache(
    name: str, tmp_path: Path
) -> None:
    model = tmp_path / "models" / "relu" / "1" / "relu.tflite"
    model.parent.mkdir(parents=True)
    model.write_bytes(relu_file(1))
    program = [sys.executable, "-m", "tests.support_container", str(EXAMPLES / name), str(tmp_path)]
    done = subprocess.run(
        [*NAMESPACES, *program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout.splitlines()[-1])
    expected = {"check": 0, "answer": [1, 0, 3], "status": 0}
    assert first == expected | {"cache": ["miss"]}
    assert second == expected | {"cache": ["hit"]}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # It looks for the program, which is not installed here.
    unit = tmp_path / "penstock.service"
    unit.write_text(UNIT.replace("/opt/penstock/bin/penstock", sys.executable), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
