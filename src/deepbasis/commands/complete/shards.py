# SPDX-License-Identifier: Apache-2.0
"""Shards: Parquet files with one row for each frame, sorted by name.

The same rows give the same bytes: nothing in a file depends on when, where or by which worker it
was written. A frame that could not be completed has a row with its `error`, and no maps.
"""

import io
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from deepbasis.commands.complete import Complete
from deepbasis.commands.complete.outputs import maps_of, summarise
from deepbasis.commands.complete.run import Computed
from deepbasis.data.extras import need
from deepbasis.self_check import Check

# Level of zstd: higher ones gain little on maps of depth, and take much longer.
LEVEL = 3
# Frames that are compressed, and read, together.
ROW_GROUP = 8
# What is not a map, by its type in Arrow; `summary` is what NAME.json holds otherwise.
TYPES = {
    "name": "string", "image": "string", "error": "string", "height": "int32", "width": "int32",
    "dtype": "string", "points": "int32", "outliers": "int32", "median_std": "float64",
    "verdict": "string", "mae": "float64", "coverage90": "float64", "summary": "string",
    "made_from": "string", "check": "large_binary",
}  # fmt: skip


def to_row(step: Computed, made_from: str, settings: Complete) -> dict[str, Any]:
    """The row of a frame that was completed; `made_from` is a digest of all it depends on."""
    summary = summarise(step.loaded, step.answer, step.check)
    truth, check = summary["ground_truth"] or {}, summary["check"] or {}
    dtype = np.float16 if settings.half else np.float32
    maps = {kind: _pack(values, dtype) for kind, values in maps_of(step.answer, settings).items()}
    height, width = summary["size"]
    return {
        "name": step.planned.frame.name,
        "image": summary["image"],
        "height": height,
        "width": width,
        "dtype": np.dtype(dtype).name,
        "points": summary["points"],
        "outliers": summary["outliers"],
        "median_std": summary["median_std"],
        "verdict": check.get("verdict"),
        "mae": truth.get("mae"),
        "coverage90": truth.get("coverage90"),
        "summary": json.dumps(summary, allow_nan=False),
        "made_from": made_from,
        "check": None if step.check is None else pack_check(step.check),
        **maps,
    }


def write_shard(file: Any, rows: Iterable[dict[str, Any]], maps: Sequence[str]) -> None:
    """Write rows, a few of which are in memory at a time; columns they lack are null."""
    arrow = need("pyarrow", "ray", "writing shards")
    parquet = need("pyarrow.parquet", "ray", "writing shards")
    types = TYPES | dict.fromkeys(maps, "large_binary")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in types.items()])
    how = {"compression": "zstd", "compression_level": LEVEL, "use_dictionary": False}
    with parquet.ParquetWriter(
        file, schema, version="2.6", write_statistics=False, **how
    ) as writer:
        rows = iter(rows)
        while some := list(islice(rows, ROW_GROUP)):
            writer.write_table(arrow.Table.from_pylist(some, schema))


def read_shard(file: Any, maps: bool = True) -> list[dict[str, Any]]:
    """The rows of a shard; without the maps, little is read."""
    parquet = need("pyarrow.parquet", "ray", "reading shards")
    table = parquet.ParquetFile(file).read(columns=None if maps else [*TYPES])
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def pack_check(check: Check) -> bytes:
    """The held-out points of a frame, as the bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, check.to_array(), allow_pickle=False)
    return file.getvalue()


def unpack_check(content: bytes) -> Check:
    """What `pack_check` gave."""
    return Check.of_array(np.load(io.BytesIO(content), allow_pickle=False))


def _pack(values: np.ndarray, dtype: Any) -> bytes:
    """Little endian, row by row; what is too large for float16 becomes its largest number."""
    largest = np.finfo(dtype).max
    return np.minimum(values, largest).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
