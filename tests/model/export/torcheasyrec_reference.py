"""What TorchEasyRec's MLPs and sequence encoders compute, in plain PyTorch over a state dict."""

import torch
from torch import nn

from dinghy_export.importers.weights import Weights


class State:
    """Random tensors, made when they are first asked for."""
    def __init__(self, seed=1):
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors = {}

    def __call__(self, name, *shape):
        if name not in self.tensors:
            values = torch.randn(shape, generator=self.generator, dtype=torch.float64) * 0.5
            if name.endswith("running_var"):
                values = values.abs() + 0.3
            self.tensors[name] = values.float().double()
        assert tuple(self.tensors[name].shape) == shape
        return self.tensors[name]

    def weights(self):
        return Weights({name: tensor.float().numpy() for name, tensor in self.tensors.items()})


def linear(state, name, x, rows, bias=True):
    y = x @ state(f"{name}.weight", rows, x.shape[-1]).T
    return y + state(f"{name}.bias", rows) if bias else y


def norm(state, name, x, affine=True):
    width = x.shape[-1]
    x = (x - state(f"{name}.running_mean", width)) / torch.sqrt(state(f"{name}.running_var", width) + 1e-5)
    return x * state(f"{name}.weight", width) + state(f"{name}.bias", width) if affine else x


def mlp(state, name, x, spec, dim=2):
    for index, rows in enumerate(spec.hidden_units):
        step = f"{name}.mlp.{index}.perceptron"
        x = linear(state, f"{step}.0", x, rows, spec.bias and not spec.use_bn)
        place = 1
        if spec.use_bn:
            x = norm(state, f"{step}.{1 if dim == 2 else 2}", x)
            place = 2 if dim == 2 else 4
        if spec.use_ln:
            x = nn.functional.layer_norm(x, [rows], state(f"{step}.1.weight", rows), state(f"{step}.1.bias", rows),
                                         1e-5)
            place = 2
        if spec.activation == "Dice":
            p = torch.sigmoid(norm(state, f"{step}.{place}.bn", x, affine=False))
            x = p * x + state(f"{step}.{place}.alpha", rows) * (1 - p) * x
        elif spec.activation == "nn.PReLU":
            x = nn.functional.prelu(x, state(f"{step}.{place}.weight", 1))
        elif spec.activation:
            x = eval(spec.activation if "(" in spec.activation else f"{spec.activation}()", {"nn": nn})(x)
    return x


def din(state, name, query, sequence, spec):
    """query [width], sequence [behaviors, width]."""
    if len(sequence) == 0:
        sequence = torch.zeros(1, sequence.shape[1], dtype=torch.float64)  # a pad, of weight 1
    query = torch.cat([query, torch.zeros(sequence.shape[1] - len(query), dtype=torch.float64)]).expand_as(sequence)
    x = mlp(state, f"{name}.mlp" if name else "mlp", torch.cat([query, sequence, query - sequence, query * sequence],
                                                               1), spec, 3)
    scores = linear(state, f"{name}.linear" if name else "linear", x, 1)[:, 0]
    return torch.softmax(scores, 0) @ sequence


def multi_window(state, name, query, sequence, spec, windows):
    padded = torch.cat([query, torch.zeros(sequence.shape[1] - len(query), dtype=torch.float64)])
    queries = padded.expand_as(sequence)
    x = linear(state, f"{name}.linear",
               mlp(state, f"{name}.mlp", torch.cat([sequence, queries * sequence, queries], 1), spec, 3), 1)
    weighted = nn.functional.prelu(x, state(f"{name}.active.weight", 1)) * sequence
    pieces, begin = [], 0
    for window in windows:
        piece = weighted[begin:begin + window]
        pieces.append(piece.sum(dim=0) / max(1, len(piece)))
        begin += window
    return torch.cat([*pieces, padded])


def self_attention(state, name, sequence, width, heads):
    if len(sequence) == 0:
        return torch.zeros(width, dtype=torch.float64)
    rows = [linear(state, f"{name}._{part}", sequence, width)[:, None] for part in ("query", "key", "value")]
    inner = f"{name}._multihead_attn"
    mixed, _ = nn.functional.multi_head_attention_forward(*rows, width, heads,
                                                          state(f"{inner}.in_proj_weight", 3 * width, width),
                                                          state(f"{inner}.in_proj_bias", 3 * width), None, None, False,
                                                          0.0, state(f"{inner}.out_proj.weight", width, width),
                                                          state(f"{inner}.out_proj.bias", width), training=False)
    return mixed[:, 0].sum(dim=0) / len(sequence)
