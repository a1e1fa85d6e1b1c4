"""What a capsule says of the machine and the model, with what is private taken out."""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock import knobs
from penstock.capsules.archive import DeviceRecord, Environment, ModelRecord, Text
from penstock.distribution import DISTRIBUTION
from penstock.errors import InputError
from penstock.hal import Device
from penstock.ir import Model, Subgraph
from penstock.ir.digest import digest_structure

SHORTEST: Final = 3
"""Names of fewer letters are left alone outside quotes: they are in half of all words."""

_PART: Final = r"""[^\s'"`<>|:;,()\[\]{}]"""
_SPACE: Final = (
    r"""[ ](?=[^\s'"`<>|:;,()\[\]{}]*[\\/]|[^\s'"`<>|:;,()\[\]{}/\\]+\.[A-Za-z]\w{0,9}\b(?!\.\w))"""
)
"""A space within a path: what follows leads to a directory, or to the ending of a name."""

_REST: Final = rf"(?:{_PART}|{_SPACE})*"
_PATH: Final = re.compile(
    rf"(?<![\w/.])(?:file:/)?(?:~|/){_PART}*/{_REST}"
    rf"|(?<!\w)[A-Za-z]:[\\/](?:{_PART}|:|{_SPACE})+|\\\\(?:{_PART}|:|{_SPACE})+"
)
"""Paths from the root, a home or a drive on, two names long or more."""

_QUOTED_PATH: Final = re.compile(r"""(['"`])((?:file:)?(?:~|[/\\]|[A-Za-z]:[\\/])[^'"`\n]*)\1""")
_QUOTED: Final = re.compile(r"""(['"])(.*?)\1""")
_LONG_WORD: Final = re.compile(r"""[^\s'"(),\[\]{}<>]+""")
_WORD: Final = re.compile(r"\w+")

ORDINARY: Final = frozenset({"root", "user", "admin", "runner", "nobody", "python", "penstock"})
"""Names of users that name nobody, and that are words as well."""


class Scrubber:
    """Takes private names out of text. *names* are the network's own; none are taken out where
    names were asked for.

    Never complete: an error may quote anything in a form of its own.
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
        """A word without spaces, or the parts of it that are names."""
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
    """A quoted path, spaces and all; what is one name long tells nothing."""
    separators = found[2].count("/") + found[2].count("\\")
    return f"{found[1]}<path>{found[1]}" if separators > 1 or found[2][0] == "~" else found[0]


def names_of(model: Model) -> set[str]:
    """Everything in *model* that its author named."""
    names: set[str] = set()
    for subgraph in model.subgraphs:
        names.add(subgraph.name)
        names.update(operand.name for operand in subgraph.operands)
    names.update(variable.name for variable in model.variables)
    names.update(model.signatures)
    names.update(n for s in model.signatures.values() for n, _ in (*s.inputs, *s.outputs))
    return names - {"", "main"}


def nameless(model: Model) -> Model:
    """*model* with numbers in the place of its names, and nothing that computes nothing."""
    return Model(
        tuple(_nameless(subgraph, at) for at, subgraph in enumerate(model.subgraphs)),
        model.pools,
        main=model.main,
        variables=tuple(replace(v, name=f"v{k}") for k, v in enumerate(model.variables)),
    )


def _nameless(subgraph: Subgraph, at: int) -> Subgraph:
    return replace(
        subgraph,
        operands=tuple(
            replace(o, name=f"t{k}" if o.has_value else "") for k, o in enumerate(subgraph.operands)
        ),
        name=f"subgraph{at}",
    )


def _known() -> list[tuple[str, str]]:
    """Texts that tell who runs this, and on what; the longest first."""
    import platform

    found: dict[str, str] = {}
    for variable in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"):
        found[os.environ.get(variable, "")] = "<user>"
    found[_login()] = "<user>"
    found[os.path.basename(os.path.expanduser("~"))] = "<user>"
    found[platform.node()] = "<host>"
    kept = {t: w for t, w in found.items() if len(t) >= SHORTEST and t.lower() not in ORDINARY}
    return sorted(kept.items(), key=lambda pair: -len(pair[0]))


def _places() -> list[str]:
    """Directories that tell who runs this; the longest first, for one may lie in another."""
    places = {os.path.expanduser("~"), tempfile.gettempdir(), sys.prefix, _here()}
    return sorted((p for p in places if len(p) > SHORTEST), key=lambda p: (-len(p), p))


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


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
    *("ai-edge-litert", "onnxruntime", "openvino", "llvmlite", "onnx"),
)
"""Whose versions count: what Penstock needs, and the engines."""

PLACES: Final = frozenset({"cache_dir", "state_dir"})
"""Knobs that are paths: a capsule says only that they are set. Others lose the paths in them."""


def environment() -> Environment:
    """That of the process, without the name of the machine or of anybody."""
    return Environment(
        platform.python_version(),
        platform.python_implementation(),
        f"{platform.system()} {platform.release()}",
        platform.machine(),
        {name: found for name in PACKAGES if (found := _version(name))},
        _knobs(),
    )


def device_record(device: Device) -> DeviceRecord:
    """What *device* says of itself."""
    return DeviceRecord(device.name, device.version, device.type.value, device.feature_level)


def model_record(model: Model) -> ModelRecord:
    """Which model it is, told by digests alone. That of its constants is empty unless it is known
    already: hashing them takes long, and a caller may be waiting.
    """
    known = "digest" in vars(model)
    constants = model.digest.constants.hex() if known else ""
    structure = model.digest.structure if known else digest_structure(model)
    return ModelRecord(structure.hex(), constants, len(model.operations))


def penstock_version() -> Text:
    """The version of this Penstock."""
    # Not imported: the top package imports this one.
    found: str = sys.modules["penstock"].__version__
    return found


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
