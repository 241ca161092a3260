"""Cases of FuxiCTR: ids are encoded already, histories are padded with zeros on the side that `padding` says, one row
is one user and candidate. Options that the case does not name are read off the state dict."""

import numpy as np

from cases import OTHER_BAR, PROBABILITY_BAR, SCORE, VALUE, Expectation, NotSupported
from dinghy_export import features
from dinghy_export.importers.fuxictr import Serving, build_din
from dinghy_export.importers.fuxictr_dataset import Dataset
from dinghy_export.importers.weights import Weights
from dinghy_export.manifest import provenance

TABLE = "embedding_layer.embedding_layers.{}.weight"


def build(case, tensors):
    meta, inputs, outputs = case["meta"], case["inputs"], case["outputs_f64"]
    if meta["model"] != "DIN":
        raise NotSupported(meta["model"])
    specs = {name: _spec(name, inputs[name], tensors) for name in meta["feature_order"]}
    sequences = [name for name, spec in specs.items() if spec["type"] == "sequence"]
    targets = [_target(name, specs) for name in sequences]
    for target, sequence in zip(targets, sequences):
        if np.array_equal(tensors[TABLE.format(target)], tensors[TABLE.format(sequence)]):
            specs[sequence]["share_embedding"] = target
    one = not any(name.startswith("attention_layers.1.") for name in tensors)
    params = {
        "model": "DIN",
        "embedding_dim": tensors[TABLE.format(targets[0])].shape[1],
        "din_use_softmax": meta["softmax"],
        "din_target_field": [tuple(targets)] if one else targets,
        "din_sequence_field": [tuple(sequences)] if one else sequences,
        **_mlp_options(
            tensors,
            "attention_layers.0.attention_layer.mlp",
            "attention_hidden_units",
            "attention_hidden_activations",
            "attention_dropout",
        ),
        **_mlp_options(tensors, "dnn.mlp", "dnn_hidden_units", "dnn_activations", "net_dropout"),
        "batch_norm": "dnn.mlp.1.running_mean" in tensors,
    }
    numbers = [name for name, spec in specs.items() if spec["type"] == "numeric"]
    dataset = Dataset(
        specs, ["y_pred"], padding=dict.fromkeys(sequences, meta["padding"]), scaling=dict.fromkeys(numbers, (0.0, 1.0))
    )
    user = [name for name in specs if name not in targets and name not in sequences]
    built = build_din(
        Weights(tensors),
        params,
        dataset,
        Serving(
            "case",
            dict.fromkeys(sequences[:1] if one else sequences, ["click"]),
            dict.fromkeys(user, "USER"),
            provenance=provenance(meta["lib"], "a golden case", "1970-01-01T00:00:00Z"),
        ),
    )
    requests, expectations = [], []
    for row in range(len(outputs["y_pred"])):
        columns = {name: _column(name, specs, [inputs[name][row]]) for name in user + targets}
        groups = [(sequences, targets)] if one else [([s], [t]) for s, t in zip(sequences, targets)]
        requests.append(
            {
                "user": [columns[name] for name in user],
                "candidates": [columns[name] for name in targets],
                "sequences": [
                    {
                        "sequence": fields[0],
                        "columns": [
                            features.ints(target, _history(inputs, fields, field, row, meta["padding"]))
                            for field, target in zip(fields, names)
                        ],
                    }
                    for fields, names in groups
                ],
            }
        )
        expectations.append(Expectation(row, SCORE, "y_pred", 0, np.array(outputs["y_pred"][row]), PROBABILITY_BAR))
        if "interest" in outputs:
            expectations.append(Expectation(row, VALUE, "interest", 0, np.array(outputs["interest"][row]), OTHER_BAR))
    return built, requests, expectations


def _spec(name, values, tensors):
    rows = tensors[TABLE.format(name)].shape[0]
    if isinstance(values[0], list):
        return {"type": "sequence", "vocab_size": rows, "max_len": len(values[0])}
    return {"type": "numeric"} if isinstance(values[0], float) else {"type": "categorical", "vocab_size": rows}


def _target(sequence, specs):
    """The feature whose ids a sequence holds: the only one with as many."""
    same = [
        name
        for name, spec in specs.items()
        if spec["type"] == "categorical" and spec["vocab_size"] == specs[sequence]["vocab_size"]
    ]
    assert len(same) == 1, (sequence, same)
    return same[0]


def _column(name, specs, values):
    return (features.floats if specs[name]["type"] == "numeric" else features.ints)(name, values)


def _history(inputs, fields, field, row, padding):
    """A row of a history without its padding, which ends where the first field has its first id."""
    mask = np.array(inputs[fields[0]][row]) != 0
    real = np.flatnonzero(mask)
    if not len(real):
        return []
    return inputs[field][row][real[0] :] if padding == "pre" else inputs[field][row][: real[-1] + 1]


def _mlp_options(tensors, prefix, units, activations, dropout):
    """Hidden widths, activations and whether there is dropout, by the modules' numbers."""
    names = [name[len(prefix) + 1 :] for name in tensors if name.startswith(f"{prefix}.")]
    linear = sorted(
        int(name.split(".")[0]) for name in names if name.endswith("weight") and tensors[f"{prefix}.{name}"].ndim == 2
    )
    found, dropped = [], False
    for begin, end in zip(linear, linear[1:]):
        place = begin + 2 if f"{begin + 1}.running_mean" in names else begin + 1
        kind = "Dice" if f"{place}.alpha" in names else "PReLU" if f"{place}.weight" in names else "ReLU"
        found.append(kind)
        dropped = end > place + 1
    return {
        units: [tensors[f"{prefix}.{number}.weight"].shape[0] for number in linear[:-1]],
        activations: found,
        dropout: 0.1 if dropped else 0,
    }
