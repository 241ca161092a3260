"""DeepCTR-Torch's DIN: what the importer builds gives what a PyTorch module with the same state dict gives, in every
flavour that the feature columns and arguments can express; and what it cannot take it refuses."""

import argparse
import itertools
import json
import os
import tempfile
import unittest

import numpy as np
import torch
from torch import nn

from dinghy_export import features
from dinghy_export.evaluate import evaluate
from dinghy_export.importers import deepctr_torch
from dinghy_export.importers.deepctr_torch import LARGEST_ID, Serving, build_din
from dinghy_export.importers.weights import ImportRefused, Weights

MAX_LEN = 5


def sparse(name, rows, dim=4, **more):
    return {
        "kind": "SparseFeat",
        "name": name,
        "vocabulary_size": rows,
        "embedding_dim": dim,
        "embedding_name": name,
        "group_name": "default_group",
        **more,
    }


def listed(name, rows, dim=4, table=None, maxlen=MAX_LEN, combiner="mean", length_name="length", **more):
    return {
        "kind": "VarLenSparseFeat",
        "name": name,
        "vocabulary_size": rows,
        "embedding_dim": dim,
        "embedding_name": table or name,
        "group_name": "default_group",
        "maxlen": maxlen,
        "combiner": combiner,
        "length_name": length_name,
        **more,
    }


def dense(name, dimension=1):
    return {"kind": "DenseFeat", "name": name, "dimension": dimension}


COLUMNS = [
    sparse("user", 9),
    sparse("item", 30),
    sparse("cate", 7),
    dense("score"),
    listed("hist_item", 30, table="item"),
    listed("hist_cate", 7, table="cate"),
]
OPTIONS = {
    "history_feature_list": ["item", "cate"],
    "dnn_use_bn": False,
    "dnn_hidden_units": [11, 3],
    "dnn_activation": "relu",
    "att_hidden_size": [8, 5],
    "att_activation": "Dice",
    "att_weight_normalization": False,
    "task": "binary",
}
LEVELS = {"user": "USER", "score": "CANDIDATE"}
ACTIONS = {"hist_item": ["click"]}


# --- The module whose weights are imported --------------------------------------------------------------------------


class Gate(nn.Module):
    """Dice over the last of three axes."""

    def __init__(self, width):
        super().__init__()
        self.bn = nn.BatchNorm1d(width, eps=1e-8)
        self.alpha = nn.Parameter(torch.empty(width, 1))

    def forward(self, x):
        p = torch.sigmoid(self.bn(x.flatten(0, 1))).view_as(x)
        return p * x + (1 - p) * self.alpha[:, 0] * x


class Tower(nn.Module):
    def __init__(self, inputs, units, name, norm):
        super().__init__()
        widths = [inputs, *units]
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, units))
        if norm:
            self.bn = nn.ModuleList(nn.BatchNorm1d(width) for width in units)
        kinds = {
            "dice": Gate,
            "prelu": lambda width: nn.PReLU(),
            "relu": lambda width: nn.ReLU(),
            "sigmoid": lambda width: nn.Sigmoid(),
            "linear": lambda width: nn.Identity(),
        }
        self.activation_layers = nn.ModuleList(kinds[name.lower()](width) for width in units)

    def forward(self, x):
        for index, linear in enumerate(self.linears):
            x = linear(x)
            x = self.bn[index](x) if hasattr(self, "bn") else x
            x = self.activation_layers[index](x)
        return x


class Scorer(nn.Module):
    def __init__(self, width, units, name):
        super().__init__()
        self.local_att = nn.Module()
        self.local_att.dnn = Tower(4 * width, units, name, False)
        self.local_att.dense = nn.Linear(units[-1], 1)


