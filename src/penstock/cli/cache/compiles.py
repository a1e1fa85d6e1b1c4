"""`penstock cache explain` and `prewarm`: what a compile would find, and compiling ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Struct

import penstock
from penstock import knobs
from penstock.cli import failures, options
from penstock.cli.cache.directory import SHORT, named_directory, open_cache
from penstock.cli.declarations import argument
from penstock.cli.failures import FileError, Unfinished, message
from penstock.cli.options import Key, assumed_shapes, in_words, parse_shapes, with_remedy
from penstock.cli.output import Output, compile_bar, milliseconds
from penstock.errors import ModelError, PenstockError, counted

if TYPE_CHECKING:
    from penstock import CompiledModel
    from penstock.compilation import StepReceipt
    from penstock.runtime.explain import ExplainedStep


def compile_arguments(key: Key) -> dict[str, Any]:
    """`penstock.compile` arguments of the cache key. Raises `UsageError` for an unknown word."""
    from penstock.cli.opening import check_devices, policy_of, word
    from penstock.hal import PREFERENCES, PRIORITIES

    check_devices(key.device or ())
    chosen = {}
    if key.preference is not None:
        chosen["preference"] = word("--preference", key.preference, PREFERENCES)
    if key.priority is not None:
        chosen["priority"] = word("--priority", key.priority, PRIORITIES)
    return {
        **chosen,
        "devices": key.device or None,
        "num_threads": key.threads,
        "portable": key.portable,
        "signature": key.signature,
        "shapes": parse_shapes(key.shape) or None,
        "policy": policy_of(key.accuracy),
    }


OPTIONS: Final = {
    "shapes=": "--shape NAME=N,N,...",
    "the policy asks": "the policy (--accuracy) asks",
}
"""Argument names in Python, and their spelling on the command line."""


def why_nothing_is_cached(
    path: str, compiled: CompiledModel, wanted: Sequence[str] | None
) -> list[str]:
    """Notes if no device that runs the model caches: why the caching devices do not run it."""
    from penstock.compilation.entry import why_not_cached
    from penstock.runtime import manager

    steps = compiled.receipt.steps
    if not steps or any(s.cache.outcome != "off" or s.fallback_from for s in steps):
        return []
    running = ", ".join(dict.fromkeys(step.device for step in steps))
    note = f"{path}: nothing of it is cached, since {running} runs it"
    caching = [device.name for device in manager.choose(wanted) if not why_not_cached(device)]
    if not caching:
        return [f"{note}, and no other device was found that may; see 'penstock devices'"]
    placed = [operation.reasons for operation in compiled.plan.operations]
    return [f"{note}; {name} does not: {most_frequent(placed, name)}" for name in caching]


def most_frequent(placed: Sequence[Mapping[str, str]], device: str) -> str:
    """The most frequent reason why *device* does not run operations, and their number."""
    ((reason, count),) = Counter(reasons.get(device, "") for reasons in placed).most_common(1)
    for name, spelled in OPTIONS.items():
        reason = reason.replace(name, spelled)
    return f"{reason} ({count} of {counted(len(placed), 'operation')})"


def explain(output: Output, model: options.ModelFile, key: Key) -> None:
    """Say for each step of MODEL, and for its plan, whether a compile would hit, or which
    ingredient of the key has changed.

    Nothing is compiled. The other options are those of the compile. Unknown dimensions of MODEL
    count as 1 unless --shape sets them, as in 'run'.
    """
    from penstock.cli import opening
    from penstock.cli.cache.shared_misses import explain_shared
    from penstock.runtime.explain import explain_model, explain_plan

    cache = open_cache(key.directory)
    arguments = compile_arguments(key)
    loaded = opening.load(model)
    opening.warn_of_settings(output)
    given = arguments["shapes"]
    likely = assumed_shapes(loaded.model, key.signature, given)
    arguments["shapes"] = {**likely, **(given or {})}
    try:
        plan, steps = explain_model(loaded.model, cache, **arguments)
        whole = explain_plan(loaded.model, cache, **arguments)
    except ModelError as error:
        raise FileError(loaded.path, with_remedy(error, likely)) from error
    described = [describe_expected(each) for each in steps]
    for each in described:
        each["shared"] = explain_shared(None, each)
    output.table(
        ("step", "device", "operations", "token", "cache"),
        [
            (
                *(d["step"], d["device"], len(d["operations"]), d["token"][:SHORT]),
                f"{d['outcome']}: {d['reason']}" if d["reason"] else d["outcome"],
            )
            for d in described
        ],
        whole=("device", "token"),
    )
    for d in described:
        changes = [tuple(change.values()) for change in d["changed"]]
        # A comparison with another model's entry does not help: everything differs.
        if d["nearest"] is not None and all(name != "structure" for name, _, _ in changes):
            output.line(f"step {d['step']}, against entry {d['nearest'][:SHORT]}:")
            rows = [readable(*change) for change in changes]
            output.table(("ingredient", "in the entry", "now"), rows, whole=("ingredient",))
    for d in described:
        if d["shared"] is not None:
            output.line(f"step {d['step']}, shared store: {d['shared']}")
    notes = [f"explained for {in_words(likely)}; --shape gives another shape"] if likely else []
    output.notes(notes)
    output.line(f"plan: {plan.summary()}", "dim")
    output.line(f"kept plan: {whole}", "dim")
    output.line(f"cache: {cache.directory}", "dim")
    output.json(
        {
            "directory": str(cache.directory),
            "plan": plan.summary(),
            "kept_plan": {"outcome": whole.outcome, "reason": whole.reason or None},
            "steps": described,
            "notes": notes,
        }
    )


def readable(ingredient: str, was: str, now: str) -> tuple[str, str, str]:
    """A change in words: only the differing processor features; a word for an empty value."""
    if ingredient == "cpu_features":
        had, has = was.split(), now.split()
        was = " ".join(word for word in had if word not in has)
        now = " ".join(word for word in has if word not in had)
    empty = "as declared" if ingredient == "shapes" else "none"
    return ingredient, was or empty, now or empty


def describe_expected(each: ExplainedStep) -> dict[str, Any]:
    """A step for `--json`; *outcome* is that in the receipt of a compile."""
    found, nearest = each.explanation, each.explanation.nearest
    before = {} if nearest is None else nearest.ingredients
    return {
        "step": each.step.index,
        "device": each.step.device,
        "operations": each.step.operations,
        "outcome": "off" if not each.caches else "hit" if found.found else "miss",
        "reason": found.reason or None,
        "token": found.token.hex(),
        "ingredients": dict(found.ingredients),
        "nearest": None if nearest is None else nearest.token,
        "changed": [
            {
                "ingredient": name,
                "before": before.get(name, "none"),
                "now": found.ingredients.get(name, "none"),
            }
            for name in found.changed
        ],
    }


def prewarm(
    output: Output,
    models: Annotated[list[str], argument("MODEL", "A .tflite or .onnx file, or more.")],
    key: Key,
) -> None:
    """Compile every MODEL into the cache, so that programs with the same options start from it.

    Every option but the directory is part of the key: give those of the programs. Unknown
    dimensions of a model count as 1 unless --shape sets them, as in 'run'.
    """
    from penstock.cache.info import CacheInfo, default_directory
    from penstock.cli import opening

    arguments = compile_arguments(key)
    # Without a cache directory the compiles would be useless.
    named = key.directory
    directory = default_directory() if named is None else named_directory(named)
    arguments["cache"] = CacheInfo(directory, store=knobs.cache_store())
    opening.warn_of_settings(output)
    warmed = [compile_one(output, path, arguments) for path in models]
    problems = [problem for one in warmed for problem in one.problems()]
    output.table(
        ("model", "step", "device", "time", "outcome", "why"),
        [row for one in warmed for row in one.rows()],
        whole=("device", "time", "outcome"),
    )
    if len(problems) > 1:
        output.problems(problems)
    notes = [note for one in warmed for note in one.notes]
    output.notes(notes)
    output.json(
        {"models": [one.describe() for one in warmed], "problems": problems, "notes": notes}
    )
    if problems:
        code = max(
            (failures.exit_code(one.error) for one in warmed if one.error),
            default=failures.WORK_FAILED,
        )
        # One problem is in the line that ends the command; several are printed before it.
        text = problems[0] if len(problems) == 1 else f"{len(problems)} problems, named above"
        raise Unfinished("; ".join(problems) if output.as_json else text, code)


class Warmed(Struct, frozen=True):
    """The result for one *model*: its compiled *steps* or the *error*, and *notes*."""

    model: str
    steps: tuple[StepReceipt, ...] = ()
    compiles: int = 0
    error: PenstockError | None = None
    notes: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, ...]]:
        if self.error is not None:
            return [(self.model, "", "", "", "failed", "")]
        return [
            (self.model, str(index), step.device, milliseconds(step.wall_ns), *outcome(step))
            for index, step in enumerate(self.steps)
        ]

    def problems(self) -> list[str]:
        """Why the model, or a step of it, is not in the cache."""
        if self.error is not None:
            text = message(self.error)
            return [text if text.startswith(self.model) else f"{self.model}: {text}"]
        steps = [(f"{self.model}: step {index}", step) for index, step in enumerate(self.steps)]
        return [
            f"{name} on {step.device} {not_saved(step, self.model)}"
            for name, step in steps
            if step.cache.not_saved
        ] + [
            f"{name} fell back from {step.fallback_from}: {step.error}"
            for name, step in steps
            if step.fallback_from is not None
        ]

    def describe(self) -> dict[str, Any]:
        """The result for `--json`."""
        error = self.error
        return {
            "model": self.model,
            "compiles": self.compiles,
            "steps": [describe(step) for step in self.steps],
            "error": None
            if error is None
            else {"type": failures.name(error), "message": message(error)},
        }


def compile_one(output: Output, path: str, arguments: dict[str, Any]) -> Warmed:
    """Compiles one model into the cache."""
    from penstock.cli import opening

    notes: tuple[str, ...] = ()
    try:
        loaded = opening.load(path)
        given = arguments["shapes"]
        if likely := assumed_shapes(loaded.model, arguments["signature"], given):
            notes = (f"{path}: compiled for {in_words(likely)}; --shape gives another shape",)
        wanted = {**arguments, "shapes": {**likely, **(given or {})} or None}
        with (
            compile_bar(output, Path(path).name) as progress,
            penstock.compile(loaded.model, progress=progress, **wanted) as compiled,
        ):
            notes += tuple(why_nothing_is_cached(path, compiled, arguments["devices"]))
            return Warmed(path, compiled.receipt.steps, compiled.receipt.compiles, notes=notes)
    except ModelError as error:
        return Warmed(path, error=FileError(path, str(error)), notes=notes)
    except PenstockError as error:
        return Warmed(path, error=error, notes=notes)


def not_saved(step: StepReceipt, path: str) -> str:
    """Why a step was not saved, with the remedy if there is one."""
    if step.cache.is_to_be_written:
        return (
            f"is compiled when it first runs: 'penstock run {path}' with the same options warms it"
        )
    return f"was not saved: {step.cache.not_saved}"


def outcome(step: StepReceipt) -> tuple[str, str]:
    """The outcome, and the reason for a miss.

    One of `hit`; `compiled, saved`; `compiled, not saved`; `not compiled` if the driver compiles at
    the first run; `not cached` if the device has no cache files.
    """
    cache = step.cache
    if cache.outcome == "hit":
        return "hit", ""
    if cache.outcome == "off":
        return "not cached", cache.reason
    if cache.is_to_be_written:
        return "not compiled", cache.reason
    return f"compiled, {'saved' if cache.saved else 'not saved'}", cache.reason


def describe(step: StepReceipt) -> dict[str, Any]:
    """A step for `--json`."""
    return {
        "device": step.device,
        "operations": step.operations,
        "outcome": step.cache.outcome,
        "reason": step.cache.reason or None,
        "saved": step.cache.saved,
        "not_saved": step.cache.not_saved or None,
        "wall_ns": step.wall_ns,
        "fallback_from": step.fallback_from,
        "error": step.error,
    }
