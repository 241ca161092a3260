"""Attention over a history, each family of the literature as one function that adds its layers to a Builder.

    attention.additive(b, "interest", ["item"], ["clicks.item"], query_weight=wq, key_weight=wk, bias=bias, vector=v,
                       normalization="SOFTMAX", empty="ZEROS")
    attention.multi_head(b, "interest", ["item"], ["clicks.item"], heads=4, query_projection=(wq, bq),
                         key_projection=(wk, bk), value_projection=(wv, bv), out_projection=(wo, bo), empty="ZEROS")

Every function takes the builder, the name of the layer that holds the result, `query` (user or candidate level) and
`keys` (one sequence), each a list of features and layers that are concatenated; `values`, which are the keys where it
is None; and
    normalization   NONE, SOFTMAX, SIGMOID_EACH or SILU_MEAN: what becomes of the scores before the values are summed
    empty           what a history without a behavior gives: ZEROS, or PAD_VALUE, the value of one pad behavior
    mask            under SOFTMAX, the score of pad behaviors, such as -1e9; None: minus infinity, they take no part
    scale           multiplies the scores
Weights are arrays or PyTorch parameters as PyTorch keeps them, [out, in]. A projection is (weight, bias), bias None
where there is none; the projection itself None where the rows are taken as they are. Below, q is a query's row, k and v
those of a behavior, w the weights of the sum.
"""

import math

from dinghy_export.widths import width_of

# --- One score for each behavior ------------------------------------------------------------------------------------


def din(b, name, query, keys, values=None, *, layers, parts, normalization, empty, mask=None, scale=1.0,
        query_zeros=None):
    """DIN's activation unit (Zhou et al., 2018): score = MLP([q, k, q - k, q * k]).

    `layers`: Dense messages, as Builder.dense and Modules.dense_list make them, the last of width 1; `parts`: the order
    of the first one's input, of QUERY, KEY, DIFFERENCE (q - k) and PRODUCT; `query_zeros`: zeros behind a narrower
    query."""
    score = din_score(layers, parts, query_zeros)
    return _target(b, name, query, keys, values, score, normalization, empty, mask, scale)


def additive(b, name, query, keys, values=None, *, query_weight, key_weight, bias, vector, normalization, empty,
             mask=None, scale=1.0, activation="TANH"):
    """Additive attention (Bahdanau et al., 2015): score = vector^T tanh(query_weight q + key_weight k + bias).

    query_weight [hidden, query width], key_weight [hidden, key width], bias [hidden] or None, vector [hidden]; query
    and keys may differ in width."""
    score = additive_score(b, name, query_weight, key_weight, bias, vector, activation)
    return _target(b, name, query, keys, values, score, normalization, empty, mask, scale)


def dot(b, name, query, keys, values=None, *, normalization, empty, mask=None, scale=1.0, heads=None,
        key_value_heads=None):
    """Dot product (Luong et al., 2015): score = q^T k. `heads`: query, keys and values are cut into so many equal
    parts, each with scores of its own, and the pooled parts are concatenated; see multi_head, which projects them
    first."""
    return _target(b, name, query, keys, values, {"dot": {}}, normalization, empty, mask, scale, heads=heads,
                   key_value_heads=key_value_heads)


def scaled_dot(b, name, query, keys, values=None, *, normalization, empty, mask=None, heads=None, key_value_heads=None):
    """Scaled dot product (Vaswani et al., 2017): score = q^T k / sqrt(width of a head)."""
    scale = 1 / math.sqrt(_head_width(b, name, query, heads or 1))
    return dot(b, name, query, keys, values, normalization=normalization, empty=empty, mask=mask, scale=scale,
               heads=heads, key_value_heads=key_value_heads)


def bilinear(b, name, query, keys, values=None, *, weight, normalization, empty, mask=None, scale=1.0):
    """Bilinear attention (Luong et al., 2015): score = q^T weight k, weight [query width, key width]."""
    return _target(b, name, query, keys, values, bilinear_score(b, name, weight), normalization, empty, mask, scale)


def auto(b, name, query, keys, values=None, *, max_short, short, long, normalization, empty, mask=None, scale=1.0):
    """One score for histories of up to `max_short` behaviors and another for longer ones, by the length after
    truncation. A model must have been trained so. `short` and `long`: the scores below, such as
    dict(additive_score(b, "interest.short", ...), scale=0.5); scale multiplies that score alone."""
    branches = {"shortHistory": {"scale": 1.0, **short}, "longHistory": {"scale": 1.0, **long}}
    score = {"auto": {"maxShort": max_short, **branches}}
    return _target(b, name, query, keys, values, score, normalization, empty, mask, scale)


