#!/usr/bin/python3
"""roundtrip_recbole.py: DIN and SASRec trained by RecBole's own trainer, imported and served; see roundtrip.py.

RecBole trains for three epochs on a small data set, saves checkpoint and dataset, and predicts: an empty history (DIN;
its SASRec fails on one), one behavior, a full history and a longer one, items without some of their features.
"""

import glob
import os
import random
import sys

import roundtrip

PACKAGES = [
    "recbole==1.2.1", "pandas==1.5.3", "scipy==1.10.1", "scikit-learn==1.2.2", "joblib==1.6.0", "threadpoolctl==3.8.0",
    "pytz==2023.3", "python-dateutil==2.8.2", "six==1.16.0", "colorlog==6.12.0", "colorama==0.4.6", "tqdm==4.70.1",
    "PyYAML==6.0.1", "tabulate==0.10.0", "texttable==1.7.2", "psutil==5.9.8", "thop==0.1.1.post2209072238",
    "plotly==7.1.0", "packaging==26.4", "tensorboard==2.21.0", "protobuf==6.33.6", "absl-py==2.5.1",
    "cloudpickle==3.1.3"
]
LENGTH = 6  # MAX_ITEM_LIST_LENGTH
ITEMS = range(100, 140)
WITHOUT_YEAR = 110
# name -> what RecBole is given; the epoch's end saves the checkpoint.
MODELS = {
    "din": {
        "model": "DIN", "embedding_size": 4, "mlp_hidden_size": [8, 6], "dropout_prob": 0.1, "metrics": ["AUC"],
        "valid_metric": "AUC"
    },
    "din_sum": {
        "model": "DIN", "embedding_size": 3, "mlp_hidden_size": [7], "pooling_mode": "sum", "metrics": ["AUC"],
        "valid_metric": "AUC"
    },
    "sasrec": {
        "model": "SASRec", "hidden_size": 16, "inner_size": 24, "n_heads": 2, "n_layers": 2, "loss_type": "CE",
        "initializer_range": 0.3
    },
    "sasrec_relu": {
        "model": "SASRec", "hidden_size": 12, "inner_size": 10, "n_heads": 3, "n_layers": 1, "hidden_act": "relu",
        "loss_type": "BPR", "train_neg_sample_args": {"distribution": "uniform",
                                                      "sample_num": 1}, "initializer_range": 0.3
    },
}


def trained(folder):
    for name, settings in MODELS.items():
        (checkpoint,) = glob.glob(os.path.join(folder, name, f"{settings['model']}-*.pth"))
        arguments = ["--from", "recbole", "--checkpoint", checkpoint, "--unknown", "pad", "--action", "view"]
        if settings["model"] == "SASRec":
            arguments += ["--dataset", os.path.join(folder, name, "tiny-SequentialDataset.pth")]
        yield name, arguments


# --- In RecBole's environment ----------------------------------------------------------------------------------------


def train(folder):
    import numpy as np

    for name, kind in {"float": float, "long": np.int64}.items():  # RecBole knows an older NumPy
        if name not in np.__dict__:
            setattr(np, name, kind)
    import torch
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    sys.argv = sys.argv[:1]  # Config reads the command line
    os.chdir(folder)
    write_data()
    common = {
        "data_path": ".", "epochs": 3, "learning_rate": 0.01, "train_batch_size": 64, "eval_batch_size": 64,
        "save_dataset": True, "gpu_id": "", "MAX_ITEM_LIST_LENGTH": LENGTH, "LABEL_FIELD": "label",
        "show_progress": False, "train_neg_sample_args": None, "load_col": {
            "inter": ["user_id", "item_id", "label", "timestamp"], "item": ["item_id", "year", "class"],
            "user": ["user_id", "age"]
        }
    }
    for name, settings in MODELS.items():
        labeled = settings["model"] == "DIN"
        config = Config(
            model=settings["model"], dataset="tiny", config_dict={
                **common, "checkpoint_dir": name, "eval_args": {
                    "split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user",
                    "mode": "labeled" if labeled else "full"
                }, **settings
            })
        init_seed(config["seed"], config["reproducibility"])
        dataset = create_dataset(config)
        train_data, valid_data, _ = data_preparation(config, dataset)
        model = get_model(config["model"])(config, train_data.dataset)
        trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, model)
        trainer.fit(train_data, valid_data, saved=True, show_progress=False)
        model.load_state_dict(torch.load(trainer.saved_model_file)["state_dict"])
        predict(name, model.eval(), dataset)


def write_data():
    draw = random.Random(3)
    os.makedirs("tiny")
    with open("tiny/tiny.inter", "w", encoding="utf-8") as file:
        file.write("user_id:token\titem_id:token\tlabel:float\ttimestamp:float\n")
        for user in range(40):
            for time in range(draw.randint(3, 14)):
                file.write(f"u{user}\t{draw.choice(ITEMS)}\t{draw.randint(0, 1)}\t{time}\n")
        for item in ITEMS:  # so that every item is known
            file.write(f"u40\t{item}\t1\t{item}\n")
    with open("tiny/tiny.item", "w", encoding="utf-8") as file:
        file.write("item_id:token\tyear:token\tclass:token_seq\tprice:float\n")
        for item in ITEMS:
            classes = " ".join(f"c{n}" for n in draw.sample(range(6), draw.randint(0, 3)))
            file.write(f"{item}\t{'' if item == WITHOUT_YEAR else 1990 + item % 5}\t{classes}\t0.5\n")
    with open("tiny/tiny.user", "w", encoding="utf-8") as file:
        file.write("user_id:token\tage:token\n" + "".join(f"u{user}\t{user % 7}\n" for user in range(41)))


def predict(name, model, dataset):
    """Writes what RecBole predicts, as ScoreLogs."""
    import torch
    from recbole.data.interaction import Interaction

    draw = random.Random(5)
    histories = [[draw.choice(ITEMS) for _ in range(length)] for length in (1, 2, 5, LENGTH, LENGTH + 4)]
    histories += [[WITHOUT_YEAR], [101, 101, 101]] + ([[]] if type(model).__name__ == "DIN" else [])
    candidates = [str(item) for item in ITEMS]
    column = lambda tokens: {"feature": "item_id", "strings": {"values": tokens}}
    logs = []
    with torch.no_grad():
        for number, history in enumerate(histories):
            tokens = [str(item) for item in history]
            ids = list(dataset.token2id("item_id", tokens[-LENGTH:])) if tokens else []
            row = torch.tensor([ids + [0] * (LENGTH - len(ids))])
            scores = model.predict(
                Interaction({
                    "user_id": torch.ones(len(candidates), dtype=torch.long),
                    "item_id_list": row.repeat(len(candidates), 1), "item_length": torch.full([len(candidates)],
                                                                                              len(ids)),
                    "item_id": torch.tensor(dataset.token2id("item_id", candidates))
                })).tolist()
            request = {
                "requestId": f"history {number}", "candidates": [column(candidates)],
                "sequences": [{"sequence": "history", "columns": [column(tokens)] if tokens else []}]
            }
            logs.append((request, {"score": scores}))
    spread = [max(outputs["score"]) - min(outputs["score"]) for _, outputs in logs]
    assert min(spread) > 1e-2, f"{name}: scores that hardly differ prove nothing: {spread}"
    roundtrip.write_expected(".", name, logs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    else:
        roundtrip.run(os.path.abspath(__file__), "recbole", PACKAGES, trained)
