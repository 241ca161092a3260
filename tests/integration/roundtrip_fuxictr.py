#!/usr/bin/python3
"""roundtrip_fuxictr.py: DIN trained as FuxiCTR's model_zoo trains it, from CSV files on, imported and served; see
roundtrip.py.

FuxiCTR's package on PyPI holds no DIN: the class is in the repository's model_zoo. FUXICTR_SOURCE names a clone of it;
without, it is fetched from GitHub.
"""

import os
import subprocess
import sys

import roundtrip

REPOSITORY, COMMIT = "https://github.com/reczoo/FuxiCTR", "0245987fdc1d43c36164ea496a02324885a8557a"
PACKAGES = [
    "keras_preprocessing==1.1.2",
    "six==1.16.0",
    "pandas==2.1.4",
    "python-dateutil==2.8.2",
    "pytz==2023.3",
    "tzdata==2023.3",
    "scikit-learn==1.3.2",
    "scipy==1.11.4",
    "joblib==1.3.2",
    "threadpoolctl==3.2.0",
    "h5py==3.10.0",
    "tqdm==4.66.1",
    "pyarrow==14.0.2",
    "polars==1.9.0",
    "PyYAML==6.0.1",
]
MAX_LEN, TAGS, TRAINED, TESTED = 6, 3, 300, 70

MODEL_CONFIG = """
Base: {model_root: checkpoints, num_workers: 1, verbose: 0, early_stop_patience: 2, save_best_only: True,
       eval_steps: null, model: DIN, loss: binary_crossentropy, metrics: [logloss, AUC], task: binary_classification,
       optimizer: adam,
       learning_rate: 1.0e-3, batch_size: 64, embedding_dim: 4, dnn_hidden_units: [16, 8],
       attention_hidden_units: [12, 6], epochs: 2, shuffle: True, seed: 2019, monitor: AUC,
       monitor_mode: max, group_id: null}
plain: {dataset_id: newest, attention_dropout: 0.1, net_dropout: 0.1, batch_norm: True, dnn_activations: Dice,
        din_target_field: [!!python/tuple [item_id, cate_id]],
        din_sequence_field: [!!python/tuple [click_history, cate_history]]}
softmax: {dataset_id: oldest, din_use_softmax: True, attention_hidden_activations: [PReLU, ReLU], dnn_activations: relu,
          din_target_field: [item_id, cate_id], din_sequence_field: [click_history, cate_history]}
"""
DATASET_CONFIG = """
{dataset}:
    data_root: data
    data_format: csv
    train_data: {dataset}.train.csv
    valid_data: {dataset}.test.csv
    test_data: {dataset}.test.csv
    min_categr_count: 2
    feature_cols:
        - {{name: userid, active: True, dtype: str, type: categorical, source: user}}
        - {{name: item_id, active: True, dtype: str, type: categorical, source: item}}
        - {{name: cate_id, active: True, dtype: str, type: categorical, source: item, embedding_dim: 4}}
        - {{name: price, active: True, dtype: float, type: numeric, source: item, normalizer: StandardScaler}}
        - {{name: age, active: True, dtype: float, type: numeric, source: user, normalizer: MinMaxScaler,
           embedding_dim: 3}}
        - {{name: click_history, active: True, dtype: str, type: sequence, splitter: ^, max_len: 6, padding: {padding},
           share_embedding: item_id, feature_encoder: null}}
        - {{name: tags, active: True, dtype: str, type: sequence, splitter: ^, max_len: 3, padding: {padding}}}
        - {{name: cate_history, active: True, dtype: str, type: sequence, splitter: ^, max_len: 6, padding: {padding},
           share_embedding: cate_id, feature_encoder: null}}
    label_col: {{name: clk, dtype: float}}
"""
# experiment -> dataset, its padding, and whether its tags come as a sequence of events, any number of them, or as a bag
EXPERIMENTS = {"plain": ("newest", "pre", False), "softmax": ("oldest", "post", True)}


def source():
    """A folder with FuxiCTR's fuxictr and model_zoo."""
    given = os.environ.get("FUXICTR_SOURCE")
    if given and os.path.isdir(os.path.join(given, "model_zoo", "DIN")):
        return given
    folder = os.path.join(os.path.abspath(roundtrip.ENVIRONMENTS), "fuxictr_source")
    if os.path.isdir(os.path.join(folder, "model_zoo", "DIN")):
        return folder
    os.makedirs(folder, exist_ok=True)
    repository = given
    if given is None:
        repository = f"{folder}.git"
        run("git", "init", "--quiet", "--bare", repository)
        run("git", "--git-dir", repository, "fetch", "--quiet", "--depth", "1", REPOSITORY, COMMIT)
    run("git", "--git-dir", repository, "archive", "--output", f"{folder}.tar", COMMIT, "fuxictr", "model_zoo/DIN")
    run("tar", "xf", f"{folder}.tar", "-C", folder)
    return folder


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    if done.returncode != 0:
        roundtrip.skip(
            "FuxiCTR's DIN is not in its package, and its repository cannot be read: "
            f"{roundtrip.last_line(done)}; FUXICTR_SOURCE may name a clone"
        )


def trained(folder):
    for name, (dataset, _, as_events) in EXPERIMENTS.items():
        groups = ["click_history=click"] + (["cate_history=click", "tags=tag"] if as_events else [])
        yield name, [
            "--from",
            "fuxictr",
            "--checkpoint",
            f"{folder}/checkpoints/{dataset}/{name}.model",
            "--config",
            f"{folder}/config",
            "--experiment",
            name,
            "--data_dir",
            f"{folder}/data/{dataset}",
            *[part for group in groups for part in ("--actions", group)],
            *([] if as_events else ["--user", "tags"]),
        ]


