"""FuxiCTR's DIN as PyTorch modules of our own, with the state dict and feature map of the library's: what the tests of the
importer compare with."""

import itertools

import numpy as np
import torch
from torch import nn

from dinghy_export import features

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


def vocabulary(form, rows, first=0):
    """As FuxiCTR makes them: padding, tokens, and the last row for what it has not seen."""
    tokens = {form.format(first + row): row for row in range(1, rows - 1)}
    return {"__PAD__": 0, **tokens, "__OOV__": rows - 1}
