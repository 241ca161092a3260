"""FuxiCTR's DIN: what the importer builds gives what a PyTorch module with the same state dict gives, in every flavour
that the configuration can express; and what it cannot take it refuses."""

import argparse
import itertools
import json
import os
import pickle
import tempfile
import unittest

import numpy as np
import torch
from torch import nn

from dinghy_export import features
from dinghy_export.evaluate import evaluate
from dinghy_export.importers import fuxictr
from dinghy_export.importers.fuxictr import Serving, build_din
from dinghy_export.importers.fuxictr_dataset import Dataset, dataset_of, read_dataset, read_params
from dinghy_export.importers.options import levels_of
from dinghy_export.importers.weights import ImportRefused, Weights

USERS, ITEMS, CATEGORIES, DIM, MAX_LEN = 9, 30, 7, 4, 6


# --- The module whose weights are imported --------------------------------------------------------------------------


class Gate(nn.Module):
    """Dice with its own batch norm, not affine."""

    def __init__(self, width):
        super().__init__()
        self.bn = nn.BatchNorm1d(width, affine=False, eps=1e-9)
        self.alpha = nn.Parameter(torch.empty(width))

    def forward(self, x):
        p = torch.sigmoid(self.bn(x))
        return p * x + (1 - p) * self.alpha * x


def activation(name, width):
    return {
        "dice": lambda: Gate(width),
        "prelu": lambda: nn.PReLU(width),
        "relu": nn.ReLU,
        "sigmoid": nn.Sigmoid,
        "tanh": nn.Tanh,
        "leakyrelu": nn.LeakyReLU,
        "silu": nn.SiLU,
        "gelu": nn.GELU,
    }[name.lower()]()


def stack(inputs, units, names, drop, norm, once=False, last=None):
    """A Sequential whose modules are numbered as the configuration makes them."""
    modules = [nn.BatchNorm1d(inputs)] if norm and once else []
    for index, width in enumerate(units):
        modules.append(nn.Linear(inputs, width))
        modules += [nn.BatchNorm1d(width)] if norm and not once else []
        name = names[index] if isinstance(names, list) else names
        modules += [activation(name, width)] if name else []
        rate = drop[index] if isinstance(drop, list) else drop
        modules += [nn.Dropout(rate)] if rate > 0 else []
        inputs = width
    modules.append(nn.Linear(inputs, 1))
    modules += [last] if last is not None else []
    return nn.Sequential(*modules)


class Block(nn.Module):
    def __init__(self, *arguments, **named):
        super().__init__()
        self.mlp = stack(*arguments, **named)


class Unit(nn.Module):
    def __init__(self, *arguments, **named):
        super().__init__()
        self.attention_layer = Block(*arguments, **named)


class Pretrained(nn.Module):
    def __init__(self, spec, width):
        super().__init__()
        self.spec, usage, wide = spec, spec["pretrain_usage"], spec["pretrain_dim"]
        self.pretrain_embedding = nn.Embedding(spec["vocab_size"], wide)
        if usage != "init":
            self.id_embedding = nn.Embedding(spec["vocab_size"], width)
        if usage == "concat" or wide != width:
            self.proj = nn.Linear(wide + (width if usage == "concat" else 0), width, bias=False)

    def forward(self, ids):
        seen = (ids <= self.spec["oov_idx"])[..., None]
        pretrained = self.pretrain_embedding(ids)
        pretrained = pretrained if self.spec["freeze_emb"] else pretrained * seen
        project = getattr(self, "proj", nn.Identity())
        if self.spec["pretrain_usage"] == "init":
            return project(pretrained)
        own = self.id_embedding(ids) * seen
        if self.spec["pretrain_usage"] == "sum":
            return project(pretrained) + own
        return project(torch.cat([pretrained, own], -1))


class Tables(nn.Module):
    def __init__(self, specs, dim):
        super().__init__()
        self.embedding_layers, self.feature_encoders = nn.ModuleDict(), nn.ModuleDict()
        for name, spec in specs.items():
            width = spec.get("embedding_dim", dim)
            if spec.get("share_embedding") in self.embedding_layers:
                self.embedding_layers[name] = self.embedding_layers[spec["share_embedding"]]
            elif spec["type"] == "numeric":
                self.embedding_layers[name] = nn.Linear(1, width, bias=False)
            elif spec["type"] == "embedding":
                self.feature_encoders[name] = nn.Linear(spec["pretrain_dim"], width, bias=False)
            elif spec.get("pretrained_emb"):
                self.embedding_layers[name] = Pretrained(spec, width)
            elif spec["type"] != "meta":
                self.embedding_layers[name] = nn.Embedding(spec["vocab_size"], width, padding_idx=0)


