"""Maps PyTorch modules onto a Builder's tables and layers, so that a module of your own becomes a bundle.

    b = Builder("books", item_feature="item")
    m = Modules(b)
    m.table("item", net.item_embedding)              # nn.Embedding, nn.EmbeddingBag
    ...                                              # b.sequence, b.feature
    m.cross_attention("interest", net.attention, query=["item"], keys=["reads.item"], empty="ZEROS")
    m.layer("tower", net.tower, inputs=["interest", "item"])     # nn.Sequential and the modules below
    b.output("click", "tower")

`layer` takes nn.Linear, nn.Sequential of linear layers, each with its batch norm and activation, nn.BatchNorm1d,
nn.LayerNorm and the activations; `cross_attention` nn.MultiheadAttention; `self_attention` that,
nn.TransformerEncoderLayer and nn.TransformerEncoder. Whatever else a module computes is added with b.layer or
dinghy_export.attention, from its weights. Modules are read as they compute in evaluation mode, and refused
(ImportRefused) where that is not what they hold: batch norm without running statistics, modules left in training mode,
hooks, parametrizations, classes with a forward of their own.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from dinghy_export.attention import multi_head
from dinghy_export.importers.weights import ImportRefused
from dinghy_export.widths import width_of

_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
_PLAIN = {nn.ReLU: "RELU", nn.Sigmoid: "SIGMOID", nn.Tanh: "TANH", nn.SiLU: "SILU"}
_ACTIVATIONS = (*_PLAIN, nn.LeakyReLU, nn.PReLU, nn.GELU)
_NOTHING = (nn.Identity, nn.Dropout)  # in evaluation mode


class Modules:
    def __init__(self, builder, activations=None):
        """`activations`: for classes of your own, such as a Dice: class -> function (builder, prefix, module) that
        returns the name of the Activation and its ActivationParameters or None."""
        self.builder = builder
        self._own = dict(activations or {})

    # --- Tables and layers ------------------------------------------------------------------------------------------

    def table(self, name, module) -> str:
        """An embedding table of nn.Embedding or nn.EmbeddingBag (mode sum or mean, as its features say)."""
        self._check(name, module, nn.Embedding, nn.EmbeddingBag)
        if module.max_norm is not None:
            raise _refused(name, "max_norm None", module.max_norm, "store the rows with their norm limited")
        weight = _values(name, module.weight)
        if isinstance(module, nn.EmbeddingBag):
            if module.mode not in ("sum", "mean"):
                raise _refused(name, "mode sum or mean", module.mode)
            if module.padding_idx is not None:
                weight = self._bag_without_padding(name, module, weight)
        return self.builder.table(name, weight)

    def layer(self, name, module, inputs) -> str:
        """A layer that takes one row at a time: dense, mlp, batchNorm, layerNorm or activation."""
        b = self.builder
        if isinstance(module, nn.Sequential):
            return b.layer(name, "mlp", inputs=inputs, layers=self._mlp(name, module, width_of(b, inputs)))
        if self._is_activation(module):
            function, parameters = self._activation(name, module, width_of(b, inputs))
            return b.layer(name, "activation", inputs=inputs, function=function, parameters=parameters)
        self._check(name, module, nn.Linear, nn.BatchNorm1d, nn.LayerNorm)
        if isinstance(module, nn.Linear):
            return b.layer(name, "dense", inputs=inputs, **self._mlp(name, module, width_of(b, inputs))[0])
        message = self.batch_norm(name, module) if isinstance(module, nn.BatchNorm1d) else self.layer_norm(name, module)
        width = b.tensors[message.get("mean") or message["weight"]].shape[0]
        if width != width_of(b, inputs):
            raise _refused(name, f"inputs of width {width}", width_of(b, inputs))
        return b.layer(name, "batchNorm" if "mean" in message else "layerNorm", inputs=inputs, **message)

    def cross_attention(self, name, module, query, keys, values=None, *, empty, mask=None) -> str:
        """nn.MultiheadAttention of a query over a history whose pad behaviors are masked, as dinghy_export.attention's
        multi_head. `mask`: the score of pad behaviors where a float mask was added; None: a bool mask, or none. Where
        every behavior is masked PyTorch gives NaN: say what your module makes of it."""
        parts = self._attention(name, module)
        return multi_head(self.builder, name, query, keys, values, heads=module.num_heads, empty=empty, mask=mask,
                          query_projection=parts["query"], key_projection=parts["key"],
                          value_projection=parts["value"], out_projection=parts["out"])

    def self_attention(self, name, module, inputs, *, causal, pads=None, input_scale=1.0, positions=None,
                       sinusoidal=None, input_norm=None, window=None) -> str:
        """nn.MultiheadAttention alone, nn.TransformerEncoderLayer or nn.TransformerEncoder over one sequence. `pads`:
        MASKED where src_key_padding_mask hid them, ATTENDED or ZEROED; needed where the sequence has pads. `positions`:
        as self.positions makes them; `input_norm`: an nn.LayerNorm after them."""
        self._check(name, module, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
        layers = list(module.layers) if isinstance(module, nn.TransformerEncoder) else [module]
        described = [self._block(f"{name}.{index}", layer) for index, layer in enumerate(layers)]
        kinds = {(wiring, heads) for _, wiring, heads in described}
        if len(kinds) != 1:
            raise _refused(name, "layers of one norm_first and one number of heads", f"{len(kinds)} kinds")
        (wiring, heads), = kinds
        width = self.builder.tensors[described[0][0]["query"]["weight"]].shape[1]
        if width != width_of(self.builder, inputs):
            raise _refused(name, f"inputs of width {width}", width_of(self.builder, inputs))
        final = module.norm if isinstance(module, nn.TransformerEncoder) else None
        return self.builder.layer(
            name, "selfAttention", inputs=inputs, blocks=[block for block, _, _ in described], heads=heads,
            wiring=wiring, causal=causal, inputScale=input_scale, pads=pads, positions=positions,
            sinusoidal=sinusoidal, window=window,
            inputNorm=None if input_norm is None else self.layer_norm(f"{name}.input_norm", input_norm),
            finalNorm=None if final is None else self.layer_norm(f"{name}.final_norm", final))

    # --- Messages, for b.layer --------------------------------------------------------------------------------------

    def dense_list(self, prefix, module) -> list:
        """Dense messages of an nn.Linear or nn.Sequential, for attention.din and other places that take an MLP."""
        return self._mlp(prefix, module, None)

    def batch_norm(self, prefix, module) -> dict:
        """A BatchNorm message of nn.BatchNorm1d."""
        self._check(prefix, module, nn.BatchNorm1d)
        if module.running_mean is None or module.running_var is None:
            raise _refused(prefix, "running statistics", "track_running_stats=False",
                           "it normalises by the batch, so that a score would depend on the other candidates")
        return self.builder.batch_norm(
            prefix, _values(prefix, module.running_mean), _values(prefix, module.running_var),
            _values(prefix, module.weight), _values(prefix, module.bias), epsilon=module.eps)

    def layer_norm(self, prefix, module) -> dict:
        """A LayerNorm message of nn.LayerNorm over the last axis. Without weight or bias: ones or zeros."""
        self._check(prefix, module, nn.LayerNorm)
        if len(module.normalized_shape) != 1:
            raise _refused(prefix, "a norm over the last axis", f"normalized_shape {tuple(module.normalized_shape)}")
        width = module.normalized_shape[0]
        weight, bias = _values(prefix, module.weight), _values(prefix, getattr(module, "bias", None))
        return self.builder.layer_norm(prefix, np.ones(width) if weight is None else weight,
                                       np.zeros(width) if bias is None else bias, epsilon=module.eps)

    def positions(self, prefix, module, *, origin, first_row=None, pad_row=None) -> dict:
        """LearnedPositions of an nn.Embedding or a parameter [rows, width]; `origin`: FROM_OLDEST, FROM_NEWEST or
        FROM_SLOT."""
        if isinstance(module, nn.Embedding):
            self._check(prefix, module, nn.Embedding)
            module = module.weight
        message = {"tensor": self.builder.tensor(prefix, _values(prefix, module)), "origin": origin}
        if first_row is not None:
            message["firstRow"] = first_row
        if pad_row is not None:
            message["padRow"] = pad_row
        return message

    # --- Below ------------------------------------------------------------------------------------------------------

    def _mlp(self, prefix, module, width):
        """Dense messages: linear layers, each with the batch norm and the activation behind it."""
        steps = list(self._steps(prefix, module))
        groups = []
        for path, step in steps:
            if isinstance(step, nn.Linear):
                self._check(path, step, nn.Linear)
                groups.append({"linear": (path, step)})
            elif isinstance(step, nn.BatchNorm1d) and groups and set(groups[-1]) == {"linear"}:
                groups[-1]["norm"] = (path, step)
            elif self._is_activation(step) and groups and "activation" not in groups[-1]:
                groups[-1]["activation"] = (path, step)
            elif isinstance(step, nn.BatchNorm1d) or self._is_activation(step):
                raise _refused(path, "linear layers, each followed by at most a batch norm and then an activation",
                               _kind(step), "add the parts one by one with Modules.layer")
            else:
                self._check(path, step, nn.Linear, nn.BatchNorm1d, *_ACTIVATIONS, *_NOTHING)
        if not groups:
            raise _refused(prefix, "at least one linear layer", f"{len(steps)} modules without one")
        return [self._dense(f"{prefix}.{index}", group, None if index else width) for index, group in enumerate(groups)]

    def _steps(self, path, module):
        """(path, module) in order, sequences opened, what does nothing left out."""
        if isinstance(module, nn.Sequential) and type(module) not in self._own:
            self._check(path, module, nn.Sequential)
            for name, child in module.named_children():
                yield from self._steps(f"{path}.{name}", child)
        elif isinstance(module, _NOTHING):
            self._check(path, module, *_NOTHING)
        else:
            yield path, module

    def _dense(self, prefix, group, width):
        path, linear = group["linear"]
        if width is not None and linear.in_features != width:
            raise _refused(path, f"a linear layer of {width} inputs", linear.in_features)
        norm, function, parameters = None, "LINEAR", None
        if "norm" in group:
            self._expect_width(group["norm"], group["norm"][1].num_features, linear.out_features)
            norm = self.batch_norm(f"{prefix}.norm", group["norm"][1])
        if "activation" in group:
            function, parameters = self._activation(f"{prefix}.activation", group["activation"][1], linear.out_features)
        weight, bias = _values(path, linear.weight), _values(path, linear.bias)
        return self.builder.dense(prefix, weight, bias, function, norm, parameters)

    @staticmethod
    def _expect_width(step, width, expected):
        if width != expected:
            raise _refused(step[0], f"width {expected}", width)

    def _is_activation(self, module):
        return type(module) in self._own or isinstance(module, _ACTIVATIONS)

    def _activation(self, prefix, module, width):
        """The name of the Activation, and its ActivationParameters or None."""
        own = self._own.get(type(module))
        if own is not None:
            self._check(prefix, module, type(module))
            return own(self.builder, prefix, module)
        self._check(prefix, module, *_ACTIVATIONS)
        if isinstance(module, nn.LeakyReLU):
            return "LEAKY_RELU", {"slope": module.negative_slope}
        if isinstance(module, nn.PReLU):
            if module.num_parameters not in (1, width):
                raise _refused(prefix, f"1 or {width} parameters", module.num_parameters)
            return "PRELU", self.builder.prelu(prefix, _values(prefix, module.weight))
        if isinstance(module, nn.GELU):
            return _gelu(module), None
        return next(name for kind, name in _PLAIN.items() if isinstance(module, kind)), None

    def _attention(self, path, module):
        """(weight, bias) of query, key, value and out."""
        self._check(path, module, nn.MultiheadAttention)
        if module.bias_k is not None or module.bias_v is not None:
            raise _refused(path, "add_bias_kv=False", True)
        if module.add_zero_attn:
            raise _refused(path, "add_zero_attn=False", True)
        packed = _values(path, module.in_proj_weight)
        if packed is None:
            weights = [_values(path, getattr(module, f"{part}_proj_weight")) for part in "qkv"]
        else:
            weights = np.split(packed, 3)
        bias = _values(path, module.in_proj_bias)
        biases = [None] * 3 if bias is None else np.split(bias, 3)
        parts = dict(zip(("query", "key", "value"), zip(weights, biases)))
        self._check(f"{path}.out_proj", module.out_proj, nn.Linear)
        parts["out"] = (_values(path, module.out_proj.weight), _values(path, module.out_proj.bias))
        return parts

    def _block(self, path, module):
        """A Block of self-attention, its wiring and its number of heads."""
        if isinstance(module, nn.MultiheadAttention):
            return self._projections(path, module), "BARE", module.num_heads
        self._check(path, module, nn.TransformerEncoderLayer)
        block = self._projections(path, module.self_attn)
        block["attentionNorm"] = self.layer_norm(f"{path}.norm1", module.norm1)
        block["ffnNorm"] = self.layer_norm(f"{path}.norm2", module.norm2)
        function = self._encoder_activation(path, module)
        block["ffn"] = [
            {**self._mlp(f"{path}.linear1", module.linear1, None)[0], "activation": function},
            self._mlp(f"{path}.linear2", module.linear2, None)[0],
        ]
        return block, "PRE_NORM" if module.norm_first else "POST_NORM", module.self_attn.num_heads

    def _projections(self, path, module):
        parts = self._attention(path, module)
        widths = {part: parts[part][0].shape[1] for part in ("query", "key", "value")}
        if len(set(widths.values())) != 1:
            raise _refused(path, "self-attention, whose query, key and value are as wide", f"kdim and vdim, {widths}")
        return {part: self.builder.dense(f"{path}.{part}", weight, bias) for part, (weight, bias) in parts.items()}

    def _encoder_activation(self, path, module):
        function = module.activation
        if function in (functional.relu, torch.relu):
            return "RELU"
        if function is functional.gelu:
            return "GELU_ERF"
        if isinstance(function, (nn.ReLU, nn.GELU)):
            return self._activation(f"{path}.activation", function, None)[0]
        raise _refused(path, "activation relu or gelu", getattr(function, "__name__", _kind(function)))

    def _bag_without_padding(self, name, module, weight):
        """PyTorch leaves a bag's ids of row padding_idx out: for a sum, as if the row were zero."""
        if module.mode == "sum":
            weight = weight.copy()
            weight[module.padding_idx] = 0
            return weight
        raise _refused(name, "padding_idx None with mode mean", module.padding_idx,
                       "Dinghy counts every id of a bag: pool a sequence, whose skip_pad_of leaves padding out")

    def _check(self, path, module, *kinds):
        """That the module is one of `kinds`, computes what its class does, and does so in evaluation mode."""
        if type(module).__name__ in _WRAPPERS:
            raise _refused(path, "the module itself", _kind(module), f"take its .{_WRAPPERS[type(module).__name__]}")
        for name, part in module.named_modules() if isinstance(module, nn.Module) else ():
            _check_state(f"{path}.{name}" if name else path, part)
        kind = next((kind for kind in kinds if isinstance(module, kind)), None)
        if kind is None:
            names = ", ".join(kind.__name__ for kind in kinds)
            raise _refused(path, names, _kind(module), "no layer is made of it; where it computes what layers can, add "
                           "them with Builder.layer or dinghy_export.attention")
        if type(module).forward is not kind.forward or "forward" in vars(module):
            raise _refused(path, f"torch's own {kind.__name__}", f"{_kind(module)} with a forward of its own")


