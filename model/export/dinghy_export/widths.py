"""The widths of a Builder's features and layers, so that a wrong one is named while the bundle is built.

    width_of(b, ["item", "category"])    # floats a row of their concatenation
"""

from dinghy_export import features


def width_of(b, names) -> int:
    """Floats a row of the concatenation of features and layers of `b`. Raises ValueError for an unknown name."""
    return sum(_width(b, name) for name in names)


def _width(b, name):
    for feature in b.features:
        if feature["name"] == name:
            return features.width(feature, {table["name"]: table["dim"] for table in b.tables})
    for layer in b.layers:
        if layer["name"] == name:
            kind = next(key for key in layer if key not in ("name", "inputs"))
            return _layer_width(b, layer, kind, layer[kind])
    raise ValueError(f'"{name}": expected a feature or layer of the builder, got none of that name')


def _layer_width(b, layer, kind, message):
    if kind == "dense":
        return _rows(b, message["weight"])
    if kind == "mlp":
        return _rows(b, message["layers"][-1]["weight"])
    if kind in ("add", "multiply"):
        return width_of(b, message["terms"][0]["inputs"])
    if kind == "dot":
        return 1
    if kind == "selfAttention":
        return _rows(b, message["blocks"][-1]["out"]["weight"])
    if kind == "targetAttention":
        windows = len(message["windows"]["sizes"]) if "windows" in message else 1
        if "latent" in message:
            return windows * _rows(b, message["latent"]["valueUp"])
        heads = message.get("heads", 1)
        return windows * width_of(b, message["values"]) // message.get("keyValueHeads", heads) * heads
    return width_of(b, layer["inputs"])  # layerNorm, batchNorm, activation, pooling


def _rows(b, tensor):
    return b.tensors[tensor].shape[0]
