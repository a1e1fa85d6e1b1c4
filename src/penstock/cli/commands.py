"""The commands of the program. A command's module is imported when the command is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

from msgspec import Struct

from penstock.cli.declarations import Command


class Home(Struct, frozen=True):
    """Where a command's function is, below this package, and its *summary* in the list of all."""

    module: str
    function: str
    summary: str

    def load(self) -> Command:
        """Imports the command's function."""
        found: Command = getattr(import_module(f"penstock.cli.{self.module}"), self.function)
        return found


COMMANDS: Final[Mapping[str, Home]] = {
    "run": Home("run", "run", "Run MODEL once and say what it sees."),
    "inspect": Home(
        "inspect", "inspect", "Show a model's inputs, outputs, signatures, operations and metadata."
    ),
    "plan": Home(
        "plan",
        "plan",
        "Show the steps of MODEL, where each operation runs, and why the other devices did not get "
        "it.",
    ),
    "dump": Home(
        "dump",
        "dump",
        "Print the model, the plan, what was compiled, or a stage of a device's compile, as text "
        "that can be compared.",
    ),
    "bench": Home(
        "bench",
        "bench",
        "Measure MODEL: latency (median, p90, p99), throughput, load and compile time, peak "
        "memory.",
    ),
    "compare": Home(
        "compare",
        "compare",
        "Find the first operation of MODEL whose result on a device departs from the reference's.",
    ),
    "calibrate": Home(
        "calibrate",
        "calibrate",
        "Measure what operations cost on each device, so that plans know this machine.",
    ),
    "replay": Home(
        "capsules",
        "replay",
        "Run the step in the capsule FILE again, and say whether its failure repeats.",
    ),
    "serve": Home("serve", "serve", "Answer requests for models over REST and gRPC."),
    "devices": Home(
        "devices", "devices", "List every device, and why it cannot be used if it cannot."
    ),
    "doctor": Home(
        "doctor",
        "doctor",
        "Say what is installed, which drivers work and why others do not, and which limits hold.",
    ),
    "knobs": Home(
        "settings",
        "knobs",
        "List every setting with its value, where that comes from, and what it does.",
    ),
    "cache ls": Home(
        "cache.listing",
        "ls",
        "List the entries, the last used first, measured placements ('bench --tune'), kept plans, "
        "measured costs and times of runs.",
    ),
    "cache show": Home(
        "cache.listing",
        "show",
        "Show all of one entry: every ingredient of its key, and every file.",
    ),
    "cache verify": Home(
        "cache.maintenance",
        "verify",
        "Verify every entry against its driver's registry, and the seals of measured placements, "
        "kept plans, measured costs and times of runs.",
    ),
    "cache explain": Home(
        "cache.compiles",
        "explain",
        "Say for each step of MODEL, and for its plan, whether a compile would hit, or which "
        "ingredient of the key has changed.",
    ),
    "cache gc": Home(
        "cache.maintenance",
        "gc",
        "Remove the entries unused for longest until the rest fits, and files of dead processes.",
    ),
    "cache clear": Home(
        "cache.maintenance",
        "clear",
        "Remove every entry that no process uses, the measured placements and the kept plans.",
    ),
    "cache prewarm": Home(
        "cache.compiles",
        "prewarm",
        "Compile every MODEL into the cache, so that programs with the same options start from it.",
    ),
    "cache publish": Home(
        "cache.sharing",
        "publish",
        "Compile every MODEL and publish its entries in a shared store, signed with the key "
        "of the knob store_key.",
    ),
    "cache refresh": Home(
        "cache.sharing",
        "refresh",
        "Read a shared store's metadata, and refuse local copies of publishers that were revoked.",
    ),
    "cache renew": Home(
        "cache.sharing",
        "renew",
        "Sign a shared store's timestamp again, and the publisher's lists, so that they stay "
        "valid.",
    ),
    "cache prune": Home(
        "cache.sharing",
        "prune",
        "Remove from a shared store what nobody needs: superseded lists, entries that none names, "
        "dead leases and writers' files.",
    ),
    "cache keygen": Home(
        "cache.trust",
        "keygen",
        "Make a key pair, for a publisher or for the root of a shared store.",
    ),
    "cache draft": Home(
        "cache.trust",
        "draft",
        "Write what the root keys are to sign: a new store, or other publishers of the store, "
        "or with neither only later dates.",
    ),
    "cache rotate": Home(
        "cache.trust",
        "rotate",
        "Write what the root keys are to sign: other root keys for the store.",
    ),
    "cache sign": Home(
        "cache.trust",
        "sign",
        "Show a draft, and add the signature of one root key to it.",
    ),
    "cache apply": Home(
        "cache.trust",
        "apply",
        "Make a store of a signed draft, or its next version, with the key of the knob store_key.",
    ),
}
"""The commands by name. Those of a group have the group's name before their own."""

GROUPS: Final[Mapping[str, str]] = {"cache": "Look after the compilation cache."}
"""The groups of commands, with their help."""


def find(words: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The command that *words* begin with, and the words after it; None if they name none."""
    size = 2 if words and words[0] in GROUPS else 1
    name = " ".join(words[:size])
    return (name, words[size:]) if name in COMMANDS else None
