"""Attention families through the builder's functions, against PyTorch's own arithmetic: the manifest's interpreter
agrees, and the engine (`dinghy validate`, where DINGHY names the binary) accepts the bundle with PyTorch's scores as
its goldens."""

import math
import os
import subprocess
import tempfile
import unittest

import numpy as np
import torch
from torch.nn import functional

from dinghy_export import attention, features
from dinghy_export.builder import Builder
from dinghy_export.bundle import write_bundle
from dinghy_export.goldens import golden_requests_of, module_goldens
from dinghy_export.manifest import provenance
from dinghy_export.modules import Modules
from dinghy_export.widths import width_of

ROWS, ITEM, BRAND, LONGEST = 23, 8, 6, 7  # an item is ITEM wide, a behavior's brand BRAND


class Family:
    """A builder with one sequence; `b` grows the layer "interest", and PyTorch's side of it is `pooled`."""

    def __init__(self, seed, pad="NONE"):
        self.random = torch.Generator().manual_seed(seed)
        self.b = b = Builder("family", item_feature="item")
        self.items, self.brands = self.draw(ROWS, ITEM), self.draw(ROWS, BRAND)
        b.table("item", self.items)
        b.table("brand", self.brands)
        b.sequence("clicks", ["click"], LONGEST, keep="NEWEST", pad=pad)
        for name, level, table in (("item", "CANDIDATE", "item"), ("clicks.item", "SEQUENCE", "item"),
                                   ("clicks.brand", "SEQUENCE", "brand")):
            b.feature(features.id_feature(name, level, table, features.identity(ROWS), unknown="PAD_ROW", oov_row=None,
                                          negative="PAD_ROW", source="EVENT" if level == "SEQUENCE" else "REQUEST"))

    def draw(self, *shape):
        """Weights that keep every number near 1."""
        return torch.randn(*shape, generator=self.random) / math.sqrt(shape[-1])

    def projection(self, outputs, inputs):
        return self.draw(outputs, inputs), self.draw(outputs)

    def built(self):
        width = width_of(self.b, ["interest"])
        self.head = self.draw(1, width + ITEM)
        self.b.layer("logit", "dense", inputs=["interest", "item"], **self.b.dense("logit", self.head))
        self.b.output("click", "logit")
        return self.b.build(provenance("PyTorch", "random weights", "2024-06-01T08:00:00Z"))

    def score(self, built, pooled):
        """A function for module_goldens; `pooled`: of q [ITEM], items [T, ITEM] and brands [T, BRAND], with T >= 1."""
        encoder = built.encoder()

        def score(request):
            encoded = encoder.encode(request)
            items, brands = self.items.double(), self.brands.double()
            query = items[torch.from_numpy(encoded.values["item"])]
            item, brand = (table[torch.from_numpy(encoded.values[f"clicks.{name}"])]
                           for name, table in (("item", items), ("brand", brands)))
            if len(item):
                interest = torch.stack([pooled(row, item, brand) for row in query])
            else:
                interest = self.empty(len(query))
            return {"click": torch.sigmoid(torch.cat([interest, query], dim=1) @ self.head.double()[0])}

        return score

    def empty(self, candidates):
        return torch.zeros(candidates, self.head.shape[1] - ITEM, dtype=torch.float64)


def double(*tensors):
    return [tensor.double() for tensor in tensors]


def weights_of(scores, normalization):
    if normalization == "SOFTMAX":
        return torch.softmax(scores, 0)
    if normalization == "SIGMOID_EACH":
        return torch.sigmoid(scores)
    if normalization == "SILU_MEAN":
        return functional.silu(scores) / len(scores)
    return scores


def pooled_by(score, normalization="SOFTMAX"):
    return lambda q, items, brands: weights_of(score(q, items, brands), normalization) @ items


# --- One score for each behavior; every function returns (Family, pooled) --------------------------------------------


