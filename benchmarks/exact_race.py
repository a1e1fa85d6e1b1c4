"""The race of the class `exact`: Penstock's own compiler beside the engines as they run by default.

Networks are in classes, by where most of their multiply-accumulates are. `.onnx` networks are
beside ONNX Runtime, all others beside LiteRT; the ratio is the native engine's time over
Penstock's.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    from penstock import CompiledModel
    from penstock.ir import Model, Operation

EXACT: Final = "exact"
DEVICES: Final = "llvm,reference"
LEAST_ROUNDS: Final = 15

COUNTED: Final = 1_000_000
"""Multiply-accumulates up to which a network counts as small."""

BYTES: Final = "int8 and uint8"
REAL: Final = "float, float16 weights and hybrid"
WORDS: Final = "int16"
SMALL: Final = "below 1 M multiply-accumulates"


class Aim(Struct, frozen=True):
    """What a class should reach: the geometric mean of its ratios, and the least (None: any)."""

    mean: float
    least: float | None


AIMS: Final = {
    BYTES: Aim(2.5, 1.25),
    REAL: Aim(1.4, 1.0),
    WORDS: Aim(1.4, 1.0),
    SMALL: Aim(1.5, None),
}
"""With AVX-512 VNNI or NEON dot products; `with_amx` are those of AMX."""

WITH_AMX: Final = {**AIMS, BYTES: Aim(4.0, 2.0)}

PEAK: Final = re.compile(r"(\d+)% of peak")


def aims(instruction_sets: str) -> dict[str, Aim]:
    """The aims on a processor with these *instruction_sets*."""
    return WITH_AMX if "amx_int8" in instruction_sets.split() else AIMS


def class_of(model: Model, macs: float | None) -> str:
    """The class of a network of so many multiply-accumulates (None: as many as are counted)."""
    found: dict[str, float] = {}
    for operation in model.operations:
        kind = _kind(model, operation)
        found[kind] = found.get(kind, 0.0) + macs_of(model, operation)
    total = sum(found.values()) if macs is None else macs
    if total <= COUNTED:
        return SMALL
    return max(found, key=lambda kind: found[kind], default=REAL)


def _kind(model: Model, operation: Operation) -> str:
    """By the type of the data: hybrid layers have float data."""
    ports = operation.inputs or operation.outputs
    if not ports:
        return REAL
    data = model.operands[ports[-1] if operation.key == "TRANSPOSE_CONV" else ports[0]].dtype
    return {"int8": BYTES, "uint8": BYTES, "int16": WORDS}.get(data.value, REAL)


def macs_of(model: Model, operation: Operation) -> float:
    """The multiply-accumulates of a layer; 0 of other operations."""
    from penstock.partitioning.work import RULES, WINDOWED, work_of

    counts = operation.key in RULES and operation.key not in WINDOWED
    return work_of(model.entry, operation).macs if counts else 0.0


def layers_of(compiled: CompiledModel, inputs: Any) -> list[tuple[str, int, int | None]]:
    """(class of layer, nanoseconds, percent of peak) of every kernel of one measured run."""
    model = compiled.plan.model
    found = []
    compiled.run(inputs, measure=True)
    receipt = compiled.run(inputs, measure=True).receipt
    for step in receipt.steps:
        for kernel in step.kernels:
            if not kernel.operations:
                continue
            share = PEAK.search(kernel.kernel)
            percent = None if share is None else int(share[1])
            layer = layer_of(model, model.operations[kernel.operations[0]])
            found.append((layer, kernel.duration_ns, percent))
    return found


def layer_of(model: Model, operation: Operation) -> str:
    """The class of an operation's layer, as the table of shares of peak has them."""
    key = operation.key
    if key == "DEPTHWISE_CONV_2D":
        return "depthwise"
    if key in {"FULLY_CONNECTED", "BATCH_MATMUL"}:
        return "fully connected"
    if key in {"CONV_2D", "TRANSPOSE_CONV"}:
        weights = model.operands[operation.inputs[1]].shape or ()
        if len(weights) == 4 and (weights[3] or 0) <= 4:
            return "first convolution"
        sides = [side or 0 for side in weights[1:3]]
        return "1x1" if set(sides) == {1} else "3x3" if set(sides) == {3} else "other convolutions"
    return "others"