class Net(nn.Module):
    def __init__(self, columns, options, seed=1):
        super().__init__()
        self.columns, self.options = columns, options
        self.embedding_dict = nn.ModuleDict()
        for kind in ("SparseFeat", "VarLenSparseFeat"):
            for column in columns:
                if column["kind"] == kind:
                    self.embedding_dict[column["embedding_name"]] = nn.Embedding(
                        column["vocabulary_size"], column["embedding_dim"]
                    )
        history = [f"hist_{name}" for name in options["history_feature_list"]]
        self.history = [column for column in columns if column["name"] in history]
        self.pooled = [
            column for column in columns if column["kind"] == "VarLenSparseFeat" and column["name"] not in history
        ]
        width = sum(column["embedding_dim"] for column in self.history)
        self.attention = Scorer(width, options["att_hidden_size"], options["att_activation"])
        inputs = sum(column.get("embedding_dim") or column["dimension"] for column in columns)
        self.dnn = Tower(inputs, options["dnn_hidden_units"], options["dnn_activation"], options["dnn_use_bn"])
        self.dnn_linear = nn.Linear(options["dnn_hidden_units"][-1], 1, bias=False)
        self.out = nn.Module()
        self.out.bias = nn.Parameter(torch.empty(1))
        self.eval()
        random = torch.Generator().manual_seed(seed)
        for name, tensor in itertools.chain(self.named_parameters(), self.named_buffers()):
            if tensor.dtype.is_floating_point:
                with torch.no_grad():
                    tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.4)
                    if name.endswith("running_var"):
                        tensor.abs_().add_(0.1)

    def look_up(self, columns, x):
        return [self.embedding_dict[column["embedding_name"]](x[column["name"]]) for column in columns]

    def forward(self, x, length):
        """`x`: by column; lists of maxlen ids. `length`: behaviors of the history and of lists with a length_name."""
        singles = [column for column in self.columns if column["kind"] == "SparseFeat"]
        targets = [column for column in singles if column["name"] in self.options["history_feature_list"]]
        by_group = {}
        for column in singles:
            by_group.setdefault(column["group_name"], []).append(column)
        parts = self.look_up([column for group in by_group.values() for column in group], x)
        for column, keys in zip(self.pooled, self.look_up(self.pooled, x)):
            at = torch.arange(column["maxlen"])
            real = (x[column["name"]] != 0) if column["length_name"] is None else (at < length[:, None])
            total = (keys * real[..., None]).sum(1)
            parts.append(total / (real.sum(1, keepdim=True) + 1e-8) if column["combiner"] == "mean" else total)
        query, keys = torch.cat(self.look_up(targets, x), -1), torch.cat(self.look_up(self.history, x), -1)
        wide = query[:, None, :].expand_as(keys)
        unit = self.attention.local_att
        scores = unit.dense(unit.dnn(torch.cat([wide, keys, wide - keys, wide * keys], -1)))[..., 0]
        real = torch.arange(keys.shape[1]) < length[:, None]
        if self.options["att_weight_normalization"]:
            scores = scores.masked_fill(~real, -(2.0**32) + 1).softmax(-1)
        else:
            scores = scores * real
        parts.append((scores[..., None] * keys).sum(1))
        parts += [x[column["name"]] for column in self.columns if column["kind"] == "DenseFeat"]
        logit = self.dnn_linear(self.dnn(torch.cat(parts, -1)))[:, 0] + self.out.bias
        return torch.sigmoid(logit) if self.options["task"] == "binary" else logit


def draw(columns, rows, padding_id=0, seed=3):
    random = np.random.RandomState(seed)
    length = np.arange(rows) % (MAX_LEN + 1)
    x = {}
    for column in columns:
        if column["kind"] == "DenseFeat":
            x[column["name"]] = random.randn(rows, column["dimension"]).astype(np.float32)
        elif column["kind"] == "SparseFeat":
            x[column["name"]] = random.randint(0, column["vocabulary_size"], rows)
        else:
            # Row 0 is an id like others where the length says what is real.
            ids = random.randint(0 if column["length_name"] else 1, column["vocabulary_size"], (rows, column["maxlen"]))
            ids[np.arange(column["maxlen"]) >= length[:, None]] = padding_id if column["length_name"] else 0
            x[column["name"]] = ids
    return x, length


