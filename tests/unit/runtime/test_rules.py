"""A policy's rules are about devices that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InputError, PlacementError
from penstock.partitioning import Policy
from penstock.runtime.discovery import Manager
from penstock.runtime.explain import explain_model
from penstock.runtime.planning import check_rules
from tests.checked import does_not_raise
from tests.unit.execution.fakes import NumpyDevice, add_relu, f32
from tests.unit.runtime.test_discovery import FakeDevice, explode, manager_of


def there() -> Manager:
    return manager_of(
        gone=explode, engine=lambda: [FakeDevice("engine-cpu"), FakeDevice("engine-gpu")]
    )


@pytest.mark.parametrize("label", ["forbid", "require"])
@pytest.mark.parametrize("devices", ["enigne-cpu", ("engine-cpu", "engine")])
def test_a_misspelt_device_is_refused_with_the_names_there_are(label: str, devices: Any) -> None:
    rules: dict[str, Any] = {label: {"ADD": devices}}
    policy = Policy(**rules)
    wrong = devices if isinstance(devices, str) else devices[1]
    words = (
        f"policy {label}['ADD']: no device is named '{wrong}'; there are engine-cpu, "
        "engine-gpu, gone, mine"
    )
    with pytest.raises(InputError, match=f"^{re.escape(words)}$"):
        check_rules(policy, [FakeDevice("mine")], there())


@pytest.mark.parametrize("name", ["mine", "engine-gpu", "gone", "gone-cpu"])
def test_a_device_that_exists_may_be_ruled_about_wherever_it_is(name: str) -> None:
    with does_not_raise():
        check_rules(Policy(forbid={"*": name}), [FakeDevice("mine")], there())


def test_compile_refuses_it_and_takes_a_device_that_was_not_asked_for() -> None:
    device = NumpyDevice("adder")
    with pytest.raises(InputError, match="no device is named 'addr'; there are adder, "):
        penstock.compile(add_relu(), devices=[device], policy=Policy(forbid={"RELU": "addr"}))
    policy = Policy(forbid={"RELU": "reference"})
    with penstock.compile(add_relu(), devices=[device], policy=policy) as compiled:
        assert compiled.plan.operations[1].device == "adder"
    with pytest.raises(PlacementError, match="the policy requires reference"):
        penstock.compile(add_relu(), devices=[device], policy=Policy(require={"RELU": "reference"}))


def test_the_cache_explains_no_misspelt_rule(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no device is named 'refrence'"):
        explain_model(
            add_relu(), tmp_path, ["reference"], policy=Policy(forbid={"ADD": "refrence"})
        )


def test_tune_measure_and_cache_have_one_type(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    device = NumpyDevice("adder")
    for argument, words in (
        ({"tune": "x"}, "tune must be true or false, not 'x'"),
        ({"cache": str(file)}, "cache must be a directory, and .* is a file"),
        ({"cache": file}, "cache must be a directory, and .* is a file"),
    ):
        with pytest.raises(InputError, match=words):
            penstock.compile(add_relu(), devices=[device], **argument)
    with penstock.compile(add_relu(), devices=[device]) as compiled:
        one = f32([[1, 2, 3]] * 2)
        with pytest.raises(InputError, match="measure must be true or false, not 'q'"):
            # What a caller may still do.
            compiled.run([one, one], measure="q")  # type: ignore[arg-type]


def test_missing_output_is_an_index_error_with_a_sentence() -> None:
    with penstock.compile(add_relu(), devices=[NumpyDevice("adder")]) as compiled:
        outputs = compiled(f32([[1, 2, 3]] * 2), f32([[1, 1, 1]] * 2))
    with pytest.raises(IndexError, match=r"^there is no output 9; the model has \d outputs?$"):
        outputs[9]
    with pytest.raises(TypeError, match="by position, name or slice, not by float"):
        outputs[1.5]  # type: ignore[call-overload]  # what a caller may still do
