"""PyTorch modules mapped onto layers: the manifest's interpreter gives what the module gives, and what cannot be mapped
is refused by name."""

import unittest
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize, spectral_norm, weight_norm

from dinghy_export import features
from dinghy_export.builder import Builder
from dinghy_export.evaluate import evaluate
from dinghy_export.importers.weights import ImportRefused
from dinghy_export.manifest import provenance
from dinghy_export.modules import Modules

WIDTH, LONGEST = 6, 9


def shaken(module, seed=5):
    """The module in evaluation mode, with no weight or statistic left as it was initialised."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d) and part.running_mean is not None:
                part.running_mean.copy_(torch.randn(part.num_features, generator=generator))
                part.running_var.copy_(torch.rand(part.num_features, generator=generator) + 0.3)
    return module.eval()


def vector_builder(**sequence):
    """A builder whose candidates are vectors "x", and whose behaviors are vectors "s.x"."""
    b = Builder("test", item_feature="item")
    b.sequence("s", ["view"], LONGEST, keep="NEWEST", pad=sequence.get("pad", "NONE"))
    b.feature(features.vector_feature("x", "CANDIDATE", WIDTH))
    b.feature(features.vector_feature("s.x", "SEQUENCE", WIDTH, source="EVENT"))
    return b, Modules(b, activations={Dice: dice})


def values_of(b, layer, x=None, behaviors=None):
    """What the manifest says of a layer, float64."""
    built = b.build(provenance("PyTorch", "", "2024-06-01T08:00:00Z"))
    encoded = features.Encoded({"x": np.zeros((1, WIDTH)) if x is None else x,
                                "s.x": np.zeros((0, WIDTH)) if behaviors is None else behaviors},
                               {"s": 0 if behaviors is None else len(behaviors)}, 1 if x is None else len(x))
    return evaluate(built.manifest, built.tensors, encoded).values[layer]


def rows(count, seed=3):
    return np.random.RandomState(seed).randn(count, WIDTH)


def run(module, *inputs, **options):
    with torch.no_grad():
        return module.double()(*(torch.from_numpy(x) for x in inputs), **options)


class Dice(nn.Module):
    """An activation of one's own."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=1e-9, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        p = torch.sigmoid(self.norm(x))
        return p * x + self.alpha * (1 - p) * x


def dice(b, prefix, module):
    return "DICE", b.dice(prefix, module.alpha, Modules(b).batch_norm(f"{prefix}.norm", module.norm))


class RowTest(unittest.TestCase):
    def check(self, module, inputs=7):
        shaken(module)
        b, m = vector_builder()
        m.layer("y", module, ["x"])
        x = rows(inputs)
        np.testing.assert_allclose(values_of(b, "y", x), run(module, x).numpy(), rtol=0, atol=1e-6)
        return b

    def test_activations(self):
        for module in (nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.LeakyReLU(0.2), nn.PReLU(), nn.PReLU(WIDTH),
                       nn.GELU(), nn.GELU("tanh"), Dice(WIDTH)):
            with self.subTest(repr(module)):
                self.check(module)
                b = self.check(nn.Sequential(nn.Linear(WIDTH, WIDTH), module))
                self.assertEqual(len(b.layers[0]["mlp"]["layers"]), 1)

    def test_norms_and_linear(self):
        for module in (nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4, bias=False), nn.BatchNorm1d(WIDTH, eps=1e-3),
                       nn.BatchNorm1d(WIDTH, affine=False), nn.LayerNorm(WIDTH, eps=1e-3),
                       nn.LayerNorm(WIDTH, elementwise_affine=False)):
            with self.subTest(repr(module)):
                self.check(module)

    def test_sequential(self):
        tower = nn.Sequential(
            nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), Dice(8), nn.Dropout(0.5)),
            nn.Linear(8, 5, bias=False), nn.Identity(), nn.BatchNorm1d(5), nn.Linear(5, 3), nn.PReLU(3),
            nn.Linear(3, 1), nn.Sigmoid())
        b = self.check(tower)
        self.assertEqual([layer["activation"] for layer in b.layers[0]["mlp"]["layers"]],
                         ["DICE", "LINEAR", "PRELU", "SIGMOID"])

    def test_half_precision_weights(self):
        """They are float32 numbers as they stand."""
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            self.check(shaken(nn.Linear(WIDTH, 3)).to(dtype))

    def test_tables(self):
        b, m = vector_builder()
        table = shaken(nn.Embedding(5, 3, padding_idx=2))
        m.table("plain", table)
        np.testing.assert_array_equal(b.tensors["plain.weight"], table.weight.detach().numpy())
        bag = shaken(nn.EmbeddingBag(5, 3, mode="sum", padding_idx=2))
        m.table("bag", bag)
        self.assertEqual(run(bag, np.array([[1, 2, 4]])).numpy().tolist(),
                         b.tensors["bag.weight"][[1, 2, 4]].astype(np.float64).sum(0, keepdims=True).tolist())
        self.assertEqual(b.notes, [])
        with self.assertRaisesRegex(ValueError, 'mean.*expected padding_idx None with mode mean, got 2'):
            m.table("mean", shaken(nn.EmbeddingBag(5, 3, mode="mean", padding_idx=2)))


