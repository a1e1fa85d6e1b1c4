"""Mutation fuzzing of NNAPI models: python -m tests.soak.soak_nnapi [--count N] [--seed S].

Models of the operation vectors, changed at random, must be lowered and run on the reference device,
or be refused or fail with an error of Penstock's, in bounded time and memory. Prints figures; exit
code 1 when one did not, with its seed.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

if __name__ == "__main__" and __package__ is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from penstock.errors import PenstockError
from penstock.ir.types import Shape
from penstock.nnapi.description import (
    NnapiLifetime,
    NnapiModel,
    NnapiOperand,
    NnapiOperation,
    NnapiSubgraph,
    OperandType,
)
from penstock.nnapi.lowering import rules
from penstock.runtime.discovery import manager
from penstock.testing.contract.promise import NotCovered
from penstock.testing.vectors import Case, load_directory
from penstock.testing.vectors.derive import Run, plain_run
from penstock.testing.vectors.runner import execute
from tests.conftest import CORPUS, NO_CORPUS

COUNT = 60_000
SECONDS_PER_MODEL = 10
MEMORY = 4 << 30
"""Address space the process may use beyond what it has when it starts."""

NUMBERS = (-(2**31), -100, -2, -1, 0, 1, 2, 3, 4, 5, 100, 2**31 - 1)
SIZES = (None, -1, 0, 1, 2, 3, 7, 2**32)
SHAPES = (None, (), (1,), (0,), (None,), (2, 3), (1, 2, 3, 4), (1, 1, 1, 1, 1), (2**31, 2**31))


class TooSlow(BaseException):
    """A model took longer than it may."""


class Mutation:
    """Changes to models, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = sorted(rules())

    def model(self, model: NnapiModel) -> NnapiModel:
        """*model* with one operand or operation of one subgraph changed."""
        at = self.random.randrange(1 + len(model.referenced))
        if at == 0:
            return replace(model, main=self.subgraph(model.main))
        listed = list(model.referenced)
        listed[at - 1] = self.subgraph(listed[at - 1])
        return replace(model, referenced=tuple(listed))

    def subgraph(self, subgraph: NnapiSubgraph) -> NnapiSubgraph:
        if self.random.random() < 0.25:
            listed = list(subgraph.operations)
            at = self.random.randrange(len(listed))
            listed[at] = self.operation(listed[at], len(subgraph.operands))
            return replace(subgraph, operations=tuple(listed))
        operands = list(subgraph.operands)
        at = self.random.randrange(len(operands))
        operands[at] = self.operand(operands[at])
        return replace(subgraph, operands=tuple(operands))

    def operation(self, operation: NnapiOperation, count: int) -> NnapiOperation:
        inputs = list(operation.inputs)
        place = self.random.randrange(len(inputs) + 1)
        match self.random.randrange(6):
            case 0:
                return replace(operation, type=self.random.choice(self.names))
            case 1:
                inputs.insert(place, self.random.randrange(count))
            case 2:
                del inputs[place : place + 1]
            case 3:
                inputs[place : place + 1] = [self.random.randrange(-1, count + 1)]
            case 4:
                self.random.shuffle(inputs)
            case _:
                outputs = (*operation.outputs, self.random.randrange(count))
                return replace(operation, outputs=outputs[self.random.randrange(2) :])
        return replace(operation, inputs=tuple(inputs))

    def operand(self, operand: NnapiOperand) -> NnapiOperand:
        """*operand* with a change that leaves it valid by itself more often than not."""
        match self.random.randrange(10):
            case 0 | 1:
                return self.retyped(operand)
            case 2 | 3:
                return self.reshaped(operand)
            case 4:
                return replace(operand, scale=self.random.choice([0.0, 1e-30, 0.5, 3.0, np.inf]))
            case 5:
                return replace(operand, zero_point=self.random.choice([-129, 0, 1, 128, 70_000]))
            case 6:
                return replace(operand, lifetime=self.random.choice(list(NnapiLifetime)))
            case _:
                return self.revalued(operand)

    def retyped(self, operand: NnapiOperand) -> NnapiOperand:
        kind = self.random.choice(list(OperandType))
        scale = 0.5 if kind.is_quantized and "CHANNEL" not in kind.name else 0.0
        return replace(operand, type=kind, scale=scale, zero_point=0, channel_quantization=None)

    def reshaped(self, operand: NnapiOperand) -> NnapiOperand:
        dimensions: Shape = self.random.choice(SHAPES)
        if operand.dimensions and self.random.random() < 0.7:
            sizes = list(operand.dimensions)
            sizes[self.random.randrange(len(sizes))] = self.random.choice(SIZES)
            dimensions = tuple(sizes)
        changed = replace(operand, dimensions=dimensions)
        known = [d for d in dimensions or () if d is not None and 0 <= d < 100]
        opaque = operand.type is OperandType.SUBGRAPH or not operand.lifetime.is_constant
        if opaque or len(known) != len(dimensions or (None,)):
            return changed
        nbytes = int(np.prod(known, dtype=np.int64)) * operand.type.dtype.numpy.itemsize
        value = self.random.randbytes(min(nbytes, 10_000))
        return replace(changed, lifetime=NnapiLifetime.CONSTANT_COPY, value=value, location=None)

    def revalued(self, operand: NnapiOperand) -> NnapiOperand:
        value = bytearray(operand.value or b"")
        if len(value) >= 4:
            at = 4 * self.random.randrange(len(value) // 4)
            number = self.random.choice(NUMBERS)
            value[at : at + 4] = number.to_bytes(4, "little", signed=True)
        elif value:
            value[0] = self.random.randrange(256)
        return replace(operand, value=bytes(value)) if value else operand


def mutated(cases: dict[str, list[Case]], seed: int) -> Run:
    """A run of some case with one to three changes to its model."""
    mutation = Mutation(seed)
    name = mutation.random.choice(sorted(cases))
    run = plain_run(mutation.random.choice(cases[name]))
    for _ in range(mutation.random.choice([1, 1, 1, 2, 3])):
        run = replace(run, model=mutation.model(run.model))
    return run


def _too_slow(number: int, frame: object) -> None:
    raise TooSlow


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak and returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.soak.soak_nnapi", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if CORPUS is None or not (CORPUS / "conformance" / "nnapi").is_dir():
        print(NO_CORPUS)
        return 2
    cases: dict[str, list[Case]] = {}
    for specification in load_directory(CORPUS / "conformance" / "nnapi"):
        for case in specification.cases:
            for operation in case.operations:
                cases.setdefault(operation, []).append(case)
    device = manager.choose(["reference"])[0]
    # Neither is there on Windows, where the tests import this module too.
    import resource

    used = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, _too_slow)
    outcomes: collections.Counter[str] = collections.Counter()
    failures: list[tuple[int, str]] = []
    slowest = (0.0, -1)
    for seed in range(options.seed, options.seed + options.count):
        run = mutated(cases, seed)
        begun = time.monotonic()
        signal.alarm(SECONDS_PER_MODEL)
        try:
            execute(run, device)
            outcomes["ran"] += 1
        except (PenstockError, NotCovered) as error:
            outcomes[type(error).__name__] += 1
        except TooSlow:
            failures.append((seed, f"{run.case.name}: more than {SECONDS_PER_MODEL} s"))
        except Exception:  # noqa: BLE001  # each is a finding
            failures.append((seed, f"{run.case.name}: {traceback.format_exc(limit=-3)}"))
        finally:
            signal.alarm(0)
        slowest = max(slowest, (time.monotonic() - begun, seed))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"models:   {options.count} from seed {options.seed}")
    print(f"outcomes: {', '.join(f'{n} {k}' for k, n in outcomes.most_common())}")
    print(f"slowest:  {slowest[0]:.2f} s (seed {slowest[1]}); peak {peak >> 10} MiB")
    for seed, message in failures[:20]:
        print(f"FAILED seed {seed}: {message}")
    print(f"failures: {len(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
