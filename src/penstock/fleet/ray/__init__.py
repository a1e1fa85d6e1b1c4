"""Penstock as a stage of Ray Data and a deployment of Ray Serve (docs/ray.md).

Needs the extra `ray`:

    import ray
    from penstock.fleet.ray import Predict

    pictures = ray.data.read_binary_files("pictures/", include_paths=True)
    answers = pictures.map_batches(
        Predict,
        fn_constructor_args=("net.tflite",),
        fn_constructor_kwargs={"columns": ["bytes"]},
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=1,
    )
"""

from typing import TYPE_CHECKING, Final

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.fleet.ray.blocks import Block as Block, input_blocks as input_blocks
    from penstock.fleet.ray.job import predict_to_parquet as predict_to_parquet
    from penstock.fleet.ray.manifest import (
        AlreadyCommitted as AlreadyCommitted,
        Incomplete as Incomplete,
        Manifest as Manifest,
        Part as Part,
        read_manifest as read_manifest,
    )
    from penstock.fleet.ray.predicting import Predict as Predict
    from penstock.fleet.ray.serving import deployment as deployment

NAMES: Final = {
    "blocks": "Block input_blocks",
    "job": "predict_to_parquet",
    "manifest": "AlreadyCommitted Incomplete Manifest Part read_manifest",
    "predicting": "Predict",
    "serving": "deployment",
}

__getattr__ = lazily(__name__, NAMES)
