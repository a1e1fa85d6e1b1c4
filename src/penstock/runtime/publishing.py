"""Compiles models for a shared store, for this machine's processor or for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from penstock.cache.directory import CacheDirectory
from penstock.cache.info import CacheInfo
from penstock.cache.ingredients import derived_token
from penstock.errors import CacheError
from penstock.ir import Model
from penstock.runtime.compiling import compile_model
from penstock.runtime.explain import ExplainedStep, explain_model


class PublishedStep(Struct, frozen=True):
    """One step of a model, compiled for *portable* (None: this processor's features).

    *token* names its entry in the store, *nbytes* is its size. *problem* says why it is not there,
    `<Name>: sentence`; empty if it is. *is_new* is false if the same was there before. A step of a
    device that does not cache has no *token*.
    """

    device: str
    portable: str | None
    token: bytes = b""
    nbytes: int = 0
    is_new: bool = False
    problem: str = ""


def publish_models(
    models: Sequence[Model],
    directory: str,
    url: str | None = None,
    baselines: Sequence[str | None] = (None,),
    **arguments: Any,
) -> list[list[PublishedStep]]:
    """Compiles each of *models* for each of *baselines* into *directory*, and publishes every entry
    in the store at *url*, in one publication; returns the steps of each model.

    *arguments* are those of `explain_model`. Raises as `compile_model` and
    `penstock.remotecache.Publisher`.
    """
    from penstock.remotecache.explaining import described
    from penstock.remotecache.publishing import Publisher
    from penstock.remotecache.sealing import parcel_of, why_not_shared
    from penstock.remotecache.settings import own_key, remote_at

    # A wrong key or store is named before anything is compiled.
    publisher = Publisher(remote_at(url), own_key())
    place = CacheDirectory(directory)
    entries: dict[bytes, bytes] = {}
    words: dict[bytes, Mapping[str, str]] = {}

    failures: dict[str, str] = {}

    def prepare(step: ExplainedStep, portable: str | None) -> PublishedStep:
        device, ingredients = step.step.device, dict(step.explanation.ingredients)
        if not step.caches:
            return PublishedStep(device, portable)
        token = derived_token(ingredients)
        if reason := why_not_shared(ingredients):
            return PublishedStep(device, portable, token, problem=f"it cannot be shared: {reason}")
        record = place.record(step.explanation.token)
        if record is None or not step.explanation.found:
            why = failures.get(device) or step.explanation.reason or "its index is missing"
            return PublishedStep(device, portable, token, problem=f"it was not saved: {why}")
        try:
            entries[token] = parcel_of(place, record).pack()
        except CacheError as error:
            return PublishedStep(device, portable, token, problem=str(error))
        words[token] = described(ingredients)
        return PublishedStep(device, portable, token, len(entries[token]))

    found: list[list[PublishedStep]] = []
    for model in models:
        steps: list[PublishedStep] = []
        for portable in baselines:
            given = {**arguments, "portable": portable}
            with compile_model(model, cache=CacheInfo(directory), **given) as compiled:
                failures = {
                    each.fallback_from: each.error or ""
                    for each in compiled.receipt.steps
                    if each.fallback_from is not None
                }
            _, explained = explain_model(model, directory, **given)
            steps += [prepare(step, portable) for step in explained]
        found.append(steps)
    added = set(publisher.publish(entries, words)) if entries else set()
    return [[_marked(step, added) for step in steps] for steps in found]


def _marked(step: PublishedStep, added: set[bytes]) -> PublishedStep:
    from msgspec.structs import replace

    return replace(step, is_new=step.token in added)
