"""What a capsule does not tell."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import knobs
from penstock.capsules.scrubbing import Scrubber, environment, nameless, names_of
from penstock.errors import InputError
from penstock.export.tflite import write
from penstock.ir import DType, Model, ModelBuilder, Operand


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "marigold")
    monkeypatch.setenv("HOME", "/home/marigold")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("cannot open /home/marigold/net.bin: no", "cannot open <path>: no"),
        ("~/secret/plan.onnx", "<path>"),
        ("file:///srv/x/y.bin", "<path>"),
        (r"C:\Users\marigold\net.bin is gone", "<path> is gone"),
        (r"\\server\share\net", "<path>"),
        ("Marigold's driver", "<user>'s driver"),
        ("in '/srv/My Models/big net' it is", "in '<path>' it is"),
        ("/srv/My Models/x.tflite: torn", "<path>: torn"),
        ("/srv/models/my net.tflite is torn", "<path> is torn"),
        (r"C:\Users\Mary Gold\my net.onnx is gone", "<path> is gone"),
        ("split at '/' or '~x'", "split at '/' or '<path>'"),
        ("half of 3/4 and/or a/b", "half of 3/4 and/or a/b"),
        (
            "0.5 of the largest value (2e-4 allowed), at [0, 3]",
            "0.5 of the largest value (2e-4 allowed), at [0, 3]",
        ),
        ("operand 'a' of 'secret_layer'", "operand 'name1' of 'name0'"),
        ("secret_layer/Relu failed", "name0/Relu failed"),
        ("a flat array", "a flat array"),
    ],
)
def test_text(given: str, expected: str) -> None:
    assert Scrubber(["a", "secret_layer"]).text(given) == expected


@pytest.mark.parametrize(
    "home", ["/home/Mary Gold", "/home/Mary (Gold): a, b", "/Users/Mary Ann Gold"]
)
@pytest.mark.parametrize(
    ("below", "left"),
    [
        ("", ""),
        ("/net.bin", ""),
        ("/My Models/net.bin", ""),
        ("/x/my net.onnx", ""),
        ("/x y", " y"),
    ],
)
def test_a_home_directory_with_spaces(
    home: str, below: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a name without an ending, unquoted, the second word cannot be told from the sentence."""
    monkeypatch.setenv("HOME", home)
    scrubber = Scrubber()
    assert scrubber.text(f"cannot open {home}{below}: no") == f"cannot open <path>{left}: no"
    assert scrubber.text(f"cannot open '{home}{below}'") == "cannot open '<path>'"
    assert scrubber.text(f"{home}{below}") == f"<path>{left}"


def test_long_texts_take_little_time() -> None:
    scrubber = Scrubber(["layer"])
    for part in ("'/", "/", " /", "/ ", "'/a ", "a.b ", "~/", "C:\\ "):
        began = time.process_time()
        scrubber.text(part * 30_000)
        assert time.process_time() - began < 5


def test_names_stay_where_they_were_asked_for() -> None:
    scrubber = Scrubber(["secret_layer"], keep_names=True)
    assert scrubber.text("'secret_layer' in /home/marigold/x") == "'secret_layer' in <path>"


def test_root_is_not_scrubbed_as_a_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "root")
    assert "root" in Scrubber().text("the root mean square")


def test_path_of_the_program_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in Scrubber().text(f"in {tmp_path}")
    assert os.fspath(tmp_path.name) not in Scrubber().text(f"opening {tmp_path}/x")


def test_paths_in_settings_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the knob: of those that are no text of one's own, none takes a path."""
    secret, told = "/home/marigold/secret_project/o.sock", set()
    for name, knob in knobs.KNOBS.items():
        value = secret if knob.directory else f"openvino={secret}"
        monkeypatch.setenv(f"PENSTOCK_{name.upper()}", value)
        with suppress(InputError):
            knob()
            told.add(name)
    assert told >= {"services", "isolate", "devices", "state_dir", "cache_dir"}
    found = environment().knobs
    assert set(found) >= told
    assert found["services"] == "openvino=<path>"
    assert found["state_dir"] == found["cache_dir"] == "set"
    assert not any("secret_project" in value for value in found.values())


def model() -> Model:
    b = ModelBuilder()
    x = b.input(DType.FLOAT32, (2,), "private_input")
    k = b.constant(np.ones(2, np.float32), "private_weights")
    (out,) = b.operation("ADD", [x, k], [Operand(DType.FLOAT32, (2,), name="private_output")])
    return b.build([out])


def test_a_model_without_its_names_computes_the_same() -> None:
    named = model()
    assert names_of(named) >= {"private_input", "private_weights", "private_output"}
    content = write(nameless(named))
    assert b"private" not in content
    x = np.array([1, 2], np.float32)
    with penstock.compile(content, devices=["reference"], cache=None) as compiled:
        assert compiled(x)[0].tolist() == [2, 3]
    assert nameless(named).digest == named.digest