def additive(normalization="SOFTMAX", keys="clicks.item", seed=1):
    """Over brands the keys are narrower than the query."""
    family = Family(seed)
    width = ITEM if keys == "clicks.item" else BRAND
    wq, wk, bias, vector = family.draw(5, ITEM), family.draw(5, width), family.draw(5), family.draw(5) * 3
    attention.additive(family.b, "interest", ["item"], [keys], ["clicks.item"], query_weight=wq, key_weight=wk,
                       bias=bias, vector=vector, normalization=normalization, empty="ZEROS")
    wq, wk, bias, vector = double(wq, wk, bias, vector)

    def score(q, items, brands):
        k = items if keys == "clicks.item" else brands
        return torch.tanh(wq @ q + k @ wk.t() + bias) @ vector

    return family, pooled_by(score, normalization)


def din(normalization="NONE", seed=2):
    family = Family(seed)
    unit = torch.nn.Sequential(torch.nn.Linear(4 * ITEM, 9), torch.nn.PReLU(9), torch.nn.Linear(9, 1))
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.copy_(family.draw(*parameter.shape))
    layers = Modules(family.b).dense_list("interest.unit", unit)
    attention.din(family.b, "interest", ["item"], ["clicks.item"], layers=layers, normalization=normalization,
                  empty="ZEROS", parts=("QUERY", "KEY", "DIFFERENCE", "PRODUCT"))
    unit = unit.double()

    def score(q, items, brands):
        q = q.expand_as(items)
        return unit(torch.cat([q, items, q - items, q * items], dim=1)).detach()[:, 0]

    return family, pooled_by(score, normalization)


def dot(normalization="SOFTMAX", seed=3):
    family = Family(seed)
    attention.dot(family.b, "interest", ["item"], ["clicks.item"], normalization=normalization, empty="ZEROS",
                  scale=1.5)
    return family, pooled_by(lambda q, items, brands: items @ q * 1.5, normalization)


def scaled_dot(seed=4):
    family = Family(seed)
    attention.scaled_dot(family.b, "interest", ["item"], ["clicks.item"], normalization="SOFTMAX", empty="ZEROS")
    return family, pooled_by(lambda q, items, brands: items @ q / math.sqrt(ITEM))


def bilinear(normalization="SOFTMAX", seed=5):
    """Keys narrower than the query."""
    family = Family(seed)
    weight = family.draw(ITEM, BRAND) * 3
    attention.bilinear(family.b, "interest", ["item"], ["clicks.brand"], ["clicks.item"], weight=weight,
                       normalization=normalization, empty="ZEROS")
    weight = weight.double()
    return family, pooled_by(lambda q, items, brands: brands @ (q @ weight), normalization)


def auto(seed=6):
    """Additive up to 3 behaviors, scaled dot above."""
    family = Family(seed)
    wq, wk, bias, vector = family.draw(5, ITEM), family.draw(5, ITEM), family.draw(5), family.draw(5) * 3
    attention.auto(family.b, "interest", ["item"], ["clicks.item"], max_short=3,
                   short=dict(attention.additive_score(family.b, "interest.short", wq, wk, bias, vector), scale=0.5),
                   long=attention.scaled_dot_score(ITEM), normalization="SOFTMAX", empty="ZEROS")
    wq, wk, bias, vector = double(wq, wk, bias, vector)

    def score(q, items, brands):
        if len(items) <= 3:
            return torch.tanh(wq @ q + items @ wk.t() + bias) @ vector * 0.5
        return items @ q / math.sqrt(ITEM)

    return family, pooled_by(score)


def auto_din(seed=7):
    """Bilinear up to 2 behaviors, DIN's unit above, no softmax."""
    family = Family(seed)
    weight, w0, w1 = family.draw(ITEM, ITEM), family.draw(5, 2 * ITEM), family.draw(1, 5)
    layers = [family.b.dense("interest.long.0", w0, activation="SILU"), family.b.dense("interest.long.1", w1)]
    attention.auto(family.b, "interest", ["item"], ["clicks.item"], max_short=2,
                   short=attention.bilinear_score(family.b, "interest.short", weight),
                   long=attention.din_score(layers, ("PRODUCT", "KEY")), normalization="NONE", empty="ZEROS")
    weight, w0, w1 = double(weight, w0, w1)

    def score(q, items, brands):
        if len(items) <= 2:
            return items @ (q @ weight)
        return (functional.silu(torch.cat([q * items, items], dim=1) @ w0.t()) @ w1.t())[:, 0]

    return family, pooled_by(score, "NONE")


