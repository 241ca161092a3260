"""Layers of dinghy_export.evaluate that take one row at a time: x is float64 [rows, width]; `tensor` finds a tensor by
its name; messages are those of proto/bundle.proto.

    dense({"weight": "w", "bias": "", "activation": "RELU"}, x, tensors.get)
"""

import math

import numpy as np


def sigmoid(x):
    with np.errstate(over="ignore"):
        return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), 1 - 1 / (1 + np.exp(-np.abs(x))))


def round_to_bf16(x):
    """Float64 to the nearest bfloat16, by way of float32, ties to even; as float64."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.nan, rounded.view(np.float32).astype(np.float64))


def dense(message, x, tensor):
    weight = tensor(message["weight"])
    if weight.shape[1] != x.shape[1]:
        raise ValueError(f'{message["weight"]}: expected {x.shape[1]} columns, got {weight.shape[1]}')
    result = x @ weight.T
    if message["bias"]:
        result = result + tensor(message["bias"])
    if "norm" in message:
        result = batch_norm(message["norm"], result, tensor)
    return activate(message["activation"], message.get("parameters", {}), result, tensor)


def batch_norm(message, x, tensor):
    result = (x - tensor(message["mean"])) / np.sqrt(tensor(message["variance"]) + message["epsilon"])
    if message["weight"]:
        result = result * tensor(message["weight"])
    if message["bias"]:
        result = result + tensor(message["bias"])
    return result


def layer_norm(message, x, tensor):
    mean = x.mean(axis=1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + message["epsilon"]) * tensor(message["weight"]) + tensor(message["bias"])


def activate(name, parameters, x, tensor):
    """`parameters`: ActivationParameters, {} where there are none."""
    if name == "LINEAR":
        return x
    if name == "RELU":
        return np.maximum(x, 0)
    if name == "SIGMOID":
        return sigmoid(x)
    if name == "TANH":
        return np.tanh(x)
    if name == "SILU":
        return x * sigmoid(x)
    if name == "LEAKY_RELU":
        return np.where(x > 0, x, parameters["slope"] * x)
    if name == "PRELU":
        return np.where(x > 0, x, tensor(parameters["alpha"]) * x)
    if name == "DICE":
        p = sigmoid(batch_norm(parameters["norm"], x, tensor) if "norm" in parameters else x)
        return p * x + tensor(parameters["alpha"]) * (1 - p) * x
    if name == "GELU_ERF":
        return x * np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)), otypes=[np.float64])(x)
    if name == "GELU_TANH":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    raise ValueError(f"activation {name} is not known")
