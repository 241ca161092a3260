"""Cases of TorchEasyRec: one sequence encoder each, over raw vectors; its result is a layer's value. A bundle needs an
output too: the sum of the encoder's result, the query and nothing else."""

import numpy as np

from cases import OTHER_BAR, SCORE, VALUE, Expectation, NotSupported
from dinghy_export import features
from dinghy_export.builder import Builder
from dinghy_export.importers import torcheasyrec_layers as layers
from dinghy_export.importers.torcheasyrec_layers import Columns, MlpSpec
from dinghy_export.importers.weights import Weights
from dinghy_export.manifest import provenance


def build(case, tensors):
    meta, inputs = case["meta"], case["inputs"]
    group = next(name for name in inputs if name.endswith(".query")).rsplit(".", 1)[0]
    queries, histories, lengths = (inputs[f"{group}.{part}"] for part in ("query", "sequence", "sequence_length"))
    built = _bundle(meta, tensors, len(queries[0]), len(histories[0][0]), len(histories[0]))
    requests, expectations = [], []
    for row, (query, history, length) in enumerate(zip(queries, histories, lengths)):
        behaviors = history[:length]
        requests.append({
            "candidates": [features.ints("item", [0]), features.floats("query", query, [len(query)])],
            "sequences": [{"sequence": "history", "columns": [
                features.floats("vector", [x for behavior in behaviors for x in behavior], [len(x) for x in behaviors])]}],
        })
        expected = np.array(case["outputs_f64"]["out"][row])
        expectations.append(Expectation(row, VALUE, "out", 0, expected, OTHER_BAR, "out"))
        expectations.append(Expectation(row, SCORE, "sum", 0, expected.sum() + np.sum(query), OTHER_BAR, "sum of out and query"))
    return built, requests, expectations


def _bundle(meta, tensors, query_width, width, max_length):
    builder = Builder("case", "item")
    builder.table("item", np.zeros((1, 1), dtype=np.float32))
    builder.sequence("history", ["view"], max_length, keep="OLDEST", pad="NONE")
    builder.feature(features.id_feature("item", "CANDIDATE", "item", features.identity(1), oov_row=None, unknown="PAD_ROW",
                                        negative="PAD_ROW"))
    builder.feature(features.vector_feature("query", "CANDIDATE", query_width))
    builder.feature(features.vector_feature("history.vector", "SEQUENCE", width, source="EVENT"))
    query, sequence = Columns([("query", query_width)]), Columns([("history.vector", width)])
    out = _encoder(builder, Weights(tensors), meta, query, sequence)
    if out.names() != ["out"]:  # several pieces: put together by a layer that changes nothing
        weight = out.kept(np.eye(out.width(), dtype=np.float32))
        builder.layer("out", "dense", inputs=out.names(), **builder.dense("out", weight))
    total = builder.dense("sum", np.ones((1, out.width() + query_width), dtype=np.float32))
    builder.layer("sum", "dense", inputs=["out", "query"], **total)
    builder.output("sum", "sum", "RAW")
    return builder.build(provenance(meta["lib"], "a golden case", "1970-01-01T00:00:00Z"))


def _encoder(builder, weights, meta, query, sequence):
    model, options = meta["model"], dict(meta["kw"])
    attention = MlpSpec(**options["attn_mlp"]) if "attn_mlp" in options else None
    if model == "DINEncoder":
        return layers.add_din_encoder(builder, weights, "", "out", query, sequence, attention)
    if model == "SimpleAttention":
        return layers.add_simple_attention(builder, "", "out", query, sequence)
    if model == "PoolingEncoder":
        return layers.add_pooling_encoder(builder, "", "out", sequence, options.get("pooling_type", "mean"))
    if model == "MultiWindowDINEncoder":
        return layers.add_multi_window_din_encoder(builder, weights, "", "windows", query, sequence, attention,
                                                   options["windows_len"], newest_first=False)
    if model == "SelfAttentionEncoder":
        return layers.add_self_attention_encoder(builder, weights, "", "out", sequence, options["multihead_attn_dim"],
                                                 options.get("num_heads", 8))
    raise NotSupported(model)
