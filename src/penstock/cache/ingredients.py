"""The ingredients of a cache key, by name, and the tokens derived from them.

A file's path, size and time have no influence: the key depends on the model's content.
"""

from __future__ import annotations

import hashlib
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from functools import cache
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from penstock.distribution import origin_of
from penstock.errors import NoEntry
from penstock.hal import portable_of
from penstock.ir.form import Form

if TYPE_CHECKING:
    from penstock.hal import Device, ExtensionAttribute, PrepareConfig
    from penstock.ir import Model

CACHE_SCHEMA: Final = "1"
"""Incremented if equal ingredients no longer give equal artefacts, or if the layout changes."""

CALIBRATION_SCHEMA: Final = "4"
PLACEMENT_SCHEMA: Final = "3"
"""Incremented if equal ingredients of a measured placement no longer mean equal plans."""

MODEL_INGREDIENTS: Final = frozenset({"structure", "constants", "step"})
"""Ingredients that identify the model; omitted if the caller's token is trusted."""

DERIVED_INGREDIENTS: Final = frozenset({"step", "installed"})
"""Ingredients that follow from others; named as a cause only if no other differs."""

MOST_WORDS: Final = 8
"""How many words of a long list are said to have come, and how many to have gone."""

_FEW_WORDS: Final = 4
_DIGITS: Final = 64
_TOKEN_DOMAIN: Final = b"penstock cache token\0"
_BINDING_DOMAIN: Final = b"penstock cache binding\0"

# NNAPI section 1.1.
_PREFERENCES: Final = {"low_power": 0, "fast_single_answer": 1, "sustained_speed": 2}
_PRIORITIES: Final = {"low": 90, "medium": 100, "high": 110}


def ingredients_of(
    model: Model,
    device: Device,
    config: PrepareConfig,
    *,
    step: Model | None = None,
    operations: Sequence[int] | None = None,
    shapes: Mapping[int, Sequence[int]] | None = None,
    trust_token: bool = False,
) -> dict[str, str]:
    """Every ingredient of the key of *device*'s part of *model*: name to readable text.

    *step* is the part as a model of its own and *operations* are its indexes in *model*; None is
    the whole model. *shapes* are the input shapes given for this compile, by input position. Shapes
    that *model* declares itself have no influence. With *trust_token* the ingredients of
    `MODEL_INGREDIENTS` are omitted, and no constant is read.
    """
    found: dict[str, str] = {}
    if not trust_token:
        found |= _contents(model)
        found["step"] = (model if step is None else step).structure.hex()
    found["partition"] = describe_operations(operations, len(model.operations))
    declared = {position: operand.shape for position, operand in enumerate(model.inputs)}
    given = {at: s for at, s in (shapes or {}).items() if tuple(s) != declared.get(at)}
    found["shapes"] = _describe_shapes(given)
    found["device"] = device.name
    found["version"] = device.version
    found["source"] = origin_of(device)
    portable = portable_of(config)
    is_portable = portable in device.capabilities.baselines
    found["cpu_features"] = portable if is_portable else cpu_features()
    found["preference"] = config.preference
    found["priority"] = config.priority
    found["accuracy"] = config.accuracy
    any_threads = device.capabilities.any_threads
    found["num_threads"] = "any" if any_threads else str(config.num_threads)
    found["options"] = " ".join(f"{name!r}={value!r}" for name, value in sorted(config.options))
    found["attributes"] = " ".join(
        f"{a.extension}:{a.code}={hashlib.sha256(a.value).hexdigest()}"
        for a in _sorted(config.attributes)
    )
    found["schema"] = CACHE_SCHEMA
    return found


def _contents(model: Model) -> dict[str, str]:
    digest = model.digest
    return {"structure": digest.structure.hex(), "constants": digest.constants.hex()}