class Net(nn.Module):
    def __init__(self, specs, params, groups, seed=1, zero_pad=True):
        super().__init__()
        self.specs, self.params, self.groups = specs, params, groups
        dim, norm = params["embedding_dim"], params.get("batch_norm", False)
        self.embedding_layer = Tables(specs, dim)
        out = {None: None, "Sigmoid": nn.Sigmoid()}[params.get("attention_output_activation")]
        self.attention_layers = nn.ModuleList(
            Unit(
                4 * dim * len(target),
                params["attention_hidden_units"],
                params.get("attention_hidden_activations", "Dice"),
                params.get("attention_dropout", 0),
                False,
                last=out,
            )
            for target, _ in groups
        )
        width = sum(spec.get("embedding_dim", dim) for spec in specs.values() if spec["type"] != "meta")
        self.dnn = Block(
            width,
            params["dnn_hidden_units"],
            params.get("dnn_activations", "ReLU"),
            params.get("net_dropout", 0),
            norm,
            params.get("bn_only_once", False),
        )
        self.eval()
        random = torch.Generator().manual_seed(seed)
        for name, tensor in itertools.chain(self.named_parameters(), self.named_buffers()):
            if tensor.dtype.is_floating_point:
                with torch.no_grad():
                    tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.4)
                    if name.endswith("running_var"):
                        tensor.abs_().add_(0.1)
        for table in self.embedding_layer.embedding_layers.values():
            if isinstance(table, nn.Embedding) and zero_pad:
                with torch.no_grad():
                    table.weight[0] = 0

    def forward(self, inputs):
        """`inputs`: name -> encoded rows; histories are padded with 0 to max_len."""
        parts = {}
        for name, spec in self.specs.items():
            if spec["type"] == "numeric":
                parts[name] = self.embedding_layer.embedding_layers[name](inputs[name].view(-1, 1))
            elif spec["type"] == "embedding":
                parts[name] = self.embedding_layer.feature_encoders[name](inputs[name])
            elif spec["type"] != "meta":
                parts[name] = self.embedding_layer.embedding_layers[name](inputs[name])
            if spec.get("feature_encoder"):
                total = parts[name].sum(1)
                count = (parts[name].sum(-1) != 0).sum(1, keepdim=True)
                parts[name] = total if "Sum" in spec["feature_encoder"] else total / (count + 1e-12)
        for unit, (target, sequence) in zip(self.attention_layers, self.groups):
            query = torch.cat([parts[name] for name in target], -1)
            keys = torch.cat([parts[name] for name in sequence], -1)
            real = (inputs[sequence[0]] != 0).float()
            wide = query[:, None, :].expand_as(keys)
            pairs = torch.cat([wide, keys, wide - keys, wide * keys], -1)
            scores = unit.attention_layer.mlp(pairs.flatten(0, 1)).view(real.shape) * real
            if self.params.get("din_use_softmax"):
                scores = (scores - 1e9 * (1 - real)).softmax(-1)
            pooled = (scores[..., None] * keys).sum(1)
            for name, piece in zip(sequence, pooled.split(self.params["embedding_dim"], -1)):
                parts[name] = piece
        return torch.sigmoid(self.dnn.mlp(torch.cat(list(parts.values()), -1)))[:, 0]


def id_spec(kind, rows, **more):
    spec = {"type": kind, "source": "", "padding_idx": 0, "vocab_size": rows, **more}
    if kind == "sequence":
        spec.setdefault("max_len", MAX_LEN)
    return spec


def specs_of(**more):
    return {
        "userid": id_spec("categorical", USERS),
        "item_id": id_spec("categorical", ITEMS),
        "cate_id": id_spec("categorical", CATEGORIES),
        "price": {"type": "numeric"},
        "click_history": id_spec("sequence", ITEMS, share_embedding="item_id"),
        "cate_history": id_spec("sequence", CATEGORIES),
        **more,
    }


PARAMS = {
    "model": "DIN",
    "embedding_dim": DIM,
    "din_target_field": [("item_id", "cate_id")],
    "din_sequence_field": [("click_history", "cate_history")],
    "attention_hidden_units": [8, 5],
    "dnn_hidden_units": [11, 3],
}
PAIR = [(["item_id", "cate_id"], ["click_history", "cate_history"])]
SINGLES = [(["item_id"], ["click_history"]), (["cate_id"], ["cate_history"])]
LEVELS = {"userid": "USER", "price": "CANDIDATE"}


def draw(specs, rows, padding, seed=3):
    """Encoded inputs with histories of every length, as FuxiCTR pads them."""
    random = np.random.RandomState(seed)
    inputs, lengths = {}, [row % (MAX_LEN + 1) for row in range(rows)]
    for name, spec in specs.items():
        if spec["type"] == "categorical":
            inputs[name] = random.randint(1, spec["vocab_size"], rows)
        elif spec["type"] == "sequence":
            ids = np.zeros((rows, spec["max_len"]), dtype=np.int64)
            for row, length in enumerate(lengths):
                drawn = random.randint(1, spec["vocab_size"], length)
                ids[row, len(ids[row]) - length if padding == "pre" else 0 :][:length] = drawn
            inputs[name] = ids
        elif spec["type"] != "meta":
            width = spec.get("pretrain_dim", 1)
            inputs[name] = random.randn(rows, width).astype(np.float32).squeeze(-1 if width == 1 else ())
    return inputs


