"""What the device llvm takes of the corpus's networks, in the class `exact`.

    python -m benchmarks coverage

A row for each network that the device does not run whole, with the first operation that it refuses,
and then the shares of all networks. Nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from benchmarks.engine_race import draw, recorded
from benchmarks.engines import QUICK, networks
from benchmarks.exact_race import EXACT, macs_of
from benchmarks.measuring import Row

if TYPE_CHECKING:
    from penstock.ir import Model

NAME: Final = "coverage"

MOST_REFUSED: Final = 5.0
"""Percent of the operations of all networks."""

MOST_REFUSED_MACS: Final = 1.0
"""Percent of their multiply-accumulates."""

MOST_IN_PARTS: Final = 20.0
"""Percent of the networks that the device does not run whole."""


class Coverage(Struct, frozen=True):
    """A network's operations and multiply-accumulates, how many of them the device refuses, and
    which operation it refuses first, with its reason.
    """

    name: str
    operations: int
    macs: float
    refused: int = 0
    refused_macs: float = 0.0
    first: str = ""


def rows(*, quick: bool) -> list[Row]:
    """Empty without the corpus, or where the device is unavailable."""
    from penstock.drivers.llvm import LlvmDevice

    if LlvmDevice().unusable() is not None:
        return []
    return judged([covered(entry) for entry in networks(QUICK if quick else ())])


def judged(found: Sequence[Coverage]) -> list[Row]:
    """Networks in parts, and the shares of all networks."""
    if not found:
        return []
    parts = [each for each in found if each.refused]
    listed = [
        Row(NAME, each.name, 100 * each.refused / each.operations, "% refused", note=each.first)
        for each in parts
    ]
    operations = _percent((each.refused, each.operations) for each in found)
    macs = _percent((each.refused_macs, each.macs) for each in found)
    networks_in_parts = _percent((bool(each.refused), 1) for each in found)
    count = f"{len(found)} networks"
    return [
        *listed,
        Row(NAME, f"operations refused, of {count}", operations, "%", MOST_REFUSED),
        Row(NAME, f"multiply-accumulates refused, of {count}", macs, "%", MOST_REFUSED_MACS),
        Row(NAME, f"networks in parts, of {count}", networks_in_parts, "%", MOST_IN_PARTS),
    ]


def _percent(pairs: Iterable[tuple[float, float]]) -> float:
    part, whole = map(sum, zip(*pairs, strict=True))
    return 100 * part / whole if whole else 0.0


def covered(entry: dict[str, Any]) -> Coverage:
    """What the device takes of a network, for the shapes of its recorded inputs."""
    from penstock.drivers.llvm import LlvmDevice

    model = model_of(Path(entry["path"]))
    answers = LlvmDevice().supported_operations(model)
    macs = [macs_of(model, operation) for operation in model.operations]
    refused = [k for k, a in enumerate(answers) if not (a.supported and a.accuracy == EXACT)]
    first = ""
    if refused:
        answer, operation = answers[refused[0]], model.operations[refused[0]]
        first = f"{operation.key}: {answer.reason or f'in the class {answer.accuracy}'}"
    return Coverage(
        entry["id"], len(macs), sum(macs), len(refused), sum(macs[k] for k in refused), first
    )


def model_of(path: Path) -> Model:
    """The network with the shapes that a race runs it with."""
    import penstock
    from penstock.ir import infer_shapes

    model = penstock.load(path)
    inputs = recorded(path) or draw(path)
    return infer_shapes(model, {number: array.shape for number, array in enumerate(inputs)})