def placement_key(
    model: Model,
    devices: Sequence[Device],
    config: PrepareConfig,
    shapes: Mapping[int, Sequence[int]],
    demands: Mapping[str, object],
) -> str:
    """The key, 64 digits, of the measured placement of *model* under the policy's *demands*."""
    ingredients = {
        **_contents(model),
        "shapes": _describe_shapes(shapes),
        "devices": "\n".join(f"{d.name}\t{d.version}" for d in devices),
        "preference": config.preference,
        "priority": config.priority,
        "num_threads": str(config.num_threads),
        "policy": msgspec.json.encode(demands, order="sorted").decode(),
        "cpu_features": cpu_features(),
        "schema": f"{CACHE_SCHEMA}.{PLACEMENT_SCHEMA}",
    }
    return record_key("placement verdict", ingredients)


def driver_verdict_key(device: str, version: str, forms: Sequence[Form]) -> str:
    """The key, 64 digits, of a verdict on operations of *forms* on that version of the device."""
    described = msgspec.json.encode(forms).decode()
    ingredients = {"device": device, "version": version, "forms": described}
    return record_key("driver verdict", ingredients)


def calibration_key(device: Device, accuracy: str, num_threads: int) -> str:
    """The key, 64 digits, of what operations cost on *device* with so many threads."""
    # Commands that look after the cache load without NumPy, which this module needs.
    from penstock.hal.device import is_isolated

    ingredients = {
        "device": device.name,
        "version": device.version,
        "source": origin_of(device),
        "isolated": str(is_isolated(device)),
        "accuracy": accuracy,
        "num_threads": str(num_threads),
        "processor": f"{cpu_features()} {processor_name()}",
        "schema": CALIBRATION_SCHEMA,
    }
    return record_key("calibration", ingredients)


def answers_key(model: Model, device: Device) -> str:
    """The key, 64 digits, of the answers of *device* about *model*."""
    ingredients = {
        **_contents(model),
        "device": device.name,
        "version": device.version,
        "source": origin_of(device),
        "basis": device.capabilities.support_basis,
    }
    return record_key("support answers", ingredients)


def record_key(
    kind: Literal["placement verdict", "driver verdict", "support answers", "plan", "calibration"],
    ingredients: Mapping[str, str],
) -> str:
    """The key, 64 digits, of a record of *kind* that depends on all *ingredients*."""
    return derived_token({**ingredients, "kind": kind}).hex()


def _describe_shapes(shapes: Mapping[int, Sequence[int]]) -> str:
    return " ".join(f"{at}:{'x'.join(map(str, shape))}" for at, shape in sorted(shapes.items()))


def _sorted(attributes: Iterable[ExtensionAttribute]) -> list[ExtensionAttribute]:
    return sorted(attributes, key=lambda attribute: (attribute.extension, attribute.code))


