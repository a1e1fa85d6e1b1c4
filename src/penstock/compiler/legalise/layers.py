"""Convolutions: in one to three dimensions, in groups, by depth, and pixel by pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.compiler.legalise.builder import Operation, legal
from penstock.compiler.legalise.products import Layer, Products, emit_layer
from penstock.compiler.program import Access, Position, along
from penstock.driverkit.checks import Windows, windows
from penstock.driverkit.site import Site, require

MOST_PARTS: Final = 8
LEAST_CHANNELS: Final = 8
"""The most groups that are kernels of their own, and the least channels that each then has."""


def window_positions(w: Windows, outer: Sequence[int], inner: Sequence[int]) -> list[Position]:
    """Position along each spatial axis: output * stride + tap * dilation - padding."""
    return [
        Position(-before, ((o, stride), (i, dilation)))
        for before, stride, dilation, o, i in zip(
            w.before, w.strides, w.dilations, outer, inner, strict=True
        )
    ]


@legal("CONV_2D")
def convolution(operation: Operation) -> None:
    """Images NHWC, filters [out, height, width, in]; grouped where the filters have fewer
    channels. A hybrid one quantises its data asymmetrically if channels differ in scale.
    """
    site = operation.site
    image, filters = site.shape(0), site.shape(1)
    require(len(image) == len(filters) == 4, "an image of another rank")
    quantization = site.input(1).quantization
    asymmetric = quantization is not None and len(set(quantization.scales)) > 1
    w = windows(site, image[1:3], filters[1:3])
    parts = _products(image, filters, site.output_shape(), w)
    emit_layer(operation, "convolution", Layer(asymmetric=asymmetric), *parts)


def _products(
    image: tuple[int, ...], filters: tuple[int, ...], output: tuple[int, ...], w: Windows
) -> list[Products]:
    """The products of filters [out, height, width, in] over an NHWC *image*. A few groups of many
    channels are a matrix product each, others are loops of one nest.
    """
    groups = image[3] // filters[3]
    require(
        groups >= 1 and groups * filters[3] == image[3] and output[3] % groups == 0,
        "channels in no groups",
    )
    each = output[3] // groups
    if groups == 1 or (groups <= MOST_PARTS and each >= LEAST_CHANNELS):
        rows, across = window_positions(w, (1, 2), (4, 5))
        return [
            Products(
                (*output[:3], each),
                filters[1:],
                (*along(0), rows, across, Position(group * filters[3], ((6, 1),))),
                (channel, *along(4, 5, 6)),
                (*along(0, 1, 2), channel),
                channel,
            )
            for group in range(groups)
            for channel in [Position(group * each, ((3, 1),))]
        ]
    rows, across = window_positions(w, (1, 2), (5, 6))
    channel = Position(0, ((3, each), (4, 1)))
    nest = Products(
        (*output[:3], groups, each),
        filters[1:],
        (*along(0), rows, across, Position(0, ((3, filters[3]), (7, 1)))),
        (channel, *along(5, 6, 7)),
        (*along(0, 1, 2), channel),
        channel,
    )
    return [nest]


@legal("DEPTHWISE_CONV_2D")
def depthwise(operation: Operation) -> None:
    """Filters [1, height, width, out]: each input channel has out / in of them."""
    site = operation.site
    image, filters, output = site.shape(0), site.shape(1), site.output_shape()
    require(len(image) == len(filters) == 4 and filters[0] == 1, "an image of another rank")
    multiplier = output[3] // image[3]
    require(multiplier * image[3] == output[3] == filters[3], "channels in no groups")
    w = windows(site, image[1:3], filters[1:3])
    if multiplier == 1:
        # Sums in order are added as XNNPACK adds them: column by column.
        inner = (5, 4) if operation.order == "fused" and image[3] > 1 else (4, 5)
        rows, across = window_positions(w, (1, 2), inner)
        channel, loops = along(3)[0], output
        depth = channel
    else:
        rows, across = window_positions(w, (1, 2), (5, 6))
        channel = Position(0, ((3, multiplier), (4, 1)))
        loops, inner = (*output[:3], image[3], multiplier), (5, 6)
        depth = along(3)[0]
    products = Products(
        loops,
        filters[1:3] if inner[0] < inner[1] else filters[2:0:-1],
        (*along(0), rows, across, depth),
        (Position(), *along(*inner), channel),
        (*along(0, 1, 2), channel),
        channel,
    )
    emit_layer(operation, "depthwise", Layer(axis=3, asymmetric=True, joined=True), products)


@legal("CONV_3D")
def volume(operation: Operation) -> None:
    """Volumes [batch, depth, height, width, in], filters [depth, height, width, in, out]."""
    site = operation.site
    given, filters, output = site.shape(0), site.shape(1), site.output_shape()
    require(len(given) == len(filters) == 5, "a volume of another rank")
    require(given[4] == filters[3], "channels in no groups")
    require(site.input(0).dtype.is_float, "only real values are computed here")
    w = windows(site, given[1:4], filters[:3], "dhw")
    products = Products(
        output,
        filters[:4],
        (*along(0), *window_positions(w, (1, 2, 3), (5, 6, 7)), *along(8)),
        along(5, 6, 7, 8, 4),
        along(0, 1, 2, 3, 4),
        *along(4),
    )
    emit_layer(operation, "convolution", Layer(axis=4), products)


@legal("GROUPED_CONV_2D")
def grouped(operation: Operation) -> None:
    """NNAPI's convolution in groups: images NHWC or NCHW, filters [out, height, width, in]."""
    site = operation.site
    first = site.attributes.text("data_layout") == "NCHW"
    image, filters, output = site.shape(0), site.shape(1), site.output_shape()
    require(len(image) == len(filters) == 4, "an image of another rank")
    last = _LastChannels(operation) if first else operation
    if first:
        image, output = (tuple(s[i] for i in (0, 2, 3, 1)) for s in (image, output))
    parts = _products(image, filters, output, _grouped_windows(site, image, filters))
    groups = site.attributes.integer("groups")
    require(groups * filters[3] == image[3], f"{image[3]} channels in {groups} groups")
    emit_layer(last, "convolution", Layer(), *parts)
    if isinstance(last, _LastChannels):
        last.store()