def request_of(built, inputs, row, names, text=None):
    """The request whose encoding is a row of inputs. `names`: a sequence feature's name -> the manifest's; `text`:
    turns a row of a feature's table into its token. Histories that are padded in the middle bring that padding."""
    text = text or (lambda name, ids: features.ints("", ids))
    request = {"user": [], "candidates": [], "sequences": []}
    columns = {}
    for name, values in inputs.items():
        value = values[row]
        if values.dtype == np.float32:
            column = features.floats(name, value.reshape(-1), [value.size] if value.size > 1 else None)
        elif values.ndim == 1:
            column = {**text(name, [int(value)]), "feature": name}
        else:
            filled = np.flatnonzero(np.any([inputs[other][row] for other in names if other in inputs], axis=0))
            real = [int(one) for one in value[filled[0] : filled[-1] + 1]] if len(filled) else []
            column = {**text(name, real), "feature": names[name].split(".")[-1]}
            if "." not in names[name]:
                column["lengths"] = [len(real)]
        columns[name] = column
    for feature in built.manifest["features"]:
        if feature["level"] != "SEQUENCE":
            request["user" if feature["level"] == "USER" else "candidates"].append(columns[feature["name"]])
    for sequence in built.manifest["sequences"]:
        own = [name for name in inputs if names.get(name, "").startswith(sequence["name"] + ".")]
        request["sequences"].append({"sequence": sequence["name"], "columns": [columns[name] for name in own]})
    return request


