"""A small convolutional network in NumPy: two convolutions with pooling, one dense layer.

Every value that enters a matrix product is rounded to a binary grid. The grid is coarse enough that
sums of the products are exact in float64. Exact sums do not depend on the order of summation, so
training gives bit-identical weights on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

ACTIVATION_BITS: Final = 12
WEIGHT_BITS: Final = 12
GRADIENT_BITS: Final = 20

CHANNELS: Final = (16, 32)
CLASSES: Final = 10
SIDE: Final = 8
KERNEL: Final = 3

BATCH: Final = 64
EPOCHS: Final = 30
LEARNING_RATE: Final = 0.1
MOMENTUM: Final = 0.9


def grid(values: Floats, bits: int) -> Floats:
    """*values* rounded to multiples of 2**-bits."""
    rounded: Floats = np.round(values * 2.0**bits) / 2.0**bits
    return rounded


@dataclass(frozen=True, slots=True)
class Parameters:
    """Convolution filters [out, 3, 3, in], dense weights [10, in], and a bias for each."""

    filters: tuple[Floats, Floats]
    dense: Floats
    biases: tuple[Floats, Floats, Floats]

    def arrays(self) -> list[Floats]:
        return [*self.filters, self.dense, *self.biases]

    @staticmethod
    def of(arrays: list[Floats]) -> Parameters:
        first, second, dense, *biases = arrays
        return Parameters((first, second), dense, (biases[0], biases[1], biases[2]))

    def on_grid(self) -> Parameters:
        """The weights, rounded to the grid: the network and the files use these."""
        return Parameters.of([grid(a, WEIGHT_BITS) for a in self.arrays()])


def initial(generator: np.random.Generator) -> Parameters:
    """Random weights after He et al. (2015), zero biases."""
    shapes = (
        (CHANNELS[0], KERNEL, KERNEL, 1),
        (CHANNELS[1], KERNEL, KERNEL, CHANNELS[0]),
        (CLASSES, (SIDE // 4) ** 2 * CHANNELS[1]),
    )
    weights = [generator.normal(0, np.sqrt(2 / np.prod(s[1:])), s) for s in shapes]
    return Parameters.of([*weights, *(np.zeros(s[0]) for s in shapes)])


@dataclass(frozen=True, slots=True)
class Forward:
    """The intermediate values of one forward pass; images are [n, height, width, channels]."""

    image: Floats
    convolved: tuple[Floats, Floats]
    pooled: tuple[Floats, Floats]
    logits: Floats


def forward(parameters: Parameters, image: Floats) -> Forward:
    """The network's values for *image*, [n, 8, 8, 1] in [0, 1]. *parameters* are on the grid."""
    image = grid(image, ACTIVATION_BITS)
    first = relu(patches(image) @ flat(parameters.filters[0]).T + parameters.biases[0])
    first_pooled = pool(first)
    second = relu(patches(first_pooled) @ flat(parameters.filters[1]).T + parameters.biases[1])
    second_pooled = pool(second)
    rows = second_pooled.reshape(len(image), -1)
    logits = grid(rows @ parameters.dense.T + parameters.biases[2], ACTIVATION_BITS)
    return Forward(image, (first, second), (first_pooled, second_pooled), logits)


def gradients(parameters: Parameters, values: Forward, labels: npt.NDArray[np.int64]) -> Parameters:
    """Gradients of the mean cross entropy."""
    n = len(labels)
    delta = probabilities(values.logits)
    delta[np.arange(n), labels] -= 1
    delta = grid(delta / n, GRADIENT_BITS)
    rows = values.pooled[1].reshape(n, -1)
    dense, dense_bias = delta.T @ rows, delta.sum(axis=0)
    back = (delta @ parameters.dense).reshape(values.pooled[1].shape)
    second, second_bias, back = _convolution(
        values, 1, values.pooled[0], back, parameters.filters[1]
    )
    first, first_bias, _ = _convolution(values, 0, values.image, back, parameters.filters[0])
    return Parameters((first, second), dense, (first_bias, second_bias, dense_bias))


def _convolution(
    values: Forward, layer: int, source: Floats, back: Floats, filters: Floats
) -> tuple[Floats, Floats, Floats]:
    """Gradients of a convolution's filters, bias and input, from its pooled output's."""
    output, pooled = values.convolved[layer], values.pooled[layer]
    largest = (output == spread(pooled)) & (output > 0)
    delta = grid(np.where(largest, spread(back), 0.0), GRADIENT_BITS)
    columns = delta.reshape(-1, delta.shape[-1])
    weights = columns.T @ patches(source).reshape(len(columns), -1)
    turned = filters[:, ::-1, ::-1, :].transpose(3, 1, 2, 0)
    return weights.reshape(filters.shape), columns.sum(axis=0), patches(delta) @ flat(turned).T


def train(
    images: Floats, labels: npt.NDArray[np.int64], *, seed: int, epochs: int = EPOCHS
) -> Parameters:
    """Stochastic gradient descent with momentum on [n, 8, 8, 1] images; weights on the grid."""
    generator = np.random.default_rng(seed)
    parameters = initial(generator)
    velocity = [np.zeros_like(a) for a in parameters.arrays()]
    for epoch in range(epochs):
        rate = LEARNING_RATE * (1 - epoch / epochs)
        order = generator.permutation(len(images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            used = parameters.on_grid()
            found = gradients(
                used, forward(used, varied(images[chosen], generator)), labels[chosen]
            )
            velocity = [MOMENTUM * v + g for v, g in zip(velocity, found.arrays(), strict=True)]
            parameters = Parameters.of(
                [a - rate * v for a, v in zip(parameters.arrays(), velocity, strict=True)]
            )
    return parameters.on_grid()


def varied(images: Floats, generator: np.random.Generator) -> Floats:
    """Each image shifted by up to one pixel and slightly blurred, like drawn and resized digits."""
    moved = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifts = generator.integers(0, 3, (len(images), 2)).tolist()
    cut = np.stack([m[y : y + SIDE, x : x + SIDE] for m, (y, x) in zip(moved, shifts, strict=True)])
    strength = generator.uniform(0, 0.25, (len(images), 1, 1, 1))
    for axis in (1, 2):
        padded = np.pad(
            cut, [(0, 0)] + [(1, 1) if a == axis else (0, 0) for a in (1, 2)] + [(0, 0)]
        )
        before, after = np.split(padded, [SIDE], axis)[0], np.split(padded, [2], axis)[1]
        cut = (1 - strength) * cut + strength / 2 * (before + after)
    return cut


def patches(image: Floats) -> Floats:
    """[n, h, w, 9 * channels]: the 3 x 3 neighbourhood of each pixel, zeros outside."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), (1, 2))
    return windows.transpose(0, 1, 2, 4, 5, 3).reshape(*image.shape[:3], -1)


def flat(filters: Floats) -> Floats:
    return filters.reshape(len(filters), -1)


def relu(values: Floats) -> Floats:
    return grid(np.maximum(values, 0), ACTIVATION_BITS)


def pool(image: Floats) -> Floats:
    """The largest of each 2 x 2 block."""
    n, height, width, channels = image.shape
    largest: Floats = image.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
    return largest


def spread(image: Floats) -> Floats:
    """Each pixel four times, as a 2 x 2 block."""
    return image.repeat(2, axis=1).repeat(2, axis=2)


def probabilities(logits: Floats) -> Floats:
    """Softmax of each row."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares
