"""Plans kept between starts: used only for the same case, and then nothing is decoded, asked or
partitioned.
"""

from __future__ import annotations

import copy
import gc
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import asdict, fields, replace

import penstock
from penstock import errors, hal, knobs, loaders
from penstock.cache import Cache
from penstock.cache.info import CacheInfo
from penstock.cache.ingredients import driver_verdict_key
from penstock.cache.naming import PLANS, VERDICTS
from penstock.cache.plans import KeptPlans
from penstock.cache.verdicts import DriverVerdict, DriverVerdicts
from penstock.compilation import calls, entry
from penstock.drivers.sample import SampleDevice
from penstock.errors import PenstockError
from penstock.execution import CompiledModel
from penstock.export import tflite
from penstock.ir import ConstantPool, DType, Model, ModelBuilder, infer
from penstock.ir.digest import form_of
from penstock.memory.layout import ArenaLayout
from penstock.memory.sealed_file import SealedFile
from penstock.partitioning import encoding, placement
from penstock.partitioning.placements import (
    Alternative,
    Measured,
    Placement,
    Remedy,
    Slow,
    Tuned,
    Worst,
)
from penstock.partitioning.plan import Control, ExecutionPlan, ExecutionStep
from penstock.runtime import installed, keeping, session
from penstock.runtime.discovery import Manager
from penstock.runtime.explain import explain_plan
from penstock.runtime.tuning import examples
from tests.conftest import CORPUS, corpus_parameters
from tests.support_devices import NumpyDevice
from tests.unit.partitioning.models import chain

X = np.ones((1, 4), np.float32)
DEVICES = ["sample"]
SMALL = 100_000
"""Bytes of a file up to which a network runs on the slow reference device."""
BOTH = ["sample", "reference"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A network of two operations with constants in the file and in the model."""
    path = tmp_path / "small.tflite"
    path.write_bytes(small(1))
    return path


def small(addend: int) -> bytes:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 4), "x")
    weights = builder.constant(np.arange(256, dtype=np.float32).reshape(64, 4) + addend, "w")
    made = (DType.FLOAT32, (1, 64))
    hidden = builder.operation("FULLY_CONNECTED", [x, weights, None], [made])
    return tflite.write(builder.build(builder.operation("RELU", hidden, [made])))


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One item for each plan that is made."""
    made: list[object] = []
    place = placement.place

    def counting(*arguments: Any, **more: Any) -> ExecutionPlan:
        made.append(arguments)
        return place(*arguments, **more)

    monkeypatch.setattr(placement, "place", counting)
    return made


def start(model: Path, cache: Path, **arguments: Any) -> CompiledModel:
    return penstock.compile(model, cache=cache, **{"devices": DEVICES, **arguments})


def kept(cache: Path) -> list[Path]:
    return sorted((cache / PLANS).glob("*.json"))


def test_a_second_start_decodes_asks_and_partitions_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(model, tmp_path / "c") as first:
        expected = first(X)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("called")

    monkeypatch.setattr("penstock.runtime.compiling.decode", never)
    monkeypatch.setattr(placement, "place", never)
    monkeypatch.setattr(infer, "infer_shapes", never)
    monkeypatch.setattr(SampleDevice, "supported_operations", never)
    with start(model, tmp_path / "c") as second:
        assert second.receipt.compiles == 0
        assert [str(s.cache) for s in second.receipt.steps] == ["hit"]
        assert [o.tobytes() for o in second(X)] == [o.tobytes() for o in expected]
        assert_alike(first, second)


def test_the_file_of_a_kept_plan_is_unmapped_once_it_is_hashed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model, tmp_path).close()
    unloads: list[int] = []
    monkeypatch.setattr(SealedFile, "unload", lambda file: unloads.append(len(file)))
    with start(model, tmp_path) as compiled:
        assert compiled.run([X])[0].shape == (1, 64)
    assert unloads == [model.stat().st_size]