def describe_operations(operations: Sequence[int] | None, count: int) -> str:
    """Indexes as ranges: "0-3,7 of 9"."""
    indexes = range(count) if operations is None else operations
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    texts = (f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
    return f"{','.join(texts)} of {count}"


def derived_token(ingredients: Mapping[str, str]) -> bytes:
    """The token derived from all *ingredients*: 32 bytes."""
    return _digest(_TOKEN_DOMAIN, ingredients)


def binding_of(ingredients: Mapping[str, str]) -> bytes:
    """The digest of all *ingredients*, 32 bytes, which a driver seals with a token."""
    return _digest(_BINDING_DOMAIN, ingredients)


def nnapi_token(
    token: bytes, device: Device, config: PrepareConfig, operations: Sequence[int] | None = None
) -> bytes:
    """NNAPI's derivation from a caller's 32 bytes (NNAPI section 2.2).

    *operations* are those of the step if the plan has several steps (a compound plan), else None.
    As in NNAPI, names and versions are not delimited; the binding distinguishes such entries.
    """
    sha = hashlib.sha256(token)
    for index in operations or ():
        sha.update(struct.pack("=Ii", 0, index))
    sha.update(device.name.encode())
    sha.update(device.version.encode())
    sha.update(struct.pack("=ii", _PREFERENCES[config.preference], _PRIORITIES[config.priority]))
    for name, value in sorted(config.options):
        sha.update(name.encode())
        sha.update(value.encode())
    for attribute in _sorted(config.attributes):
        sha.update(attribute.extension.encode())
        sha.update(struct.pack("=H", attribute.code))
        sha.update(attribute.value)
    return sha.digest()


def changed_ingredients(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The ingredients that differ, in the order of *now*; derived ones only if no other does."""
    names = dict.fromkeys((*now, *before))
    changed = [name for name in names if before.get(name) != now.get(name)]
    causes = [name for name in changed if name not in DERIVED_INGREDIENTS]
    return causes or changed


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The changes as text. Digests are shortened; long lists are given by their differences, at
    most `MOST_WORDS` each way. Of another device neither version nor source is said.
    """
    texts, names = [], changed_ingredients(before, now)
    for name in names:
        if name in {"version", "source"} and "device" in names:
            continue
        old, new = before.get(name), now.get(name)
        change = f"{_short(name, old)} -> {_short(name, new)}"
        if old is not None and new is not None and len(old.split()) > _FEW_WORDS:
            had, has = set(old.split()), set(new.split())
            signs = [("-", sorted(had - has)), ("+", sorted(has - had))]
            change = " ".join(_listed(sign, words) for sign, words in signs if words)
        texts.append(f"{name} ({change})")
    return ", ".join(texts)


def _listed(sign: str, words: Sequence[str]) -> str:
    more = len(words) - MOST_WORDS
    shown = ", ".join(sign + word for word in words[:MOST_WORDS])
    return f"{shown}, {sign}{more} more" if more > 0 else shown


def _short(name: str, text: str | None) -> str:
    if text is None:
        return "none"
    if name in MODEL_INGREDIENTS or (len(text) == _DIGITS and not text.strip("0123456789abcdef")):
        return f"{text[:8]}..."
    return text or ("as declared" if name == "shapes" else "none")


def _digest(domain: bytes, ingredients: Mapping[str, str]) -> bytes:
    sha = hashlib.sha256(domain)
    for text in chain.from_iterable(sorted(ingredients.items())):
        data = text.encode()
        sha.update(struct.pack("<Q", len(data)))
        sha.update(data)
    return sha.digest()


@cache
def cpu_features() -> str:
    """The processor's architecture and instruction-set features (Linux), or its name."""
    try:
        texts = _of_first_processor({"flags", "features", "isa"})
    except OSError:
        texts = [platform.processor()]
    words = sorted({word for text in texts for word in text.split()})
    return " ".join([platform.machine() or "unknown", *words])


@cache
def processor_name() -> str:
    """The name of the processor's model (Linux), or of its architecture."""
    try:
        return " ".join(_of_first_processor({"model name", "cpu part"})).strip()
    except OSError:
        return platform.processor()


def _of_first_processor(names: AbstractSet[str]) -> list[str]:
    """The texts that Linux gives under these names for the first processor. Raises `OSError`."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        # All processors have the same features, and each one read costs the kernel time.
        first = (line.partition(":") for line in takewhile(str.strip, islice(lines, 200)))
        return [text for name, _, text in first if name.strip().lower() in names]


def no_entry(nearest: Mapping[str, str] | None, now: Mapping[str, str]) -> NoEntry:
    """Why the cache has no entry for *now*; *nearest* are the nearest entry's ingredients."""
    changed = changed_ingredients(nearest or {}, now)
    if nearest is None or not changed:
        return NoEntry("nothing is cached here")
    if "structure" in changed:
        return NoEntry("nothing is cached for a model of this structure")
    if changed == ["partition"]:
        return NoEntry("this part of the model is not cached")
    return NoEntry(f"the nearest entry differs in {describe_changes(nearest, now)}")
