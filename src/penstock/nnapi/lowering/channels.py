"""Operations over channels of images that only NNAPI has, and random classes."""

from __future__ import annotations

from penstock.errors import ShapeMismatch
from penstock.nnapi.lowering.detection import layout
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import PADS, check_weights, padding_of, strides_of


@lowers(
    "CHANNEL_SHUFFLE",
    level=3,
    form="input:T groups:i axis:i -> output:T",
    T="f32 f16 q8 q8s@4",
)
def channel_shuffle(site: Site) -> None:
    site.require_rank("input", 1, 4)
    site.require_same_quantization("input", "output")
    groups, axis = site.positive("groups"), site.integer("axis")
    site.finish("CHANNEL_SHUFFLE", [site.tensor("input")], groups=groups, axis=axis)


@lowers(
    "INSTANCE_NORMALIZATION",
    level=3,
    form="input:T gamma:real beta:real epsilon:real nchw:b -> output:T",
    T="f32 f16",
)
def instance_normalization(site: Site) -> None:
    site.require_rank("input", 4)
    site.finish(
        "INSTANCE_NORMALIZATION",
        [site.tensor("input")],
        gamma=site.real("gamma"),
        beta=site.real("beta"),
        epsilon=site.real("epsilon"),
        data_layout=layout(site),
    )


_STEPS = "stride_w:i stride_h:i groups:i activation:i nchw:b -> output:T"


@lowers(
    "GROUPED_CONV_2D",
    level=3,
    form=(
        f"input:T filter:W bias:B {PADS} {_STEPS}",
        f"input:T filter:W bias:B padding:i {_STEPS}",
    ),
    T="f32 f16 q8 q8s@4",
    W="f32 f16 q8 pc q8s@4",
    B="f32 i32 f16",
)
def grouped_conv_2d(site: Site) -> None:
    for name, rank in (("input", 4), ("filter", 4), ("bias", 1)):
        site.require_rank(name, rank)
    check_weights(site, 0)
    padding, strides = padding_of(site), strides_of(site)
    (top, bottom), (left, right) = padding.sides
    explicit = padding.scheme == "EXPLICIT"
    site.finish(
        "GROUPED_CONV_2D",
        [site.tensor("input"), site.tensor("filter"), site.tensor("bias")],
        padding=padding.scheme,
        explicit_padding=(left, right, top, bottom) if explicit else (),
        stride_w=strides[1],
        stride_h=strides[0],
        groups=site.positive("groups"),
        fused_activation_function=site.activation(),
        data_layout=layout(site),
    )


@lowers(
    "RANDOM_MULTINOMIAL",
    level=3,
    form="logits:T samples:i seeds:i32 -> output:i32",
    T="f32 f16",
)
def random_multinomial(site: Site) -> None:
    site.require_rank("logits", 2)
    site.require_rank("seeds", 1)
    logits = site.shape(site.tensor("logits"))
    if logits is not None and logits[1] == 0:
        raise ShapeMismatch("logits of no class")
    inputs = [site.tensor("logits"), site.tensor("seeds")]
    site.finish("RANDOM_MULTINOMIAL", inputs, samples=site.positive("samples"))
