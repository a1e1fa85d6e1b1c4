"""`penstock cache explain`: what a compile would find, and if nothing, what has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import options
from penstock.cli.cache.directory import SHORT, open_cache
from penstock.cli.cache.key import compile_arguments
from penstock.cli.failures import FileError
from penstock.cli.output import output_of
from penstock.cli.shapes import assumed_shapes, in_words, with_remedy
from penstock.errors import ModelError

if TYPE_CHECKING:
    from penstock.runtime.explain import ExplainedStep


def explain(
    context: typer.Context,
    model: options.ModelFile,
    device: options.Devices = None,
    preference: options.Preference = None,
    priority: options.Priority = None,
    accuracy: options.Accuracy = None,
    threads: options.Threads = None,
    signature: options.SignatureName = None,
    shape: options.Shapes = None,
    directory: options.CacheDirectory = None,
) -> None:
    """Say for each step of MODEL whether a compile would hit, or which ingredient of the key has
    changed.

    Nothing is compiled. The other options are those the compile would get. Dimensions that MODEL
    leaves unknown are taken for 1 where no --shape says more, as 'run' does.
    """
    from penstock.cli import opening
    from penstock.runtime.explain import explain_model

    output = output_of(context)
    cache = open_cache(directory)
    arguments = compile_arguments(
        devices=device,
        preference=preference,
        priority=priority,
        accuracy=accuracy,
        threads=threads,
        signature=signature,
        shapes=shape,
    )
    loaded = opening.load(model)
    opening.warn_of_settings(output)
    given = arguments["shapes"]
    likely = assumed_shapes(loaded.model, signature, given)
    arguments["shapes"] = {**likely, **(given or {})}
    try:
        plan, steps = explain_model(loaded.model, cache, **arguments)
    except ModelError as error:
        raise FileError(loaded.path, with_remedy(error, likely)) from error
    output.table(
        ("step", "device", "operations", "token", "cache"),
        [row(each) for each in steps],
        whole=("device", "token"),
    )
    for each in steps:
        nearest = each.explanation.nearest
        # Against another model's entry everything differs, and none of it helps.
        if nearest is not None and "structure" not in each.explanation.changed:
            output.line(f"step {each.step.index}, against entry {nearest.token[:SHORT]}:")
            rows = [readable(*change) for change in changes(each)]
            output.table(("ingredient", "in the entry", "now"), rows, whole=("ingredient",))
    notes = [f"explained for {in_words(likely)}; --shape gives another shape"] if likely else []
    output.notes(notes)
    output.line(f"plan: {plan.summary()}", "dim")
    output.line(f"cache: {cache.directory}", "dim")
    output.json(
        {
            "directory": str(cache.directory),
            "plan": plan.summary(),
            "steps": [describe(each) for each in steps],
            "notes": notes,
        }
    )


def row(each: ExplainedStep) -> tuple[int, str, int, str, str]:
    found = each.explanation
    return (
        each.step.index,
        each.step.device,
        len(each.step.operations),
        found.token.hex()[:SHORT],
        f"{outcome(each)}: {found.reason}" if found.reason else outcome(each),
    )


def outcome(each: ExplainedStep) -> str:
    """What a compile's receipt would say."""
    if not each.caches:
        return "off"
    return "hit" if each.explanation.found else "miss"


def changes(each: ExplainedStep) -> list[tuple[str, str, str]]:
    """Each ingredient that differs from the nearest entry: its name, what it was, what it is."""
    found = each.explanation
    before = found.nearest.ingredients if found.nearest is not None else {}
    return [
        (name, before.get(name, "none"), found.ingredients.get(name, "none"))
        for name in found.changed
    ]


def readable(ingredient: str, was: str, now: str) -> tuple[str, str, str]:
    """A change for people: of a processor's features only those that differ, and a word for no
    text.
    """
    if ingredient == "cpu_features":
        had, has = was.split(), now.split()
        was = " ".join(word for word in had if word not in has)
        now = " ".join(word for word in has if word not in had)
    empty = "as declared" if ingredient == "shapes" else "none"
    return ingredient, was or empty, now or empty


def describe(each: ExplainedStep) -> dict[str, Any]:
    found = each.explanation
    return {
        "step": each.step.index,
        "device": each.step.device,
        "operations": each.step.operations,
        "outcome": outcome(each),
        "reason": found.reason or None,
        "token": found.token.hex(),
        "ingredients": dict(found.ingredients),
        "nearest": found.nearest.token if found.nearest is not None else None,
        "changed": [
            {"ingredient": name, "before": was, "now": now} for name, was, now in changes(each)
        ],
    }