def assert_alike(first: CompiledModel, second: CompiledModel) -> None:
    """Whether everything that a caller can ask of *second* is as of *first*."""
    assert second.plan.show() == first.plan.show()
    assert second.plan.to_json() == first.plan.to_json()
    assert second.inputs == first.inputs
    assert second.outputs == first.outputs
    assert [o.name for o in second.inputs] == [o.name for o in first.inputs]
    one, two = first.model, second.model
    assert two.show() == one.show()
    assert two.digest == one.digest
    assert replace(two).digest == one.digest
    assert two.signatures == one.signatures
    assert asdict(two.metadata) == asdict(one.metadata)
    for was, now in zip(one.subgraphs, two.subgraphs, strict=True):
        assert [asdict(o) for o in now.operands] == [asdict(o) for o in was.operands]
        assert [asdict(o) for o in now.operations] == [asdict(o) for o in was.operations]
        assert (now.inputs, now.outputs, now.states) == (was.inputs, was.outputs, was.states)
    steps = zip(first.receipt.steps, second.receipt.steps, strict=True)
    for before, after in steps:
        assert (after.device, after.operations, after.failures) == (
            before.device,
            before.operations,
            before.failures,
        )
    assert second.receipt.notes == first.receipt.notes


def test_the_model_of_a_kept_plan_has_the_constants_of_the_file(
    model: Path, tmp_path: Path
) -> None:
    with start(model, tmp_path / "c") as first, start(model, tmp_path / "c") as second:
        for compiled in (first, second):
            (weights,) = [o for o in compiled.model.operands if o.name == "w"]
            assert np.array_equal(
                compiled.model.constant(weights),
                np.arange(256, dtype=np.float32).reshape(64, 4) + 1,
            )


OTHERS: dict[str, dict[str, Any]] = {
    "devices": {"devices": BOTH},
    "order": {"devices": BOTH[::-1]},
    "preference": {"preference": "low_power"},
    "policy": {"policy": penstock.Policy(accuracy="relaxed")},
    "rules": {"policy": penstock.Policy(require={"RELU": "sample"})},
    "threads": {"num_threads": 1},
    "shapes": {"shapes": {"x": (2, 4)}},
    "isolate": {"isolate": False},
}


NAMES = {"order": "devices", "rules": "policy", "threads": "num_threads"}
"""The ingredients that have other names."""


@pytest.mark.parametrize("changed", OTHERS)
def test_another_argument_is_another_case(
    model: Path, tmp_path: Path, placed: list[object], changed: str
) -> None:
    with knobs.override(num_threads=2):
        start(model, tmp_path / "c").close()
        start(model, tmp_path / "c").close()
        assert len(placed) == 1
        with start(model, tmp_path / "c", **OTHERS[changed]) as compiled:
            outcome = compiled.receipt.plan
            assert outcome is not None
            assert (outcome.outcome, outcome.saved, outcome.not_saved) == ("miss", True, "")
            named = NAMES.get(changed, changed)
            assert outcome.reason.startswith(f"NoEntry: the nearest plan differs in {named} (")
        with start(model, tmp_path / "c", **OTHERS[changed]) as compiled:
            assert str(compiled.receipt.plan) == "hit"
        assert len(placed) == 2
        assert len(kept(tmp_path / "c")) == 2


def test_another_content_in_the_same_file_is_another_case(
    model: Path, tmp_path: Path, placed: list[object]
) -> None:
    start(model, tmp_path / "c").close()
    before = model.stat()
    model.write_bytes(small(2))
    assert model.stat().st_size == before.st_size
    with start(model, tmp_path / "c") as compiled:
        assert str(compiled.receipt.plan) == "miss: NoEntry: no plan is kept for this file"
        rows = np.arange(256, dtype=np.float32).reshape(64, 4) + 2
        assert np.array_equal(compiled(X)[0], (rows @ X[0])[None])
    assert len(placed) == 2


def test_the_same_content_under_another_name_is_the_same_case(
    model: Path, tmp_path: Path, placed: list[object]
) -> None:
    start(model, tmp_path / "c").close()
    content = model.read_bytes()
    with penstock.compile(content, devices=DEVICES, cache=tmp_path / "c") as compiled:
        compiled(X)
    assert len(placed) == 1


def test_another_setting_is_another_case(model: Path, tmp_path: Path, placed: list[object]) -> None:
    for allowed in (True, False, False):
        with knobs.override(allow_fallback=allowed):
            start(model, tmp_path / "c").close()
    assert len(placed) == 2