def request_of(built, x, length, row, columns, text=None):
    make = text or (lambda name, ids: features.ints(name, ids))
    request = {"user": [], "candidates": [], "sequences": []}
    kinds = {column["name"]: column["kind"] for column in columns}
    for feature in built.manifest["features"]:
        name = feature["name"]
        if feature["level"] == "SEQUENCE":
            continue
        values = x[name][row]
        if kinds[name] == "DenseFeat":
            column = features.floats(name, values, [len(values)] if len(values) > 1 else None)
        elif kinds[name] == "VarLenSparseFeat":
            column = features.ints(name, [int(one) for one in values[: length[row]]], [int(length[row])])
        else:
            column = make(name, [int(values)])
        request["user" if feature["level"] == "USER" else "candidates"].append(column)
    for sequence in built.manifest["sequences"]:
        fields = [f["name"].split(".")[1] for f in built.manifest["features"] if f.get("sequence") == sequence["name"]]
        request["sequences"].append(
            {
                "sequence": sequence["name"],
                "columns": [
                    make(
                        field,
                        [
                            int(one)
                            for one in x[field if field == sequence["name"] else f"hist_{field}"][row][: length[row]]
                        ],
                    )
                    for field in fields
                ],
            }
        )
    return request


class FlavoursTest(unittest.TestCase):
    def check(self, columns=COLUMNS, serving=None, padding_id=0, text=None, **options):
        options = {**OPTIONS, **options}
        net = Net(columns, options)
        x, length = draw(columns, 2 * (MAX_LEN + 1), padding_id)
        with torch.no_grad():
            expected = net(
                {name: torch.from_numpy(values) for name, values in x.items()}, torch.from_numpy(length)
            ).numpy()
        self.assertGreater(np.ptp(expected), 1e-3)  # else it would say nothing
        serving = serving or Serving("m", ACTIONS, "NEWEST", LEVELS, padding_id)
        built = build_din(
            Weights({name: tensor.numpy() for name, tensor in net.state_dict().items()}),
            {"feature_columns": columns, **options},
            serving,
        )
        for row, score in enumerate(expected):
            encoded = built.encoder().encode(request_of(built, x, length, row, columns, text))
            self.assertAlmostEqual(
                evaluate(built.manifest, built.tensors, encoded).scores["click"][0], score, delta=2e-6, msg=f"row {row}"
            )
        return built

    def test_options(self):
        for softmax, norm, activation, task in itertools.product(
            (False, True), (False, True), ("Dice", "relu", "prelu", "sigmoid", "linear"), ("binary", "regression")
        ):
            with self.subTest(softmax=softmax, norm=norm, activation=activation, task=task):
                built = self.check(
                    att_weight_normalization=softmax,
                    dnn_use_bn=norm,
                    att_activation=activation,
                    task=task,
                    dnn_activation="prelu" if activation == "Dice" else activation,
                )
                self.assertEqual(built.manifest["outputs"][0]["link"], "SIGMOID" if task == "binary" else "RAW")

    def test_what_stands_in_the_padding(self):
        for padding_id in (0, 3):
            built = self.check(att_weight_normalization=True, padding_id=padding_id)
            self.assertEqual({f["id"]["padRow"] for f in built.manifest["features"] if f.get("sequence")}, {padding_id})

    def test_tables_of_their_own(self):
        columns = [*COLUMNS[:4], listed("hist_item", 30), listed("hist_cate", 7)]
        self.assertIn("hist_item.weight", self.check(columns).tensors)

    def test_order_of_columns_decides(self):
        """Queries come in the order of the sparse columns and keys in that of the lists, whatever the names' order."""
        columns = [
            listed("hist_cate", 7, table="cate"),
            dense("score"),
            sparse("item", 30),
            sparse("user", 9),
            sparse("cate", 7),
            listed("hist_item", 30, table="item"),
        ]
        self.check(
            columns,
            Serving("m", {"hist_cate": ["click"]}, "NEWEST", LEVELS, item="item"),
            history_feature_list=["item", "cate"],
        )

    def test_groups(self):
        columns = [dict(column) for column in COLUMNS]
        columns[0]["group_name"] = columns[2]["group_name"] = "second"
        columns[1]["group_name"] = columns[4]["group_name"] = "first"
        columns[5]["group_name"] = "second"
        self.check(columns)

    def test_other_lists(self):
        for combiner, length_name, actions in itertools.product(("mean", "sum"), (None, "length"), (False, True)):
            with self.subTest(combiner=combiner, length_name=length_name, actions=actions):
                columns = [
                    *COLUMNS,
                    listed("tags", 7, 3, combiner=combiner, length_name=length_name),
                    dense("picture", 5),
                ]
                serving = Serving(
                    "m",
                    {**ACTIONS, **({"tags": ["tag"]} if actions else {})},
                    "NEWEST",
                    {**LEVELS, "picture": "USER", **({} if actions else {"tags": "USER"})},
                )
                built = self.check(columns, serving)
                self.assertEqual(any("bag of ids" in note for note in built.notes), not actions)
                if actions or length_name is not None:
                    continue
                # Row 0 is padding there: the library leaves it out, so no id may take it.
                kind = next(f for f in built.manifest["features"] if f["name"] == "tags")["id"]
                self.assertEqual((kind["unknown"], kind["file"]["firstRow"]), ("REFUSE", 1))
                self.assertEqual(built.vocabularies[kind["file"]["path"]], ["1", "2", "3", "4", "5", "6"])

    def test_vocabularies(self):
        tokens = {"item": [str(100 + row) for row in range(29)], "user": [f"u{row}" for row in range(9)]}
        serving = Serving(
            "m", ACTIONS, "OLDEST", LEVELS, vocabularies=tokens, first_rows={"item": 1}, oov_rows={"item": 0}
        )

        def text(name, ids):
            if name == "item":
                return features.ints(name, [99 + row if row else 10**9 for row in ids])
            return (
                features.strings(name, tokens[name][ids[0] : ids[0] + 1])
                if name == "user"
                else features.ints(name, ids)
            )

        built = self.check(serving=serving, text=text)
        kinds = {f["name"]: f["id"] for f in built.manifest["features"] if "id" in f}
        self.assertEqual(kinds["hist_item.item"]["file"], {"path": "item.vocabulary.txt", "firstRow": 1})
        self.assertEqual((kinds["user"]["type"], kinds["user"]["unknown"]), ("STRING", "REFUSE"))
        self.assertEqual(built.manifest["sequences"][0]["keep"], "OLDEST")

    def test_catalog(self):
        catalog = {"columns": [features.ints("item", [1, 2]), features.ints("cate", [3, 4])]}
        built = build_din(
            Weights({name: t.numpy() for name, t in Net(COLUMNS, OPTIONS).state_dict().items()}),
            {"feature_columns": COLUMNS, **OPTIONS},
            Serving("m", ACTIONS, "NEWEST", LEVELS, catalog=catalog),
        )
        sources = {f["name"]: f["from"] for f in built.manifest["features"]}
        self.assertEqual(
            (sources["cate"], sources["hist_item.cate"], sources["item"]), ("CATALOG", "CATALOG", "REQUEST")
        )

    def test_from_files(self):
        """The files of the docstring, through the command's own function."""
        net = Net(COLUMNS, OPTIONS)
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: os.path.join(folder, name) for name in ("din.pth", "din.json", "users.txt")}
            torch.save(net.state_dict(), paths["din.pth"])
            with open(paths["din.json"], "w") as file:
                json.dump({"feature_columns": COLUMNS, **OPTIONS}, file)
            with open(paths["users.txt"], "w") as file:
                file.write("".join(f"u{row}\n" for row in range(9)))
            parser = argparse.ArgumentParser()
            for option in ("--checkpoint", "--name", "--data", "--created"):
                parser.add_argument(option, default="")
            deepctr_torch.add_arguments(parser)
            built = deepctr_torch.import_model(
                parser.parse_args(
                    [
                        "--checkpoint",
                        paths["din.pth"],
                        "--name",
                        "m",
                        "--columns",
                        paths["din.json"],
                        "--keep",
                        "NEWEST",
                        "--actions",
                        "hist_item=click,buy",
                        "--user",
                        "user",
                        "--candidate",
                        "score",
                        "--vocabulary",
                        f"user={paths['users.txt']}",
                        "--oov_row",
                        "user=8",
                    ]
                )
            )
        self.assertEqual(built.vocabularies["user.vocabulary.txt"], [f"u{row}" for row in range(9)])
        self.assertEqual(built.manifest["sequences"][0]["actions"], ["click", "buy"])


