"""A model with many candidate features, for timing what does not grow with the history: 100 features, 70 of integers and 30
of texts, 16 numbers each from a table of 10^6 rows; the mean of the history; a tower 128-64-1.

    wide_model.py models     # writes models/wide/1
"""

import sys

import numpy as np

from dinghy_export import features
from dinghy_export.builder import Builder
from dinghy_export.bundle import write_bundle
from dinghy_export.goldens import golden_requests_of
from dinghy_export.manifest import provenance

INTEGERS, TEXTS, ROWS, WIDTH = 70, 30, 1_000_000, 16
TOKENS = [f"text{i}" for i in range(8)]  # those of tests/testing/random_request.cc


def write(root):
    random = np.random.RandomState(1)

    def normal(*shape):
        return random.randn(*shape).astype(np.float32)

    b = Builder("wide", item_feature="item0")
    b.table("table", normal(ROWS, WIDTH))
    b.vocabularies["tokens"] = TOKENS
    b.sequence("clicks", ["click"], 100, keep="NEWEST", pad="NONE")
    rows = dict(pad_row=None, oov_row=0, unknown="OOV_ROW")
    for i in range(INTEGERS):
        b.feature(features.id_feature(f"item{i}", "CANDIDATE", "table", features.identity(ROWS), negative="OOV_ROW", **rows))
    for i in range(TEXTS):
        b.feature(features.id_feature(f"text{i}", "CANDIDATE", "table", features.file_vocabulary("tokens", 1), type="STRING",
                                      **rows))
    b.feature(features.id_feature("clicks.item0", "SEQUENCE", "table", features.identity(ROWS), source="EVENT",
                                  negative="OOV_ROW", **rows))
    b.layer("history", "pooling", inputs=["clicks.item0"], method="MEAN")
    names = [f"item{i}" for i in range(INTEGERS)] + [f"text{i}" for i in range(TEXTS)]
    width = (INTEGERS + TEXTS + 1) * WIDTH
    layers, before = [], width
    for i, after in enumerate((128, 64, 1)):
        layers.append(b.dense(f"tower.{i}", normal(after, before) / np.sqrt(before), normal(after),
                              "LINEAR" if after == 1 else "RELU"))
        before = after
    b.layer("tower", "mlp", inputs=["history", *names], layers=layers)
    b.output("click", "tower")
    built = b.build(provenance("none", "none", "2024-06-01T08:00:00Z"))
    write_bundle(root, 1, built.manifest, built.tensors, golden_requests_of(built), None, built.vocabularies)


if __name__ == "__main__":
    write(sys.argv[1])
