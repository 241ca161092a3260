"""Cases of RecBole: `item_seq` is padded with zeros on the right; ids are internal; a row is a user and a candidate."""

import numpy as np

from cases import OTHER_BAR, PROBABILITY_BAR, SCORE, VALUE, Expectation, NotSupported
from dinghy_export import features
from dinghy_export.importers.recbole import Requests, build_din, build_sasrec
from dinghy_export.importers.recbole_dataset import ItemData, ItemField
from dinghy_export.importers.weights import Weights

REQUESTS = Requests(actions=("view",), unknown="REFUSE", sequence="history", output="score")


def build(case, tensors):
    meta, inputs, outputs = case["meta"], case["inputs"], case["outputs_f64"]
    config = {"model": meta["model"], "ITEM_ID_FIELD": "item_id", "MAX_ITEM_LIST_LENGTH": len(inputs["item_seq"][0])}
    if meta["model"] == "DIN":
        built = build_din(Weights(tensors), {**config, "pooling_mode": "mean"}, _items(meta, tensors), REQUESTS, "case")
    elif meta["model"] == "SASRec":
        state = tensors["trm_encoder.layer.0.feed_forward.dense_1.weight"]
        config.update(n_heads=meta["heads"], hidden_size=state.shape[1], inner_size=state.shape[0], hidden_act="gelu",
                      layer_norm_eps=1e-12, n_layers=sum(name.endswith("dense_1.weight") for name in tensors))
        items = ItemData([ItemField("item_id", "token", len(tensors["item_embedding.weight"]))])
        built = build_sasrec(Weights(tensors), config, items, REQUESTS, "case")
    else:
        raise NotSupported(meta["model"])
    requests, expectations = [], []
    for row, (sequence, length) in enumerate(zip(inputs["item_seq"], inputs["item_seq_len"])):
        candidates = [inputs["item"][row]] if "item" in inputs else list(range(len(outputs["full_scores"][row])))
        requests.append({
            "candidates": [features.ints("item_id", candidates)],
            "sequences": [{"sequence": "history", "columns": [features.ints("item_id", sequence[:length])]}],
        })
        if meta["model"] == "DIN":
            expectations += [
                Expectation(row, SCORE, "score", 0, np.array(outputs["prob"][row]), PROBABILITY_BAR, "prob"),
                Expectation(row, VALUE, "tower", 0, np.array(outputs["logit"][row:row + 1]), OTHER_BAR, "logit"),
            ]
        else:
            expectations += [
                Expectation(row, SCORE, "score", None, np.array(outputs["full_scores"][row]), OTHER_BAR, "full_scores"),
                Expectation(row, VALUE, "state", 0, np.array(outputs["seq_output"][row]), OTHER_BAR, "seq_output"),
            ]
    return built, requests, expectations


def _items(meta, tensors):
    """Single tokens share a table, its rows as token_field_dims says; each set of tokens has one of its own."""
    values = {name: meta["item_feat"][name] for name in meta["item_fields"]}
    values["item_id"] = list(range(meta["token_field_dims"][0]))
    dims, sets, fields = list(meta["token_field_dims"]), 0, []
    for name in meta["item_fields"]:
        if isinstance(values[name][0], list):
            table = tensors[f"embedding_layer.token_seq_embedding_table.item.{sets}.weight"]
            fields.append(ItemField(name, "token_seq", len(table)))
            sets += 1
        else:
            fields.append(ItemField(name, "token", dims.pop(0)))
    return ItemData(fields, values)