def test_another_installation_is_another_case(
    model: Path, tmp_path: Path, placed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model, tmp_path / "c").close()
    monkeypatch.setattr("penstock.runtime.keeping.distributions", lambda: ("toy-1.0", "digest"))
    with start(model, tmp_path / "c") as compiled:
        assert "toy-1.0" in str(compiled.receipt.plan)
    with start(model, tmp_path / "c") as compiled:
        assert str(compiled.receipt.plan) == "hit"
    assert len(placed) == 2


def test_a_plan_of_other_code_is_refused(
    model: Path, tmp_path: Path, placed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a checkout, where no version changes with the code."""
    edited = tmp_path / "package" / "edited.py"
    edited.parent.mkdir()
    edited.write_text("one")
    monkeypatch.setattr(installed, "ROOT", str(edited.parent))
    monkeypatch.setattr("penstock.runtime.keeping.is_checkout", lambda: True)
    monkeypatch.setattr("penstock.runtime.keeping.loaded_files", lambda: ["edited.py"])
    start(model, tmp_path / "c").close()
    start(model, tmp_path / "c").close()
    assert len(placed) == 1
    edited.write_text("other")
    with start(model, tmp_path / "c") as compiled:
        assert "IngredientChanged: Penstock's own code changed" in str(compiled.receipt.plan)
    start(model, tmp_path / "c").close()
    assert len(placed) == 2
    edited.unlink()
    start(model, tmp_path / "c").close()
    assert len(placed) == 3


def test_the_code_that_made_a_plan_is_counted() -> None:
    files = installed.loaded_files()
    assert {"runtime/keeping.py", "partitioning/placement.py", "__init__.py"} <= set(files)
    assert len(installed.state_of(files)) == 64


def test_a_new_distribution_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.runtime.installed import distributions

    monkeypatch.syspath_prepend(tmp_path)
    before = distributions()
    assert before is not None
    (tmp_path / "toy-1.0.dist-info").mkdir()
    now = distributions()
    assert now is not None
    assert set(now[0].split()) - set(before[0].split()) == {"toy-1.0"}
    (tmp_path / "toy-1.0.dist-info" / "RECORD").touch()
    again = distributions()
    assert again is not None
    assert again[0] == now[0]
    assert again[1] != now[1]


def test_a_changed_device_is_refused_and_the_plan_made_again(
    model: Path,
    tmp_path: Path,
    placed: list[object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start(model, tmp_path / "c").close()
    # The same installation, whose device has another version: a driver that was updated, say.
    monkeypatch.setattr(SampleDevice, "version", "2")
    found = Manager()
    monkeypatch.setattr("penstock.runtime.session.manager", found)
    with caplog.at_level(logging.INFO, "penstock"):
        start(model, tmp_path / "c").close()
        told = "IngredientChanged: device sample has another version"
    assert told in caplog.text
    assert len(placed) == 2
    start(model, tmp_path / "c").close()
    assert len(placed) == 2


def test_a_measured_placement_replaces_a_kept_plan(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    start(model, cache, devices=BOTH).close()
    with start(model, cache, devices=BOTH, tune=True) as tuned:
        assert tuned.plan.tuned is not None
    with start(model, cache, devices=BOTH) as after:
        assert after.plan.tuned is not None
        assert after.plan.tuned.stored
    assert list((cache / VERDICTS).glob("*.json"))
    with start(model, cache, devices=BOTH) as again:
        assert_alike(after, again)
    for file in (cache / VERDICTS).glob("*.json"):
        file.unlink()
    with start(model, cache, devices=BOTH) as last:
        assert last.plan.tuned is None


@pytest.mark.parametrize("step", [1, 7])
def test_an_altered_plan_is_never_used(
    model: Path, tmp_path: Path, placed: list[object], step: int
) -> None:
    cache = tmp_path / "c"
    with start(model, cache) as compiled:
        expected = compiled(X)[0]
    (file,) = kept(cache)
    content = file.read_bytes()
    plans = KeptPlans(cache)
    key = file.name.removesuffix(".json")
    assert plans.load(key) is not None
    for position in range(0, len(content), 97 if step == 1 else 997):
        altered = bytearray(content)
        altered[position] ^= step
        file.write_bytes(altered)
        assert plans.load(key) is None, position
    file.write_bytes(content[:-10])
    made = len(placed)
    with start(model, cache) as compiled:
        assert np.array_equal(compiled(X)[0], expected)
    assert len(placed) == made + 1
    assert plans.load(key) is not None


def test_a_plan_under_another_key_is_not_used(
    model: Path, tmp_path: Path, placed: list[object]
) -> None:
    cache = tmp_path / "c"
    start(model, cache).close()
    (file,) = kept(cache)
    start(model, cache, preference="low_power").close()
    (other,) = set(kept(cache)) - {file}
    other.write_bytes(file.read_bytes())
    start(model, cache, preference="low_power").close()
    assert len(placed) == 3


def test_nothing_is_kept_for_objects_of_the_program_or_without_a_cache(
    model: Path, tmp_path: Path
) -> None:
    token = CacheInfo(tmp_path / "c", bytes(32), trust_token=True)
    cases: dict[str, dict[str, Any]] = {
        "a device is an object of the program": {"devices": [SampleDevice()]},
        "the token is trusted, so the model is not hashed": {"cache": token},
        "placements are to be measured": {"tune": True},
        "runs are verified": {"policy": penstock.Policy(shadow=0.5)},
    }
    for reason, arguments in cases.items():
        given = {"devices": DEVICES, "cache": tmp_path / "c", **arguments}
        with penstock.compile(model, **given) as compiled:
            assert str(compiled.receipt.plan) == f"off: {reason}"
    with penstock.compile(model, devices=DEVICES, cache=False) as compiled:
        assert compiled.receipt.plan is None
    assert kept(tmp_path / "c") == []


def test_a_kept_plan_is_not_used_once_a_driver_was_found_wrong(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_KEY_STORE", "file")
    both = {
        "devices": ["sample", "reference"],
        "policy": penstock.Policy(require={"RELU": "sample"}),
    }
    start(model, tmp_path / "c", **both).close()
    with start(model, tmp_path / "c", **both) as compiled:
        assert str(compiled.receipt.plan) == "hit"
        relu = form_of(compiled.model, compiled.model.operations[1])
    key = driver_verdict_key("sample", SampleDevice.version, [relu])
    verdict = DriverVerdict(
        key=key,
        device="sample",
        version=SampleDevice.version,
        forms=(relu,),
        types=("RELU",),
        fault="wrong",
        accuracy="faithful",
        reason="it was off",
    )
    DriverVerdicts().save(verdict)
    del both["policy"]
    with start(model, tmp_path / "c", **both) as compiled:
        assert compiled.plan.operations[1].device == "reference"
        assert str(compiled.receipt.plan).startswith("off: shadow verification has verdicts")
    DriverVerdicts().remove(key)


def test_a_compile_succeeds_where_the_installation_cannot_be_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> tuple[str, str]:
        raise PermissionError("no such right")

    monkeypatch.setattr("penstock.runtime.keeping.distributions", unreadable)
    with start(model, tmp_path / "c") as compiled:
        assert str(compiled.receipt.plan) == "off: no such right"
        assert compiled(X)[0].shape == (1, 64)


def test_a_loaded_model_has_the_plan_of_its_file(
    model: Path, tmp_path: Path, placed: list[object]
) -> None:
    loaded = penstock.load(model)
    with penstock.compile(loaded, devices=DEVICES, cache=tmp_path / "c") as first:
        pass
    with penstock.compile(loaded, devices=DEVICES, cache=tmp_path / "c") as second:
        assert str(second.receipt.plan) == "hit"
        assert_alike(first, second)
    with start(model, tmp_path / "c") as third:
        assert str(third.receipt.plan) == "hit"
    assert len(placed) == 1
    # A model that was derived from it is another.
    derived = replace(loaded)
    with penstock.compile(derived, devices=DEVICES, cache=tmp_path / "c") as fourth:
        assert fourth.receipt.plan is None
    assert len(placed) == 2


def test_the_plans_of_the_shapes_of_runs_are_kept(
    tmp_path: Path, placed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (None, 4), "x")
    (y,) = builder.operation("RELU", [x], [(DType.FLOAT32, (None, 4))])
    path = tmp_path / "open.tflite"
    path.write_bytes(tflite.write(builder.build([y])))
    monkeypatch.setattr(session, "MOST_LATER", 2)
    outputs = []
    for plans, files in ((4, 3), (1, 3)):
        placed.clear()
        with start(path, tmp_path / "c") as compiled:
            found = [compiled(np.full((rows, 4), -rows, np.float32))[0] for rows in (1, 2, 3)]
            outputs.append([(o.shape, o.tobytes()) for o in found])
        # The base, two shapes that are kept, and one more, which is not.
        assert len(placed) == plans
        assert len(kept(tmp_path / "c")) == files
    assert outputs[0] == outputs[1]


def test_explain_names_what_changed_and_writes_nothing(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    assert str(explain_plan(model, cache, DEVICES)).startswith("miss: NoEntry: no plan is kept")
    assert not cache.exists()
    start(model, cache).close()
    assert str(explain_plan(model, cache, DEVICES)) == "hit"
    assert str(explain_plan(penstock.load(model), cache, DEVICES)) == "hit"
    other = str(explain_plan(model, cache, DEVICES, preference="low_power"))
    change = "preference (fast_single_answer -> low_power)"
    assert other == f"miss: NoEntry: the nearest plan differs in {change}"
    assert len(kept(cache)) == 1


def test_clearing_a_cache_removes_kept_plans(model: Path, tmp_path: Path) -> None:
    start(model, tmp_path / "c").close()
    assert kept(tmp_path / "c")
    Cache(tmp_path / "c").clear()
    assert kept(tmp_path / "c") == []


@pytest.mark.parametrize("broken", [b"no model at all", b""])
def test_a_defect_is_named_as_without_a_cache(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "broken.tflite"
    path.write_bytes(broken)
    texts = []
    for cache in (False, tmp_path / "c", tmp_path / "c"):
        with pytest.raises(PenstockError) as refused:
            penstock.compile(path, devices=DEVICES, cache=cache)
        texts.append((type(refused.value), str(refused.value)))
    assert texts[1:] == texts[:1] * 2


def onnx_file(path: Path) -> Path:
    """A network whose constants are not in the file as the model has them."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    weights = np.arange(4096, dtype=np.float32).reshape(4, 1024)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1024])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def test_constants_that_the_file_has_not_are_decoded_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = onnx_file(tmp_path / "net.onnx")
    with start(path, tmp_path / "c") as first:
        expected = first(X)[0].tobytes()
    decoded: list[object] = []
    decode = loaders.decode

    def counting(pool: ConstantPool) -> Model:
        decoded.append(pool)
        return decode(pool)

    monkeypatch.setattr(loaders, "decode", counting)
    monkeypatch.setattr("penstock.runtime.compiling.decode", counting)
    with start(path, tmp_path / "c") as second:
        assert str(second.receipt.plan) == "hit"
        assert second(X)[0].tobytes() == expected
        assert second.plan.show() == first.plan.show()
        assert decoded == []
        for operand in second.model.operands:
            if operand.is_constant:
                value = second.model.constant(operand)
                assert value.tobytes() == first.model.constant(operand).tobytes()
        assert len(decoded) == 1
        assert_alike(first, second)
        (was,), (now,) = first.model.pools, second.model.pools
        assert (bytes(now.view), now.kind, len(now)) == (bytes(was.view), was.kind, len(was))
        assert type(now.owner) is type(was.owner)
        again = copy.deepcopy(second.model)
        assert again.digest == first.model.digest
        assert len(decoded) == 1


def test_a_kept_plan_and_its_entries_are_read_without_garbage_collections(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model, tmp_path / "c").close()
    seen: list[bool] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            seen.append(gc.isenabled())
            return function(*arguments)

        return call

    monkeypatch.setattr(keeping, "decode", watched(encoding.decode))
    load = watched(calls.call_driver_from_cache)
    monkeypatch.setattr(entry, "call_driver_from_cache", load)
    start(model, tmp_path / "c").close()
    assert seen == [False, False]
    assert gc.isenabled()


def test_every_field_of_a_plan_is_kept() -> None:
    """A new field of a plan must be kept too."""
    file = ConstantPool(memoryview(b"file"))
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 4), "x")
    model = builder.build(builder.operation("RELU", [x], [(DType.FLOAT32, (1, 4))]))
    refusal = errors.Refusal(
        errors.RefusalCode.NO_ANSWER, "it died", errors.ErrorStatus.DEAD_OBJECT, "relaxed"
    )
    branch = ExecutionPlan(model, (), (), (), ArenaLayout())
    step = ExecutionStep(
        1, "one", (0,), model, (0,), (1,), ("two",), (("key", "value"),), 7,
        Control("WHILE", (branch, branch)), "why", Worst(3.0, 2.0, 0),
    )  # fmt: skip
    plan = ExecutionPlan(
        model,
        ("one", "two"),
        (step,),
        (Placement(0, "RELU", "y", "one", {"two": refusal}, "relaxed"),),
        ArenaLayout({1: (0, 16)}, 64, 128, (2,)),
        11,
        13,
        (Alternative("two", 1, 1, 17, 19),),
        Tuned((Measured("a", 1, 2, 3, 4.0, 5.0, "e"),), "a", "r", 1, True, 2.0, "only", "x"),
        "relaxed",
        (("one", "a doubt"),),
        (("two", "apart"),),
        Slow(0.75, ("RELU",), (Remedy("install", ("three",), 0.5, "fix", "relaxed"),)),
        "measurements",
    )  # fmt: skip
    assert plan.tuned is not None
    assert plan.slow is not None
    parts: tuple[Struct, ...] = (
        plan, step, plan.operations[0], plan.tuned, plan.temporaries, *plan.slow.remedies,
    )  # fmt: skip
    for value in parts:
        kept = asdict(value)
        fresh = {f.name: f.default for f in fields(type(value)) if f.default is not NODEFAULT}
        assert not [name for name, default in fresh.items() if kept[name] == default]
    again, source = encoding.decode(encoding.encode(plan, model, file), file, loaders.decode)
    assert again == plan
    assert source == model


