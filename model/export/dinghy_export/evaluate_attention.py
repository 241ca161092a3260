"""Attention and pooling of dinghy_export.evaluate: one sequence, float64, loops over behaviors and heads.

x, keys and values are [slots, width], `real` is bool [slots]: the others are pad behaviors. `tensor` finds a tensor by
its name; messages are those of proto/bundle.proto.
"""

import math

import numpy as np

from dinghy_export.evaluate_rows import activate, batch_norm, dense, layer_norm, round_to_bf16, sigmoid

# --- Self-attention -------------------------------------------------------------------------------------------------


def self_attention(message, x, real, tensor):
    """[slots, width]; a pad row that nobody may look at is NaN."""
    pads = message.get("pads", "MASKED")
    x = x * message["inputScale"]
    if "positions" in message:
        x = x + _learned_positions(message["positions"], real, tensor)
    if "sinusoidal" in message:
        x = x + _sinusoidal_positions(message["sinusoidal"], x.shape[1], real)
    x = _without_pads(x, real, pads)
    if "inputNorm" in message:
        x = layer_norm(message["inputNorm"], x, tensor)
    visible = _visible(message, real, pads)
    for block in message["blocks"]:
        x = _block(message, block, x, visible, tensor)
        x = _without_pads(x, real, pads)
    if "finalNorm" in message:
        x = layer_norm(message["finalNorm"], x, tensor)
    return x


def _without_pads(x, real, pads):
    if pads == "ATTENDED":
        return x
    return np.where(real[:, None], x, 0.0 if pads == "ZEROED" else np.nan)


def _visible(message, real, pads):
    """bool [slots, slots]: whether a row sees a column."""
    place = np.arange(len(real))
    distance = place[:, None] - place[None, :]
    visible = np.ones(distance.shape, dtype=bool)
    if message["causal"]:
        visible &= distance >= 0
    if "window" in message:
        visible &= abs(distance) < message["window"]
    if pads == "MASKED":
        visible &= real[:, None] & real[None, :]
    return visible


def _block(message, block, x, visible, tensor):
    wiring = message["wiring"]

    def attend(query_rows, memory):
        return _multi_head(message, block, query_rows, memory, visible, tensor)

    def feed_forward(rows):
        for layer in block["ffn"]:
            rows = dense(layer, rows, tensor)
        return rows

    def norm(name, rows):
        return layer_norm(block[name], rows, tensor)

    if wiring == "PRE_NORM":
        normed = norm("attentionNorm", x)
        x = x + attend(normed, normed)
        return x + feed_forward(norm("ffnNorm", x))
    if wiring == "POST_NORM":
        x = norm("attentionNorm", x + attend(x, x))
        return norm("ffnNorm", x + feed_forward(x))
    if wiring == "SASREC_ORIGINAL":
        query = norm("attentionNorm", x)
        y = norm("ffnNorm", query + attend(query, x))
        return y + feed_forward(y)
    if wiring == "BARE":
        return attend(x, x)
    raise ValueError(f"wiring {wiring} is not known")


