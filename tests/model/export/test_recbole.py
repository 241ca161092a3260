"""The importer of RecBole: DIN and SASRec against plain PyTorch, its files without RecBole, what it refuses."""

import contextlib
import io
import math
import os
import pickle
import sys
import tempfile
import types
import unittest
from enum import Enum

import numpy as np
import torch

from dinghy_export import features
from dinghy_export.__main__ import main
from dinghy_export.evaluate import evaluate
from dinghy_export.importers.checkpoint import read_checkpoint
from dinghy_export.importers.recbole import Requests, build_din, build_sasrec
from dinghy_export.importers.recbole_dataset import ItemData, ItemField, Sources, config_of, find_items
from dinghy_export.importers.weights import ImportRefused, Weights

LENGTH, ITEMS, DIM = 5, 9, 3
REQUESTS = Requests(actions=("view",), unknown="PAD_ROW")


def random_tensors(shapes, seed=3):
    torch.manual_seed(seed)
    tensors = {name: torch.randn(shape, dtype=torch.float64) * 0.5 for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        if name.endswith("running_var"):
            tensor.abs_().add_(0.2)
        tensor.copy_(tensor.float())
    return tensors


def arrays(tensors):
    return {name: np.array(tensor.numpy(), dtype=np.float32) for name, tensor in tensors.items()}


def score(built, items, history):
    request = {"candidates": [features.ints("item_id", items)],
               "sequences": [{"sequence": "history", "columns": [features.ints("item_id", history)]}]}
    return evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["score"]


def padded(history):
    """As RecBole pads: the newest LENGTH of them, zeros behind."""
    history = history[-LENGTH:]
    return history + [0] * (LENGTH - len(history)), len(history)


HISTORIES = ([], [3], [1, 2], [8, 1, 1, 5], [1, 2, 3, 4, 5], [7, 7, 8, 1, 2, 3, 4, 8])


# --- DIN ------------------------------------------------------------------------------------------------------------

YEARS = [0, 1, 2, 3, 1, 2, 3, 0, 2]
CLASSES = [[0, 0], [1, 2], [3, 0], [0, 0], [2, 3], [1, 1], [0, 2], [3, 1], [2, 0]]


def din_items(extra=("year", "class")):
    items = ItemData([ItemField("item_id", "token", ITEMS)], {"item_id": list(range(ITEMS))})
    for name, kind, values in (("year", "token", YEARS), ("class", "token_seq", CLASSES)):
        if name in extra:
            items.fields.append(ItemField(name, kind, 4))
            items.values[name] = values
    return items


def din_shapes(extra=("year", "class"), hidden=(6, 4), start=1):
    """`start`: the number of the first Linear, which a dropout before it makes 1."""
    width = DIM * (1 + len(extra))
    shapes = {"embedding_layer.token_embedding_table.item.embedding.weight": (ITEMS + 4 * ("year" in extra), DIM),
              "embedding_layer.token_embedding_table.user.embedding.weight": (7, DIM)}
    if "class" in extra:
        shapes["embedding_layer.token_seq_embedding_table.item.0.weight"] = (4, DIM)
    for prefix, columns, step in (("attention.att_mlp_layers", 4 * width, 3), ("dnn_mlp_layers", 3 * width, 4)):
        for index, rows in enumerate(hidden):
            number = start + step * index
            shapes[f"{prefix}.mlp_layers.{number}.weight"] = (rows, columns)
            shapes[f"{prefix}.mlp_layers.{number}.bias"] = (rows,)
            if step == 4:
                for part in ("weight", "bias", "running_mean", "running_var"):
                    shapes[f"{prefix}.mlp_layers.{number + 1}.{part}"] = (rows,)
            columns = rows
    for name in ("attention.dense", "dnn_predict_layers"):
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (1, hidden[-1]), (1,)
    return shapes


def din_config(**changes):
    return {"model": "DIN", "ITEM_ID_FIELD": "item_id", "MAX_ITEM_LIST_LENGTH": LENGTH, "pooling_mode": "mean",
            "numerical_features": [], "mlp_hidden_size": [6, 4], **changes}


def din_reference(state, extra, pooling, hidden, start, history, item):
    table = state["embedding_layer.token_embedding_table.item.embedding.weight"]

    def embed(ids):
        parts = [table[ids]]
        if "year" in extra:
            parts.append(table[torch.tensor(YEARS)[ids] + ITEMS])
        if "class" in extra:
            classes = torch.tensor(CLASSES)[ids]
            mask = (classes != 0).double()
            rows = state["embedding_layer.token_seq_embedding_table.item.0.weight"][classes] * mask[..., None]
            total = rows.sum(dim=1)
            parts.append(total if pooling == "sum" else total / (mask.sum(dim=1, keepdim=True) + 1e-8))
        return torch.cat(parts, dim=1)

    def linear(prefix, x):
        return x @ state[f"{prefix}.weight"].T + state[f"{prefix}.bias"]

    ids, length = padded(history)
    keys, query = embed(torch.tensor(ids)), embed(torch.tensor([item]))
    queries = query.expand_as(keys)
    hidden_rows = torch.cat([queries, keys, queries - keys, queries * keys], dim=1)
    for index in range(len(hidden)):
        hidden_rows = torch.sigmoid(linear(f"attention.att_mlp_layers.mlp_layers.{start + 3 * index}", hidden_rows))
    scores = linear("attention.dense", hidden_rows)[:, 0]
    scores[length:] = 0.0
    pooled = (scores / math.sqrt(keys.shape[1])) @ keys
    x = torch.cat([pooled[None], query, pooled[None] * query], dim=1)
    for index in range(len(hidden)):
        norm = f"dnn_mlp_layers.mlp_layers.{start + 4 * index + 1}"
        x = linear(f"dnn_mlp_layers.mlp_layers.{start + 4 * index}", x)
        x = (x - state[f"{norm}.running_mean"]) / torch.sqrt(state[f"{norm}.running_var"] + 1e-5)
        x = x * state[f"{norm}.weight"] + state[f"{norm}.bias"]
        x = x * torch.sigmoid(x)
    return torch.sigmoid(linear("dnn_predict_layers", x))[0, 0].item()


class DinTest(unittest.TestCase):
    def test_as_pytorch(self):
        for extra, pooling, hidden, start in (
                (("year", "class"), "mean", (6, 4), 1), (("year", "class"), "sum", (5,), 1), ((), "mean", (6, 4, 3), 1),
                (("class",), "mean", (6, 4), 1), (("year",), "mean", (6, 4), 0)):
            with self.subTest(extra=extra, pooling=pooling, hidden=hidden, start=start):
                state = random_tensors(din_shapes(extra, hidden, start))
                built = build_din(Weights(arrays(state)), din_config(pooling_mode=pooling, mlp_hidden_size=list(hidden)),
                                  din_items(extra), REQUESTS, "din")
                candidates = [1, 5, 8, 3]
                for history in HISTORIES:
                    expected = [din_reference(state, extra, pooling, hidden, start, history, item) for item in candidates]
                    np.testing.assert_allclose(score(built, candidates, history), expected, rtol=0, atol=1e-8)

    def test_unknown_items(self):
        state = random_tensors(din_shapes(()))
        built = build_din(Weights(arrays(state)), din_config(), din_items(()), REQUESTS, "din")
        self.assertEqual(score(built, [2], [4, 999, 5]), score(built, [2], [4, 5]))
        self.assertEqual(score(built, [999], [4, 5]), score(built, [0], [4, 5]))
        strict = build_din(Weights(arrays(state)), din_config(), din_items(()), Requests(("view",), "REFUSE"), "din")
        with self.assertRaisesRegex(ValueError, "999"):
            score(strict, [999], [4, 5])

    def test_says_what_it_leaves_out(self):
        built = build_din(Weights(arrays(random_tensors(din_shapes()))), din_config(), din_items(), REQUESTS, "din")
        self.assertEqual(built.notes, ["user features are left out: RecBole's DIN embeds them and then does not use them"])
        self.assertEqual(built.manifest["sequences"], [{"name": "history", "actions": ["view"], "maxLength": LENGTH,
                                                        "keep": "NEWEST", "pad": "RIGHT", "skipPadOf": "history.item_id"}])

    def test_refused(self):
        tensors = arrays(random_tensors(din_shapes()))
        embedded = din_items()
        embedded.numerical = ["price"]
        valueless = din_items()
        valueless.values = {}
        norm = "dnn_mlp_layers.mlp_layers.2.running_var"
        for changes, items, without, message in (
                ({"pooling_mode": "max"}, din_items(), (), "pooling_mode.*expected mean or sum, got 'max'"),
                ({"numerical_features": ["price"]}, embedded, (), "numerical_features.*expected no item field, got price"),
                ({"MAX_ITEM_LIST_LENGTH": None}, din_items(), (), "MAX_ITEM_LIST_LENGTH.*positive whole number, got None"),
                ({"mlp_hidden_size": [6]}, din_items(), (), "expected 1 layers as mlp_hidden_size says, got 2"),
                ({}, valueless, (), 'field "year": expected its values for every item, got none'),
                ({}, din_items(("class",)), (), r"item.embedding.weight.*expected shape \[9, any\], got \[13, 3\]"),
                ({}, din_items(), (norm,), f'tensor "{norm}"')):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, message):
                kept = {name: array for name, array in tensors.items() if name not in without}
                build_din(Weights(kept), din_config(**changes), items, REQUESTS, "din")
        with self.assertRaisesRegex(ImportRefused, "float_embedding_table.item.*not supported"):
            build_din(Weights({**tensors, "embedding_layer.float_embedding_table.item.embedding.weight": np.zeros((2, 3))}),
                      din_config(), din_items(), REQUESTS, "din")
        with self.assertRaisesRegex(ImportRefused, "other.weight"):
            build_din(Weights({**tensors, "other.weight": np.zeros((2, 3))}), din_config(), din_items(), REQUESTS, "din")


