"""The capsule's description of machine and model, with private data removed."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock import knobs
from penstock.capsules.archive import Environment, ModelRecord
from penstock.distribution import DISTRIBUTION
from penstock.errors import InputError
from penstock.ir import Model
from penstock.ir.digest import digest_structure

SHORTEST: Final = 3
"""Shorter names are removed only inside quotes, because they are part of many words."""

_PART: Final = r"""[^\s'"`<>|:;,()\[\]{}]"""
_SPACE: Final = (
    r"""[ ](?=[^\s'"`<>|:;,()\[\]{}]*[\\/]|[^\s'"`<>|:;,()\[\]{}/\\]+\.[A-Za-z]\w{0,9}\b(?!\.\w))"""
)
"""A space within a path: the text after it ends in a directory or in a file extension."""

_REST: Final = rf"(?:{_PART}|{_SPACE})*"
_PATH: Final = re.compile(
    rf"(?<![\w/.])(?:file:/)?(?:~|/){_PART}*/{_REST}"
    rf"|(?<!\w)[A-Za-z]:[\\/](?:{_PART}|:|{_SPACE})+|\\\\(?:{_PART}|:|{_SPACE})+"
)
"""Paths that begin at the root, a home or a drive, and have at least two names."""

_QUOTED_PATH: Final = re.compile(r"""(['"`])((?:file:)?(?:~|[/\\]|[A-Za-z]:[\\/])[^'"`\n]*)\1""")
_QUOTED: Final = re.compile(r"""(['"])(.*?)\1""")
_LONG_WORD: Final = re.compile(r"""[^\s'"(),\[\]{}<>]+""")
_WORD: Final = re.compile(r"\w+")

ORDINARY: Final = frozenset({"root", "user", "admin", "runner", "nobody", "python", "penstock"})
"""User names that identify no person and are also ordinary words."""


class Scrubber:
    """Removes private names from text. *names* are the network's own; empty to keep those names.

    It cannot be complete: an error may quote anything in a form of its own.
    """

    def __init__(self, names: Iterable[str] = (), *, keep_names: bool = False) -> None:
        self.keep_names = keep_names
        self._private = [
            (re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", re.IGNORECASE), word)
            for text, word in _known()
        ]
        self._places = [
            re.compile(rf"(?<![\w/.]){re.escape(p)}(?:[\\/]{_REST}|(?!\w))") for p in _places()
        ]
        kept = () if keep_names else sorted({n for n in names if n}, key=lambda n: (-len(n), n))
        self._words = {name: f"name{at}" for at, name in enumerate(kept)}
        self._done: dict[str, str] = {}

    def text(self, text: str) -> str:
        """*text* without private names."""
        if (found := self._done.get(text)) is None:
            found = self._done[text] = self._scrubbed(text)
        return found

    def _scrubbed(self, text: str) -> str:
        if self._words:
            text = _QUOTED.sub(self._unquoted, text)
            text = _LONG_WORD.sub(self._unnamed, text)
        text = _QUOTED_PATH.sub(_unplaced, text)
        text = reduce(lambda said, place: place.sub("<path>", said), self._places, text)
        text = _PATH.sub("<path>", text)
        return reduce(lambda said, known: known[0].sub(known[1], said), self._private, text)

    def _unquoted(self, found: re.Match[str]) -> str:
        inside = found[2]
        return f"{found[1]}{self._words[inside]}{found[1]}" if inside in self._words else found[0]

    def _unnamed(self, found: re.Match[str]) -> str:
        """Replaces a word without spaces, or the parts of it that are names."""
        word = found[0]
        bare = word.rstrip(".:;,")
        if len(bare) > SHORTEST and bare in self._words:
            return self._words[bare] + word[len(bare) :]
        return _WORD.sub(
            lambda part: self._words.get(part[0], part[0]) if len(part[0]) > SHORTEST else part[0],
            word,
        )

    def tree(self, value: Any) -> Any:
        """A value of JSON's types with every text in it scrubbed."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(k): self.tree(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.tree(v) for v in value]
        return value

    def raw(self, encoded: str | bytes) -> msgspec.Raw:
        """JSON with every text in it scrubbed."""
        return msgspec.Raw(msgspec.json.encode(self.tree(msgspec.json.decode(encoded))))


def _unplaced(found: re.Match[str]) -> str:
    """Replaces a quoted path, including its spaces. A path of a single name reveals nothing."""
    separators = found[2].count("/") + found[2].count("\\")
    return f"{found[1]}<path>{found[1]}" if separators > 1 or found[2][0] == "~" else found[0]


def names_of(model: Model) -> set[str]:
    """All names in *model* that its author gave."""
    names: set[str] = set()
    for subgraph in model.subgraphs:
        names.add(subgraph.name)
        names.update(operand.name for operand in subgraph.operands)
    names.update(variable.name for variable in model.variables)
    names.update(model.signatures)
    names.update(n for s in model.signatures.values() for n, _ in (*s.inputs, *s.outputs))
    return names - {"", "main"}


def nameless(model: Model) -> Model:
    """*model* with numbers instead of names, without operations that have no effect."""
    subgraphs = []
    for at, subgraph in enumerate(model.subgraphs):
        numbered = enumerate(subgraph.operands)
        operands = tuple(replace(o, name=f"t{k}" if o.has_value else "") for k, o in numbered)
        subgraphs.append(replace(subgraph, operands=operands, name=f"subgraph{at}"))
    variables = tuple(replace(v, name=f"v{k}") for k, v in enumerate(model.variables))
    return Model(tuple(subgraphs), model.pools, main=model.main, variables=variables)


def _known() -> list[tuple[str, str]]:
    """Texts that identify the user or the machine, the longest first."""
    found: dict[str, str] = {}
    for variable in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"):
        found[os.environ.get(variable, "")] = "<user>"
    found[_login()] = "<user>"
    found[os.path.basename(os.path.expanduser("~"))] = "<user>"
    found[platform.node()] = "<host>"
    kept = {t: w for t, w in found.items() if len(t) >= SHORTEST and t.lower() not in ORDINARY}
    return sorted(kept.items(), key=lambda pair: -len(pair[0]))


def _places() -> list[str]:
    """Directories that identify the user. Longest first, because one may contain another."""
    places = {os.path.expanduser("~"), tempfile.gettempdir(), sys.prefix}
    with suppress(OSError):
        places.add(os.getcwd())
    return sorted((p for p in places if len(p) > SHORTEST), key=lambda p: (-len(p), p))


def _login() -> str:
    if sys.platform == "win32":
        return ""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


PACKAGES: Final = (
    *(DISTRIBUTION, "numpy", "ml-dtypes", "msgspec", "flatbuffers"),
    *("ai-edge-litert", "onnxruntime", "openvino", "llvmlite", "onnx", "wgpu"),
)
"""Packages whose versions matter: the requirements of Penstock, and the engines."""

PLACES: Final = frozenset({"cache_dir", "state_dir"})
"""Knobs that are paths. A capsule records only that they are set. Paths in others are removed."""


def environment() -> Environment:
    """The environment of this process, without names of the machine or of persons."""
    return Environment(
        platform.python_version(),
        platform.python_implementation(),
        f"{platform.system()} {platform.release()}",
        platform.machine(),
        {name: found for name in PACKAGES if (found := _version(name))},
        _knobs(),
    )


def model_record(model: Model) -> ModelRecord:
    """Identifies the model by digests only.

    The digest of its constants is empty unless already known: hashing may keep a caller waiting.
    """
    known = "digest" in vars(model)
    constants = model.digest.constants.hex() if known else ""
    structure = model.digest.structure if known else digest_structure(model)
    return ModelRecord(structure.hex(), constants, len(model.operations))


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _knobs() -> dict[str, str]:
    scrubber = Scrubber()
    changed = {}
    for name, knob in knobs.KNOBS.items():
        try:
            value, source = knob.source()
        except InputError:
            continue
        if source != "default":
            changed[name] = "set" if name in PLACES else scrubber.text(str(value))
    return changed
