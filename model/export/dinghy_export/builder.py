"""Builds what a bundle holds, layer by layer: the manifest and its tensors.

    b = Builder("books", item_feature="item")
    b.table("item", weights["item_emb.weight"])
    b.sequence("reads", ["read"], max_length=50, keep="NEWEST", pad="NONE")
    b.feature(features.id_feature("item", "CANDIDATE", "item", features.identity(1002)))
    b.feature(features.id_feature("reads.item", "SEQUENCE", "item", features.identity(1002), source="EVENT"))
    b.layer("interest", "targetAttention", query=["item"], keys=["reads.item"], values=["reads.item"], dot={},
            normalization="SOFTMAX", empty="ZEROS", scale=0.25)
    b.layer("tower", "mlp", inputs=["interest", "item"], layers=[b.dense("tower.0", w0, b0, "RELU"), b.dense("tower.1", w1, b1)])
    b.output("click", "tower")
    built = b.build(provenance("PyTorch 1.13", "clicks of May", "2024-06-01T08:00:00Z"))

Weights are float arrays (NumPy, or PyTorch tensors and parameters), shaped as PyTorch keeps them: a linear layer's is
[out, in]. The methods that take them return the message that names them; fields are those of proto/bundle.proto in its
JSON form. Nothing is defaulted here that trainers do differently.
"""

from dataclasses import dataclass, field

import numpy as np

from dinghy_export.features import FeatureEncoder

FORMAT_VERSION = 1


@dataclass
class Built:
    """All that a bundle holds but its golden requests, as write_bundle takes it."""

    manifest: dict  # BundleManifest
    tensors: dict  # name -> float32 array
    catalog: dict = None  # Catalog
    vocabularies: dict = field(default_factory=dict)  # path -> tokens
    notes: list = field(default_factory=list)  # what a user should know: decisions, things left out
    expected: list = field(default_factory=list)  # ScoreLogs: requests, and outputs that the trained model itself gave

    def encoder(self) -> FeatureEncoder:
        manifest = self.manifest
        return FeatureEncoder(manifest["sequences"], manifest["features"], manifest["itemFeature"], self.catalog,
                              self.vocabularies)


