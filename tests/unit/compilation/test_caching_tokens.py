"""What names an entry, and what a miss is put down to."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

import penstock
from penstock.cache.info import CacheInfo
from penstock.cache.ingredients import derived_token, ingredients_of
from penstock.errors import InputError
from penstock.hal import Extension, ExtensionAttribute, PrepareConfig
from penstock.ir import Model
from penstock.partitioning import Policy
from penstock.testing.lab import LabDevice
from tests.support_caching import PAYLOAD, CachingDevice
from tests.unit.compilation.caching import MODEL, TOKEN, compiled, info, outcome, two
from tests.unit.partitioning.models import Net, chain

pytestmark = pytest.mark.usefixtures("no_descriptor_leaks")

ATTRIBUTES: Final = (
    ExtensionAttribute("com.example.b", 2, b"value"),
    ExtensionAttribute("com.example.a", 515, b"1"),
)


class TestTheDerivedToken:
    def test_is_bound_to_content_and_not_to_paths(self, tmp_path: Path) -> None:
        self.replace_a_file(tmp_path)
        gc.collect()  # models that were loaded own descriptors

    def replace_a_file(self, tmp_path: Path) -> None:
        from penstock.export import tflite

        first, second = tmp_path / "a.tflite", tmp_path / "b.tflite"
        first.write_bytes(tflite.write(weighted(1.0)))
        shutil.copyfile(first, second)
        device = CachingDevice()
        assert outcome(device, tmp_path / "c", penstock.load(first))[0] == "miss"
        assert outcome(device, tmp_path / "c", penstock.load(second))[0] == "hit"
        status = first.stat()
        changed = tflite.write(weighted(2.0))
        assert len(changed) == status.st_size
        first.write_bytes(changed)
        os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
        what, reason = outcome(device, tmp_path / "c", penstock.load(first))
        assert what == "miss"
        assert reason.startswith("NoEntry: the nearest entry differs in constants (")

    def test_has_no_number_of_threads_where_an_artefact_runs_with_any(self, tmp_path: Path) -> None:
        device = CachingDevice()
        device.capabilities = replace(device.capabilities, any_threads=True)
        compiled(device, tmp_path / "c", num_threads=1).close()
        with compiled(device, tmp_path / "c", num_threads=7) as made:
            assert made.receipt.steps[0].cache.outcome == "hit"

    @pytest.mark.parametrize(
        ("change", "ingredient"),
        [
            ({"preference": "low_power"}, "preference (fast_single_answer -> low_power)"),
            ({"priority": "high"}, "priority (medium -> high)"),
            ({"num_threads": 7}, "num_threads ("),
            ({"shapes": {"x": (4, 3)}}, "shapes (as declared -> 0:4x3)"),
            ({"policy": Policy(accuracy="relaxed")}, "accuracy (faithful -> relaxed)"),
        ],
    )
    def test_a_miss_names_the_ingredient(
        self, tmp_path: Path, change: dict[str, Any], ingredient: str
    ) -> None:
        device = CachingDevice()
        compiled(device, tmp_path / "c").close()
        with compiled(device, tmp_path / "c", **change) as made:
            found = made.receipt.steps[0].cache
        assert found.outcome == "miss"
        assert found.reason.startswith(f"NoEntry: the nearest entry differs in {ingredient}")

    @pytest.mark.parametrize(
        ("what", "value", "said"),
        [
            ("cpu_features", lambda: "x86_64 sse", "cpu_features ("),
            ("CACHE_SCHEMA", "next", "schema (1 -> next)"),
        ],
    )
    def test_the_machine_and_the_schema_are_ingredients(
        self, tmp_path: Path, what: str, value: Any, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        device = CachingDevice()
        outcome(device, tmp_path / "c")
        monkeypatch.setattr(f"penstock.cache.ingredients.{what}", value)
        now, reason = outcome(device, tmp_path / "c")
        assert now == "miss"
        assert reason.startswith(f"NoEntry: the nearest entry differs in {said}")

    def test_options_are_an_ingredient(self) -> None:
        tokens = {
            derived_token(ingredients_of(MODEL, CachingDevice(), PrepareConfig(options=options)))
            for options in ((), (("a", "1"),), (("a", "2"),), (("a", "1"), ("b", "2")))
        }
        assert len(tokens) == 4

    def test_attributes_of_extensions_are_an_ingredient_in_no_order(self) -> None:
        one, other = ATTRIBUTES
        given = ((), (one,), (other,), (one, other), (other, one), (replace(one, value=b"2"),))
        tokens = [
            derived_token(ingredients_of(MODEL, CachingDevice(), PrepareConfig(attributes=a)))
            for a in given
        ]
        assert tokens[3] == tokens[4]
        assert len(set(tokens)) == len(given) - 1

    def test_another_version_is_named(self, tmp_path: Path) -> None:
        outcome(CachingDevice(version="1"), tmp_path / "c")
        _, reason = outcome(CachingDevice(version="2"), tmp_path / "c")
        assert reason == "NoEntry: the nearest entry differs in version (1 -> 2)"

    def test_changed_part_of_a_long_version_is_named(self, tmp_path: Path) -> None:
        rest = "(engine 3; plugin abc; x86_64 avx avx2 fma sse)"
        outcome(CachingDevice(version=f"1 {rest}"), tmp_path / "c")
        _, reason = outcome(CachingDevice(version=f"1 {rest} late"), tmp_path / "c")
        assert reason == "NoEntry: the nearest entry differs in version (+late)"

    def test_another_part_of_the_model_is_no_cause(self, tmp_path: Path) -> None:
        with compiled(two(), tmp_path / "c", chain(("ADD", "RELU", "ADD"))) as made:
            reasons = [s.cache.reason for s in made.receipt.steps]
        assert reasons[2] == "NoEntry: this part of the model is not cached"

    def test_another_model_is_not_near(self, tmp_path: Path) -> None:
        outcome(CachingDevice(), tmp_path / "c", chain(("ADD",)))
        _, reason = outcome(CachingDevice(), tmp_path / "c", chain(("RELU",)))
        assert reason == "NoEntry: nothing is cached for a model of this structure"

    def test_entry_that_lost_a_file_is_named(self, tmp_path: Path) -> None:
        device = CachingDevice()
        outcome(device, tmp_path / "c")
        next((tmp_path / "c").glob("*20")).unlink()
        assert outcome(device, tmp_path / "c") == ("miss", "NoEntry: the entry lacks data file 0")

    def test_empty_cache_is_a_miss_named_no_entry(self, tmp_path: Path) -> None:
        assert outcome(CachingDevice(), tmp_path / "c")[1].startswith("NoEntry: ")


def weighted(value: float) -> Model:
    net = Net()
    x = net.source("x")
    weight = net.constant(np.full((2, 3), value, np.float32), "w")
    return net.build([net.add("y", x, weight)])


class TestACallersToken:
    def test_names_the_files_by_nnapis_recipe(self, tmp_path: Path) -> None:
        device = CachingDevice("d", needed=(2, 1))
        compiled(device, info(tmp_path)).close()
        token = device.calls[0].token
        letters = "".join(chr(65 + (b & 15)) + chr(65 + (b >> 4)) for b in token)
        names = {p.name for p in (tmp_path / "cache").iterdir()}
        assert {f"{letters}10", f"{letters}11", f"{letters}20"} <= names
        assert (tmp_path / "cache" / f"{letters}10").read_bytes() == PAYLOAD

    def test_the_recipe_itself(self, tmp_path: Path) -> None:
        import hashlib
        import struct

        device = CachingDevice("d", version="v")
        compiled(device, info(tmp_path)).close()
        simple = TOKEN + b"d" + b"v" + struct.pack("=ii", 1, 100)
        assert device.calls[0].token == hashlib.sha256(simple).digest()
        devices = two()
        compiled(devices, info(tmp_path), preference="low_power", priority="high").close()
        compound = TOKEN + struct.pack("=Ii", 0, 1) + b"two" + b"1" + struct.pack("=ii", 0, 110)
        assert devices[1].calls[0].token == hashlib.sha256(compound).digest()

    def test_attributes_of_extensions_end_the_recipe(self, tmp_path: Path) -> None:
        """Sorted by extension and number: each one's name, number and value (NNAPI section 2.2)."""
        import hashlib
        import struct

        device = CachingDevice("d", version="v")
        offered = tuple(Extension(a.extension) for a in ATTRIBUTES)
        device.capabilities = replace(device.capabilities, extensions=offered)
        compiled(device, info(tmp_path), extension_attributes=ATTRIBUTES).close()
        text = TOKEN + b"d" + b"v" + struct.pack("=ii", 1, 100)
        text += b"com.example.a" + struct.pack("=H", 515) + b"1"
        text += b"com.example.b" + struct.pack("=H", 2) + b"value"
        assert device.calls[0].token == hashlib.sha256(text).digest()

    @pytest.mark.parametrize("length", [0, 31, 33, 64])
    def test_token_of_another_length_is_refused(self, tmp_path: Path, length: int) -> None:
        with pytest.raises(InputError, match=f"32 bytes, and {length} were given"):
            CacheInfo(tmp_path, bytes(length))

    def test_binding_distinguishes_models_of_one_token(self, tmp_path: Path) -> None:
        device = CachingDevice()
        compiled(device, info(tmp_path), weighted(1.0)).close()
        compiled(device, info(tmp_path), weighted(2.0)).close()
        first, *rest = device.calls
        assert {c.token for c in rest} == {first.token}
        assert all(c.binding != first.binding for c in rest)

    def test_a_trusted_token_leaves_the_model_out(self, tmp_path: Path) -> None:
        device = CachingDevice()
        trusting = CacheInfo(tmp_path / "cache", TOKEN, trust_token=True)
        for model in (weighted(1.0), weighted(2.0)):
            compiled(device, trusting, model).close()
        assert len({c.binding for c in device.calls}) == 1
        assert device.methods == ["prepare_model with caching", "prepare_model_from_cache"]

    @pytest.mark.parametrize("trusted", [False, True])
    def test_trust_is_an_ingredient(self, tmp_path: Path, trusted: bool) -> None:
        device = LabDevice()
        cache = tmp_path / "cache"
        compiled(device, CacheInfo(cache, TOKEN, trust_token=trusted)).close()
        what, reason = outcome(device, CacheInfo(cache, TOKEN, trust_token=not trusted))
        assert what == "miss"
        word = "without" if trusted else "with"
        assert reason == (
            f"IngredientChanged: the token's entry was sealed {word} the model in its key"
        )
