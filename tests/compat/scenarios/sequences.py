"""Random sequences of right and wrong calls on one interpreter; each answer is observed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compat.models import Models
from tests.compat.observe import Raised, attempt, each

NAMES = (
    *("dynamic", "signature", "chain", "fully_connected", "two", "accumulator", "svdf"),
    *("where", "dynamic_output", "strings", "branches", "loop", "scalar", "empty_tensor"),
)
FIXED = {"accumulator", "svdf", "loop", "branches", "dynamic_output"}
"""Models that are not resized: not all of LiteRT's kernels look at the sizes of state, conditions
and shapes.
"""

ROWS_ONLY = {"fully_connected", "where", "strings"}
"""Models of which the number of rows may change, and nothing else."""

CALLS = 25
SEEDS = 8


class Caller:
    """Makes one random call after another. What nobody wrote is never read, nor run on."""

    def __init__(self, tflite: Any, models: Models, name: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.name = name
        kind = tflite.OpResolverType.BUILTIN_REF
        self.interpreter = tflite.Interpreter(
            model_content=models[name], experimental_op_resolver_type=kind
        )
        self.views: list[Any] = []
        self.written: set[int] = set()
        self.allocated = self.ran = False

    @property
    def known(self) -> bool:
        return self.written >= {d["index"] for d in self.interpreter.get_input_details()}

    def step(self) -> object:
        name = self.rng.choice(
            [
                *("allocate", "resize", "set", "set", "set", "set_wrong", "invoke", "invoke"),
                *("get", "get_input", "details", "hold", "let_go", "reset", "runner"),
                "out_of_range",
            ]
        )
        return [str(name), attempt(getattr(self, name))]

    def allocate(self) -> object:
        result = self.interpreter.allocate_tensors()
        self.allocated, self.ran, self.written = True, False, set()
        return result

    def input(self) -> dict[str, Any]:
        details = self.interpreter.get_input_details()
        chosen: dict[str, Any] = details[self.rng.integers(len(details))]
        return chosen

    def value(self, shape: Any, dtype: Any) -> Any:
        if dtype in {np.bytes_, np.object_}:
            words = [b"a", b"bb", b"", b"d\0"]
            flat = [words[k] for k in self.rng.integers(4, size=int(np.prod(shape)))]
            return np.array(flat, object).reshape(shape)
        if dtype == np.int32:
            small = {"dynamic_output": [[2, 3], [3, 2], [6, 1], [-1, 1], [2, 2]]}
            if self.name in small:
                choices = small[self.name]
                return np.resize(np.array(choices[self.rng.integers(5)], dtype), shape)
            return self.rng.integers(1, 3, shape).astype(dtype)
        return self.rng.integers(0 if dtype is np.bool_ else -4, 4, shape).astype(dtype)

    def resize(self) -> object:
        if self.name in FIXED:
            return "left alone"
        detail, strict = self.input(), bool(self.rng.integers(2))
        if self.name == "strings":
            self.written.discard(detail["index"])
        shape = [int(d) for d in detail["shape"]]
        change = 2 if self.name in ROWS_ONLY else self.rng.integers(5)
        if change == 0 and shape:
            shape[int(self.rng.integers(len(shape)))] = int(self.rng.integers(0, 4))
        elif change == 1:
            shape = [*shape, 1]
        elif change == 2 and shape:
            shape[0] = 2
        elif change == 3:
            shape = shape[1:]
        if 0 in shape and shape == list(detail["shape"]):
            return "left alone"  # LiteRT wants an empty tensor allocated again for nothing
        # Where the ranks differ, LiteRT reads beyond the shape that the file gives.
        strict = strict and len(detail["shape"]) == len(detail["shape_signature"])
        resized = attempt(
            self.interpreter.resize_tensor_input, detail["index"], shape, strict=strict
        )
        return [shape, strict, resized]

    def set(self) -> object:
        detail = self.input()
        value = self.value(detail["shape"], detail["dtype"])
        self.interpreter.set_tensor(detail["index"], value)
        self.written.add(detail["index"])
        return value

    def set_wrong(self) -> object:
        detail = self.input()
        shape = (*detail["shape"], 2) if self.rng.integers(2) else detail["shape"]
        dtype = np.float64 if self.rng.integers(2) else detail["dtype"]
        if tuple(shape) == tuple(detail["shape"]) and dtype is detail["dtype"]:
            dtype = np.uint16
        self.interpreter.set_tensor(detail["index"], np.zeros(shape, dtype))
        return "taken"

    def invoke(self) -> object:
        if self.allocated and not self.known:
            return "left alone"
        self.ran = False
        result = self.interpreter.invoke()
        self.ran = True
        return result

    def get(self) -> object:
        if self.name == "strings" and not self.ran:
            return "left alone"
        values = [
            attempt(self.interpreter.get_tensor, d["index"])
            for d in self.interpreter.get_output_details()
        ]
        return [v if self.ran or isinstance(v, Raised) else _form(v) for v in values]

    def get_input(self) -> object:
        index = self.input()["index"]
        if (self.allocated or self.name == "strings") and index not in self.written:
            return "left alone"
        return self.interpreter.get_tensor(index)

    def details(self) -> object:
        return [self.interpreter.get_input_details(), self.interpreter.get_output_details()]

    def hold(self) -> object:
        detail = self.input()
        if detail["dtype"] in {np.bytes_, np.object_}:
            return "left alone"
        view = self.interpreter.tensor(detail["index"])()
        self.views.append(view)
        return _form(view)

    def let_go(self) -> object:
        self.views.clear()
        return "nothing held"

    def reset(self) -> object:
        if not self.allocated:
            return "left alone"
        return self.interpreter.reset_all_variables()

    def runner(self) -> object:
        if not self.interpreter.get_signature_list():
            return attempt(self.interpreter.get_signature_runner)
        call = self.interpreter.get_signature_runner()
        rows = int(self.rng.integers(1, 4))
        given = {k: self.value((rows, 2), np.float32) for k in ("left", "right")}
        self.written, self.allocated, self.ran = set(), True, False
        return call(**given)

    def out_of_range(self) -> object:
        index = int(self.rng.choice([-1, 50, 1000]))
        errors = [
            attempt(self.interpreter.get_tensor, index),
            attempt(self.interpreter.set_tensor, index, np.zeros(2, np.float32)),
            attempt(self.interpreter.tensor(index)),
        ]
        # LiteRT counts its kernels' scratch tensors.
        return [
            [type(e.error).__name__, str(e.error).partition(" exceeds")[0]]
            for e in errors
            if isinstance(e, Raised)
        ]


def _form(value: Any) -> object:
    return [value.shape, value.dtype.name]


@each([f"{name}-{seed}" for name in NAMES for seed in range(SEEDS)])
def random_calls(tflite: Any, models: Models, case: str) -> object:
    name, _, seed = case.rpartition("-")
    caller = Caller(tflite, models, name, int(seed))
    return [caller.step() for _ in range(CALLS)]