# --- Heads ----------------------------------------------------------------------------------------------------------


def heads_of(x, heads):
    """[..., heads * d] to [heads, ..., d]"""
    return torch.stack(x.chunk(heads, dim=-1))


def projected(family, heads, key_value_heads, head_width, value_width):
    """Random projections for query, key, value and out, in float32 for the builder and float64 for PyTorch."""
    parts = [family.projection(heads * head_width, ITEM), family.projection(key_value_heads * head_width, BRAND),
             family.projection(key_value_heads * value_width, ITEM), family.projection(10, heads * value_width)]
    return parts, [double(*part) for part in parts]


def grouped(function, heads, kv_heads, seed, **extra):
    family = Family(seed)
    parts, wide = projected(family, heads, kv_heads, 4, 5)
    names = ("query_projection", "key_projection", "value_projection", "out_projection")
    function(family.b, "interest", ["item"], ["clicks.brand"], ["clicks.item"], heads=heads, empty="ZEROS",
             **dict(zip(names, parts)), **extra)
    (wq, bq), (wk, bk), (wv, bv), (wo, bo) = wide
    family.empty = lambda candidates: bo.expand(candidates, -1)

    def pooled(q, items, brands):
        query, keys = heads_of(wq @ q + bq, heads), heads_of(brands @ wk.t() + bk, kv_heads)
        values = heads_of(items @ wv.t() + bv, kv_heads)
        mixed = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            if function is attention.linear_attention:
                similar = (functional.elu(keys[shared]) + 1) @ (functional.elu(query[head] * 0.7) + 1)
                mixed.append(similar / similar.sum() @ values[shared])
            else:
                mixed.append(torch.softmax(keys[shared] @ query[head] / 2, 0) @ values[shared])
        return wo @ torch.cat(mixed) + bo

    return family, pooled


def multi_head_of_torch(seed=11, pad="NONE", empty="ZEROS"):
    """nn.MultiheadAttention itself, key and value of other widths."""
    family = Family(seed, pad)
    module = torch.nn.MultiheadAttention(ITEM, 2, kdim=BRAND, vdim=ITEM, dropout=0.1).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(family.draw(*parameter.shape))
    Modules(family.b).cross_attention("interest", module, ["item"], ["clicks.brand"], ["clicks.item"], empty=empty)
    wide = module.double()

    def attend(q, items, brands):
        with torch.no_grad():
            return wide(q[None], brands, items)[0][0]

    # A row of pads alone: a module that masks nothing there attends to them alike.
    pads = (family.items[:1].double(), family.brands[:1].double())
    nothing = wide.out_proj.bias.detach() if empty == "ZEROS" else attend(torch.zeros(ITEM).double(), *pads)
    family.empty = lambda candidates: nothing.expand(candidates, -1)
    return family, attend


def latent(seed=12):
    family = Family(seed)
    heads, head_width, value_width, kept = 2, 4, 3, 5
    query, down = family.projection(heads * head_width, ITEM), family.projection(kept, ITEM)
    key_up, value_up, out = family.draw(8, kept) * 2, family.draw(6, kept), family.projection(7, heads * value_width)
    attention.latent(family.b, "interest", ["item"], ["clicks.item"], heads=heads, query_projection=query,
                     latent_projection=down, key_up=key_up, value_up=value_up, out_projection=out, empty="ZEROS")
    (wq, bq), (wd, bd), (wo, bo) = (double(*part) for part in (query, down, out))
    key_up, value_up = double(key_up, value_up)
    family.empty = lambda candidates: bo.expand(candidates, -1)

    def pooled(q, items, brands):
        kept = items @ wd.t() + bd
        queries, keys, values = (heads_of(x, heads) for x in (wq @ q + bq, kept @ key_up.t(), kept @ value_up.t()))
        mixed = [torch.softmax(keys[head] @ queries[head] / 2, 0) @ values[head] for head in range(heads)]
        return wo @ torch.cat(mixed) + bo

    return family, pooled


