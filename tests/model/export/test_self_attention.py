"""Self-attention of PyTorch's modules and of one's own, pooled, as test_attention.py does it for target attention."""

import math
import unittest

import torch
from torch import nn
from torch.nn import functional

from dinghy_export.modules import Modules
from test_attention import ITEM, LONGEST, Family, FamilyChecks, double, heads_of


def encoder(seed, pad, causal, module, **options):
    """One of PyTorch's encoders over the items, and the mean of its rows."""
    family = Family(seed, pad)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(family.draw(*parameter.shape) + (0.5 if parameter.ndim == 1 else 0))
    module.eval()
    m = Modules(family.b)
    places = family.draw(LONGEST, ITEM)
    m.self_attention("rows", module, ["clicks.item"], causal=causal, pads=None if pad == "NONE" else "MASKED",
                     positions=m.positions("places", places, origin="FROM_NEWEST"), **options)
    family.b.layer("interest", "pooling", inputs=["rows"], method="MEAN", empty="ZEROS")
    module, places = module.double(), places.double()

    def pooled(q, items, brands):
        length = len(items)
        x = (items * options.get("input_scale", 1.0) + places[:length].flip(0))[:, None]
        future = torch.full((length, length), -math.inf).triu(1).double() if causal else None
        with torch.no_grad():
            if isinstance(module, nn.MultiheadAttention):
                rows = module(x, x, x, attn_mask=future)[0]
            else:
                rows = module(x, future)
        return rows[:, 0].mean(0)

    return family, pooled


def own(seed, heads, kv_heads, attend, causal=True, window=None, kernel=None, kept=None):
    """Attention of one's own without residual, and the newest of its rows. `attend`: weights of q [d] over k [n, d];
    `kept`: the width of the latent that keys and values are made of."""
    family, d = Family(seed), 4
    source = kept or ITEM
    parts = {"query": family.projection(heads * d, ITEM), "key": family.projection(kv_heads * d, source),
             "value": family.projection(kv_heads * d, source), "out": family.projection(5, heads * d)}
    if kept:
        parts["latent"] = family.projection(kept, ITEM)
    block = {part: family.b.dense(f"rows.{part}", *weights) for part, weights in parts.items()}
    family.b.layer("rows", "selfAttention", inputs=["clicks.item"], blocks=[block], heads=heads, wiring="BARE",
                   causal=causal, inputScale=1.0, keyValueHeads=kv_heads, window=window, kernel=kernel)
    family.b.layer("interest", "pooling", inputs=["rows"], method="LAST", empty="ZEROS")
    wide = {part: double(*weights) for part, weights in parts.items()}

    def linear(part, x):
        return x @ wide[part][0].t() + wide[part][1]

    def pooled(q, items, brands):
        memory = linear("latent", items) if kept else items
        seen = slice(max(0, len(items) - window) if window else 0, len(items))
        queries, keys, values = (heads_of(linear(part, x), count) for part, x, count in (
            ("query", items[-1], heads), ("key", memory[seen], kv_heads), ("value", memory[seen], kv_heads)))
        shared = [head // (heads // kv_heads) for head in range(heads)]
        mixed = [attend(queries[head], keys[shared[head]]) @ values[shared[head]] for head in range(heads)]
        return linear("out", torch.cat(mixed))

    return family, pooled


def by_softmax(q, k):
    return torch.softmax(k @ q / math.sqrt(len(q)), 0)


def by_elu(q, k):
    similar = (functional.elu(k) + 1) @ (functional.elu(q) + 1)
    return similar / similar.sum()


FAMILIES = {
    "nn.MultiheadAttention": lambda: encoder(31, "NONE", True, nn.MultiheadAttention(ITEM, 2)),
    "post-norm": lambda: encoder(32, "LEFT", True, nn.TransformerEncoderLayer(ITEM, 4, 12)),
    "pre-norm, GELU": lambda: encoder(33, "RIGHT", False, nn.TransformerEncoderLayer(
        ITEM, 2, 5, activation="gelu", norm_first=True), input_scale=2.5),
    "two blocks": lambda: encoder(34, "NONE", False, nn.TransformerEncoder(
        nn.TransformerEncoderLayer(ITEM, 1, 16, layer_norm_eps=1e-3), 2, nn.LayerNorm(ITEM),
        enable_nested_tensor=False)),
    "multi-query": lambda: own(35, 3, 1, by_softmax),
    "grouped-query in a window": lambda: own(36, 4, 2, by_softmax, window=3),
    "latent": lambda: own(37, 2, 2, by_softmax, kept=3),
    "linear, causal": lambda: own(38, 2, 2, by_elu, kernel="ELU_PLUS_ONE"),
    "linear, not causal": lambda: own(39, 2, 2, by_elu, causal=False, kernel="ELU_PLUS_ONE"),
}


class SelfAttentionTest(FamilyChecks, unittest.TestCase):
    families = FAMILIES


if __name__ == "__main__":
    unittest.main()
