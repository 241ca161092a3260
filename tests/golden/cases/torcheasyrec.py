"""Cases of TorchEasyRec: one sequence encoder each, over raw vectors, or a whole model with its pipeline.config.

An encoder's result is a layer's value. A bundle needs an output too: the sum of that result and the query."""

import numpy as np

from cases import OTHER_BAR, PROBABILITY_BAR, SCORE, VALUE, Expectation, NotSupported
from dinghy_export import features
from dinghy_export.builder import Builder
from dinghy_export.importers import torcheasyrec_layers as layers
from dinghy_export.importers.text_format import parse
from dinghy_export.importers.torcheasyrec import build_model
from dinghy_export.importers.torcheasyrec_features import Settings
from dinghy_export.importers.torcheasyrec_layers import Columns, MlpSpec
from dinghy_export.importers.weights import Weights
from dinghy_export.manifest import provenance


def build(case, tensors):
    meta, inputs = case["meta"], case["inputs"]
    if "config" in meta:
        return _build_model(case, tensors)
    group = next(name for name in inputs if name.endswith(".query")).rsplit(".", 1)[0]
    queries, histories, lengths = (inputs[f"{group}.{part}"] for part in ("query", "sequence", "sequence_length"))
    built = _bundle(meta, tensors, len(queries[0]), len(histories[0][0]), len(histories[0]))
    requests, expectations = [], []
    for row, (query, history, length) in enumerate(zip(queries, histories, lengths)):
        behaviors = history[:length]
        requests.append({
            "candidates": [features.ints("item", [0]),
                           features.floats("query", query, [len(query)])],
            "sequences": [{
                "sequence": "history", "columns": [
                    features.floats("vector", [x for behavior in behaviors for x in behavior],
                                    [len(x) for x in behaviors])
                ]
            }],
        })
        expected = np.array(case["outputs_f64"]["out"][row])
        expectations.append(Expectation(row, VALUE, "out", 0, expected, OTHER_BAR, "out"))
        expectations.append(
            Expectation(row, SCORE, "sum", 0,
                        expected.sum() + np.sum(query), OTHER_BAR, "sum of out and query"))
    return built, requests, expectations


def _bundle(meta, tensors, query_width, width, max_length):
    builder = Builder("case", "item")
    builder.table("item", np.zeros((1, 1), dtype=np.float32))
    builder.sequence("history", ["view"], max_length, keep="OLDEST", pad="NONE")
    builder.feature(
        features.id_feature("item", "CANDIDATE", "item", features.identity(1), oov_row=None, unknown="PAD_ROW",
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


# --- Whole models ---------------------------------------------------------------------------------------------------


def _build_model(case, tensors):
    """`rows`: the features of a user and a candidate each, as data of fg_mode FG_NONE has them; of `clicks` a list a
    behavior, oldest first."""
    settings = Settings(item="ad", actions={"clicks": ("click",)}, keep="OLDEST", newest_first=False)
    built = build_model(Weights(tensors), parse(case["meta"]["config"], "config"), settings, "case")
    requests, expectations = [], []
    for index, row in enumerate(case["inputs"]["rows"]):
        ad, cate, dwell = ([behavior[place] for behavior in row["clicks"]] for place in range(3))
        requests.append({
            "user": [features.floats("age", [row["age"]])] +
            ([] if row["user_id"] is None else [features.ints("user_id", [row["user_id"]])]),
            "candidates": [
                *(features.ints(name, [row[name]]) for name in ("ad", "cate", "price")),
                *(make(name, row[name], [len(row[name])])
                  for make, name in ((features.ints, "tags"), (features.floats, "image")))
            ],
            "sequences": [{
                "sequence": "clicks",
                "columns": [features.ints("ad", ad),
                            features.ints("cate", cate),
                            features.floats("dwell", dwell)]
            }],
        })
        outputs = case["outputs_f64"]
        expectations += [
            Expectation(index, SCORE, "probs", 0, np.array(outputs["probs"][index]), PROBABILITY_BAR, "probs"),
            Expectation(index, VALUE, "logit", 0, np.array(outputs["logits"][index:index + 1]), OTHER_BAR, "logits"),
        ]
    return built, requests, expectations