# --- SASRec ---------------------------------------------------------------------------------------------------------

WIDTH, INNER, HEADS = 6, 10, 3
ACTIVATIONS = {"gelu": torch.nn.functional.gelu, "relu": torch.relu, "swish": torch.nn.functional.silu,
               "tanh": torch.tanh, "sigmoid": torch.sigmoid}


def sasrec_shapes(layers):
    shapes = {"item_embedding.weight": (ITEMS, WIDTH), "position_embedding.weight": (LENGTH, WIDTH),
              "LayerNorm.weight": (WIDTH,), "LayerNorm.bias": (WIDTH,)}
    for index in range(layers):
        for name, rows, columns in (("multi_head_attention.query", WIDTH, WIDTH), ("multi_head_attention.key", WIDTH, WIDTH),
                                    ("multi_head_attention.value", WIDTH, WIDTH), ("multi_head_attention.dense", WIDTH, WIDTH),
                                    ("multi_head_attention.LayerNorm", WIDTH, None), ("feed_forward.dense_1", INNER, WIDTH),
                                    ("feed_forward.dense_2", WIDTH, INNER), ("feed_forward.LayerNorm", WIDTH, None)):
            prefix = f"trm_encoder.layer.{index}.{name}"
            shapes[f"{prefix}.weight"], shapes[f"{prefix}.bias"] = (rows, columns) if columns else (rows,), (rows,)
    return shapes