# --- In the library's environment -----------------------------------------------------------------------------------


def train(folder):
    sys.path[:0] = [os.environ["FUXICTR"], os.path.join(os.environ["FUXICTR"], "model_zoo", "DIN")]
    os.chdir(folder)
    os.makedirs("config/dataset_config")
    with open("config/model_config.yaml", "w") as file:
        file.write(MODEL_CONFIG)
    for name, (dataset, padding, as_events) in EXPERIMENTS.items():
        with open(f"config/dataset_config/{dataset}.yaml", "w") as file:
            file.write(DATASET_CONFIG.format(dataset=dataset, padding=padding))
        rows = draw(as_events)
        write_csv(f"{dataset}.train.csv", rows[:TRAINED])
        write_csv(f"{dataset}.test.csv", rows[TRAINED:])
        scores = run_experiment(name)
        assert len(scores) == TESTED
        roundtrip.write_expected(
            folder,
            name,
            [
                (request_of(index, row, as_events), {"clk": [score]})
                for index, (row, score) in enumerate(zip(rows[TRAINED:], scores))
            ],
        )


def draw(as_events):
    """Rows of raw values; in the last ones there are tokens that training does not see, and absent values."""
    import numpy as np

    random = np.random.RandomState(4)
    rows = []
    for index in range(TRAINED + TESTED):
        unseen = index >= TRAINED and index % 3 == 0
        items, cates = (26, 9) if unseen else (20, 6)
        length = index % (MAX_LEN + 4)  # 0, 1, ... and longer than what is kept
        clicks = [f"i{number}" for number in random.randint(0, items, length)]
        kinds = [f"c{number}" for number in random.randint(0, cates, length)]
        if index % 7 == 3:  # empty tokens, which are padding in the middle
            clicks[::2], kinds[::2] = [""] * len(clicks[::2]), [""] * len(kinds[::2])
        if index % 11 == 5:  # nothing but padding
            clicks, kinds = [""] * length, [""] * length
        tags = [f"t{number}" for number in random.randint(0, 8, random.randint(0, TAGS + (3 if as_events else 1)))]
        rows.append(
            {
                "clk": int(random.rand() < 0.4),
                "userid": "" if unseen and index % 2 else f"u{random.randint(0, 30 if unseen else 25)}",
                "item_id": f"i{random.randint(0, items)}",
                "cate_id": f"c{random.randint(0, cates)}",
                "price": None if index % 13 == 7 else round(float(random.randn() * 20 + 50), 3),
                "age": float(random.randint(18, 70)),
                "click_history": clicks,
                "tags": tags,
                "cate_history": kinds,
            }
        )
    return rows


def write_csv(path, rows):
    def text(value):
        return "" if value is None else "^".join(value) if isinstance(value, list) else str(value)

    with open(path, "w") as file:
        file.write(",".join(rows[0]) + "\n")
        file.write("".join(",".join(text(value) for value in row.values()) + "\n" for row in rows))


def run_experiment(name):
    """The steps of model_zoo's run_expid.py; returns the predictions for the test data."""
    import src
    import torch
    from fuxictr.features import FeatureMap
    from fuxictr.preprocess import FeatureProcessor, build_dataset
    from fuxictr.pytorch.dataloaders import RankDataLoader
    from fuxictr.pytorch.torch_utils import seed_everything
    from fuxictr.utils import load_config

    params = load_config("config", name)
    params["gpu"] = -1
    seed_everything(params["seed"])
    processor = FeatureProcessor(**params)
    params["train_data"], params["valid_data"], params["test_data"] = build_dataset(processor, **params)
    feature_map = FeatureMap(params["dataset_id"], os.path.join(params["data_root"], params["dataset_id"]))
    feature_map.load(os.path.join(feature_map.data_dir, "feature_map.json"), params)
    os.makedirs(os.path.join(params["model_root"], params["dataset_id"]), exist_ok=True)
    model = src.DIN(feature_map, **params)
    train_gen, valid_gen = RankDataLoader(feature_map, stage="train", **params).make_iterator()
    model.fit(train_gen, validation_data=valid_gen, **params)
    # Two epochs on noise leave the weights almost as they were made; larger ones tell mistakes apart.
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for module in model.modules():
            if getattr(module, "padding_idx", None) is not None:
                module.weight[module.padding_idx] = 0
    model.save_weights(model.checkpoint)
    return model.predict(RankDataLoader(feature_map, stage="test", **params).make_iterator())


def request_of(index, row, as_events):
    def strings(feature, values, lengths=None):
        return {"feature": feature, "strings": {"values": values}, **({} if lengths is None else {"lengths": lengths})}

    def floats(feature, value):
        return {"feature": feature, "floats": {"values": [value]}}

    sequences = {"click_history": [strings("item_id", row["click_history"])]}
    kinds = strings("cate_id", row["cate_history"])
    if as_events:
        sequences["cate_history"], sequences["tags"] = [kinds], [strings("tags", row["tags"])]
    else:
        sequences["click_history"].append(kinds)
    user = [floats("age", row["age"])] + ([strings("userid", [row["userid"]])] if row["userid"] else [])
    return {
        "requestId": f"row {index}, {len(row['click_history'])} behaviors",
        "requestTimeMs": 1717200000000,
        "user": user + ([] if as_events else [strings("tags", row["tags"], [len(row["tags"])])]),
        "candidates": (
            [strings("item_id", [row["item_id"]]), strings("cate_id", [row["cate_id"]])]
            + ([] if row["price"] is None else [floats("price", row["price"])])
        ),
        "sequences": [{"sequence": name, "columns": columns} for name, columns in sequences.items()],
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    else:
        os.environ["FUXICTR"] = source()
        roundtrip.run(os.path.abspath(__file__), "fuxictr", PACKAGES, trained)
