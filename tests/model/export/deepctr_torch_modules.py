"""DeepCTR-Torch's DIN as PyTorch modules of our own, with the state dict of the library's, and its feature columns: what
the tests of the importer compare with."""

import itertools

import numpy as np
import torch
from torch import nn

from dinghy_export import features

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