def table(races: Iterable[dict[str, Any]], instruction_sets: str) -> Iterator[str]:
    """The Markdown of races of one number of threads."""
    from benchmarks.engine_race import OURS

    done = [race for race in races if "failed" not in race]
    for name, aim in aims(instruction_sets).items():
        members = [race for race in done if race["class"] == name]
        if not members:
            continue
        ratios = {race["id"]: speed_up(race) for race in members}
        worst = min(ratios, key=lambda each: ratios[each])
        yield ""
        yield f"### {name}: {len(members)} networks"
        yield ""
        yield (
            f"Geometric mean {statistics.geometric_mean(ratios.values()):.2f}x, aim {aim.mean}x; "
            f"least {ratios[worst]:.2f}x ({worst})"
            + ("." if aim.least is None else f", aim {aim.least}x.")
        )
        yield ""
        yield "| network | MACs | Penstock ms | native ms | ratio | best of all | |"
        yield "|---|---|---|---|---|---|---|"
        for race in sorted(members, key=lambda r: ratios[r["id"]]):
            ratio = ratios[race["id"]]
            missed = aim.least is not None and ratio < aim.least
            devices = "+".join(dict.fromkeys(device for device, _ in race["plan"]))
            wrong = not race["verdicts"][OURS]["in_outputs"]
            mark = "**not exact**" if wrong else "**below**" if missed else ""
            yield (
                f"| {race['id']} | {race['macs'] or 0:,} | {spread(race, OURS)} {devices} | "
                f"{spread(race, race['native'])} {race['native']} | {ratio:.2f} | "
                f"{best_ratio(race):.2f} | {mark} |"
            )
    yield from shares(done)


def spread(race: dict[str, Any], subject: str) -> str:
    """The median of a subject's turns in milliseconds, and the quartiles."""
    times = [1e3 * t for t in race["times"][subject]]
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.4g} ({low:.4g}-{high:.4g})"


def speed_up(race: dict[str, Any], rival: str | None = None) -> float:
    """The median over the rounds of a rival's time (None: the native engine's) over Penstock's."""
    from benchmarks.engine_race import OURS

    rounds = zip(race["times"][OURS], race["times"][rival or race["native"]], strict=True)
    found: float = statistics.median(theirs / mine for mine, theirs in rounds)
    return found


def best_ratio(race: dict[str, Any]) -> float:
    """As `speed_up`, over the engine that is quickest on the network."""
    from benchmarks.engine_race import BURST, OURS

    rivals = [name for name in race["times"] if name not in {OURS, BURST}]
    return min(speed_up(race, name) for name in rivals)


def shares(races: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Time and share of the processor's peak by class of layer, over all networks."""
    times: dict[tuple[str, str], float] = {}
    reached: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for race in races:
        for layer, duration, percent in race.get("layers", ()):
            key = race["class"], layer
            times[key] = times.get(key, 0) + duration
            if percent is not None:
                reached.setdefault(key, []).append((duration, percent))
    if not times:
        return
    yield ""
    yield "### Share of the processor's peak, by layer"
    yield ""
    yield "Weighted by time; `share of time` is of the networks of the class."
    yield ""
    yield "| class | layer | share of time | share of peak |"
    yield "|---|---|---|---|"
    for (kind, layer), took in sorted(times.items()):
        whole = sum(t for (other, _), t in times.items() if other == kind)
        pairs = reached.get((kind, layer), [])
        weight = sum(t for t, _ in pairs)
        peak = f"{sum(t * p for t, p in pairs) / weight:.0f} %" if weight else "-"
        yield f"| {kind} | {layer} | {100 * took / whole:.0f} % | {peak} |"
