"""`load_delegate`, `Delegate`, and the list of delegates that an interpreter takes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tests.compat.models import Models
from tests.compat.observe import attempt, each, results, scenario

COMPILER = shutil.which("cc")

FAILING = """
void* tflite_plugin_create_delegate(char** k, char** v, unsigned long n,
                                     void (*report)(const char*)) {
    report("no such device on the bus");
    return 0;
}
void tflite_plugin_destroy_delegate(void* delegate) {}
"""

WORKING = """
static long delegate[64];
void* tflite_plugin_create_delegate(char** k, char** v, unsigned long n,
                                     void (*report)(const char*)) {
    return delegate;
}
void tflite_plugin_destroy_delegate(void* delegate) {}
"""

NO_DELEGATE = "libc.so.6"
"""A library that is certainly there and exports no delegate."""


@scenario
def missing_library(tflite: Any, models: Models) -> object:
    return tflite.load_delegate(str(models.directory / "libnone.so"))


@scenario
def missing_library_by_a_bare_name(tflite: Any, models: Models) -> object:
    return tflite.load_delegate("libedgetpu_that_is_not_here.so.1")


@scenario
def file_that_is_no_library(tflite: Any, models: Models) -> object:
    return tflite.load_delegate(str(models.write("libtext.so", b"text" * 100)))


@scenario
def empty_library(tflite: Any, models: Models) -> object:
    return tflite.load_delegate(str(models.write("libempty.so", b"")))


@scenario
def library_without_a_delegate(tflite: Any, models: Models) -> object:
    return tflite.load_delegate(NO_DELEGATE)


@scenario
def library_without_a_delegate_and_options(tflite: Any, models: Models) -> object:
    return tflite.load_delegate(NO_DELEGATE, {"device": "usb", "level": 3})


@scenario
def library_that_is_a_number(tflite: Any, models: Models) -> object:
    return tflite.load_delegate(5)


@scenario
def library_path_object(tflite: Any, models: Models) -> object:
    return tflite.load_delegate(models.directory / "libnone.so")


@scenario
def load_without_a_library(tflite: Any, models: Models) -> object:
    return attempt(tflite.load_delegate)


@scenario
def delegate_class_on_a_missing_library(tflite: Any, models: Models) -> object:
    return tflite.Delegate(str(models.directory / "libnone.so"))


@scenario
def delegate_class_on_a_library_without_one(tflite: Any, models: Models) -> object:
    return tflite.Delegate(NO_DELEGATE, options={})


@scenario
def delegate_class_without_a_library(tflite: Any, models: Models) -> object:
    return tflite.Delegate()


@each(["empty list", "none", "empty tuple", "zero"])
def no_delegates(tflite: Any, models: Models, kind: str) -> object:
    value: Any = {"empty list": [], "none": None, "empty tuple": (), "zero": 0}[kind]
    interpreter = tflite.Interpreter(model_content=models["static"], experimental_delegates=value)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.array([[-1, 1, -2, 2]], np.float32))
    interpreter.invoke()
    return results(interpreter)


@each(["none in a list", "string in a list", "number in a list", "number", "object in a list"])
def delegates_that_are_none(tflite: Any, models: Models, kind: str) -> object:
    value: Any = {
        "none in a list": [None],
        "string in a list": ["libedgetpu.so.1"],
        "number in a list": [5],
        "number": 5,
        "object in a list": [object()],
    }[kind]
    return tflite.Interpreter(model_content=models["static"], experimental_delegates=value)


@scenario
def delegates_given_as_a_string(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_content=models["static"], experimental_delegates="gpu")


@scenario
def delegates_are_looked_at_after_the_model(tflite: Any, models: Models) -> object:
    return tflite.Interpreter(model_path=os.devnull + "x", experimental_delegates=[None])


@scenario
def fall_back_as_the_documentation_has_it(tflite: Any, models: Models) -> object:
    try:
        delegates = [tflite.load_delegate("libedgetpu_that_is_not_here.so.1")]
    except (ValueError, OSError):
        delegates = []
    interpreter = tflite.Interpreter(
        model_content=models["static"], experimental_delegates=delegates
    )
    interpreter.allocate_tensors()
    return interpreter.get_input_details()


def _compiled(models: Models, source: str) -> Path:
    code = models.write("delegate.c", source.encode())
    library = models.directory / "libdelegate.so"
    command = [str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(code)]
    subprocess.run(command, check=True, capture_output=True)
    return library


@each(["load_delegate", "Delegate"] if COMPILER else [])
def delegate_that_fails(tflite: Any, models: Models, maker: str) -> object:
    return getattr(tflite, maker)(str(_compiled(models, FAILING)), {"device": "usb:0"})


@each(["load_delegate", "Delegate"] if COMPILER else [])
def delegate_that_works(tflite: Any, models: Models, maker: str) -> object:
    return getattr(tflite, maker)(str(_compiled(models, WORKING)))
