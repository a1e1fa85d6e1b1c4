"""The script that `benchmarks.command` compares `penstock run` with: MODEL and PICTURE to a class.

A user of LiteRT writes about as much for a model whose input is 8-bit pixels.
"""

# ruff: noqa: I001  # as short as a user writes it
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image

interpreter = Interpreter(sys.argv[1], num_threads=1)
interpreter.allocate_tensors()
(given,), (scores,) = interpreter.get_input_details(), interpreter.get_output_details()
_, height, width, channels = given["shape"]
picture = Image.open(sys.argv[2]).convert("L" if channels == 1 else "RGB")
pixels = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR), np.int16)
stored = (pixels + np.iinfo(given["dtype"]).min).astype(given["dtype"])
interpreter.set_tensor(given["index"], stored.reshape(given["shape"]))
interpreter.invoke()
print(interpreter.get_tensor(scores["index"]).argmax())