class Builder:
    def __init__(self, name, item_feature):
        self.name = name
        self.item_feature = item_feature
        self.tensors = {}
        self.tables = []
        self.sequences = []
        self.features = []
        self.layers = []
        self.outputs = []
        self.catalog = None
        self.vocabularies = {}
        self.notes = []

    # --- Weights ----------------------------------------------------------------------------------------------------

    def tensor(self, name, values, shape=None) -> str:
        """Keeps an array as float32 under `name`, and returns the name. `shape`: what it must be; None: any."""
        array = _array(values)
        if array.dtype.kind != "f":
            raise ValueError(f'tensor "{name}": expected floats, got {array.dtype}')
        if shape is not None and array.shape != tuple(shape):
            raise ValueError(f'tensor "{name}": expected shape {list(shape)}, got {list(array.shape)}')
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(array, dtype=np.float32)
        if not np.isfinite(array).all():
            raise ValueError(f'tensor "{name}": expected finite float32 numbers, got {_first_bad(array)}')
        if name in self.tensors:
            raise ValueError(f'tensor "{name}": expected a name of its own, got one that is taken')
        self.tensors[name] = array
        return name

    def dense(self, prefix, weight, bias=None, activation="LINEAR", norm=None, parameters=None) -> dict:
        """Dense. `norm`: a BatchNorm message; `parameters`: ActivationParameters."""
        weight = _array(weight)
        if weight.ndim != 2:
            raise ValueError(f'tensor "{prefix}.weight": expected shape [out, in], got {list(weight.shape)}')
        message = {"weight": self.tensor(f"{prefix}.weight", weight), "bias": "", "activation": activation}
        if bias is not None:
            message["bias"] = self.tensor(f"{prefix}.bias", bias, [weight.shape[0]])
        if norm is not None:
            message["norm"] = norm
        if parameters is not None:
            message["parameters"] = parameters
        return message

    def batch_norm(self, prefix, mean, variance, weight=None, bias=None, *, epsilon) -> dict:
        """BatchNorm with its running statistics; `weight` and `bias` None: not affine."""
        width = [_array(mean).shape[0]]
        if (_array(variance) < 0).any():
            raise ValueError(f'tensor "{prefix}.variance": expected no negative variance, got one')
        return {
            "mean": self.tensor(f"{prefix}.mean", mean, width),
            "variance": self.tensor(f"{prefix}.variance", variance, width),
            "weight": "" if weight is None else self.tensor(f"{prefix}.weight", weight, width),
            "bias": "" if bias is None else self.tensor(f"{prefix}.bias", bias, width),
            "epsilon": epsilon,
        }

    def layer_norm(self, prefix, weight, bias, *, epsilon) -> dict:
        width = [_array(weight).shape[0]]
        return {
            "weight": self.tensor(f"{prefix}.weight", weight, width),
            "bias": self.tensor(f"{prefix}.bias", bias, width),
            "epsilon": epsilon,
        }

    def dice(self, prefix, alpha, norm=None) -> dict:
        """ActivationParameters of DICE; `alpha` of any shape with one number, or one a column."""
        parameters = {"alpha": self.tensor(f"{prefix}.alpha", _array(alpha).reshape(-1))}
        if norm is not None:
            parameters["norm"] = norm
        return parameters

    def prelu(self, prefix, alpha) -> dict:
        """ActivationParameters of PRELU."""
        return {"alpha": self.tensor(f"{prefix}.alpha", _array(alpha).reshape(-1))}

    # --- The manifest -----------------------------------------------------------------------------------------------

    def table(self, name, weight) -> str:
        """An embedding table [rows, dim]."""
        weight = _array(weight)
        if weight.ndim != 2:
            raise ValueError(f'table "{name}": expected shape [rows, dim], got {list(weight.shape)}')
        self.tables.append({"name": name, "tensor": self.tensor(f"{name}.weight", weight), "dim": weight.shape[1]})
        return name

    def sequence(self, name, actions, max_length, *, keep, pad, skip_pad_of=None) -> str:
        message = {"name": name, "actions": list(actions), "maxLength": max_length, "keep": keep, "pad": pad}
        if skip_pad_of is not None:
            message["skipPadOf"] = skip_pad_of
        self.sequences.append(message)
        return name

    def feature(self, message) -> str:
        """A Feature as dinghy_export.features makes them."""
        self.features.append(message)
        return message["name"]

    def layer(self, name, kind, *, inputs=None, **message) -> str:
        """A layer of a kind of proto/bundle.proto ("dense", "targetAttention"), with that message's fields. Fields that
        are None are left out."""
        layer = {"name": name}
        if inputs is not None:
            layer["inputs"] = list(inputs)
        layer[kind] = {key: value for key, value in message.items() if value is not None}
        self.layers.append(layer)
        return name

    def output(self, name, layer, link="SIGMOID", **calibration) -> str:
        """`calibration`: one of negativeDownsampling, platt and piecewiseLinear, with its message."""
        self.outputs.append({"name": name, "input": layer, "link": link, **calibration})
        return name

    def build(self, provenance) -> Built:
        """`provenance`: as dinghy_export.manifest.provenance makes it."""
        manifest = {
            "formatVersion": FORMAT_VERSION,
            "name": self.name,
            "provenance": provenance,
            "sequences": self.sequences,
            "features": self.features,
            "tables": self.tables,
            "layers": self.layers,
            "outputs": self.outputs,
            "itemFeature": self.item_feature,
        }
        return Built(manifest, self.tensors, self.catalog, self.vocabularies, self.notes)


def _array(values):
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def _first_bad(array):
    return array[~np.isfinite(array)].flat[0]
