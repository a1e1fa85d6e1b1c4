"""docs/add-an-operation.md: its edits, made in a copy of the sources, add an operation that
runs.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from tests.support_programs import run_python

ROOT: Final = Path(__file__).resolve().parents[4]
PAGE: Final = ROOT / "docs" / "add-an-operation.md"

USE: Final = """
import numpy as np
import penstock
from penstock import delegates, tflite
from penstock.export.tflite import write
from penstock.ir import DType, ModelBuilder

b = ModelBuilder()
x = b.input(DType.FLOAT32, (3,), "x")
model = b.build(b.operation("SOFTSIGN", [x], [(DType.FLOAT32, None)]))
file = write(model)
given = np.array([-3, 0, 1], np.float32)
with penstock.compile(penstock.load(file), devices=["reference"], cache=False) as compiled:
    assert np.asarray(compiled(given)).ravel().tolist() == [-0.75, 0.0, 0.5]
interpreter = tflite.Interpreter(model_content=file)
interpreter.allocate_tensors()
interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given)
interpreter.invoke()
print(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).tolist())
print(delegates.BuiltinOperator["SOFTSIGN"].value)
"""


def in_copy(copy: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(copy / "src"), str(copy)))}
    done = run_python(*arguments, cwd=copy, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


@pytest.mark.slow
def test_three_edits_of_the_page_add_an_operation(tmp_path: Path) -> None:
    row, kernel, test = re.findall(r"(?ms)^```py\n(.*?)^```", PAGE.read_text("utf-8"))
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    shutil.copytree(ROOT / "tools", copy / "tools", ignore=ignored)
    tests = copy / "tests" / "unit" / "drivers" / "reference"
    tests.mkdir(parents=True)
    shutil.copy(ROOT / "tests/unit/drivers/reference/alone.py", tests)

    # What the schema and the operator codes would be generated with.
    for name in ("export/tflite/schema.py", "delegates/codes.py"):
        replace(copy / "src/penstock" / name, 'STABLEHLO_CASE"', 'STABLEHLO_CASE SOFTSIGN"')

    rows = copy / "src/penstock/ir/operations/activation.py"
    text = rows.read_text("utf-8")
    assert text.endswith("\n)\n")
    rows.write_text(text.removesuffix(")\n") + row + ")\n", "utf-8")
    kernels = copy / "src/penstock/drivers/reference/elements/relu.py"
    kernels.write_text(kernels.read_text("utf-8") + "\n\n" + kernel, "utf-8")
    (tests / "test_softsign.py").write_text(test, "utf-8")

    in_copy(copy, "tools/generate_operations.py")
    in_copy(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests / "test_softsign.py"))
    assert in_copy(copy, "-c", USE).splitlines() == ["[-0.75, 0.0, 0.5]", "210"]