def sasrec_config(**changes):
    return {"model": "SASRec", "ITEM_ID_FIELD": "item_id", "MAX_ITEM_LIST_LENGTH": LENGTH, "n_layers": 2, "n_heads": HEADS,
            "hidden_size": WIDTH, "inner_size": INNER, "hidden_act": "gelu", "layer_norm_eps": 1e-12, **changes}


def sasrec_reference(state, config, history, items):
    def norm(prefix, x):
        mean, variance = x.mean(dim=1, keepdim=True), x.var(dim=1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + config["layer_norm_eps"]) * state[f"{prefix}.weight"] + state[f"{prefix}.bias"]

    def linear(prefix, x):
        return x @ state[f"{prefix}.weight"].T + state[f"{prefix}.bias"]

    ids, length = padded(history)
    ids = torch.tensor(ids)
    mask = torch.where(torch.tril((ids != 0).expand(LENGTH, LENGTH)), 0.0, -10000.0)
    x = norm("LayerNorm", state["item_embedding.weight"][ids] + state["position_embedding.weight"])
    for index in range(config["n_layers"]):
        attention, ffn = f"trm_encoder.layer.{index}.multi_head_attention", f"trm_encoder.layer.{index}.feed_forward"
        query, key, value = (linear(f"{attention}.{part}", x).view(LENGTH, HEADS, -1).transpose(0, 1)
                             for part in ("query", "key", "value"))
        weights = torch.softmax(query @ key.transpose(1, 2) / math.sqrt(WIDTH // HEADS) + mask, dim=2)
        x = norm(f"{attention}.LayerNorm", linear(f"{attention}.dense", (weights @ value).transpose(0, 1).reshape(LENGTH, -1)) + x)
        hidden = ACTIVATIONS[config["hidden_act"]](linear(f"{ffn}.dense_1", x))
        x = norm(f"{ffn}.LayerNorm", linear(f"{ffn}.dense_2", hidden) + x)
    return (state["item_embedding.weight"][items] @ x[length - 1]).tolist()


def sasrec_items():
    return ItemData([ItemField("item_id", "token", ITEMS)])


class SasrecTest(unittest.TestCase):
    def test_as_pytorch(self):
        for changes in ({}, {"n_layers": 1, "hidden_act": "relu"}, {"hidden_act": "swish"}, {"hidden_act": "tanh"},
                        {"hidden_act": "sigmoid", "layer_norm_eps": 1e-5}):
            with self.subTest(**changes):
                config = sasrec_config(**changes)
                state = random_tensors(sasrec_shapes(config["n_layers"]))
                built = build_sasrec(Weights(arrays(state)), config, sasrec_items(), REQUESTS, "sasrec")
                for history in HISTORIES[1:]:
                    expected = sasrec_reference(state, config, history, [0, 1, 5, 8])
                    np.testing.assert_allclose(score(built, [0, 1, 5, 8], history), expected, rtol=1e-6, atol=1e-7)
                self.assertEqual(score(built, [1, 5], []).tolist(), [0.0, 0.0])

    def test_refused(self):
        tensors = arrays(random_tensors(sasrec_shapes(2)))
        for changes, items, message in (
                ({"hidden_act": "mish"}, sasrec_items(), "hidden_act.*expected one of gelu, relu, swish, tanh, sigmoid, got 'mish'"),
                ({"n_heads": 4}, sasrec_items(), "hidden_size.*expected a multiple of n_heads 4, got 6"),
                ({"layer_norm_eps": None}, sasrec_items(), "layer_norm_eps.*got None"),
                ({"n_layers": 1}, sasrec_items(), "trm_encoder.layer.1"),
                ({"n_layers": 3}, sasrec_items(), "trm_encoder.layer.2"),
                ({"MAX_ITEM_LIST_LENGTH": 7}, sasrec_items(), r"position_embedding.*expected shape \[7, 6\], got \[5, 6\]"),
                ({}, ItemData([ItemField("item_id", "token", 4)]), "expected 9 internal ids.*got 4")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, message):
                build_sasrec(Weights(tensors), sasrec_config(**changes), items, REQUESTS, "sasrec")


# --- Files ----------------------------------------------------------------------------------------------------------

TOKENS = {"item_id": ["[PAD]", *(f"i{row}" for row in range(1, ITEMS))], "year": ["[PAD]", "1990", "1991", "1992"],
          "class": ["[PAD]", "drama", "film noir", "war"]}


@contextlib.contextmanager
def recbole_modules():
    """Classes where RecBole has them, so that what is pickled names them; they are gone when it is read."""
    class Config:
        def __init__(self, values):
            self.final_config_dict = values

    class FeatureType(Enum):
        TOKEN, FLOAT, TOKEN_SEQ, FLOAT_SEQ = "token", "float", "token_seq", "float_seq"

    class Holder:
        def __init__(self, **values):
            self.__dict__.update(values)

    classes = {"recbole.config.configurator": {"Config": Config}, "recbole.utils.enum_type": {"FeatureType": FeatureType},
               "recbole.data.interaction": {"Interaction": type("Interaction", (Holder,), {})},
               "recbole.data.dataset": {"SequentialDataset": type("SequentialDataset", (Holder,), {})},
               "recbole.model.layers": {"ContextSeqEmbLayer": type("ContextSeqEmbLayer", (Holder,), {})}}
    names = {"recbole", "recbole.config", "recbole.utils", "recbole.data", "recbole.model", *classes}
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    for module, members in classes.items():
        for name, kind in members.items():
            kind.__module__, kind.__qualname__ = module, name
            setattr(sys.modules[module], name, kind)
    try:
        yield types.SimpleNamespace(**{name: kind for members in classes.values() for name, kind in members.items()})
    finally:
        for name in names:
            del sys.modules[name]


def dataset_of(recbole, item_feat):
    kinds = {"item_id": "token", "year": "token", "class": "token_seq", "price": "float"}
    return recbole.SequentialDataset(
        field2id_token={name: np.array(tokens) for name, tokens in TOKENS.items()}, item_feat=item_feat,
        field2type={name: recbole.FeatureType(kind) for name, kind in kinds.items()})


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def path(self, name):
        return os.path.join(self.folder, name)

    def save_din(self, embedded=True):
        self.state = random_tensors(din_shapes())
        with recbole_modules() as recbole:
            tensors = {"item_id": torch.arange(ITEMS), "year": torch.tensor(YEARS), "price": torch.zeros(ITEMS),
                       "class": torch.tensor(CLASSES)}
            layer = recbole.ContextSeqEmbLayer(dataset=dataset_of(recbole, recbole.Interaction(interaction=tensors)))
            torch.save({"config": recbole.Config({**din_config(), "dataset": "tiny", "seed": 7}), "epoch": 1,
                        "state_dict": {name: tensor.float() for name, tensor in self.state.items()},
                        "other_parameter": {"embedding_layer": layer} if embedded else None}, self.path("DIN.pth"))
        return self.path("DIN.pth")

    def run_import(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(["import", "--from", "recbole", "--name", "m", "--version", "1", "--out", self.folder, *arguments])
        return code, output.getvalue() + errors.getvalue()

    def test_din_brings_its_dataset(self):
        checkpoint = read_checkpoint(self.save_din())
        items = find_items(checkpoint.objects, Sources(), config_of(checkpoint.objects))
        self.assertEqual([(item.name, item.kind, item.rows) for item in items.fields],
                         [("item_id", "token", ITEMS), ("year", "token", 4), ("class", "token_seq", 4)])
        self.assertEqual((items.values["year"], items.values["class"], items.numerical), (YEARS, CLASSES, ["price"]))
        built = build_din(Weights.of_checkpoint(checkpoint), config_of(checkpoint.objects), items, REQUESTS, "din")
        request = {"candidates": [features.strings("item_id", ["i1", "i8"])], "sequences": [
            {"sequence": "history", "columns": [features.strings("item_id", ["i3", "i7", "nobody knows it"])]}]}
        scores = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["score"]
        expected = [din_reference(self.state, ("year", "class"), "mean", (6, 4), 1, [3, 7], item) for item in (1, 8)]
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-8)
        self.assertEqual(built.vocabularies["class.txt"], TOKENS["class"][1:])

    def test_command(self):
        code, output = self.run_import("--checkpoint", self.save_din(), "--unknown", "pad", "--action", "view")
        self.assertEqual((code, os.path.exists(self.path("m/1/COMPLETE"))), (0, True), output)

    def test_item_file_in_place_of_a_dataset(self):
        for name, tokens in TOKENS.items():
            with open(self.path(f"{name}.tokens"), "w", encoding="utf-8") as file:
                file.write("".join(f"{token}\n" for token in tokens[1:]))
        with open(self.path("tiny.item"), "w", encoding="utf-8") as file:
            file.write("year:token\titem_id:token\tprice:float\tclass:token_seq\n1991\ti2\t0.5\twar,drama\n\ti1\t0.1\t\n"
                       "1990\ti2\t0.5\twar\n1990\tleft out\t0.5\twar\n")
        config = din_config(seq_separator=",", load_col={"inter": ["user_id"], "item": "*"})
        sources = Sources(vocabularies={name: self.path(f"{name}.tokens") for name in TOKENS}, item_features=self.path("tiny.item"))
        items = find_items({}, sources, config)
        self.assertEqual([item.name for item in items.fields], ["item_id", "year", "class"])
        self.assertEqual(items.values["year"], [0, 0, 2] + [0] * (ITEMS - 3))
        self.assertEqual(items.values["class"][:4], [[], [], [3, 1], []])
        partly = find_items({}, sources, din_config(seq_separator=",", load_col={"item": ["item_id", "class"]}))
        self.assertEqual([item.name for item in partly.fields], ["item_id", "class"])
        cut = find_items({}, sources, din_config(seq_separator=",", seq_len={"class": 1}))
        self.assertEqual(cut.values["class"][2], [3])
        with open(self.path("tiny.item"), "a", encoding="utf-8") as file:
            file.write("2024\ti3\t0.5\twar\n")
        with self.assertRaisesRegex(ImportRefused, "line 6: expected tokens of \"year\" that training saw, got '2024'"):
            find_items({}, sources, config)

    def test_saved_dataset(self):
        with recbole_modules() as recbole, open(self.path("tiny-SequentialDataset.pth"), "wb") as file:
            pickle.dump(dataset_of(recbole, None), file)
        items = find_items({}, Sources(dataset=self.path("tiny-SequentialDataset.pth")), sasrec_config())
        self.assertEqual([(item.name, item.tokens) for item in items.fields], [("item_id", TOKENS["item_id"])])
        state = random_tensors(sasrec_shapes(2))
        built = build_sasrec(Weights(arrays(state)), sasrec_config(), items, REQUESTS, "sasrec")
        request = {"candidates": [features.strings("item_id", ["i4"])], "sequences": [
            {"sequence": "history", "columns": [features.strings("item_id", ["i3", "i7"])]}]}
        scores = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["score"]
        np.testing.assert_allclose(scores, sasrec_reference(state, sasrec_config(), [3, 7], [4]), rtol=1e-6)

    def test_integers(self):
        items = sasrec_items()
        items.fields[0].tokens = ["[PAD]", *map(str, range(101, 100 + ITEMS))]
        requests = Requests(("view",), "REFUSE", integer=("item_id",))
        built = build_sasrec(Weights(arrays(random_tensors(sasrec_shapes(2)))), sasrec_config(), items, requests, "sasrec")
        self.assertEqual(score(built, [102], [101, 105]).shape, (1,))
        items.fields[0].tokens[3] = "0103"
        with self.assertRaisesRegex(ImportRefused, "expected decimal numbers, as it is to come as integers, got '0103'"):
            build_sasrec(Weights(arrays(random_tensors(sasrec_shapes(2)))), sasrec_config(), items, requests, "sasrec")

    def test_refused(self):
        path = self.save_din(embedded=False)
        arguments = ("--checkpoint", path, "--unknown", "refuse", "--action", "view")
        self.assertRegex(self.run_import(*arguments)[1], 'field "item_id": expected its tokens, got none')
        self.assertRegex(self.run_import(*arguments, "--vocabulary", "item_id")[1], "expected FIELD=FILE, got 'item_id'")
        self.assertRegex(self.run_import(*arguments, "--dataset", path)[1], "expected a dataset that RecBole saved")
        self.assertEqual(self.run_import(*arguments)[0], 1)
        torch.save({"state_dict": {"a": torch.zeros(2)}}, path)
        self.assertRegex(self.run_import(*arguments)[1], 'expected "config" as RecBole\'s trainer saves it')
        with recbole_modules() as recbole:
            torch.save({"config": recbole.Config({"model": "BERT4Rec", "ITEM_ID_FIELD": "item_id"}),
                        "state_dict": {"a": torch.zeros(2)}}, path)
        self.assertRegex(self.run_import(*arguments, "--internal_ids")[1], "expected one of DIN, SASRec, got BERT4Rec")


if __name__ == "__main__":
    unittest.main()
