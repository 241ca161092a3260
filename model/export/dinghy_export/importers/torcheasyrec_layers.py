"""TorchEasyRec's MLPs and sequence encoders, added to a Builder one by one from a state dict.

    query = Columns([("adgroup_id", 16), ("cate_id", 16)])
    group = Columns([("click_50_seq.adgroup_id", 16), ("click_50_seq.cate_id", 16)])
    interest = add_din_encoder(builder, weights, "model.din_towers.0", "interest", query, group,
                               MlpSpec([64, 32], activation="Dice", use_bn=True))
    tower = add_mlp(builder, weights, "model.final_mlp", "tower", interest, MlpSpec([64]))

Columns are a concatenation: names of features and layers with their widths, or zeros. Each function returns the Columns
that the module returns. Behaviors that do not exist are zeros in TorchEasyRec, whatever the batch is padded to; so the
sequences have no pads here, and an empty history gives zeros.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from dinghy_export.importers.weights import ImportRefused

EPSILON = 1e-5  # torch's default of batch and layer norms; TorchEasyRec leaves it


@dataclass
class Columns:
    """A concatenation: (name of a feature or layer, or None for zeros; width)."""

    parts: list = field(default_factory=list)

    def names(self) -> list:
        return [name for name, _ in self.parts if name is not None]

    def width(self) -> int:
        return sum(width for _, width in self.parts)

    def kept(self, weight) -> np.ndarray:
        """`weight` [out, width] without the columns that meet zeros."""
        mask = np.concatenate([np.full(width, name is not None) for name, width in self.parts])
        return weight[:, mask]

    def __add__(self, other):
        return Columns(self.parts + other.parts)


def join(prefix, name) -> str:
    """A tensor's name under a module's; "" is the root."""
    return f"{prefix}.{name}" if prefix else name


@dataclass
class MlpSpec:
    """An MLP's configuration, with TorchEasyRec's defaults; dropout ratios do nothing at inference."""

    hidden_units: list
    activation: str = "nn.ReLU"
    use_bn: bool = False
    bias: bool = True
    use_ln: bool = False


# --- MLP ------------------------------------------------------------------------------------------------------------


def add_mlp(builder, weights, prefix, name, inputs, spec) -> Columns:
    """An MLP over rows. With layer norms it becomes a layer of its own for each step."""
    if not spec.use_ln:
        builder.layer(name, "mlp", inputs=inputs.names(), layers=dense_layers(builder, weights, prefix, name, inputs,
                                                                              spec, 2))
        return Columns([(name, spec.hidden_units[-1])])
    _check_spec(prefix, spec)
    for index, width in enumerate(spec.hidden_units):
        perceptron, ours = f"{prefix}.mlp.{index}.perceptron", f"{name}.{index}"
        weight, bias = _linear(weights, f"{perceptron}.0", inputs, width, spec.bias)
        builder.layer(f"{ours}.linear", "dense", inputs=inputs.names(), **builder.dense(f"{ours}.linear", weight, bias))
        builder.layer(
            f"{ours}.norm", "layerNorm", inputs=[f"{ours}.linear"],
            **builder.layer_norm(f"{ours}.norm", weights.take(f"{perceptron}.1.weight", [width]),
                                 weights.take(f"{perceptron}.1.bias", [width]), epsilon=EPSILON))
        function, parameters = _activation(builder, weights, f"{perceptron}.2", ours, spec.activation, width)
        builder.layer(ours, "activation", inputs=[f"{ours}.norm"], function=function, parameters=parameters)
        inputs = Columns([(ours, width)])
    return inputs


def dense_layers(builder, weights, prefix, name, inputs, spec, dim) -> list:
    """The Dense messages of an MLP. `dim` 3: over behaviors, where batch norm stands between two transpositions."""
    _check_spec(prefix, spec)
    if spec.use_ln:
        raise ImportRefused(
            f'"{prefix}" use_ln: expected false, got true: layer norms inside an attention MLP are not supported')
    layers = []
    for index, width in enumerate(spec.hidden_units):
        perceptron, ours = f"{prefix}.mlp.{index}.perceptron", f"{name}.{index}"
        weight, bias = _linear(weights, f"{perceptron}.0", inputs, width, spec.bias and not spec.use_bn)
        place, norm = 1, None
        if spec.use_bn:
            place = 1 if dim == 2 else 2
            norm = _batch_norm(builder, weights, f"{perceptron}.{place}", f"{ours}.norm", width, affine=True)
            place = 2 if dim == 2 else 4
        function, parameters = _activation(builder, weights, f"{perceptron}.{place}", ours, spec.activation, width)
        layers.append(builder.dense(ours, weight, bias, function, norm, parameters))
        inputs = Columns([(ours, width)])
    return layers


def _check_spec(prefix, spec):
    if not spec.hidden_units:
        raise ImportRefused(f'"{prefix}" hidden_units: expected at least one, got none')
    if spec.use_bn and spec.use_ln:
        raise ImportRefused(f'"{prefix}" use_ln: expected not to stand beside use_bn, got both')


def _linear(weights, prefix, inputs, width, with_bias):
    weight = inputs.kept(weights.take(f"{prefix}.weight", [width, inputs.width()]))
    return weight, weights.take(f"{prefix}.bias", [width]) if with_bias else None


def _batch_norm(builder, weights, prefix, name, width, affine):
    mean, variance = (weights.take(f"{prefix}.{part}", [width]) for part in ("running_mean", "running_var"))
    weight, bias = (weights.take(f"{prefix}.{part}", [width]) if affine else None for part in ("weight", "bias"))
    return builder.batch_norm(name, mean, variance, weight, bias, epsilon=EPSILON)


_PLAIN = {"ReLU": "RELU", "Sigmoid": "SIGMOID", "Tanh": "TANH", "SiLU": "SILU", "Identity": "LINEAR"}


def _activation(builder, weights, prefix, name, text, width):
    """The function and its ActivationParameters (None: it has none) of an activation as a configuration writes it."""
    text = (text or "").strip()
    if not text:
        return "LINEAR", None
    if text == "Dice":
        norm = _batch_norm(builder, weights, f"{prefix}.bn", f"{name}.dice", width, affine=False)
        return "DICE", builder.dice(name, weights.take(f"{prefix}.alpha", [width]), norm)
    match = re.fullmatch(r"(?:torch\.)?nn\.(\w+)(?:\((.*)\))?", text)
    kind, options = (match.group(1), _options(text, match.group(2))) if match else (None, {})
    if kind in _PLAIN and not options.keys() - {"inplace"}:
        return _PLAIN[kind], None
    if kind == "LeakyReLU" and not options.keys() - {"inplace", "negative_slope"}:
        return "LEAKY_RELU", {"slope": float(options.get("negative_slope", 0.01))}
    if kind == "GELU" and options.get("approximate",
                                      "none") in ("none", "tanh") and not options.keys() - {"approximate"}:
        return ("GELU_TANH" if options.get("approximate") == "tanh" else "GELU_ERF"), None
    if kind == "PReLU" and not options.keys() - {"num_parameters", "init"}:
        count = int(options.get("num_parameters", 1))
        return "PRELU", builder.prelu(name, weights.take(f"{prefix}.weight", [count]))
    raise ImportRefused(
        f'"{prefix}" activation: expected Dice or one of nn.{", nn.".join([*_PLAIN, "LeakyReLU", "GELU", "PReLU"])}, '
        f"got {text}")


def _options(text, inside):
    options = {}
    for option in filter(None, (inside or "").split(",")):
        name, separator, value = option.partition("=")
        if not separator:
            raise ImportRefused(f"activation {text}: expected name=value, got {option.strip()!r}")
        options[name.strip()] = value.strip().strip("'\"")
    return options


# --- Sequence encoders ----------------------------------------------------------------------------------------------


def add_din_encoder(builder, weights, prefix, name, query, sequence, attention) -> Columns:
    """DINEncoder: softmax over an MLP of [q, k, q - k, q * k]; a narrower query is filled up with zeros."""
    narrower = _narrower(prefix, query, sequence)
    layers = _score_layers(builder, weights, prefix, name, 4 * sequence.width(), attention)
    din = {"parts": ["QUERY", "KEY", "DIFFERENCE", "PRODUCT"], "layers": layers, "queryZeros": narrower or None}
    _target_attention(builder, name, query, sequence, "SOFTMAX", din=_set(din))
    return Columns([(name, sequence.width())])


def add_simple_attention(builder, prefix, name, query, sequence) -> Columns:
    """SimpleAttention: softmax over k . q, not scaled."""
    if query.width() != sequence.width():
        raise ImportRefused(
            f'"{prefix}": expected a query as wide as the sequence, {sequence.width()}, got {query.width()}')
    _target_attention(builder, name, query, sequence, "SOFTMAX", dot={})
    return Columns([(name, sequence.width())])


def add_pooling_encoder(builder, prefix, name, sequence, pooling_type="mean") -> Columns:
    """PoolingEncoder: the sum, or the sum divided by max(length, 1)."""
    methods = {"sum": "SUM", "mean": "MEAN"}
    if pooling_type not in methods:
        raise ImportRefused(f'"{prefix}" pooling_type: expected sum or mean, got {pooling_type}')
    builder.layer(name, "pooling", inputs=sequence.names(), method=methods[pooling_type], empty="ZEROS")
    return Columns([(name, sequence.width())])


def add_multi_window_din_encoder(builder, weights, prefix, name, query, sequence, attention, windows,
                                 newest_first) -> Columns:
    """MultiWindowDINEncoder: an MLP of [k, q * k, q] and a PReLU, the behaviors in consecutive windows. `newest_first`:
    whether the first window holds the newest behaviors, or the oldest: the order of the training data."""
    narrower = _narrower(prefix, query, sequence)
    if not windows or min(windows) < 1:
        raise ImportRefused(f'"{prefix}" windows_len: expected sizes of at least 1, got {windows}')
    layers = _score_layers(builder, weights, prefix, name, 3 * sequence.width(), attention)
    layers[-1] = {
        **layers[-1], "activation": "PRELU",
        "parameters": builder.prelu(f"{name}.active", weights.take(join(prefix, "active.weight"), [1]))
    }
    din = {"parts": ["KEY", "PRODUCT", "QUERY"], "layers": layers, "queryZeros": narrower or None}
    _target_attention(builder, name, query, sequence, "NONE", din=_set(din),
                      windows={"sizes": list(windows), "origin": "FROM_NEWEST" if newest_first else "FROM_OLDEST"})
    return Columns([(name, sequence.width() * len(windows))]) + query + Columns([(None, narrower)] if narrower else [])


def add_self_attention_encoder(builder, weights, prefix, name, sequence, width, heads) -> Columns:
    """SelfAttentionEncoder: Linears for query, key and value, then nn.MultiheadAttention over the real behaviors, and
    the sum divided by max(length, 1). The rows of other slots are NaN there, made zero, so they add nothing."""
    if heads < 1 or width % heads:
        raise ImportRefused(f'"{prefix}" multihead_attn_dim: expected a multiple of num_heads {heads}, got {width}')
    inner = join(prefix, "_multihead_attn")
    joint_weight = weights.take(f"{inner}.in_proj_weight", [3 * width, width]).astype(np.float64)
    joint_bias = weights.take(f"{inner}.in_proj_bias", [3 * width]).astype(np.float64)
    block = {}
    for index, part in enumerate(("query", "key", "value")):
        # Two Linears in a row are one: W2 (W1 x + b1) + b2.
        rows = slice(index * width, (index + 1) * width)
        weight = weights.take(join(prefix, f"_{part}.weight"), [width, sequence.width()]).astype(np.float64)
        bias = weights.take(join(prefix, f"_{part}.bias"), [width]).astype(np.float64)
        block[part] = builder.dense(f"{name}.{part}", joint_weight[rows] @ sequence.kept(weight),
                                    joint_weight[rows] @ bias + joint_bias[rows])
    block["out"] = builder.dense(f"{name}.out", weights.take(f"{inner}.out_proj.weight", [width, width]),
                                 weights.take(f"{inner}.out_proj.bias", [width]))
    builder.layer(f"{name}.attention", "selfAttention", inputs=sequence.names(), blocks=[block], heads=heads,
                  wiring="BARE", causal=False, inputScale=1.0)
    builder.layer(name, "pooling", inputs=[f"{name}.attention"], method="MEAN", empty="ZEROS")
    return Columns([(name, width)])


def _target_attention(builder, name, query, sequence, normalization, **score):
    builder.layer(name, "targetAttention", query=query.names(), keys=sequence.names(), values=sequence.names(),
                  normalization=normalization, empty="ZEROS", scale=1.0, **score)


def _score_layers(builder, weights, prefix, name, width, attention):
    """An MLP and the Linear to one number behind it."""
    layers = dense_layers(builder, weights, join(prefix, "mlp"), name, Columns([("", width)]), attention, 3)
    weight = weights.take(join(prefix, "linear.weight"), [1, attention.hidden_units[-1]])
    return [*layers, builder.dense(f"{name}.linear", weight, weights.take(join(prefix, "linear.bias"), [1]))]


def _narrower(prefix, query, sequence):
    if query.width() > sequence.width():
        raise ImportRefused(
            f'"{prefix}": expected a query no wider than the sequence, {sequence.width()}, got {query.width()}')
    return sequence.width() - query.width()


def _set(message):
    return {key: value for key, value in message.items() if value is not None}
