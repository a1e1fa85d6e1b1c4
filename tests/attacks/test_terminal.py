"""Names and texts of files, of their paths and of settings command no terminal, whichever command
prints them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from penstock.capsules import Capsule, Manifest, archive
from penstock.capsules.archive import DeviceRecord, Environment, Failure, OperationRecord
from penstock.cli.application import app
from tests.attacks.hostile_texts import COMMANDS, SPOKEN, TEXT, write_all
from tests.support_terminal import on_terminal

ON_MODEL: Final = (
    "inspect {}",
    "inspect {} --svg -",
    "plan {}",
    "plan {} --dot -",
    "plan {} --svg -",
    "dump {}",
    "dump {} --after load",
    "dump {} --after partition",
    "run {} random",
    "run {} {labels.txt}",
    "run {} {arrays.npz}",
    "run {} random --labels {labels.txt}",
    "run {} random --task outputs",
    "bench {} --runs 2",
    "compare {}",
    "cache explain {}",
    "cache prewarm {}",
    "replay {}",
    "calibrate {} --device reference --seconds 0.1 --dir {called.txt}",
)
"""Of commands that take a model; `{}` is its path."""

ALONE: Final = (
    "devices",
    "devices {called.txt}",
    "knobs",
    "doctor",
    "doctor --capsule {called.txt}",
    "replay {told.capsule}",
    "replay {called.capsule}",
    "cache ls",
    "cache ls --dir {called.txt}",
    "cache show nothing",
    "cache show {called.txt}",
    "cache verify",
    "cache gc",
    "cache clear --yes",
    "cache publish {called.txt} --store {called.txt}",
    "cache publish {called.tflite} --store {called.txt} --device reference",
    "cache refresh --store {called.txt}",
    "cache renew --store {called.txt}",
    "cache prune --store {called.txt}",
    "cache keygen {called.txt}",
    "cache draft {called.txt} --root-key {called.txt} --publisher {called.txt}",
    "cache rotate {called.txt} --root-key {called.txt}",
    "cache sign {called.txt} --key {called.txt}",
    "cache apply {called.txt} --store {called.txt}",
    "serve {called.txt}",
    "serve {called.tflite} --port -1 --grpc-port -1",
    "{called.txt}",
    "run --{called.txt}",
)

MODELS: Final = (
    "names.tflite",
    "custom.tflite",
    "refused.tflite",
    "members.tflite",
    "names.onnx",
    "refused.onnx",
    "called.tflite",
    "called.txt",
)


def told() -> Capsule:
    """A capsule that says what it likes."""
    failure = Failure(
        "execute",
        DeviceRecord(SPOKEN, SPOKEN, SPOKEN, 4),
        (OperationRecord(3, SPOKEN, SPOKEN),),
        SPOKEN,
        SPOKEN,
    )
    environment = Environment(SPOKEN, SPOKEN, SPOKEN, SPOKEN, {SPOKEN: SPOKEN}, {SPOKEN: SPOKEN})
    return Capsule(
        Manifest(penstock=SPOKEN, environment=environment, failure=failure, no_case=SPOKEN)
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("hostile")
    written = write_all(directory)
    written["told.capsule"] = directory / "told.capsule"
    archive.write(written["told.capsule"], told())
    return written


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"PENSTOCK_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("PENSTOCK_ISOLATE", "")


def printed(command: str, files: dict[str, Path], captured: Any, model: str = "") -> str:
    """All that the program writes, on both streams."""
    words = [
        str(files[model]) if word == "{}" else expanded(word, files) for word in command.split()
    ]
    with pytest.raises(SystemExit):
        app(words)
    found = captured.readouterr()
    written: bytes = found.out + found.err
    return written.decode("utf-8", "surrogateescape")


def expanded(word: str, files: dict[str, Path]) -> str:
    before, brace, name = word.partition("{")
    return before + str(files[name.rstrip("}")]) if brace else word


def commanding(text: str) -> list[str]:
    """What of *text* a terminal does not show as a character of its own."""
    return sorted({c for c in text if not c.isprintable() and c not in "\n\t"})


@pytest.mark.parametrize("flags", ["", " --json", " --debug"])
@pytest.mark.parametrize("model", MODELS)
def test_texts_of_a_model_command_no_terminal(
    model: str, flags: str, files: dict[str, Path], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for command in ON_MODEL:
        assert not commanding(printed(command + flags, files, capfdbinary, model)), command


@pytest.mark.parametrize("flags", ["", " --json", " --debug"])
@pytest.mark.parametrize("command", ALONE)
def test_texts_of_other_files_command_no_terminal(
    command: str, flags: str, files: dict[str, Path], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert not commanding(printed(command + flags, files, capfdbinary))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows' environment has no such texts")
@pytest.mark.parametrize("flags", ["", " --json", " --debug"])
@pytest.mark.parametrize("knob", ["devices", "isolate", "services", "num_threads", "cache_dir"])
def test_texts_of_settings_command_no_terminal(
    knob: str,
    flags: str,
    files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setenv(f"PENSTOCK_{knob.upper()}", f"/{TEXT}={TEXT}")
    for command in ("knobs", "doctor", "devices", "plan {}", "cache ls"):
        assert not commanding(printed(command + flags, files, capfdbinary, "members.tflite"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
@pytest.mark.parametrize("command", ["inspect {names.tflite}", "run {names.onnx} random"])
def test_on_a_terminal(command: str, files: dict[str, Path]) -> None:
    words = [expanded(word, files) for word in command.split()]
    text = on_terminal(*words)
    assert r"\x1b]0;title" in text
    assert not [what for what, sequence in COMMANDS.items() if sequence in text]


def leaves(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield before + name


def test_every_command_is_tried() -> None:
    tried = [*ON_MODEL, *ALONE]
    for name in leaves(typer.main.get_command(app)):
        assert any(f"{command} ".startswith(f"{name} ") for command in tried), name