FAMILIES = {
    "additive": additive,
    "additive over narrower keys": lambda: additive("SOFTMAX", "clicks.brand", 21),
    "additive, each through a sigmoid": lambda: additive("SIGMOID_EACH", seed=22),
    "din": din,
    "din with softmax": lambda: din("SOFTMAX", 23),
    "dot": dot,
    "dot, silu over the length": lambda: dot("SILU_MEAN", 24),
    "scaled dot": scaled_dot,
    "bilinear over narrower keys": bilinear,
    "bilinear without softmax": lambda: bilinear("NONE", 25),
    "auto: additive, then scaled dot": auto,
    "auto: bilinear, then din": auto_din,
    "multi-head": lambda: grouped(attention.multi_head, 3, 3, 8),
    "multi-query": lambda: grouped(attention.multi_query, 3, 1, 9),
    "grouped-query": lambda: grouped(attention.grouped_query, 4, 2, 10, key_value_heads=2),
    "nn.MultiheadAttention": multi_head_of_torch,
    "nn.MultiheadAttention, pads where nothing is masked": lambda: multi_head_of_torch(26, "RIGHT", "PAD_VALUE"),
    "latent": latent,
    "linear": lambda: grouped(attention.linear_attention, 3, 3, 13, scale=0.7),
}


def goldens_of(family, pooled):
    """The Built, and its golden requests with PyTorch's scores; evaluate() was compared with them."""
    built = family.built()
    built.expected = module_goldens(built, [], family.score(built, pooled))
    return built, golden_requests_of(built, [], built.expected)


class FamilyChecks:
    families = {}

    def test_the_manifest_says_what_pytorch_computes(self):
        for name, make in self.families.items():
            with self.subTest(name):
                built, goldens = goldens_of(*make())
                self.assertGreaterEqual(len(goldens), 7)
                self.assertRegex(built.notes[-1], r"largest difference (0\.0e\+00|\d\.\de-(0[89]|1\d))")
                scores = np.concatenate([output["scores"] for log in goldens for output in log["outputs"]])
                self.assertGreater(scores.std(), 0.02)

    @unittest.skipUnless(os.environ.get("DINGHY"), "DINGHY does not name the binary")
    def test_the_engine_computes_what_pytorch_computes(self):
        for name, make in self.families.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as root:
                built, goldens = goldens_of(*make())
                folder = write_bundle(root, 1, built.manifest, built.tensors, goldens)
                command = [os.environ["DINGHY"], "validate", folder]
                run = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


class TargetAttentionTest(FamilyChecks, unittest.TestCase):
    families = FAMILIES


class WidthTest(unittest.TestCase):
    def test_wrong_widths_are_named(self):
        b = Family(1).b
        common = dict(normalization="SOFTMAX", empty="ZEROS")
        with self.assertRaisesRegex(ValueError, r'tensor "x.weight": expected shape \[8, 6\], got \[8, 8\]'):
            attention.bilinear(b, "x", ["item"], ["clicks.brand"], weight=np.zeros((8, 8)), **common)
        with self.assertRaisesRegex(ValueError, 'layer "y": expected a query of 1 heads and keys of 1 heads of the'):
            attention.dot(b, "y", ["item"], ["clicks.brand"], **common)
        with self.assertRaisesRegex(ValueError, 'layer "z": expected heads that divide the width of the query, 8'):
            attention.scaled_dot(b, "z", ["item"], ["clicks.item"], heads=3, **common)
        with self.assertRaisesRegex(ValueError, r'tensor "t.query.weight": expected 8 columns, got 6'):
            attention.multi_head(b, "t", ["item"], ["clicks.item"], heads=2, query_projection=(np.zeros((8, 6)), None),
                                 key_projection=None, value_projection=None, out_projection=None, empty="ZEROS")
        with self.assertRaisesRegex(ValueError, '"clicks.price": expected a feature or layer of the builder'):
            attention.dot(b, "u", ["item"], ["clicks.price"], **common)

    def test_a_wrong_module_is_refused(self):
        """What would be written is compared with the module's own scores."""
        family, pooled = dot()
        built = family.built()
        built.expected = module_goldens(built, [], family.score(built, pooled))
        built.tensors["item.weight"][5, 0] += 0.01
        with self.assertRaisesRegex(ValueError, r'output "click", candidate \d+: the library gave 0\.\d+, this import'):
            golden_requests_of(built, [], built.expected)


if __name__ == "__main__":
    unittest.main()
