"""PyTorch twins of the layers in proto/bundle.proto.

Each module computes what the message of the same name describes, so that a trained module exports without conversion.
Shapes: B requests, C candidates, T behaviors (oldest first, padded on the right), D width. Masks are boolean, true for
what is real. Padding never changes a result: masked scores become exact zeros.

Example:
    history = SelfAttention(width=32, max_length=50)
    rows = history(behaviors, mask)                  # [B, T, 32]
    pooled = TargetAttention(32)(candidates, rows, rows, mask)  # [B, C, 32]
"""

import math

import torch
from torch import nn
from torch.nn import functional

ACTIVATIONS = {
    "LINEAR": lambda x: x,
    "RELU": torch.relu,
    "SIGMOID": torch.sigmoid,
    "TANH": torch.tanh,
    "SILU": functional.silu,
}

# Added to masked attention scores in place of -inf: its exponential is exactly 0 beside any real score, and a row that
# has no real behavior stays finite.
_MASKED = -1e30


class Dense(nn.Module):
    """y = activation(x W^T + b); weight [out, in], bias [out]."""

    def __init__(self, inputs, outputs, activation="LINEAR", bias=True):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"dense activation: expected one of {sorted(ACTIVATIONS)}, got {activation!r}")
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.activation = activation
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x):
        return ACTIVATIONS[self.activation](functional.linear(x, self.weight, self.bias))


class Mlp(nn.Module):
    """Dense layers in a row; dropout (training only) after each but the last."""

    def __init__(self, widths, activations, dropout=0.0):
        super().__init__()
        if len(activations) != len(widths) - 1:
            raise ValueError(f"mlp activations: expected {len(widths) - 1}, got {len(activations)}")
        self.layers = nn.ModuleList(Dense(i, o, a) for i, o, a in zip(widths, widths[1:], activations))
        self.dropout = dropout

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index + 1 < len(self.layers):
                x = functional.dropout(x, self.dropout, self.training)
        return x