class EncoderTest(unittest.TestCase):
    def check(self, module, lengths=(1, 2, LONGEST), **options):
        """Unpadded, causal and not; and padded on the right with masked pads."""
        shaken(module)
        for causal in (False, True):
            for pad in ("NONE", "RIGHT"):
                b, m = vector_builder(pad=pad)
                if pad == "RIGHT":
                    options = {**options, "pads": "MASKED"}
                m.self_attention("y", module, ["s.x"], causal=causal, **options)
                for length in lengths:
                    x = rows(length)
                    expected = self.reference(module, x, causal, pad)
                    np.testing.assert_allclose(values_of(b, "y", behaviors=x), expected, rtol=0, atol=2e-6)

    @staticmethod
    def reference(module, x, causal, pad):
        slots = LONGEST if pad == "RIGHT" else len(x)
        padded = np.concatenate([x, np.full((slots - len(x), WIDTH), 0.7)])[:, None]
        future = torch.full((slots, slots), float("-inf")).triu(1).double() if causal else None
        hidden = torch.arange(slots)[None] >= len(x)
        if isinstance(module, nn.MultiheadAttention):
            result = run(module, padded, padded, padded, attn_mask=future, key_padding_mask=hidden)[0]
        elif isinstance(module, nn.TransformerEncoder):
            result = run(module, padded, mask=future, src_key_padding_mask=hidden)
        else:
            result = run(module, padded, src_mask=future, src_key_padding_mask=hidden)
        return result[: len(x), 0].numpy()

    def test_multi_head_attention(self):
        for heads, bias in ((1, True), (2, False), (3, True)):
            self.check(nn.MultiheadAttention(WIDTH, heads, bias=bias, dropout=0.3))

    def test_encoder_layers(self):
        for norm_first in (False, True):
            for activation in ("relu", "gelu", nn.GELU()):
                self.check(nn.TransformerEncoderLayer(WIDTH, 2, 10, activation=activation, norm_first=norm_first,
                                                      layer_norm_eps=1e-3))

    def test_encoder(self):
        layer = nn.TransformerEncoderLayer(WIDTH, 3, 8, norm_first=True)
        self.check(nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False))
        self.check(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))

    def test_positions_and_scale(self):
        module, positions = shaken(nn.TransformerEncoderLayer(WIDTH, 2, 7)), shaken(nn.Embedding(LONGEST, WIDTH))
        norm = shaken(nn.LayerNorm(WIDTH), 8)
        b, m = vector_builder()
        m.self_attention("y", module, ["s.x"], causal=True, input_scale=3.0, input_norm=norm,
                         positions=m.positions("places", positions, origin="FROM_OLDEST"))
        x = rows(5)
        placed = run(norm, x * 3 + positions.weight.detach().double().numpy()[:5]).numpy()
        expected = self.reference(module, placed, True, "NONE")
        np.testing.assert_allclose(values_of(b, "y", behaviors=x), expected, rtol=0, atol=2e-6)


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class RefusalTest(unittest.TestCase):
    def refused(self, module, message, call=None):
        _, m = vector_builder()
        with self.assertRaisesRegex(ImportRefused, message):
            (call or (lambda m: m.layer("y", module, ["x"])))(m)

    def test_what_no_layer_computes(self):
        self.refused(nn.GRU(WIDTH, 4), 'module "y": expected Linear, BatchNorm1d, LayerNorm, got torch.nn.GRU; no')
        self.refused(nn.Sequential(nn.Linear(WIDTH, 3), nn.Softmax(1)), r'"y.1": expected Linear.*got torch.nn.Softmax')
        self.refused(nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(), nn.BatchNorm1d(3)).eval(),
                     r'module "y.2": expected linear layers, each followed by at most a batch norm and then an '
                     "activation, got torch.nn.BatchNorm1d; add the parts one by one with Modules.layer")
        self.refused(nn.Sequential(nn.Linear(WIDTH, 3), nn.ReLU(), nn.Tanh()), r'module "y.2": .*got torch.nn.Tanh')
        self.refused(nn.Sequential(), 'module "y": expected at least one linear layer, got 0 modules without one')
        self.refused(Scaled(WIDTH, 3), 'module "y": expected torch\'s own Linear, got Scaled with a forward of its own')
        self.refused(nn.DataParallel(nn.Linear(WIDTH, 3)), 'expected the module itself, got .*DataParallel; take its')

    def test_batch_statistics(self):
        self.refused(nn.BatchNorm1d(WIDTH, track_running_stats=False).eval(),
                     r'module "y": expected running statistics, got track_running_stats=False; it normalises by the')
        self.refused(nn.BatchNorm1d(WIDTH), 'expected evaluation mode, got torch.nn.BatchNorm1d in training mode; call')
        self.refused(nn.Sequential(nn.Linear(WIDTH, 3), nn.Dropout(0.1)),
                     r'module "y.1": expected evaluation mode, got torch.nn.Dropout in training mode')
        attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1)
        self.refused(None, 'module "y": expected evaluation mode, got torch.nn.MultiheadAttention in training mode',
                     lambda m: m.self_attention("y", attention, ["s.x"], causal=True))

    def test_what_is_not_in_the_weights(self):
        hooked = nn.Linear(WIDTH, 3)
        hooked.register_forward_hook(lambda module, inputs, output: output * 2)
        for module in (hooked, spectral_norm(nn.Linear(WIDTH, 3)), weight_norm(nn.Linear(WIDTH, 3))):
            self.refused(module, 'module "y": expected no hooks, got 1 forward hooks')
        halved = nn.Linear(WIDTH, 3)
        parametrize.register_parametrization(halved, "weight", nn.Identity())
        self.refused(halved, 'module "y": expected plain weights, got parametrizations of weight; call torch.nn.utils')
        replaced = nn.Linear(WIDTH, 3)
        replaced.forward = lambda x: x
        self.refused(replaced, "with a forward of its own")
        with warnings.catch_warnings(record=True):
            self.refused(nn.LazyLinear(3), 'module "y": expected weights, got a lazy module that has seen no data')
        self.refused(nn.Linear(WIDTH, 3, device="meta"), "expected weights, got a tensor of device meta")

    def test_widths(self):
        self.refused(nn.Linear(4, 3), 'module "y": expected a linear layer of 6 inputs, got 4')
        self.refused(nn.LayerNorm(4), 'module "y": expected inputs of width 4, got 6')
        self.refused(nn.Sequential(nn.Linear(WIDTH, 3), nn.PReLU(2)), r'expected 1 or 3 parameters, got 2')
        self.refused(nn.LayerNorm((2, WIDTH)), "expected a norm over the last axis, got normalized_shape")

    def test_attention_options(self):
        def attend(module):
            return lambda m: m.self_attention("y", module.eval(), ["s.x"], causal=True)

        self.refused(None, "expected add_bias_kv=False", attend(nn.MultiheadAttention(WIDTH, 2, add_bias_kv=True)))
        self.refused(None, "expected add_zero_attn=False", attend(nn.MultiheadAttention(WIDTH, 2, add_zero_attn=True)))
        self.refused(None, "self-attention, whose query, key and value are as wide",
                     attend(nn.MultiheadAttention(WIDTH, 2, kdim=3)))
        self.refused(None, "expected activation relu or gelu, got tanh",
                     attend(nn.TransformerEncoderLayer(WIDTH, 2, 4, activation=torch.tanh)))

    def test_tables(self):
        self.refused(None, 'module "t": expected max_norm None, got 1.0',
                     lambda m: m.table("t", nn.Embedding(3, 2, max_norm=1.0)))
        self.refused(None, "expected mode sum or mean, got max",
                     lambda m: m.table("t", nn.EmbeddingBag(3, 2, mode="max")))

    def test_numbers_that_float32_does_not_hold(self):
        module = nn.Linear(WIDTH, 3).double()
        with torch.no_grad():
            module.weight[0, 0] = 1e39
        _, m = vector_builder()
        with self.assertRaisesRegex(ValueError, 'tensor "y.0.weight": expected finite float32 numbers, got inf'):
            m.layer("y", module, ["x"])


if __name__ == "__main__":
    unittest.main()
