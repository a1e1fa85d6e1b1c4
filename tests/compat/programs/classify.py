"""Names what a camera sees: python classify.py --model M --labels L --image FRAME [--top N]
[--digits N].
"""
# mypy: ignore-errors
# ruff: noqa: T201

import argparse
import time

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from PIL import Image


def load_labels(path):
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return [line.strip() for line in file]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-l", "--labels", required=True)
    parser.add_argument("-i", "--image", required=True)
    parser.add_argument("-k", "--top", type=int, default=5)
    parser.add_argument("--mean", type=float, default=127.5)
    parser.add_argument("--std", type=float, default=127.5)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--digits", type=int, default=1)
    parser.add_argument("--show-time", action="store_true")
    args = parser.parse_args()

    interpreter = Interpreter(model_path=args.model, num_threads=args.threads)
    interpreter.allocate_tensors()
    input_details = interpreter.get_input_details()
    output_details = interpreter.get_output_details()
    floating = input_details[0]["dtype"] == np.float32

    # NHWC
    height, width = input_details[0]["shape"][1], input_details[0]["shape"][2]
    image = Image.open(args.image).convert("RGB").resize((width, height), Image.BILINEAR)
    frame = np.expand_dims(image, axis=0)
    if floating:
        frame = (np.float32(frame) - args.mean) / args.std
    interpreter.set_tensor(input_details[0]["index"], frame.astype(input_details[0]["dtype"]))

    start = time.perf_counter()
    interpreter.invoke()
    elapsed = time.perf_counter() - start

    results = np.squeeze(interpreter.get_tensor(output_details[0]["index"]))
    if not floating:
        scale, zero_point = output_details[0]["quantization"]
        results = scale * (results.astype(np.int32) - zero_point)
    labels = load_labels(args.labels)
    for k in results.argsort(kind="stable")[::-1][: args.top]:
        print(f"{results[k]:.{args.digits}f}: {labels[k]}")
    if args.show_time:
        print(f"time: {elapsed * 1000:.1f} ms")


if __name__ == "__main__":
    main()