class SelfAttentionBlock(nn.Module):
    """One block of SelfAttention: multi-head attention and a two-layer FFN, each with its norm."""

    def __init__(self, width, heads, wiring, ffn_width, ffn_activation, epsilon, dropout):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=epsilon)
        self.query = Dense(width, width)
        self.key = Dense(width, width)
        self.value = Dense(width, width)
        self.out = Dense(width, width)
        self.ffn_norm = nn.LayerNorm(width, eps=epsilon)
        self.ffn = nn.ModuleList([Dense(width, ffn_width, ffn_activation), Dense(ffn_width, width)])
        self.heads = heads
        self.wiring = wiring
        self.dropout = dropout

    def _attend(self, x, memory, blocked):
        batch, length, width = x.shape
        head = width // self.heads

        def split(y):
            return y.view(batch, length, self.heads, head).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(memory)), split(self.value(memory))
        scores = query @ key.transpose(2, 3) / math.sqrt(head)
        weights = torch.softmax(scores.masked_fill(blocked, _MASKED), dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        return functional.dropout(self.out(mixed), self.dropout, self.training)

    def _feed_forward(self, x):
        for layer in self.ffn:
            x = layer(x)
        return functional.dropout(x, self.dropout, self.training)

    def forward(self, x, blocked):
        """x [B, T, D]; blocked [B, 1, T, T], true where the row must not see the column."""
        if self.wiring == "PRE_NORM":
            normed = self.attention_norm(x)
            x = x + self._attend(normed, normed, blocked)
            return x + self._feed_forward(self.ffn_norm(x))
        if self.wiring == "POST_NORM":
            x = self.attention_norm(x + self._attend(x, x, blocked))
            return self.ffn_norm(x + self._feed_forward(x))
        query = self.attention_norm(x)  # SASREC_ORIGINAL
        x = query + self._attend(query, x, blocked)
        y = self.ffn_norm(x)
        return y + self._feed_forward(y)


class SelfAttention(nn.Module):
    """SASRec blocks over one sequence (Kang and McAuley, 2018): [B, T, D] to [B, T, D]; padded rows come out as zeros."""

    WIRINGS = ("PRE_NORM", "POST_NORM", "SASREC_ORIGINAL")

    def __init__(self, width, max_length, blocks=1, heads=1, wiring="PRE_NORM", causal=True, input_scale=1.0,
                 position_origin="FROM_NEWEST", ffn_width=None, ffn_activation="RELU", final_norm=True, epsilon=1e-5,
                 dropout=0.0):
        """position_origin: FROM_NEWEST, FROM_OLDEST or None for no positions."""
        super().__init__()
        if wiring not in self.WIRINGS:
            raise ValueError(f"self-attention wiring: expected one of {self.WIRINGS}, got {wiring!r}")
        if position_origin not in ("FROM_NEWEST", "FROM_OLDEST", None):
            raise ValueError(f"self-attention positions: expected FROM_NEWEST, FROM_OLDEST or None, got {position_origin!r}")
        if width % heads:
            raise ValueError(f"self-attention heads: expected a divisor of the width {width}, got {heads}")
        self.positions = None
        if position_origin is not None:
            self.positions = nn.Parameter(torch.randn(max_length, width) * 0.02)
        self.blocks = nn.ModuleList(
            SelfAttentionBlock(width, heads, wiring, ffn_width or width, ffn_activation, epsilon, dropout)
            for _ in range(blocks))
        self.final_norm = nn.LayerNorm(width, eps=epsilon) if final_norm else None
        self.heads = heads
        self.wiring = wiring
        self.causal = causal
        self.input_scale = input_scale
        self.position_origin = position_origin
        self.epsilon = epsilon
        self.dropout = dropout

    def forward(self, x, mask):
        length = x.shape[1]
        x = x * self.input_scale
        if self.positions is not None:
            index = torch.arange(length, device=x.device).expand(x.shape[0], length)
            if self.position_origin == "FROM_NEWEST":
                index = (mask.sum(1, keepdim=True) - 1 - index).clamp(min=0)
            x = x + self.positions[index]
        x = functional.dropout(x, self.dropout, self.training)
        blocked = ~mask[:, None, None, :]
        if self.causal:
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            blocked = blocked | future
        for block in self.blocks:
            x = block(x, blocked)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x * mask[:, :, None]


class TargetAttention(nn.Module):
    """DIN's activation unit and pooling (Zhou et al., 2018): query [B, C, D], keys and values [B, T, D] to [B, C, D].

    The first layer over the parts is computed in pieces, W.[q, k, q-k, q*k] = (Wq+Wd)q + (Wk-Wd)k + Wp(q*k), so that
    the input [B, C, T, 4D] is never built.
    """

    PARTS = ("QUERY", "KEY", "DIFFERENCE", "PRODUCT")

    def __init__(self, width, hidden=(64, 32), activation="SIGMOID", parts=PARTS, normalization="NONE", scale=1.0):
        super().__init__()
        if not parts or any(part not in self.PARTS for part in parts):
            raise ValueError(f"target attention parts: expected some of {self.PARTS}, got {parts!r}")
        if normalization not in ("NONE", "SOFTMAX"):
            raise ValueError(f"target attention normalization: expected NONE or SOFTMAX, got {normalization!r}")
        widths = [width * len(parts), *hidden, 1]
        self.layers = nn.ModuleList(
            Dense(i, o, activation if index < len(hidden) else "LINEAR")
            for index, (i, o) in enumerate(zip(widths, widths[1:])))
        self.width = width
        self.parts = tuple(parts)
        self.normalization = normalization
        self.scale = scale

    def scores(self, query, keys, mask):
        """Scores before scale and normalization, [B, T, C]; those of padding are arbitrary."""
        first = self.layers[0]
        by_query = by_key = by_product = 0.0
        for part, weight in zip(self.parts, first.weight.split(self.width, dim=1)):
            if part in ("QUERY", "DIFFERENCE"):
                by_query = by_query + weight
            if part == "KEY":
                by_key = by_key + weight
            if part == "DIFFERENCE":
                by_key = by_key - weight
            if part == "PRODUCT":
                by_product = by_product + weight
        hidden = first.bias
        if torch.is_tensor(by_query):
            hidden = hidden + (query @ by_query.t())[:, None]  # [B, 1, C, H]
        if torch.is_tensor(by_key):
            hidden = hidden + (keys @ by_key.t())[:, :, None]  # [B, T, C, H]
        if torch.is_tensor(by_product):
            scaled = query[:, :, None, :] * by_product  # [B, C, H, D]
            batch, candidates, outputs, width = scaled.shape
            product = keys @ scaled.reshape(batch, candidates * outputs, width).transpose(1, 2)
            hidden = hidden + product.view(batch, keys.shape[1], candidates, outputs)
        hidden = hidden.expand(query.shape[0], keys.shape[1], query.shape[1], first.weight.shape[0])
        x = ACTIVATIONS[first.activation](hidden)
        for layer in self.layers[1:]:
            x = layer(x)
        return x.squeeze(3)

    def weights(self, query, keys, mask):
        """Attention weights as pooled, [B, T, C]; exact zeros for padding."""
        scores = self.scores(query, keys, mask) * self.scale
        real = mask[:, :, None]
        if self.normalization == "SOFTMAX":
            scores = torch.softmax(scores.masked_fill(~real, _MASKED), dim=1)
        return scores * real

    def forward(self, query, keys, values, mask):
        return self.weights(query, keys, mask).transpose(1, 2) @ values


class AutoTargetAttention(TargetAttention):
    """DIN's activation unit over histories of up to max_short behaviors, and q^T W k / sqrt(width) over longer ones.

    Both are trained together, each by the histories that it will be used for. Over a long history the bilinear score
    (Luong et al., 2015), which starts as the scaled dot product, costs no more than the pooling.
    """

    def __init__(self, width, max_short, hidden=(64, 32), activation="SIGMOID", normalization="NONE", scale=1.0):
        super().__init__(width, hidden, activation, normalization=normalization, scale=scale)
        if max_short < 1:
            raise ValueError(f"target attention max_short: expected 1 or more, got {max_short}")
        self.max_short = max_short
        self.long = nn.Parameter(torch.eye(width))
        self.long_scale = 1 / math.sqrt(width)

    def scores(self, query, keys, mask):
        short = mask.sum(1) <= self.max_short
        by_unit = super().scores(query, keys, mask)
        by_product = keys @ (query @ self.long).transpose(1, 2) * self.long_scale
        return torch.where(short[:, None, None], by_unit, by_product)


class Pooling(nn.Module):
    """One sequence [B, T, D] to [B, D]: SUM, MEAN or LAST (the newest behavior); an empty history pools to zeros."""

    METHODS = ("SUM", "MEAN", "LAST")

    def __init__(self, method):
        super().__init__()
        if method not in self.METHODS:
            raise ValueError(f"pooling method: expected one of {self.METHODS}, got {method!r}")
        self.method = method

    def forward(self, x, mask):
        count = mask.sum(1, keepdim=True)
        if self.method == "LAST":
            newest = (count - 1).clamp(min=0)
            row = x.gather(1, newest[:, :, None].expand(-1, 1, x.shape[2])).squeeze(1)
            return row * (count > 0)
        total = (x * mask[:, :, None]).sum(1)
        return total if self.method == "SUM" else total / count.clamp(min=1)


class EmbeddingTable(nn.Module):
    """A table [rows, dim] that features share. Ids are rows; bags are padded with -1 and pool to zeros when empty."""

    def __init__(self, rows, dim, zero_row=None):
        """zero_row: a row that starts as zeros and gets no gradient (padding)."""
        super().__init__()
        self.zero_row = zero_row
        self.weight = nn.Parameter(torch.randn(rows, dim) / math.sqrt(dim))
        if zero_row is not None:
            with torch.no_grad():
                self.weight[zero_row] = 0

    def forward(self, ids, bag="SINGLE"):
        """ids [...] for SINGLE or [..., L] for BAG_SUM and BAG_MEAN, to [..., dim]."""
        if bag == "SINGLE":
            return functional.embedding(ids, self.weight, padding_idx=self.zero_row)
        real = ids >= 0
        total = functional.embedding(ids.clamp(min=0), self.weight, padding_idx=self.zero_row)
        total = (total * real[..., None]).sum(-2)
        return total if bag == "BAG_SUM" else total / real.sum(-1, keepdim=True).clamp(min=1)