class RefusalsTest(unittest.TestCase):
    def build(self, columns=COLUMNS, change=None, serving=None, net_columns=None, **options):
        net = Net(net_columns or COLUMNS, {**OPTIONS, "dnn_use_bn": options.get("dnn_use_bn", False)})
        tensors = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
        if change:
            change(tensors)
        description = {"feature_columns": columns, **OPTIONS, **options}
        return build_din(
            Weights(tensors),
            {name: value for name, value in description.items() if value != "absent"},
            serving or Serving("m", ACTIONS, "NEWEST", LEVELS),
        )

    def refused(self, message, **arguments):
        with self.assertRaises(ImportRefused) as caught:
            self.build(**arguments)
        self.assertIn(message, str(caught.exception))

    def test_it_builds(self):
        self.build()

    def test_ids_that_float32_does_not_tell_apart(self):
        columns = [dict(column) for column in COLUMNS]
        columns[0]["vocabulary_size"] = LARGEST_ID + 2
        self.refused(
            f'feature "user": expected ids up to {LARGEST_ID}, got {LARGEST_ID + 1}: DeepCTR-Torch passes ids as'
            " float32",
            columns=columns,
        )

    def test_description(self):
        for name in ("history_feature_list", "att_weight_normalization", "dnn_use_bn", "task"):
            self.refused(f"description: expected {name}, got none", **{name: "absent"})
        self.refused("task: expected binary or regression, got 'multiclass'", task="multiclass")
        self.refused("dnn_activation: expected anything but Dice", dnn_activation="dice")
        self.refused("got 'gelu'", att_activation="gelu")
        self.refused("expected a list of widths, got []", dnn_hidden_units=[])
        self.refused('feature_columns: expected "user" once', columns=[*COLUMNS, sparse("user", 9)])
        self.refused("expected a kind of SparseFeat", columns=[{"kind": "Feature", "name": "x"}])
        self.refused(
            'feature column "x": expected vocabulary_size, got none', columns=[{"kind": "SparseFeat", "name": "x"}]
        )
        self.refused(
            'feature column "x": expected a positive number for vocabulary_size, got 0', columns=[sparse("x", 0)]
        )
        self.refused(
            "expected a SparseFeat NAME and a VarLenSparseFeat hist_NAME", history_feature_list=["item", "user"]
        )

    def test_history(self):
        first = [listed("tags", 7, length_name="tags_length"), *COLUMNS]
        self.refused(
            "expected the first length_name of all VarLenSparseFeat to be the history's, as DIN takes the first for its"
            " mask, got tags_length",
            columns=first,
        )
        self.refused(
            "got none",
            columns=[
                *COLUMNS[:4],
                listed("hist_item", 30, table="item", length_name=None),
                listed("hist_cate", 7, table="cate", length_name=None),
            ],
        )
        self.refused(
            "history: expected one maxlen, got [5, 6]",
            columns=[*COLUMNS[:5], listed("hist_cate", 7, table="cate", maxlen=6)],
        )
        self.refused(
            "expected embeddings of hist_NAME as wide as those of NAME, got [8, 9]",
            columns=[*COLUMNS[:5], listed("hist_cate", 7, dim=5)],
        )
        columns = [*COLUMNS, listed("tags", 7, combiner="max")]
        self.refused(
            'feature "tags": expected combiner sum or mean, got max',
            columns=columns,
            net_columns=columns,
            serving=Serving("m", ACTIONS, "NEWEST", {**LEVELS, "tags": "USER"}),
        )

    def test_what_the_user_must_say(self):
        self.refused("--keep: expected NEWEST or OLDEST", serving=Serving("m", ACTIONS, None, LEVELS))
        self.refused(
            "--padding_id: expected the id that stands in the history's padding", att_weight_normalization=True
        )
        self.refused(
            '--padding_id of "hist_item.cate": expected a row below 7, got 7',
            att_weight_normalization=True,
            serving=Serving("m", ACTIONS, "NEWEST", LEVELS, 7),
        )
        self.refused(
            "features user, score: expected --user or --candidate", serving=Serving("m", ACTIONS, "NEWEST")
        )
        self.refused("expected --actions hist_item=ACTION,...", serving=Serving("m", {}, "NEWEST", LEVELS))
        self.refused(
            'expected the history\'s first column, "hist_item", got "hist_cate"',
            serving=Serving("m", {**ACTIONS, "hist_cate": ["click"]}, "NEWEST", LEVELS),
        )
        self.refused(
            '--vocabulary: expected features of feature_columns, got "shop"',
            serving=Serving("m", ACTIONS, "NEWEST", LEVELS, vocabularies={"shop": []}),
        )
        self.refused(
            "--vocabulary user: expected tokens, one a line, got an empty file",
            serving=Serving("m", ACTIONS, "NEWEST", LEVELS, vocabularies={"user": []}),
        )
        self.refused(
            "--vocabulary user: expected at most 9 tokens from row 0 on",
            serving=Serving("m", ACTIONS, "NEWEST", LEVELS, vocabularies={"user": [str(row) for row in range(10)]}),
        )
        self.refused(
            "--vocabulary user: expected tokens of their own, one a line, got one twice",
            serving=Serving("m", ACTIONS, "NEWEST", LEVELS, vocabularies={"user": ["a", "a"]}),
        )
        self.refused(
            "--first_row user: expected --vocabulary user=FILE",
            serving=Serving("m", ACTIONS, "NEWEST", LEVELS, first_rows={"user": 1}),
        )
        self.refused(
            '--oov_row of "user": expected a row below 9, got 9',
            serving=Serving("m", ACTIONS, "NEWEST", LEVELS, oov_rows={"user": 9}),
        )
        self.refused(
            'feature "item": expected a candidate\'s',
            serving=Serving("m", ACTIONS, "NEWEST", {**LEVELS, "item": "USER"}),
        )

    def test_weights(self):
        mean = "attention.local_att.dnn.activation_layers.0.bn.running_mean"
        self.refused(
            f'tensor "{mean}": expected the running statistics of training, got none', change=lambda t: t.pop(mean)
        )
        self.refused(
            'tensor "dnn.bn.1.running_var": expected the running statistics',
            dnn_use_bn=True,
            change=lambda t: t.pop("dnn.bn.1.running_var"),
        )
        self.refused(
            "expected only tensors of the model",
            change=lambda t: t.update({"linear_model.weight": np.zeros((1, 1), np.float32)}),
        )
        self.refused(
            'tensor "embedding_dict.user.weight": expected vocabulary_size 9 rows, got 8',
            change=lambda t: t.update({"embedding_dict.user.weight": t["embedding_dict.user.weight"][:-1]}),
        )
        self.refused(
            'tensor "dnn_linear.weight": expected shape [1, 3], got [1, 2]',
            change=lambda t: t.update({"dnn_linear.weight": t["dnn_linear.weight"][:, :-1]}),
        )
        self.refused('tensor "out.bias": expected in the checkpoint', change=lambda t: t.pop("out.bias"))

    def test_left_in_training_mode(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "whole.pth")
            torch.save(Net(COLUMNS, OPTIONS).train(), path)
            with self.assertRaisesRegex(
                ImportRefused, "expected a model in evaluation mode, got one pickled in training mode"
            ):
                Weights.of_file(path)
            torch.save(Net(COLUMNS, OPTIONS), path)
            build_din(
                Weights.of_file(path), {"feature_columns": COLUMNS, **OPTIONS}, Serving("m", ACTIONS, "NEWEST", LEVELS)
            )


if __name__ == "__main__":
    unittest.main()