def _multi_head(message, block, query_rows, memory, visible, tensor):
    heads = message["heads"]
    key_value_heads = message.get("keyValueHeads", heads)
    query = dense(block["query"], query_rows, tensor)
    if "latent" in block:
        memory = dense(block["latent"], memory, tensor)
    keys = np.split(dense(block["key"], memory, tensor), key_value_heads, axis=1)
    values = np.split(dense(block["value"], memory, tensor), key_value_heads, axis=1)
    mixed = []
    for head, head_query in enumerate(np.split(query, heads, axis=1)):
        key, value = (rows[head // (heads // key_value_heads)] for rows in (keys, values))
        result = np.full((len(query), value.shape[1]), np.nan)
        for row in range(len(query)):
            seen = visible[row]
            if not seen.any():
                continue
            if message.get("kernel", "SOFTMAX_KERNEL") == "ELU_PLUS_ONE":
                weights = _elu_plus_one(key[seen]) @ _elu_plus_one(head_query[row])
                weights = weights / weights.sum()
            else:
                weights = softmax(key[seen] @ head_query[row] / math.sqrt(key.shape[1]))
            result[row] = weights @ value[seen]
        mixed.append(result)
    return dense(block["out"], np.concatenate(mixed, axis=1), tensor)


def _learned_positions(message, real, tensor):
    table, length = tensor(message["tensor"]), int(real.sum())
    if message["origin"] == "FROM_OLDEST":
        rows = np.arange(length)
    elif message["origin"] == "FROM_NEWEST":
        rows = np.arange(length)[::-1]
    else:
        rows = message["firstRow"] + np.flatnonzero(real)
    result = np.full((len(real), table.shape[1]), np.nan)
    if "padRow" in message:
        result[:] = table[message["padRow"]]
    result[real] = table[rows]
    return result


def _sinusoidal_positions(message, width, real):
    length = int(real.sum())
    order = np.arange(length) if message["origin"] == "FROM_OLDEST" else np.arange(length)[::-1]
    sines, cosines = np.zeros((length, width // 2)), np.zeros((length, width // 2))
    for pair in range(width // 2):
        angle = (message["first"] + order) / message["base"] ** (2 * pair / width)
        sines[:, pair], cosines[:, pair] = np.sin(angle), np.cos(angle)
    result = np.full((len(real), width), np.nan)
    if message["layout"] == "HALVES":
        result[real] = np.concatenate([sines, cosines], axis=1)
    else:
        result[real] = np.stack([sines, cosines], axis=2).reshape(length, width)
    return result


# --- Target attention -----------------------------------------------------------------------------------------------


def target_attention(message, query, keys, values, real, tensor, bf16=False):
    """[queries, pooled width]. `bf16`: BundleManifest.precision is BF16."""
    heads = message.get("heads", 1)
    if not real.any() and message["empty"] == "ZEROS":
        if "latent" in message:
            width = tensor(message["latent"]["valueUp"]).shape[0]
        else:
            width = values.shape[1] // message.get("keyValueHeads", heads) * heads
        return np.zeros((len(query), width * len(message.get("windows", {}).get("sizes", [0]))))
    if len(real) == 0:
        raise ValueError("empty is PAD_VALUE, but the sequence has no pads")
    return np.array([_attend_one(message, row, keys, values, real, tensor, bf16) for row in query])


def _attend_one(message, query, keys, values, real, tensor, bf16):
    heads = message.get("heads", 1)
    key_value_heads = message.get("keyValueHeads", heads)
    if "latent" in message:
        head_keys = [keys @ up.T for up in np.split(tensor(message["latent"]["keyUp"]), heads, axis=0)]
        head_values = [values @ up.T for up in np.split(tensor(message["latent"]["valueUp"]), heads, axis=0)]
    else:
        groups = [np.split(rows, key_value_heads, axis=1) for rows in (keys, values)]
        head_keys, head_values = (
            [group[head // (heads // key_value_heads)] for head in range(heads)] for group in groups
        )
    pooled = []
    for head_query, key, value in zip(np.split(query, heads), head_keys, head_values):
        if not real.any():
            pooled.append(value[0] if "windows" not in message else np.tile(value[0], len(message["windows"]["sizes"])))
        elif "linear" in message:
            mapped = _elu_plus_one(head_query * message.get("scale", 1.0))
            weights = _elu_plus_one(key[real]) @ mapped
            pooled.append(weights @ value[real] / weights.sum())
        else:
            scores = _scores(message, head_query, key[real], int(real.sum()), tensor, bf16)
            pooled.append(_pool(message, scores, value, real))
    return np.concatenate(pooled)


def _pool(message, scores, values, real):
    scores = scores * message.get("scale", 1.0)
    values, pad_values = values[real], values[~real]
    normalization = message["normalization"]
    if "windows" in message:
        return _windows(message["windows"], scores, values)
    if normalization == "SOFTMAX":
        masked = [message["mask"]] * len(pad_values) if "mask" in message else []
        weights = softmax(np.concatenate([scores, masked]))
        result = weights[: len(scores)] @ values
        for weight, value in zip(weights[len(scores) :], pad_values):
            if weight > 0:
                result = result + weight * value
        return result
    if normalization == "SIGMOID_EACH":
        return sigmoid(scores) @ values
    if normalization == "SILU_MEAN":
        return (scores * sigmoid(scores)) @ values / len(scores)
    if normalization == "NONE":
        return scores @ values
    raise ValueError(f"normalization {normalization} is not known")


def _windows(message, scores, values):
    order = np.arange(len(scores)) if message["origin"] == "FROM_OLDEST" else np.arange(len(scores))[::-1]
    pooled, begin = [], 0
    for size in message["sizes"]:
        picks = order[begin : begin + size]
        pooled.append(scores[picks] @ values[picks] / max(1, len(picks)))
        begin += size
    return np.concatenate(pooled)


def _scores(message, query, keys, length, tensor, bf16):
    """One score for each of the real behaviors."""
    if "auto" in message:
        auto = message["auto"]
        branch = auto["shortHistory"] if length <= auto["maxShort"] else auto["longHistory"]
        return _scores(branch, query, keys, length, tensor, bf16) * branch.get("scale", 1.0)
    if "din" in message:
        return (_din_bf16 if bf16 else _din)(message["din"], query, keys, tensor)
    if "additive" in message:
        additive = message["additive"]
        hidden = tensor(additive["queryWeight"]) @ query + keys @ tensor(additive["keyWeight"]).T
        if additive["bias"]:
            hidden = hidden + tensor(additive["bias"])
        return activate(additive["activation"], {}, hidden, tensor) @ tensor(additive["vector"])
    if "dot" in message:
        return keys @ query
    if "bilinear" in message:
        return keys @ (query @ tensor(message["bilinear"]["weight"]))
    raise ValueError("expected one of the scores, got none")


def _din(message, query, keys, tensor):
    query = np.concatenate([query, np.zeros(message.get("queryZeros", 0))])
    queries = np.repeat(query[None], len(keys), axis=0)
    parts = {"QUERY": queries, "KEY": keys, "DIFFERENCE": queries - keys, "PRODUCT": queries * keys}
    rows = np.concatenate([parts[part] for part in message["parts"]], axis=1)
    for layer in message["layers"]:
        rows = dense(layer, rows, tensor)
    return rows[:, 0]


def _din_bf16(message, query, keys, tensor):
    """The first layer's weight is that of the keys for this query; what depends on the query alone, and the last layer,
    are not rounded."""
    *hidden, last = message["layers"]
    if not hidden:
        return _din(message, query, keys, tensor)
    query = np.concatenate([query, np.zeros(message.get("queryZeros", 0))])
    rows = keys
    for place, layer in enumerate(hidden):
        weight, bias = tensor(layer["weight"]), tensor(layer["bias"]) if layer["bias"] else 0.0
        if "norm" in layer:
            shift = batch_norm(layer["norm"], np.zeros((1, len(weight))), tensor)[0]
            scale = batch_norm(layer["norm"], np.ones((1, len(weight))), tensor)[0] - shift
            weight, bias = weight * scale[:, None], bias * scale + shift
        if place == 0:
            part = dict(zip(message["parts"], np.split(weight, len(message["parts"]), axis=1)))
            difference = part.get("DIFFERENCE", 0.0)
            bias = bias + (part.get("QUERY", 0.0) + difference + np.zeros_like(weight[:, : len(query)])) @ query
            weight = part.get("KEY", 0.0) - difference + part.get("PRODUCT", 0.0) * query + np.zeros_like(
                weight[:, : len(query)])
        rows = round_to_bf16(rows) @ round_to_bf16(weight).T + bias
        rows = activate(layer["activation"], layer.get("parameters", {}), rows, tensor)
    return dense(last, rows, tensor)[:, 0]


# --- Pooling --------------------------------------------------------------------------------------------------------


def pooling(message, x, real):
    """[1, width]."""
    rows = x[real]
    if len(rows) == 0:
        if message.get("empty", "ZEROS") == "ZEROS":
            return np.zeros((1, x.shape[1]))
        if len(x) == 0:
            raise ValueError("empty is PAD_VALUE, but the sequence has no pads")
        return x[-1:].copy()
    if message["method"] == "LAST":
        return rows[-1:].copy()
    return rows.sum(axis=0, keepdims=True) / (len(rows) if message["method"] == "MEAN" else 1)


def softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def _elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