def din_score(layers, parts, query_zeros=None) -> dict:
    """din's score, for auto."""
    score = {"parts": list(parts), "layers": list(layers)}
    if query_zeros is not None:
        score["queryZeros"] = query_zeros
    return {"din": score}


def additive_score(b, prefix, query_weight, key_weight, bias, vector, activation="TANH") -> dict:
    """additive's score, for auto; its tensors are called `prefix`.something."""
    score = {
        "queryWeight": b.tensor(f"{prefix}.query_weight", query_weight),
        "keyWeight": b.tensor(f"{prefix}.key_weight", key_weight),
        "bias": "",
    }
    hidden = b.tensors[score["queryWeight"]].shape[:1]
    if b.tensors[score["keyWeight"]].shape[:1] != hidden:
        raise ValueError(f'tensor "{prefix}.key_weight": expected {hidden[0]} rows as in query_weight, got '
                         f'{b.tensors[score["keyWeight"]].shape[0]}')
    if bias is not None:
        score["bias"] = b.tensor(f"{prefix}.bias", bias, hidden)
    score["vector"] = b.tensor(f"{prefix}.vector", vector, hidden)
    score["activation"] = activation
    return {"additive": score}


def dot_score() -> dict:
    """dot's score, for auto."""
    return {"dot": {}}


def scaled_dot_score(width) -> dict:
    """scaled_dot's score over queries and keys of this width, for auto."""
    return {"dot": {}, "scale": 1 / math.sqrt(width)}


def bilinear_score(b, prefix, weight) -> dict:
    """bilinear's score, for auto."""
    return {"bilinear": {"weight": b.tensor(f"{prefix}.weight", weight)}}


# --- Projections and heads ------------------------------------------------------------------------------------------


def multi_head(b, name, query, keys, values=None, *, heads, query_projection, key_projection, value_projection,
               out_projection, empty, mask=None, key_value_heads=None, normalization="SOFTMAX"):
    """Multi-head cross-attention (Vaswani et al., 2017), with d the width of a head:
    head h: w = softmax(Wq_h q . Wk_h k / sqrt(d)), sum of w Wv_h v; the result is Wo [head 1, head 2, ...].

    Adds dense layers <name>.query, .keys and .values, target attention and the dense out projection. An empty history
    that gives ZEROS gives out_projection's bias, as the projection comes last."""
    values = keys if values is None else values
    query = _project(b, f"{name}.query", query, query_projection)
    keys = _project(b, f"{name}.keys", keys, key_projection)
    values = _project(b, f"{name}.values", values, value_projection)
    pooled = name if out_projection is None else f"{name}.heads"
    scaled_dot(b, pooled, query, keys, values, normalization=normalization, empty=empty, mask=mask, heads=heads,
               key_value_heads=key_value_heads)
    return _project(b, name, [pooled], out_projection)[0]


def multi_query(b, name, query, keys, values=None, *, heads, query_projection, key_projection, value_projection,
                out_projection, empty, mask=None):
    """Multi-query attention (Shazeer, 2019): as multi_head, but all heads read the same one key and value:
    key_projection and value_projection give the width of one head."""
    return grouped_query(b, name, query, keys, values, heads=heads, key_value_heads=1, empty=empty, mask=mask,
                         query_projection=query_projection, key_projection=key_projection,
                         value_projection=value_projection, out_projection=out_projection)


def grouped_query(b, name, query, keys, values=None, *, heads, key_value_heads, query_projection, key_projection,
                  value_projection, out_projection, empty, mask=None):
    """Grouped-query attention (Ainslie et al., 2023): query head h reads key and value head h // (heads /
    key_value_heads). key_projection and value_projection give key_value_heads heads."""
    return multi_head(b, name, query, keys, values, heads=heads, key_value_heads=key_value_heads, empty=empty,
                      mask=mask, query_projection=query_projection, key_projection=key_projection,
                      value_projection=value_projection, out_projection=out_projection)


def latent(b, name, query, keys, *, heads, query_projection, latent_projection, key_up, value_up, out_projection, empty,
           mask=None):
    """Multi-head latent attention (DeepSeek-V2, 2024), without rotary parts: c = latent_projection(k) is all that is
    kept of a behavior; head h: w = softmax(Wq_h q . key_up_h c / sqrt(d)), sum of w value_up_h c.

    key_up [width of the projected query, latent width], value_up [heads * value width of a head, latent width]."""
    query = _project(b, f"{name}.query", query, query_projection)
    kept = _project(b, f"{name}.latent", keys, latent_projection)
    width = width_of(b, kept)
    up = {
        "keyUp": b.tensor(f"{name}.key_up", key_up, [width_of(b, query), width]),
        "valueUp": b.tensor(f"{name}.value_up", value_up),
    }
    if b.tensors[up["valueUp"]].shape[1:] != (width,) or b.tensors[up["valueUp"]].shape[0] % heads:
        raise ValueError(f'tensor "{name}.value_up": expected shape [a multiple of {heads}, {width}], got '
                         f'{list(b.tensors[up["valueUp"]].shape)}')
    pooled = name if out_projection is None else f"{name}.heads"
    scale = 1 / math.sqrt(_head_width(b, name, query, heads))
    _target(b, pooled, query, kept, None, {"dot": {}}, "SOFTMAX", empty, mask, scale, heads=heads, latent=up)
    return _project(b, name, [pooled], out_projection)[0]


