"""A directory of pictures to Parquet: labels, boxes, and the device of each answer.

    python examples/fleet/label.py MODEL PICTURES TARGET
    python examples/fleet/label.py MODEL PICTURES TARGET --address auto --actors 8

The first line starts Ray on this machine, the second uses the cluster that this machine belongs to.
Every picture is in the result once, whatever worker or node dies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from penstock.fleet.ray import predict_to_parquet, read_manifest


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a model file that every node can read")
    parser.add_argument("pictures", help="a directory that every node can read")
    parser.add_argument("target", help="a directory that every node can write")
    parser.add_argument("--address", help="the cluster: auto, HOST:PORT or ray://HOST:PORT")
    parser.add_argument("--actors", type=int, default=1, help="models in all, one a process")
    parser.add_argument("--threads", type=int, default=1, help="threads of each, and CPUs of Ray")
    parser.add_argument("--rows", type=int, default=256, help="pictures a block")
    parser.add_argument("--normalize", help="as for penstock run")
    parser.add_argument("--labels", help="as for penstock run")
    parser.add_argument("--show", type=int, default=10, metavar="N", help="rows to print")
    given = parser.parse_args(arguments)

    import ray

    if not ray.is_initialized():
        ray.init(address=given.address, log_to_driver=False)
    predict_to_parquet(
        given.pictures,
        given.target,
        given.model,
        rows=given.rows,
        actors=given.actors,
        num_cpus=given.threads,
        num_threads=given.threads,
        normalize=given.normalize,
        labels=given.labels,
    )
    manifest = read_manifest(given.target)
    print(f"{manifest.rows} pictures in {len(manifest.parts)} files, named by {given.target}")
    for row in manifest.table(given.target).slice(0, given.show).to_pylist():
        said = row["error"] or row["answer"]
        if row["label"] is not None:
            said = f"{row['label']} ({row['score']:.2f}), {len(row['boxes'])} boxes"
        print(f"{row['path']}: {said}; {row['device']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