class FlavoursTest(unittest.TestCase):
    def check(
        self,
        specs=None,
        groups=PAIR,
        padding="post",
        serving=None,
        scaling=(0.0, 1.0),
        vocabularies=None,
        text=None,
        names=None,
        zero_pad=True,
        change=None,
        **params,
    ):
        specs = specs or specs_of()
        params = {**PARAMS, **params}
        net = Net(specs, params, groups, zero_pad=zero_pad)
        inputs = draw(specs, 2 * (MAX_LEN + 1), padding)
        if change is not None:
            change(inputs)
        serving = serving or Serving("m", {sequence[0]: ["click"] for _, sequence in groups}, LEVELS)
        dataset = Dataset(specs, ["clk"], vocabularies or {}, {name: padding for name in specs}, {"price": scaling})
        built = build_din(
            Weights({name: tensor.numpy() for name, tensor in net.state_dict().items()}), params, dataset, serving
        )
        scaled = dict(inputs)
        if "price" in inputs:
            scaled["price"] = ((inputs["price"].astype(np.float64) - scaling[0]) / scaling[1]).astype(np.float32)
        with torch.no_grad():
            expected = net(
                {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in scaled.items()}
            ).numpy()
        self.assertGreater(np.ptp(expected), 1e-3)  # else it would say nothing
        names = names or {
            field: f"{sequence[0]}.{name}" for target, sequence in groups for name, field in zip(target, sequence)
        }
        encoder = built.encoder()
        for row in range(len(expected)):
            request = request_of(built, inputs, row, names, text)
            scores = evaluate(built.manifest, built.tensors, encoder.encode(request)).scores["clk"]
            self.assertAlmostEqual(scores[0], expected[row], delta=2e-6, msg=f"row {row}")
        return built

    def test_options(self):
        for softmax, norm, drop, net_drop, padding in itertools.product(
            (False, True), (False, True), (0, 0.2), (0, 0.3), ("pre", "post")
        ):
            with self.subTest(softmax=softmax, norm=norm, drop=drop, net_drop=net_drop, padding=padding):
                built = self.check(
                    din_use_softmax=softmax,
                    batch_norm=norm,
                    attention_dropout=drop,
                    net_dropout=net_drop,
                    padding=padding,
                )
                (sequence,) = built.manifest["sequences"]
                self.assertEqual(
                    (sequence["keep"], sequence["pad"]), ("NEWEST", "LEFT") if padding == "pre" else ("OLDEST", "RIGHT")
                )
                self.assertEqual(sequence["skipPadOf"], "click_history.item_id")

    def test_activations(self):
        for name in (
            "Dice",
            "dice",
            "PReLU",
            "ReLU",
            "sigmoid",
            "Tanh",
            "LeakyReLU",
            "SiLU",
            "GELU",
            None,
            ["Dice", None],
            ["relu", "PReLU"],
        ):
            for norm in (False, True):
                with self.subTest(name=name, norm=norm):
                    self.check(
                        attention_hidden_activations=name, dnn_activations=name, batch_norm=norm, net_dropout=[0.1, 0]
                    )

    def test_attention_output_activation(self):
        self.check(attention_output_activation="Sigmoid")

    def test_batch_norm_once(self):
        built = self.check(batch_norm=True, bn_only_once=True, net_dropout=0.1)
        self.assertIn("tower.input", [layer["name"] for layer in built.manifest["layers"]])
        # DIN itself does not pass the option on: then the checkpoint has the usual numbers.
        specs, params = specs_of(), {**PARAMS, "batch_norm": True}
        net = Net(specs, params, PAIR)
        build_din(
            Weights({name: tensor.numpy() for name, tensor in net.state_dict().items()}),
            {**params, "bn_only_once": True},
            Dataset(specs, ["clk"], {}, dict.fromkeys(specs, "pre"), {"price": (0, 1)}),
            Serving("m", {"click_history": ["click"]}, LEVELS),
        )

    def test_no_hidden_layers(self):
        self.check(dnn_hidden_units=[], attention_hidden_units=[])

    def test_several_groups(self):
        for softmax in (False, True):
            built = self.check(
                groups=SINGLES,
                din_target_field=["item_id", "cate_id"],
                din_sequence_field=["click_history", "cate_history"],
                din_use_softmax=softmax,
            )
            self.assertEqual(
                [layer["name"] for layer in built.manifest["layers"] if "targetAttention" in layer],
                ["interest.0", "interest.1"],
            )

    def test_one_field(self):
        specs = specs_of()
        del specs["cate_history"]
        self.check(
            specs,
            groups=SINGLES[:1],
            din_target_field="item_id",
            din_sequence_field="click_history",
            serving=Serving("m", {"click_history": ["click"]}, {**LEVELS, "cate_id": "CANDIDATE"}),
        )

    def test_slots_keep_their_place(self):
        """Sequence fields stand apart in the feature map, and in another order than in the group."""
        specs = {"cate_history": id_spec("sequence", CATEGORIES), **specs_of()}
        built = self.check(dict(specs))
        self.assertEqual(built.manifest["layers"][-1]["inputs"][0], "interest")
        specs = {
            "cate_history": id_spec("sequence", CATEGORIES),
            "click_history": id_spec("sequence", ITEMS),
            **specs_of(),
        }
        specs["click_history"].pop("share_embedding", None)
        self.check(specs, batch_norm=True, bn_only_once=True)

    def test_widths_of_their_own(self):
        specs = specs_of()
        specs["userid"]["embedding_dim"], specs["price"]["embedding_dim"] = 3, 7
        # Fields of a group may be of other widths, as long as they are embedding_dim on average; pieces are cut anyway.
        specs["cate_id"]["embedding_dim"] = specs["cate_history"]["embedding_dim"] = 2
        specs["item_id"]["embedding_dim"] = specs["click_history"]["embedding_dim"] = 6
        self.check(specs)

    def test_vectors_and_meta(self):
        specs = specs_of(group={"type": "meta"}, picture={"type": "embedding", "pretrain_dim": 5})
        self.check(specs, serving=Serving("m", {"click_history": ["click"]}, {**LEVELS, "picture": "CANDIDATE"}))

    def test_pooled_sequences(self):
        for pooling, level in itertools.product(("MaskedAveragePooling", "MaskedSumPooling"), ("bag", "sequence")):
            with self.subTest(pooling=pooling, level=level):
                specs = specs_of(tags=id_spec("sequence", CATEGORIES, feature_encoder=f"layers.{pooling}()"))
                actions = {"click_history": ["click"], **({"tags": ["tag"]} if level == "sequence" else {})}
                levels = {**LEVELS, **({"tags": "USER"} if level == "bag" else {})}
                names = {
                    "click_history": "click_history.item_id",
                    "cate_history": "click_history.cate_id",
                    "tags": "tags.tags" if level == "sequence" else "tags",
                }
                built = self.check(specs, serving=Serving("m", actions, levels), names=names)
                self.assertEqual(any("bag of ids" in note for note in built.notes), level == "bag")

    def test_pretrained_embeddings(self):
        """The vocabulary's last known row is in the middle; behind it are tokens of the pretrained file alone."""
        for usage, frozen, width in itertools.product(("init", "sum", "concat"), (False, True), (DIM, 3)):
            with self.subTest(usage=usage, frozen=frozen, width=width):
                specs = specs_of()
                specs["item_id"].update(
                    pretrained_emb="p.npz", freeze_emb=frozen, pretrain_usage=usage, pretrain_dim=width, oov_idx=20
                )
                tokens = {"__PAD__": 0, **{str(100 + row): row for row in range(1, ITEMS) if row != 20}, "__OOV__": 20}

                def text(name, ids):
                    if name in ("item_id", "click_history"):
                        return features.ints("", [100 + row if row != 20 else 10**6 for row in ids])
                    return features.ints("", ids)

                self.check(
                    specs, vocabularies={"item_id": tokens, "click_history": tokens}, text=text, din_use_softmax=True
                )

    def test_padding_in_the_middle(self):
        """A behavior whose first field is padding does not count, whatever its other fields are; one with padding in
        another field does."""

        def change(inputs):
            inputs["click_history"][:, 2:4] = 0
            inputs["cate_history"][:, 4] = 0

        for softmax, padding, zero_pad in itertools.product((False, True), ("pre", "post"), (False, True)):
            with self.subTest(softmax=softmax, padding=padding, zero_pad=zero_pad):
                self.check(change=change, din_use_softmax=softmax, padding=padding, zero_pad=zero_pad)

    def test_pad_row_that_is_not_zero(self):
        """With softmax an empty history is the mean of pad rows, whatever stands there."""
        self.check(din_use_softmax=True, zero_pad=False)

    def test_scaling(self):
        self.check(scaling=(3.5, 0.25))

    def test_source_tells_the_level(self):
        specs = specs_of()
        specs["userid"]["source"], specs["price"]["source"] = "user", "item"
        built = self.check(specs, serving=Serving("m", {"click_history": ["click"]}))
        self.assertEqual({f["name"]: f["level"] for f in built.manifest["features"]}["userid"], "USER")

    def test_vocabularies(self):
        """Raw ids find FuxiCTR's rows: texts, numbers, tables that rows are left out of, and tokens never seen."""
        texts = {
            name: vocabulary(f"{name[:1]}{{}}", rows) for name, rows in (("userid", USERS), ("cate_id", CATEGORIES))
        }
        texts["item_id"] = vocabulary("{}", ITEMS, first=100)
        texts["click_history"], texts["cate_history"] = texts["item_id"], texts["cate_id"]

        def text(name, ids):
            tokens = {row: token for token, row in texts[name].items() if token != "__OOV__"}
            if texts[name] is texts["item_id"]:
                return features.ints("", [int(tokens.get(row, 999)) for row in ids])
            return features.strings("", [tokens.get(row, "never seen") for row in ids])

        built = self.check(vocabularies=texts, text=text)
        kinds = {f["name"]: f["id"] for f in built.manifest["features"] if "id" in f}
        self.assertEqual(kinds["click_history.item_id"]["type"], "INT64")
        self.assertEqual(kinds["click_history.cate_id"]["type"], "STRING")
        self.assertEqual([kinds["userid"][part] for part in ("padRow", "oovRow", "unknown")], [0, USERS - 1, "OOV_ROW"])
        # The empty token of a history is padding.
        path = kinds["click_history.cate_id"]["file"]["path"]
        self.assertEqual((built.vocabularies[path][0], kinds["click_history.cate_id"]["file"]["firstRow"]), ("", 0))

    def test_vocabulary_that_leaves_rows_out(self):
        specs = specs_of()
        whole = vocabulary("{}", ITEMS, first=0)
        holes = {token: row for token, row in whole.items() if token == "__OOV__" or row % 3 != 1}
        rows = {row: token for token, row in holes.items()}
        inputs_to_text = {"item_id": holes, "click_history": holes}

        def text(name, ids):
            if name not in inputs_to_text:
                return features.ints("", ids)
            return features.ints("", [int(rows[row]) if row in rows and row != ITEMS - 1 else 10**6 for row in ids])

        net = Net(specs, PARAMS, PAIR)
        weights = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
        built = build_din(
            Weights(weights),
            PARAMS,
            Dataset(specs, ["clk"], inputs_to_text, dict.fromkeys(specs, "pre"), {"price": (0, 1)}),
            Serving("m", {"click_history": ["click"]}, LEVELS),
        )
        self.assertEqual(len(built.tensors["item_id.weight"]), len(holes))
        inputs = draw(specs, 14, "pre")
        for name in inputs_to_text:  # what training never saw is the last row
            inputs[name][(inputs[name] % 3 == 1) & (inputs[name] != 0)] = ITEMS - 1
        with torch.no_grad():
            expected = net({name: torch.from_numpy(values) for name, values in inputs.items()}).numpy()
        for row, score in enumerate(expected):
            request = request_of(
                built,
                inputs,
                row,
                {"click_history": "click_history.item_id", "cate_history": "click_history.cate_id"},
                text,
            )
            got = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["clk"]
            self.assertAlmostEqual(got[0], score, delta=2e-6)