def linear_attention(b, name, query, keys, values=None, *, heads, query_projection, key_projection, value_projection,
                     out_projection, empty, scale=1.0):
    """Linear attention (Katharopoulos et al., 2020), f = elu + 1: head h gives f(q_h)^T S / f(q_h)^T z with S = sum of
    f(k_h) v_h^T and z = sum of f(k_h) over the behaviors, computed once for all candidates. `scale` multiplies q."""
    values = keys if values is None else values
    query = _project(b, f"{name}.query", query, query_projection)
    keys = _project(b, f"{name}.keys", keys, key_projection)
    values = _project(b, f"{name}.values", values, value_projection)
    pooled = name if out_projection is None else f"{name}.heads"
    _target(b, pooled, query, keys, values, {"linear": {}}, "NONE", empty, None, scale, heads=heads)
    return _project(b, name, [pooled], out_projection)[0]


# --- Below ----------------------------------------------------------------------------------------------------------


def _target(b, name, query, keys, values, score, normalization, empty, mask, scale, *, heads=None, key_value_heads=None,
            latent=None):
    values = keys if values is None else values
    _check_widths(b, name, query, keys, values, score, heads or 1, key_value_heads, latent)
    return b.layer(name, "targetAttention", query=list(query), keys=list(keys), values=list(values), **score,
                   normalization=normalization, empty=empty, scale=scale, mask=mask, heads=heads,
                   keyValueHeads=key_value_heads, latent=latent)


def _check_widths(b, name, query, keys, values, score, heads, key_value_heads, latent):
    """What the loader would refuse too, but with the builder's names at hand."""
    query_width, key_width = width_of(b, query), width_of(b, keys)
    if "auto" in score:
        for branch in ("shortHistory", "longHistory"):
            _check_widths(b, name, query, keys, values, score["auto"][branch], 1, None, None)
    elif "bilinear" in score:
        _expect_shape(b, score["bilinear"]["weight"], [query_width, key_width])
    elif "additive" in score:
        hidden = b.tensors[score["additive"]["vector"]].shape[0]
        _expect_shape(b, score["additive"]["queryWeight"], [hidden, query_width])
        _expect_shape(b, score["additive"]["keyWeight"], [hidden, key_width])
    elif "din" in score:
        query_width += score["din"].get("queryZeros", 0)
        if query_width != key_width:
            raise ValueError(f'layer "{name}": expected query and keys of equal width, got {query_width} and '
                             f"{key_width}")
        first, last = score["din"]["layers"][0]["weight"], score["din"]["layers"][-1]["weight"]
        _expect_shape(b, first, [b.tensors[first].shape[0], key_width * len(score["din"]["parts"])])
        _expect_shape(b, last, [1, b.tensors[last].shape[1]])
    elif latent is None:
        shared = key_value_heads or heads
        if query_width * shared != key_width * heads or query_width % heads:
            raise ValueError(f'layer "{name}": expected a query of {heads} heads and keys of {shared} heads of the '
                             f"same width, got widths {query_width} and {key_width}")
        if width_of(b, values) % shared or heads % shared:
            raise ValueError(f'layer "{name}": expected {shared} heads to divide the {heads} of the query and the '
                             f"width of the values, got {width_of(b, values)}")


def _expect_shape(b, tensor, shape):
    if list(b.tensors[tensor].shape) != shape:
        raise ValueError(f'tensor "{tensor}": expected shape {shape}, got {list(b.tensors[tensor].shape)}')


def _head_width(b, name, query, heads):
    width = width_of(b, query)
    if width % heads:
        raise ValueError(f'layer "{name}": expected heads that divide the width of the query, {width}, got {heads}')
    return width // heads


def _project(b, name, inputs, projection):
    """The names that hold the projected rows: a dense layer `name`, or the inputs themselves where there is none."""
    if projection is None:
        return list(inputs)
    weight, bias = projection
    message = b.dense(name, weight, bias)
    width = width_of(b, inputs)
    if b.tensors[message["weight"]].shape[1] != width:
        raise ValueError(f'tensor "{name}.weight": expected {width} columns, got '
                         f'{b.tensors[message["weight"]].shape[1]}')
    return [b.layer(name, "dense", inputs=inputs, **message)]
