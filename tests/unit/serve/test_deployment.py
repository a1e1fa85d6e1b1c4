"""The files of `examples/serving`: their options are those of the program."""

from __future__ import annotations

import json
import re

from penstock.cli.commands import COMMANDS, find
from penstock.cli.declarations import signature_of
from penstock.cli.parsing import parse
from penstock.knobs import KNOBS
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples" / "serving"
CONTAINER = (EXAMPLES / "Containerfile").read_text("utf-8")
UNIT = (EXAMPLES / "penstock.service").read_text("utf-8")


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