def _grouped_windows(site: Site, image: Sequence[int], filters: Sequence[int]) -> Windows:
    """The windows, whose padding may be explicit: left, right, top, bottom."""
    if site.attributes.text("padding") != "EXPLICIT":
        return windows(site, image[1:3], filters[1:3])
    value = site.attributes.get("explicit_padding")
    pads = [int(p) for p in value] if isinstance(value, tuple) else []
    strides = [site.attributes.integer(f"stride_{a}") for a in "hw"]
    require(len(pads) == 4 and min(pads) >= 0, f"a padding of {pads}")
    require(min(strides) >= 1, "a window that stands still")
    return Windows(list(filters[1:3]), strides, [1, 1], [pads[2], pads[0]], [pads[3], pads[1]])


class _LastChannels(Operation):
    """An operation on NCHW images, as one on NHWC images between two copies."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation.build, operation.site)
        self._within, self._made = operation, operation.target()
        self._source = self._copied(operation.tensor(), (0, 2, 3, 1))
        shape = self.shape(self._made)
        dtype = self.build.tensors[self._made].dtype
        self._target = self.build.tensor(dtype, [shape[i] for i in (0, 2, 3, 1)])

    def _copied(self, source: int, order: Sequence[int]) -> int:
        shape = self.shape(source)
        target = self.build.tensor(self.build.tensors[source].dtype, [shape[i] for i in order])
        self._transpose(source, target, order)
        return target

    def _transpose(self, source: int, target: int, order: Sequence[int]) -> None:
        axes = [Position()] * len(order)
        for loop, axis in enumerate(order):
            axes[axis] = along(loop)[0]
        loops = self.shape(target)
        self.build.copy("transpose", Access(source, tuple(axes)), self.whole(target), loops)

    def store(self) -> None:
        """Copies the result to the output."""
        self._transpose(self._target, self._made, (0, 3, 1, 2))

    def tensor(self, position: int = 0) -> int:
        return self._source if position == 0 else self._within.tensor(position)

    def target(self, position: int = 0) -> int:
        return self._target