def _check_state(path, module):
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        raise _refused(path, "weights", "a lazy module that has seen no data")
    if parametrize.is_parametrized(module):
        raise _refused(path, "plain weights", f"parametrizations of {', '.join(module.parametrizations)}",
                       "call torch.nn.utils.parametrize.remove_parametrizations first")
    hooks = len(module._forward_pre_hooks) + len(module._forward_hooks)
    if hooks:
        raise _refused(path, "no hooks", f"{hooks} forward hooks, as of weight_norm and spectral_norm",
                       "what they do is not in the weights; remove them first")
    if module.training and _differs_in_training(module):
        raise _refused(path, "evaluation mode", f"{_kind(module)} in training mode",
                       "call eval() on the whole module first")


def _differs_in_training(module):
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _values(path, tensor):
    """A numpy array of the tensor, None of None. bfloat16, which numpy does not have, becomes float32."""
    if tensor is None:
        return None
    if tensor.is_meta:
        raise _refused(path, "weights", "a tensor of device meta, which holds none")
    if not tensor.is_floating_point():
        raise _refused(path, "weights of floats", tensor.dtype)
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _gelu(module):
    if module.approximate not in ("none", "tanh"):
        raise ValueError(f"approximate: expected none or tanh, got {module.approximate}")
    return "GELU_TANH" if module.approximate == "tanh" else "GELU_ERF"


def _kind(module):
    kind = type(module)
    return f"torch.nn.{kind.__name__}" if kind.__module__.startswith("torch.nn.modules.") else kind.__name__


def _refused(path, expected, got, advice=""):
    return ImportRefused(f'module "{path}": expected {expected}, got {got}{"; " if advice else ""}{advice}')