def vocabulary(form, rows, first=0):
    """As FuxiCTR makes them: padding, tokens, and the last row for what it has not seen."""
    tokens = {form.format(first + row): row for row in range(1, rows - 1)}
    return {"__PAD__": 0, **tokens, "__OOV__": rows - 1}


# --- Refusals -------------------------------------------------------------------------------------------------------


class RefusalsTest(unittest.TestCase):
    def build(self, specs=None, change=None, serving=None, dataset=None, **params):
        specs = specs or specs_of()
        net = Net(specs_of(), {**PARAMS, "batch_norm": params.get("batch_norm", False)}, PAIR)
        tensors = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
        if change:
            change(tensors)
        dataset = dataset or Dataset(
            specs, ["clk"], {}, {"click_history": "pre", "cate_history": "pre"}, {"price": (0.0, 1.0)}
        )
        return build_din(
            Weights(tensors),
            {**PARAMS, **params},
            dataset,
            serving or Serving("m", {"click_history": ["click"]}, LEVELS),
        )

    def refused(self, message, **arguments):
        with self.assertRaises(ImportRefused) as caught:
            self.build(**arguments)
        self.assertIn(message, str(caught.exception))

    def test_it_builds(self):
        self.build()

    def test_options(self):
        self.refused("model: expected DIN, got DIEN", model="DIEN")
        self.refused("configuration: expected embedding_dim, got none", embedding_dim=None)
        self.refused("task: expected binary_classification or regression, got 'multi'", task="multi")
        self.refused("dnn_hidden_units: expected a list of widths, got 64", dnn_hidden_units=64)
        self.refused("got 'Softplus'", dnn_activations="Softplus")
        self.refused("dnn activations: expected 2 as hidden units, got 1", dnn_activations=["ReLU"])
        self.refused(
            "din_sequence_field: expected 1 as din_target_field, got 2",
            din_sequence_field=["click_history", "cate_history"],
        )
        self.refused(
            'din_target_field: "price": expected a categorical feature', din_target_field=[("price", "cate_id")]
        )
        self.refused(
            'din_sequence_field: "nothing": expected a sequence feature of feature_map.json, got no such feature',
            din_sequence_field=[("click_history", "nothing")],
        )
        self.refused("expected each field once in a group, got one twice", din_target_field=[("item_id", "item_id")])
        self.refused(
            'expected each sequence once, got "click_history" twice',
            din_target_field=["item_id", "item_id"],
            din_sequence_field=["click_history", "click_history"],
        )
        self.refused(
            "expected 2 attention layers in the checkpoint, got 1",
            din_target_field=["item_id", "cate_id"],
            din_sequence_field=["click_history", "cate_history"],
            serving=Serving("m", {"click_history": ["click"], "cate_history": ["click"]}, LEVELS),
        )

    def test_features(self):
        for change, message in (
            (
                {"pretrained_emb": "p.npz", "pretrain_usage": "max", "oov_idx": 3},
                "expected pretrain_usage init, sum or concat",
            ),
            ({"pretrained_emb": "p.npz"}, "got 'init' and None"),
            ({"category_processor": "hash_bucket"}, "category_processor hash_bucket is not supported"),
            ({"feature_encoder": "nn.Linear(4, 4)"}, "feature_encoder nn.Linear(4, 4) is not supported"),
            ({"vocab_size": 10}, f"expected vocab_size {USERS}, the rows of table"),
        ):
            specs = specs_of()
            specs["userid"].update(change)
            self.refused(message, specs=specs)
        specs = specs_of()
        specs["cate_history"]["feature_encoder"] = "layers.MaskedAveragePooling()"
        self.refused("attention needs the embeddings as they are", specs=specs)
        specs = specs_of()
        specs["cate_history"]["max_len"] = 9
        self.refused("expected one max_len, got ['6', '9']", specs=specs)
        specs = specs_of()
        specs["cate_history"]["embedding_dim"] = 3
        self.refused("expected embeddings of 8 together, embedding_dim times 2 targets, got 7", specs=specs)

    def test_what_the_user_must_say(self):
        self.refused(
            "features userid, price: expected --user or --candidate to name each, got neither",
            serving=Serving("m", {"click_history": ["click"]}),
        )
        self.refused("expected --actions click_history=ACTION,...", serving=Serving("m", {}, LEVELS))
        self.refused(
            '--actions: expected features of feature_map.json, got "clicks"',
            serving=Serving("m", {"click_history": ["click"], "clicks": ["click"]}, LEVELS),
        )
        self.refused(
            '--actions: expected the first field of a group, got "cate_history"',
            serving=Serving("m", {"click_history": ["click"], "cate_history": ["click"]}, LEVELS),
        )
        self.refused(
            'feature "item_id": expected a candidate\'s',
            serving=Serving("m", {"click_history": ["click"]}, {**LEVELS, "item_id": "USER"}),
        )
        self.refused(
            "--item: expected a categorical feature",
            serving=Serving("m", {"click_history": ["click"]}, LEVELS, "price"),
        )
        self.refused(
            'sequence "click_history": expected its padding, pre or post',
            dataset=Dataset(specs_of(), ["clk"], {}, {}, {"price": (0.0, 1.0)}),
        )
        self.refused(
            "expected padding on one side, got ['post', 'pre']",
            dataset=Dataset(
                specs_of(), ["clk"], {}, {"click_history": "pre", "cate_history": "post"}, {"price": (0.0, 1.0)}
            ),
        )
        self.refused(
            'feature "price": expected its normalizer',
            dataset=Dataset(specs_of(), ["clk"], {}, {"click_history": "pre", "cate_history": "pre"}),
        )

    def test_weights(self):
        mean = "attention_layers.0.attention_layer.mlp.1.bn.running_mean"
        self.refused(
            f'tensor "{mean}": expected the running statistics of training, got none; without them '
            "(track_running_stats=False)",
            change=lambda t: t.pop(mean),
        )
        self.refused(
            'tensor "dnn.mlp.1.running_var": expected the running statistics',
            batch_norm=True,
            change=lambda t: t.pop("dnn.mlp.1.running_var"),
        )
        self.refused("expected only tensors of the model", change=lambda t: t.update(more=np.zeros(3, np.float32)))
        self.refused(
            "expected shape [11, 24], got [11, 23]",
            change=lambda t: t.update({"dnn.mlp.0.weight": t["dnn.mlp.0.weight"][:, :-1]}),
        )
        # With dropout the second Linear would have number 3.
        self.refused('tensor "dnn.mlp.3.weight": expected in the checkpoint', net_dropout=0.1)
        shared = "embedding_layer.embedding_layers.click_history.weight"
        self.refused(
            'feature "click_history": expected the table of "item_id", which it shares, got other numbers',
            change=lambda t: t.update({shared: t[shared] + 1}),
        )
        self.refused("got one of FuxiCTR 1", change=lambda t: t.update({"dnn.dnn.0.weight": np.zeros(3, np.float32)}))

    def test_pooled_rows(self):
        def tables(change):
            def apply(tensors):
                tensors["embedding_layer.embedding_layers.tags.weight"] = table = np.full(
                    (CATEGORIES, DIM), 0.5, np.float32
                )
                table[0] = 0
                change(table)

            return apply

        specs = specs_of(tags=id_spec("sequence", CATEGORIES, feature_encoder="layers.MaskedAveragePooling()"))
        serving = Serving("m", {"click_history": ["click"]}, {**LEVELS, "tags": "USER"})
        self.refused(
            "expected zeros in the row of padding",
            specs=specs,
            serving=serving,
            change=tables(lambda table: table.__setitem__(0, 1.0)),
        )
        self.refused(
            "expected embeddings that do not sum to 0, as FuxiCTR takes these for padding, got row 3",
            specs=specs,
            serving=serving,
            change=tables(lambda table: table.__setitem__(3, [1, -1, 2, -2])),
        )
        specs["tags"]["feature_encoder"] = "layers.KMaxPooling(3, 1)"
        self.refused("got layers.KMaxPooling(3, 1)", specs=specs, serving=serving, change=tables(lambda table: None))

    def test_vocabularies(self):
        def with_vocabulary(vocabulary):
            return Dataset(
                specs_of(),
                ["clk"],
                {"userid": vocabulary},
                {"click_history": "pre", "cate_history": "pre"},
                {"price": (0.0, 1.0)},
            )

        self.refused('"userid": expected __OOV__, got none', dataset=with_vocabulary({"__PAD__": 0, "a": 1}))
        self.refused(
            f"expected rows of their own below {USERS} with __PAD__ in row 0",
            dataset=with_vocabulary({"__PAD__": 0, "a": 3, "b": 3, "__OOV__": USERS - 1}),
        )
        self.refused(
            f"expected rows of their own below {USERS}",
            dataset=with_vocabulary({"__PAD__": 0, "a": 1, "__OOV__": USERS}),
        )
        self.refused(
            "expected tokens without line ends",
            dataset=with_vocabulary({"__PAD__": 0, "a\nb": 1, "__OOV__": USERS - 1}),
        )


