"""A dozen networks of the corpus run whole on `webgpu-software`; the rest are marked `grid`, and
`tests/soak/soak_webgpu.py` counts them.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.conftest import corpus_parameters
from tests.golden import webgpu_networks
from tests.golden.cases import Entry
from tests.support_webgpu import needs_webgpu

REFUSED: Final = {
    "hair_segmentation_float": "its accuracy there is relaxed",
    "light_vgg19_onnx": "a tensor of 411041792 bytes",
}
"""Networks of which the device refuses an operation, and a part of the reason."""


@needs_webgpu
@pytest.mark.parametrize("entry", corpus_parameters(webgpu_networks.parameters()))
def test_a_network_is_computed_whole_and_right(entry: Entry) -> None:
    found = webgpu_networks.refusal(entry, cases=1)
    wanted = REFUSED.get(entry["id"])
    if wanted is None:
        assert found is None
    else:
        assert found is not None
        assert wanted in found
