"""Cases of DeepCTR-Torch: histories are filled up with zeros behind their `seq_length` behaviors, one row is one user
and candidate. Columns and options are read off the feature index and the state dict."""

import numpy as np

from cases import PROBABILITY_BAR, SCORE, Expectation, NotSupported
from dinghy_export import features
from dinghy_export.importers.deepctr_torch import Serving, build_din
from dinghy_export.importers.weights import Weights
from dinghy_export.manifest import provenance

LENGTH = "seq_length"


def build(case, tensors):
    meta, inputs, outputs = case["meta"], case["inputs"], case["outputs_f64"]
    if meta["model"] != "DIN":
        raise NotSupported(meta["model"])
    columns = [_column(name, inputs[name], tensors) for name in meta["feature_index"] if name != LENGTH]
    history = [column["name"].removeprefix("hist_") for column in columns if column["kind"] == "VarLenSparseFeat"]
    description = {
        "feature_columns": columns,
        "history_feature_list": history,
        "task": "binary",
        "att_weight_normalization": meta["att_weight_normalization"],
        "att_activation": meta["att_activation"],
        "att_hidden_size": _widths(tensors, "attention.local_att.dnn"),
        "dnn_hidden_units": _widths(tensors, "dnn"),
        "dnn_activation": (
            "prelu" if "dnn.activation_layers.0.weight" in tensors else meta.get("dnn_activation", "relu")
        ),
        "dnn_use_bn": "dnn.bn.0.running_mean" in tensors,
    }
    user = [
        column["name"] for column in columns if column["kind"] != "VarLenSparseFeat" and column["name"] not in history
    ]
    first = f"hist_{history[0]}"
    built = build_din(
        Weights(tensors),
        description,
        Serving(
            "case",
            {first: ["click"]},
            "OLDEST",
            dict.fromkeys(user, "USER"),
            padding_id=0,
            output="y_pred",
            provenance=provenance(meta["lib"], "a golden case", "1970-01-01T00:00:00Z"),
        ),
    )
    kinds = {column["name"]: column["kind"] for column in columns}
    requests, expectations = [], []
    for row, expected in enumerate(outputs["y_pred"]):
        length = inputs[LENGTH][row]
        one = {
            name: (features.floats if kinds[name] == "DenseFeat" else features.ints)(name, [inputs[name][row]])
            for name in user + history
        }
        requests.append(
            {
                "user": [one[name] for name in user],
                "candidates": [one[name] for name in history],
                "sequences": [
                    {
                        "sequence": first,
                        "columns": [features.ints(name, inputs[f"hist_{name}"][row][:length]) for name in history],
                    }
                ],
            }
        )
        expectations.append(Expectation(row, SCORE, "y_pred", 0, np.array(expected), PROBABILITY_BAR))
    return built, requests, expectations


def _column(name, values, tensors):
    if isinstance(values[0], float):
        return {"kind": "DenseFeat", "name": name, "dimension": 1}
    table = name if f"embedding_dict.{name}.weight" in tensors else name.removeprefix("hist_")
    rows, dim = tensors[f"embedding_dict.{table}.weight"].shape
    sparse = {"name": name, "vocabulary_size": rows, "embedding_dim": dim, "embedding_name": table}
    if isinstance(values[0], list):
        return {
            "kind": "VarLenSparseFeat",
            **sparse,
            "maxlen": len(values[0]),
            "combiner": "mean",
            "length_name": LENGTH,
        }
    return {"kind": "SparseFeat", **sparse}


def _widths(tensors, prefix):
    count = sum(name.startswith(f"{prefix}.linears.") and name.endswith(".weight") for name in tensors)
    return [tensors[f"{prefix}.linears.{index}.weight"].shape[0] for index in range(count)]
