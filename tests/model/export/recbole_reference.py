"""What RecBole's DIN and SASRec compute, in plain PyTorch over a state dict, and small state dicts and items for it."""

import math

import numpy as np
import torch

from dinghy_export import features
from dinghy_export.evaluate import evaluate
from dinghy_export.importers.recbole import Requests
from dinghy_export.importers.recbole_dataset import ItemData, ItemField

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
    request = {
        "candidates": [features.ints("item_id", items)],
        "sequences": [{"sequence": "history", "columns": [features.ints("item_id", history)]}]
    }
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
    shapes = {
        "embedding_layer.token_embedding_table.item.embedding.weight": (ITEMS + 4 * ("year" in extra), DIM),
        "embedding_layer.token_embedding_table.user.embedding.weight": (7, DIM)
    }
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
    return {
        "model": "DIN", "ITEM_ID_FIELD": "item_id", "MAX_ITEM_LIST_LENGTH": LENGTH, "pooling_mode": "mean",
        "numerical_features": [], "mlp_hidden_size": [6, 4], **changes
    }


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


# --- SASRec ---------------------------------------------------------------------------------------------------------

WIDTH, INNER, HEADS = 6, 10, 3
ACTIVATIONS = {
    "gelu": torch.nn.functional.gelu, "relu": torch.relu, "swish": torch.nn.functional.silu, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid
}


def sasrec_shapes(layers):
    shapes = {
        "item_embedding.weight": (ITEMS, WIDTH), "position_embedding.weight": (LENGTH, WIDTH),
        "LayerNorm.weight": (WIDTH,), "LayerNorm.bias": (WIDTH,)
    }
    for index in range(layers):
        for name, rows, columns in (("multi_head_attention.query", WIDTH,
                                     WIDTH), ("multi_head_attention.key", WIDTH,
                                              WIDTH), ("multi_head_attention.value", WIDTH,
                                                       WIDTH), ("multi_head_attention.dense", WIDTH,
                                                                WIDTH), ("multi_head_attention.LayerNorm", WIDTH,
                                                                         None), ("feed_forward.dense_1", INNER, WIDTH),
                                    ("feed_forward.dense_2", WIDTH, INNER), ("feed_forward.LayerNorm", WIDTH, None)):
            prefix = f"trm_encoder.layer.{index}.{name}"
            shapes[f"{prefix}.weight"], shapes[f"{prefix}.bias"] = (rows, columns) if columns else (rows,), (rows,)
    return shapes


def sasrec_config(**changes):
    return {
        "model": "SASRec", "ITEM_ID_FIELD": "item_id", "MAX_ITEM_LIST_LENGTH": LENGTH, "n_layers": 2, "n_heads": HEADS,
        "hidden_size": WIDTH, "inner_size": INNER, "hidden_act": "gelu", "layer_norm_eps": 1e-12, **changes
    }


def sasrec_reference(state, config, history, items):
    def norm(prefix, x):
        mean, variance = x.mean(dim=1, keepdim=True), x.var(dim=1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance +
                                       config["layer_norm_eps"]) * state[f"{prefix}.weight"] + state[f"{prefix}.bias"]

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
        x = norm(f"{attention}.LayerNorm",
                 linear(f"{attention}.dense", (weights @ value).transpose(0, 1).reshape(LENGTH, -1)) + x)
        hidden = ACTIVATIONS[config["hidden_act"]](linear(f"{ffn}.dense_1", x))
        x = norm(f"{ffn}.LayerNorm", linear(f"{ffn}.dense_2", hidden) + x)
    return (state["item_embedding.weight"][items] @ x[length - 1]).tolist()


def sasrec_items():
    return ItemData([ItemField("item_id", "token", ITEMS)])