# --- Files ----------------------------------------------------------------------------------------------------------

MODEL_CONFIG = """
Base:
    embedding_dim: 40
    verbose: 1
DIN_books:
    model: DIN
    dataset_id: books
    embedding_dim: 4
    din_target_field: [!!python/tuple [item_id, cate_id]]
    din_sequence_field: [!!python/tuple [click_history, cate_history]]
    attention_hidden_units: [8, 5]
    dnn_hidden_units: [11, 3]
    net_dropout: 0
"""
DATASET_CONFIG = """
other:
    feature_cols: []
books:
    feature_cols:
        - {name: [userid, item_id, cate_id], active: True, dtype: str, type: categorical}
        - {name: price, active: True, dtype: float, type: numeric, fill_na: 1.5}
        - {name: click_history, active: True, dtype: str, type: sequence, padding: pre}
        - {name: cate_history, active: True, dtype: str, type: sequence, padding: pre}
"""


class Stands:  # for classes of FuxiCTR and scikit-learn, which are not here
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class LevelsTest(unittest.TestCase):
    def test_each_feature_has_one(self):
        self.assertEqual(levels_of(["a,b", "c"], ["d"]), {"a": "USER", "b": "USER", "c": "USER", "d": "CANDIDATE"})
        with self.assertRaisesRegex(ImportRefused, 'feature "b": expected --user or --candidate to name it, got both'):
            levels_of(["a,b"], ["b"])


class FilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        return path

    def test_configuration(self):
        self.write("config/model_config.yaml", MODEL_CONFIG)
        self.write("config/dataset_config.yaml", DATASET_CONFIG)
        params = read_params(os.path.join(self.folder, "config"), "DIN_books")
        self.assertEqual((params["embedding_dim"], params["verbose"]), (4, 1))
        self.assertEqual(params["din_target_field"], [("item_id", "cate_id")])
        self.assertEqual(len(params["feature_cols"]), 4)
        logged = self.write("log.json", json.dumps({name: str(value) for name, value in params.items()}))
        self.assertEqual(read_params(logged), params)
        for experiment, message in ((None, "expected --experiment"), ("DIN_films", 'expected experiment "DIN_films"')):
            with self.assertRaisesRegex(ImportRefused, message):
                read_params(os.path.join(self.folder, "config"), experiment)
        with self.assertRaisesRegex(ImportRefused, "expected YAML or JSON"):
            read_params(self.write("bad.yaml", "a: !!python/object/apply:os.system [echo]"))

    def test_whole_import(self):
        """From files as FuxiCTR leaves them, through the command's own function."""
        self.write("config/model_config.yaml", MODEL_CONFIG)
        self.write("config/dataset_config.yaml", DATASET_CONFIG)
        specs = specs_of()
        self.write(
            "data/feature_map.json", json.dumps({"labels": ["clk"], "features": [{k: v} for k, v in specs.items()]})
        )
        texts = {
            "userid": vocabulary("u{}", USERS),
            "item_id": vocabulary("{}", ITEMS),
            "cate_id": vocabulary("c{}", CATEGORIES),
        }
        texts["click_history"], texts["cate_history"] = texts["item_id"], texts["cate_id"]
        self.write("data/feature_vocab.json", json.dumps(texts))
        net = Net(specs, PARAMS, PAIR)
        checkpoint = os.path.join(self.folder, "DIN_books.model")
        torch.save(net.state_dict(), checkpoint)
        parser = argparse.ArgumentParser()
        for option in ("--checkpoint", "--name", "--data", "--created"):
            parser.add_argument(option, default="")
        fuxictr.add_arguments(parser)
        args = parser.parse_args(
            [
                "--checkpoint",
                checkpoint,
                "--name",
                "books",
                "--config",
                os.path.join(self.folder, "config"),
                "--experiment",
                "DIN_books",
                "--data_dir",
                os.path.join(self.folder, "data"),
                "--actions",
                "click_history=click,buy",
                "--user",
                "userid",
                "--candidate",
                "price",
            ]
        )
        built = fuxictr.import_model(args)
        inputs = {
            "userid": [3],
            "item_id": [5],
            "cate_id": [CATEGORIES - 1],
            "price": [1.5],
            "click_history": [[0, 0, 0, 0, 7, 8]],
            "cate_history": [[0, 0, 0, 0, 2, 3]],
        }
        tensors = {
            name: torch.tensor(value, dtype=torch.float32 if name == "price" else torch.int64)
            for name, value in inputs.items()
        }
        with torch.no_grad():
            expected = float(net(tensors)[0])
        # price and cate_id are missing or unseen: filled in as FuxiCTR does.
        request = {
            "user": [features.strings("userid", ["u3"])],
            "candidates": [features.ints("item_id", [5]), features.strings("cate_id", ["never seen"])],
            "sequences": [
                {
                    "sequence": "click_history",
                    "columns": [features.ints("item_id", [7, 8]), features.strings("cate_id", ["c2", "c3"])],
                }
            ],
        }
        got = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["clk"]
        self.assertAlmostEqual(got[0], expected, delta=2e-6)
        self.assertEqual(built.manifest["sequences"][0]["actions"], ["click", "buy"])
        self.assertEqual(built.manifest["itemFeature"], "item_id")

    def test_processor(self):
        """Padding and scaling come from the pickle, of which nothing is run."""
        self.write(
            "data/feature_map.json",
            json.dumps(
                {
                    "labels": ["clk"],
                    "features": [
                        {"price": {"type": "numeric"}},
                        {"age": {"type": "numeric"}},
                        {"rank": {"type": "numeric"}},
                        {"click_history": id_spec("sequence", ITEMS)},
                    ],
                }
            ),
        )
        scaler = type("StandardScaler", (Stands,), {})(mean_=np.array([2.0]), scale_=np.array([0.5]))
        squeezer = type("MinMaxScaler", (Stands,), {})(min_=np.array([-0.5]), scale_=np.array([0.25]), clip=False)
        processor = Stands(
            feature_cols=[],
            processor_dict={
                "price::normalizer": Stands(normalizer=scaler),
                "age::normalizer": Stands(normalizer=squeezer),
                "click_history::tokenizer": Stands(padding="pre", max_len=MAX_LEN),
            },
        )
        globals().update(StandardScaler=type(scaler), MinMaxScaler=type(squeezer))
        self.write("data/feature_processor.pkl", pickle.dumps(processor))
        dataset = read_dataset(os.path.join(self.folder, "data"), {}, {}, {})
        self.assertEqual(dataset.padding, {"click_history": "pre"})
        self.assertEqual(dataset.scaling["rank"], (0.0, 1.0))
        self.assertEqual(dataset.scaling["price"], (2.0, 0.5))
        mean, stddev = dataset.scaling["age"]
        self.assertAlmostEqual((3.0 - mean) / stddev, 3.0 * 0.25 - 0.5)
        scaler.mean_ = None
        self.write("data/feature_processor.pkl", pickle.dumps(processor))
        with self.assertRaisesRegex(ImportRefused, "expected a fitted StandardScaler or MinMaxScaler"):
            read_dataset(os.path.join(self.folder, "data"), {}, {}, {})

    def test_tokens_that_stand_for_two_rows(self):
        self.write("data/feature_map.json", json.dumps({"features": [{"item_id": id_spec("categorical", 4)}]}))
        self.write("data/feature_vocab.json", '{"item_id": {"__PAD__": 0, "5": 1, "5": 2, "__OOV__": 3}}')
        with self.assertRaisesRegex(ImportRefused, r'expected each token once, got "5" with rows \[1, 2\]'):
            read_dataset(os.path.join(self.folder, "data"), {}, {}, {})

    def test_feature_map(self):
        content = {"features": [{"a": {"type": "numeric"}}, {"b": {"type": "numeric"}}]}
        dataset = dataset_of(content, {"use_features": ["b"], "feature_specs": [{"name": ["b"], "embedding_dim": 3}]})
        self.assertEqual(dataset.features, {"b": {"type": "numeric", "embedding_dim": 3}})
        for params, message in (
            ({"use_features": ["c"]}, "use_features"),
            ({"feature_specs": [{"name": "c"}]}, "feature_specs"),
        ):
            with self.assertRaisesRegex(ImportRefused, f'{message}: expected features of feature_map.json, got "c"'):
                dataset_of(content, params)
        with self.assertRaisesRegex(ImportRefused, "got one of FuxiCTR 1"):
            dataset_of({"feature_specs": {}}, {})


if __name__ == "__main__":
    unittest.main()
