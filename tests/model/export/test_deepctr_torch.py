"""DeepCTR-Torch's DIN: what the importer builds gives what a PyTorch module with the same state dict gives, in every
flavour that the feature columns and arguments can express."""

import argparse
import itertools
import json
import os
import tempfile
import unittest

import numpy as np
import torch

from dinghy_export import features
from dinghy_export.evaluate import evaluate
from dinghy_export.importers import deepctr_torch
from dinghy_export.importers.deepctr_torch import Serving, build_din
from dinghy_export.importers.weights import Weights
from deepctr_torch_modules import (
    ACTIONS,
    COLUMNS,
    LEVELS,
    MAX_LEN,
    Net,
    OPTIONS,
    dense,
    draw,
    listed,
    request_of,
    sparse,
)


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


if __name__ == "__main__":
    unittest.main()
