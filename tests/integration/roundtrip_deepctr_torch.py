#!/usr/bin/python3
"""roundtrip_deepctr_torch.py: DIN trained by DeepCTR-Torch's own API, imported and served; see roundtrip.py.

DeepCTR-Torch imports TensorFlow for its callbacks alone; four classes that do nothing stand in for it.
"""

import json
import os
import sys

import roundtrip

PACKAGES = [
    "deepctr-torch==0.2.9",
    "scikit-learn==1.3.2",
    "scipy==1.11.4",
    "joblib==1.3.2",
    "threadpoolctl==3.2.0",
    "tqdm==4.66.1",
]
MAX_LEN, SAMPLES = 6, 400
# name -> (arguments of DIN, whether the history has tables of its own, which end of a long history is kept)
MODELS = {
    "plain": (dict(dnn_hidden_units=[16, 8], att_hidden_size=[12, 6], dnn_use_bn=True), False, "NEWEST"),
    "softmax": (
        dict(
            dnn_hidden_units=[16],
            att_hidden_size=[10],
            att_activation="prelu",
            dnn_activation="sigmoid",
            dnn_dropout=0.2,
            att_weight_normalization=True,
        ),
        True,
        "OLDEST",
    ),
    "regression": (
        dict(
            dnn_hidden_units=[8], att_hidden_size=[6], att_activation="relu", dnn_activation="prelu", task="regression"
        ),
        False,
        "NEWEST",
    ),
}
DEFAULTS = dict(
    dnn_use_bn=False, dnn_activation="relu", att_activation="Dice", att_weight_normalization=False, task="binary"
)


def trained(folder):
    for name, (_, _, keep) in MODELS.items():
        file = os.path.join(folder, name)
        yield name, [
            "--from",
            "deepctr-torch",
            "--checkpoint",
            f"{file}.pth",
            "--columns",
            f"{file}.json",
            "--keep",
            keep,
            "--padding_id",
            "0",
            "--actions",
            "hist_item=click",
            "--user",
            "user,tags",
            "--candidate",
            "score",
            "--vocabulary",
            f"user={folder}/users.txt",
            "--vocabulary",
            f"item={folder}/items.txt",
            "--first_row",
            "item=1",
            "--vocabulary",
            f"hist_item={folder}/items.txt",
            "--first_row",
            "hist_item=1",
        ]


# --- In the library's environment -----------------------------------------------------------------------------------


def stand_in_for_tensorflow():
    import types

    class Callbacks:
        def __init__(self, *arguments, **named):
            pass

        def set_model(self, model):
            self.model = model

        def __getattr__(self, name):
            if name.startswith("on_"):
                return lambda *arguments, **named: None
            raise AttributeError(name)

    path = "tensorflow.python.keras.callbacks".split(".")
    for end in range(1, len(path) + 1):
        sys.modules[".".join(path[:end])] = types.ModuleType(path[end - 1])
    for name in ("CallbackList", "EarlyStopping", "ModelCheckpoint", "History"):
        setattr(sys.modules[".".join(path)], name, type(name, (Callbacks,), {}))


def train(folder):
    stand_in_for_tensorflow()
    import numpy as np
    import torch
    from sklearn.preprocessing import LabelEncoder

    random = np.random.RandomState(5)
    users, items = LabelEncoder(), LabelEncoder()
    users.fit([f"user {number}" for number in range(20)])
    items.fit([1000 + 7 * number for number in range(50)])
    for name, encoder in (("users", users), ("items", items)):
        with open(os.path.join(folder, f"{name}.txt"), "w") as file:
            file.write("".join(f"{one}\n" for one in encoder.classes_))
    histories = [random.choice(items.classes_, size=index % (MAX_LEN + 5)) for index in range(SAMPLES)]
    raw = {
        "user": random.choice(users.classes_, SAMPLES),
        "item": random.choice(items.classes_, SAMPLES),
        "score": random.randn(SAMPLES).astype(np.float32),
        "hist_item": histories,
        "tags": [random.randint(1, 6, size=index % 4) for index in range(SAMPLES)],
    }
    labels = (random.rand(SAMPLES) < 0.4).astype(np.float32)
    for name, (arguments, own_table, keep) in MODELS.items():
        torch.manual_seed(7)
        model, description = model_of({**DEFAULTS, **arguments}, own_table, arguments)
        x = encode(raw, users, items, keep)
        model.compile("adam", "mse" if model.out.task == "regression" else "binary_crossentropy", metrics=[])
        model.fit(dict(x), labels, batch_size=64, epochs=3, verbose=0)
        stir(model)
        scores = model.predict(dict(x), 128)[:, 0]
        torch.save(model.state_dict(), os.path.join(folder, f"{name}.pth"))
        with open(os.path.join(folder, f"{name}.json"), "w") as file:
            json.dump(description, file)
        roundtrip.write_expected(
            folder, name, [(request_of(raw, row), {"click": [scores[row]]}) for row in range(0, 60)]
        )