class Installed:
    """The entry point of a distribution with one device. It lists each load in *loads*."""

    def __init__(self, name: str, device: NumpyDevice, loads: list[str]) -> None:
        self.name, self.distribution, self.version = name, f"{name}-driver", "1.0"
        self.value = f"{name}_driver:make"
        self._device, self._loads = device, loads

    def load(self) -> Callable[[], hal.Device]:
        self._loads.append(self.name)
        return lambda: self._device


def test_only_the_drivers_of_the_plan_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start does not wait for other drivers, which may be slow to import."""
    path = tmp_path / "chain.tflite"
    path.write_bytes(tflite.write(chain(("ADD", "RELU"))))
    outputs = []
    for expected in (["fast", "reference", "slow"], ["fast"]):
        loads: list[str] = []
        devices = {
            "slow": NumpyDevice("slow", other=(5.0, 5.0)),
            "fast": NumpyDevice("fast", other=(0.01, 0.01)),
            "reference": NumpyDevice("reference"),
        }
        entries = tuple(Installed(name, device, loads) for name, device in devices.items())
        monkeypatch.setattr("penstock.runtime.session.manager", Manager(lambda: entries))  # noqa: B023
        with start(path, tmp_path / "c", devices=None, isolate=False) as compiled:
            assert [step.device for step in compiled.plan.steps] == ["fast"]
            assert compiled.plan.devices == ("fast", "slow", "reference")
            outputs.append(compiled(np.ones((2, 3), np.float32))[0].tobytes())
        assert sorted(loads) == expected
    assert outputs[0] == outputs[1]


def networks() -> Iterator[Path]:
    """The networks of the corpus of at most a MiB."""
    if CORPUS is not None:
        manifest = json.loads((CORPUS / "models" / "manifest.json").read_bytes())
        for entry in manifest["entries"]:
            path = CORPUS / "models" / entry["file"]
            if entry["kind"] == "network" and path.stat().st_size < 1 << 20:
                yield path


@pytest.mark.parametrize(
    ("path", "devices"),
    corpus_parameters(
        (
            pytest.param(path, devices, id=f"{path.stem}-{name}", marks=marks)
            for path in networks()
            for name, devices, marks in (
                ("reference", ["reference"], ()),
                ("default", None, (pytest.mark.grid,)),
            )
        ),
        arguments=2,
    ),
)
def test_kept_plans_of_networks_are_as_made(
    path: Path, devices: list[str] | None, tmp_path: Path
) -> None:
    compiled = (start(path, tmp_path, devices=devices) for _ in range(2))
    with next(compiled) as one, next(compiled) as two:
        assert str(two.receipt.plan) == "hit"
        assert_alike(one, two)
        static = all(None not in (o.shape or (None,)) for o in one.inputs)
        if static and (devices is None or path.stat().st_size < SMALL):
            outputs = [each(*examples(each.model)) for each in (one, two)]
            first, second = ([o.tobytes() for o in found] for found in outputs)
            assert first == second
