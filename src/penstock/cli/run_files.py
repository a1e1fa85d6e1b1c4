"""The files that `penstock run` writes: the outputs, the picture with the answer drawn in, and the
trace.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import writing
from penstock.cli.failures import OutputError

if TYPE_CHECKING:
    from penstock import CompiledModel, Outputs
    from penstock.cli.answers import Answer, Results
    from penstock.cli.feed import Fed
    from penstock.cli.opening import Loaded
    from penstock.ir import NDArray


def write_out(path: Path, found: Answer, fed: Fed, results: Results) -> None:
    """The outputs as `.npz`, or the picture with the answer drawn into it.

    Raises `OutputError` where there is nothing to draw, and when *path* cannot be written.
    """
    if takes_arrays(path):
        names = [o.name for o in results.operands]
        keys = [n if n and names.count(n) == 1 else f"output_{i}" for i, n in enumerate(names)]
        named = {k: _plain(path, a) for k, a in zip(keys, results.arrays, strict=True)}
        # Given a name, NumPy adds ".npz" to one that ends in ".NPZ".
        writing.write(path, lambda: _save(path, named))
        return
    drawn = found.draw(fed.picture) if fed.picture is not None else None
    if drawn is None:
        raise nothing_to_draw(path, found.task)
    writing.write(path, lambda: drawn.save(path))


def _plain(path: Path, array: NDArray) -> NDArray:
    """*array* in a form that needs no pickling: strings as bytes of one length."""
    import numpy as np

    if not array.dtype.hasobject:
        return array
    items = array.reshape(-1).tolist()
    if any(item.endswith(b"\0") for item in items):
        raise OutputError(path, "strings that end in a zero byte have no form in an .npz file")
    return np.array(items, "S").reshape(array.shape)


def write_trace(path: Path, compiled: CompiledModel, outputs: Outputs, loaded: Loaded) -> None:
    """The Chrome trace of load, compile and run, on one clock."""
    from penstock.compilation.receipt import Span
    from penstock.compilation.trace import chrome_trace

    load = Span("load", Path(loaded.path).name, None, loaded.start_ns, loaded.load_ns)
    receipts = [compiled.receipt, outputs.receipt]
    text = json.dumps(chrome_trace(receipts, compiled.plan, [load]))
    writing.write(path, lambda: path.write_text(text, "utf-8"))


def takes_arrays(path: Path) -> bool:
    return path.suffix.lower() in writing.ARRAYS


def _save(path: Path, arrays: dict[str, NDArray]) -> None:
    import numpy as np

    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def nothing_to_draw(path: Path, task: str) -> OutputError:
    """What an answer of that task cannot be."""
    return OutputError(
        path,
        f"only a detection, segmentation or pose can be drawn, and this is {task}; a name that "
        "ends in .npz takes the outputs of any model",
    )