def model_of(options, own_table, arguments):
    from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
    from deepctr_torch.models.din import DIN

    feature_columns = [
        SparseFeat("user", 20, embedding_dim=4),
        SparseFeat("item", 51, embedding_dim=8),
        DenseFeat("score", 1),
        VarLenSparseFeat(
            SparseFeat("hist_item", 51, embedding_dim=8, embedding_name=None if own_table else "item"),
            MAX_LEN,
            length_name="seq_length",
        ),
        VarLenSparseFeat(SparseFeat("tags", 6, embedding_dim=3), 4, combiner="mean"),
    ]
    behavior_feature_list = ["item"]
    model = DIN(feature_columns, behavior_feature_list, **arguments)
    keys = (
        "name",
        "vocabulary_size",
        "embedding_dim",
        "embedding_name",
        "group_name",
        "maxlen",
        "combiner",
        "length_name",
        "dimension",
    )
    columns = [{"kind": type(c).__name__, **{k: getattr(c, k) for k in keys if hasattr(c, k)}} for c in feature_columns]
    chosen = {key: options[key] for key in (*DEFAULTS, "dnn_hidden_units", "att_hidden_size")}
    return model, {"feature_columns": columns, "history_feature_list": behavior_feature_list, **chosen}


def encode(raw, users, items, keep):
    import numpy as np

    lengths = np.array([min(len(history), MAX_LEN) for history in raw["hist_item"]])
    history = np.zeros((SAMPLES, MAX_LEN), dtype=np.int64)
    tags = np.zeros((SAMPLES, 4), dtype=np.int64)
    for row in range(SAMPLES):
        kept = raw["hist_item"][row][-MAX_LEN:] if keep == "NEWEST" else raw["hist_item"][row][:MAX_LEN]
        if len(kept):
            history[row, : len(kept)] = items.transform(kept) + 1
        tags[row, : len(raw["tags"][row])] = raw["tags"][row]
    return {
        "user": users.transform(raw["user"]),
        "item": items.transform(raw["item"]) + 1,
        "score": raw["score"],
        "hist_item": history,
        "seq_length": lengths,
        "tags": tags,
    }


def stir(model):
    """A few epochs on noise leave the weights almost as they were made; larger ones tell mistakes apart."""
    import torch

    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)


def request_of(raw, row):
    history, tags = ([int(one) for one in raw[name][row]] for name in ("hist_item", "tags"))
    return {
        "requestId": f"row {row}, {len(history)} behaviors",
        "requestTimeMs": 1717200000000,
        "user": [
            {"feature": "user", "strings": {"values": [str(raw["user"][row])]}},
            {"feature": "tags", "ints": {"values": tags}, "lengths": [len(tags)]},
        ],
        "candidates": [
            {"feature": "item", "ints": {"values": [int(raw["item"][row])]}},
            {"feature": "score", "floats": {"values": [float(str(raw["score"][row]))]}},
        ],
        "sequences": [{"sequence": "hist_item", "columns": [{"feature": "item", "ints": {"values": history}}]}],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    else:
        roundtrip.run(os.path.abspath(__file__), "deepctr_torch", PACKAGES, trained)
