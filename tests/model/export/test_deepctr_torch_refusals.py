"""What the importer of DeepCTR-Torch's DIN cannot take it refuses, by name."""

import os
import tempfile
import unittest

import numpy as np
import torch

from dinghy_export.importers.deepctr_torch import LARGEST_ID, Serving, build_din
from dinghy_export.importers.weights import ImportRefused, Weights
from deepctr_torch_modules import ACTIONS, COLUMNS, LEVELS, Net, OPTIONS, listed, sparse


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
