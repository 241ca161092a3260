#!/usr/bin/python3
"""evaluator_parity.py [--seed N] [--only NAME]: models drawn at random over all that proto/bundle.proto can say, each
validated by the engine against dinghy_export.evaluate, which was written from the contract alone.

Every model comes with requests at the edges: an empty history, one behavior, a full history, one that is cut.
DINGHY_SOURCE: the repository, DINGHY: the binary.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

SOURCE = os.environ["DINGHY_SOURCE"]
DINGHY = os.environ["DINGHY"]
sys.path.insert(0, os.path.join(SOURCE, "model", "export"))

from dinghy_export import features  # noqa: E402
from dinghy_export.builder import Builder  # noqa: E402
from dinghy_export.bundle import write_bundle  # noqa: E402
from dinghy_export.goldens import golden_requests_of  # noqa: E402
from dinghy_export.manifest import provenance  # noqa: E402

ORIGIN = provenance("random numbers", "", "2024-06-01T00:00:00Z")
ACTIVATIONS = ("LINEAR", "RELU", "SIGMOID", "TANH", "SILU", "LEAKY_RELU", "PRELU", "DICE", "GELU_ERF", "GELU_TANH")
ITEM, KIND, VECTOR = 12, 4, 2  # widths
KEYS = ITEM + KIND + VECTOR


class Draw:
    """Draws one model."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)
        self.b = Builder("m", item_feature="item")

    def one_of(self, *choices):
        return choices[self.random.randint(len(choices))]

    def array(self, *shape, scale=0.4):
        return self.random.randn(*shape) * scale

    # --- Messages ---------------------------------------------------------------------------------------------------

    def norm(self, prefix, width):
        affine = self.one_of(True, False)
        return self.b.batch_norm(
            prefix,
            self.array(width),
            self.random.rand(width) + 0.2,
            self.array(width) + 1 if affine else None,
            self.array(width) if affine else None,
            epsilon=self.one_of(1e-3, 1e-5, 1e-9),
        )

    def parameters(self, prefix, activation, width):
        if activation == "LEAKY_RELU":
            return {"slope": 0.125}
        if activation == "PRELU":
            return self.b.prelu(prefix, self.array(self.one_of(1, width)))
        if activation == "DICE":
            norm = self.norm(f"{prefix}.dice", width) if self.one_of(True, True, False) else None
            return self.b.dice(prefix, self.array(self.one_of(1, width)), norm)
        return None

    def dense(self, prefix, inputs, outputs, activation=None):
        activation = activation or self.one_of(*ACTIVATIONS)
        return self.b.dense(
            prefix,
            self.array(outputs, inputs, scale=inputs**-0.5),
            self.array(outputs) if self.one_of(True, True, False) else None,
            activation,
            self.norm(f"{prefix}.norm", outputs) if self.one_of(True, False) else None,
            self.parameters(prefix, activation, outputs),
        )

    def linear(self, prefix, inputs, outputs):
        return self.b.dense(prefix, self.array(outputs, inputs, scale=inputs**-0.5), self.array(outputs))

    def layer_norm(self, prefix, width):
        epsilon = self.one_of(1e-5, 1e-8, 1e-12)
        return self.b.layer_norm(prefix, self.array(width) + 1, self.array(width), epsilon=epsilon)

    # --- Parts of a model -------------------------------------------------------------------------------------------

    def inputs(self, pad):
        """A sequence "s" with two ids and a vector, and the same ids of the candidate."""
        b, ids = self.b, dict(pad_row=0, oov_row=1)
        b.table("item", self.array(40, ITEM))
        b.table("kind", self.array(9, KIND))
        self.longest = int(self.one_of(1, 5, 17, 33))
        b.sequence("s", ["view"], self.longest, keep=self.one_of("NEWEST", "OLDEST"), pad=pad)
        for prefix, level, source in (("", "CANDIDATE", "REQUEST"), ("s.", "SEQUENCE", "EVENT")):
            b.feature(features.id_feature(f"{prefix}item", level, "item", features.identity(40), source=source, **ids))
            b.feature(features.id_feature(f"{prefix}kind", level, "kind", features.identity(9), source=source, **ids))
        b.feature(features.vector_feature("s.vector", "SEQUENCE", VECTOR, source="EVENT"))
        b.feature(features.numeric_feature("age", "USER", 30.0, 10.0))
        return ["s.item", "s.kind", "s.vector"]

    def tower(self, inputs, width):
        """An MLP to one number and the outputs, calibrated in any way."""
        widths = [width, int(self.one_of(1, 7, 17, 64)), int(self.one_of(5, 16)), 1]
        layers = [self.dense(f"tower.{n}", *widths[n : n + 2]) for n in range(2)] + [
            self.linear("tower.2", *widths[2:])
        ]
        self.b.layer("tower", "mlp", inputs=inputs, layers=layers)
        calibration = self.one_of(
            {},
            {"negativeDownsampling": {"rate": 0.1}},
            {"platt": {"slope": 1.5, "intercept": -0.25}},
            {"piecewiseLinear": {"x": [0.2, 0.5, 0.9], "y": [0.1, 0.4, 0.4]}},
        )
        self.b.output("click", "tower", **calibration)
        self.b.output("logit", "tower", "RAW")

    def positions(self, prefix, width, pad, pads):
        """Fields of SelfAttention; {} for none."""
        kinds = ["none", "FROM_OLDEST", "FROM_NEWEST"] + (["FROM_SLOT"] if pad != "NONE" else [])
        if pads == "MASKED" and width % 2 == 0:
            kinds.append("sinusoidal")
        kind = self.one_of(*kinds)
        if kind == "none":
            return {}
        if kind == "sinusoidal":
            return {
                "sinusoidal": {
                    "origin": self.one_of("FROM_OLDEST", "FROM_NEWEST"),
                    "first": float(self.one_of(0, 1)),
                    "base": self.one_of(100.0, 10000.0),
                    "layout": self.one_of("INTERLEAVED", "HALVES"),
                }
            }
        message = {"origin": kind}
        if kind == "FROM_SLOT":
            message["firstRow"] = int(self.one_of(0, 1))
        if pads == "ATTENDED":
            message["padRow"] = 0
        message["tensor"] = self.b.tensor(f"{prefix}.positions", self.array(self.longest + 1, width))
        return {"positions": message}

    def self_attention(self, name, inputs, width, pad, readable=True):
        """Adds a layer; returns its width and whether it leaves pad rows that may be read. `readable`: whether its
        inputs have any."""
        pads = self.one_of("MASKED", "ATTENDED", "ZEROED") if pad == "LEFT" and readable else "MASKED"
        kernel = self.one_of(None, None, "ELU_PLUS_ONE") if pads == "MASKED" else None
        causal = True if pads != "MASKED" else self.one_of(True, False)
        wiring = self.one_of("PRE_NORM", "POST_NORM", "SASREC_ORIGINAL", "BARE")
        heads, head = int(self.one_of(1, 2, 4)), int(self.one_of(3, 8))
        groups = int(self.one_of(*[n for n in (1, 2, 4) if heads % n == 0]))
        last = int(self.one_of(width, 10)) if wiring == "BARE" else width
        blocks = []
        for index in range(1 if last != width else int(self.one_of(1, 2))):
            prefix = f"{name}.{index}"
            latent = int(self.one_of(0, 0, 6))
            memory = latent or width
            block = {
                "query": self.linear(f"{prefix}.query", width, heads * head),
                "key": self.linear(f"{prefix}.key", memory, groups * head),
                "value": self.linear(f"{prefix}.value", memory, groups * head),
                "out": self.linear(f"{prefix}.out", heads * head, last),
            }
            if latent:
                block["latent"] = self.linear(f"{prefix}.latent", width, latent)
            if wiring != "BARE":
                hidden = int(self.one_of(width, 20))
                block["attentionNorm"] = self.layer_norm(f"{prefix}.attention_norm", width)
                block["ffnNorm"] = self.layer_norm(f"{prefix}.ffn_norm", width)
                block["ffn"] = [
                    self.dense(f"{prefix}.ffn.0", width, hidden),
                    self.linear(f"{prefix}.ffn.1", hidden, width),
                ]
            blocks.append(block)
        self.b.layer(
            name,
            "selfAttention",
            inputs=inputs,
            blocks=blocks,
            heads=heads,
            wiring=wiring,
            causal=causal,
            inputScale=float(self.one_of(1, 2.5)),
            pads=None if pad == "NONE" else pads,
            window=self.one_of(None, None, 1, 4) if kernel is None else None,
            keyValueHeads=groups if groups != heads else None,
            kernel=kernel,
            inputNorm=self.layer_norm(f"{name}.input_norm", width) if self.one_of(True, False) else None,
            finalNorm=self.layer_norm(f"{name}.final_norm", last) if self.one_of(True, False) else None,
            **self.positions(name, width, pad, pads),
        )
        return last, pad != "NONE" and pads != "MASKED"

    def score(self, name, kind, query, keys):
        if kind == "din":
            hidden = int(self.one_of(5, 16, 36))
            parts = list(
                self.random.permutation(["QUERY", "KEY", "DIFFERENCE", "PRODUCT"])[: self.random.randint(1, 5)]
            )
            layers = [
                self.dense(f"{name}.0", keys * len(parts), hidden),
                self.dense(f"{name}.1", hidden, 7),
                self.dense(f"{name}.2", 7, 1, self.one_of("LINEAR", "PRELU")),
            ]
            message = {"parts": parts, "layers": layers}
            if query < keys:
                message["queryZeros"] = keys - query
            return {"din": message}
        if kind == "additive":
            tensor, hidden = self.b.tensor, int(self.one_of(3, 16, 33))
            return {
                "additive": {
                    "queryWeight": tensor(f"{name}.query", self.array(hidden, query)),
                    "keyWeight": tensor(f"{name}.key", self.array(hidden, keys)),
                    "bias": tensor(f"{name}.bias", self.array(hidden)) if self.one_of(True, False) else "",
                    "vector": tensor(f"{name}.vector", self.array(hidden)),
                    "activation": self.one_of("TANH", "RELU", "SILU"),
                }
            }
        if kind == "bilinear":
            return {"bilinear": {"weight": self.b.tensor(f"{name}.weight", self.array(query, keys, scale=0.2))}}
        return {kind: {}}

    def target_attention(self, name, keys, values, widths, pad, pads_readable):
        """Attention over keys and values of these widths; returns the width of its result."""
        wide, narrow = (["item", "kind"], ITEM + KIND), (["item"], ITEM)
        kind = self.one_of("din", "additive", "dot", "bilinear", "linear", "auto")
        normalization = "NONE" if kind == "linear" else self.one_of("NONE", "SOFTMAX", "SIGMOID_EACH", "SILU_MEAN")
        key_width, value_width = widths
        message = {"normalization": normalization, "scale": self.one_of(1.0, 0.5)}
        query, query_width = self.one_of(wide, narrow)
        pooled = value_width
        projected = kind == "auto" or (kind == "din" and query_width > key_width)
        if projected:
            query_width = key_width
        if kind in ("dot", "linear"):
            projected = True
            groups = int(self.one_of(*[n for n in (1, 2, 3) if key_width % n == 0 and value_width % n == 0]))
            heads = groups * int(self.one_of(1, 1, 2))
            query_width, pooled = heads * (key_width // groups), heads * (value_width // groups)
            if kind == "dot" and keys == values and self.one_of(True, False, False):
                groups, heads = 0, int(self.one_of(1, 3))
                query_width, pooled = heads * 4, heads * 5
                message["latent"] = {
                    "keyUp": self.b.tensor(f"{name}.key_up", self.array(query_width, key_width)),
                    "valueUp": self.b.tensor(f"{name}.value_up", self.array(pooled, key_width)),
                }
            message["heads"] = heads if heads > 1 or self.one_of(True, False) else None
            message["keyValueHeads"] = groups if groups not in (0, heads) else None
        if projected:
            projection = f"{name}_query"
            linear = self.linear(projection, ITEM + KIND, query_width)
            query = [self.b.layer(projection, "dense", inputs=["item", "kind"], **linear)]
        if kind == "auto":
            branches = {}
            for branch in ("shortHistory", "longHistory"):
                score = self.one_of("din", "additive", "dot", "bilinear")
                branches[branch] = self.score(f"{name}.{branch}", score, query_width, key_width)
                branches[branch]["scale"] = self.one_of(1.0, 0.25)
            message["auto"] = {"maxShort": max(1, self.longest // 2), **branches}
        else:
            message.update(self.score(name, kind, query_width, key_width))
        windows = kind != "linear" and normalization == "NONE" and self.one_of(True, False)
        if windows:
            message["windows"] = {
                "sizes": [int(size) for size in self.random.randint(1, 6, self.random.randint(1, 4))],
                "origin": self.one_of("FROM_OLDEST", "FROM_NEWEST"),
            }
        if normalization == "SOFTMAX" and pad != "NONE" and pads_readable and self.one_of(True, False):
            message["mask"] = self.one_of(-1e9, -2.0)
        message["empty"] = (
            "PAD_VALUE" if pad != "NONE" and pads_readable and not windows and self.one_of(True, False) else "ZEROS"
        )
        self.b.layer(name, "targetAttention", query=query, keys=keys, values=values, **message)
        return pooled * (len(message["windows"]["sizes"]) if windows else 1)

    # --- Models -----------------------------------------------------------------------------------------------------

    def rowwise(self):
        self.inputs("NONE")
        width = ITEM + KIND + 1
        inputs = ["item", "kind", "age"]
        self.b.layer("norm", "batchNorm", inputs=inputs, **self.norm("norm", width))
        activation = self.one_of(*ACTIVATIONS)
        self.b.layer(
            "activated",
            "activation",
            inputs=["norm"],
            function=activation,
            parameters=self.parameters("activated", activation, width),
        )
        self.b.layer("dense", "dense", inputs=inputs, **self.dense("dense", width, 9))
        self.b.layer("mean", "pooling", inputs=["s.item"], method=self.one_of("SUM", "MEAN", "LAST"), empty="ZEROS")
        self.b.layer("match", "dot", left=["mean"], right=["item"])
        self.tower(["activated", "dense", "match"], width + 10)

    def encoder(self):
        pad = self.one_of("NONE", "LEFT", "RIGHT")
        width, readable = self.self_attention("rows", self.inputs(pad), KEYS, pad)
        empty = self.one_of("ZEROS", "PAD_VALUE" if readable else "ZEROS")
        if pad == "NONE":
            empty = self.one_of("ZEROS", None)
        self.b.layer("pooled", "pooling", inputs=["rows"], method=self.one_of("SUM", "MEAN", "LAST"), empty=empty)
        self.tower(["pooled", "item"], width + ITEM)

    def attention(self):
        pad = self.one_of("NONE", "LEFT", "RIGHT")
        keys = self.inputs(pad)
        width = self.target_attention("interest", keys, keys, (KEYS, KEYS), pad, True)
        self.tower(["interest", "item"], width + ITEM)

    def stacked(self):
        """Two self-attentions, and target attention over the result beside what it was made of."""
        pad = self.one_of("NONE", "LEFT")
        names = self.inputs(pad)
        width, readable = self.self_attention("first", names, KEYS, pad)
        width, again = self.self_attention("second", ["first"], width, pad, readable)
        values = self.one_of((["second"], width), (["second", "s.kind"], width + KIND))
        pooled = self.target_attention("interest", ["second"], values[0], (width, values[1]), pad, readable and again)
        self.tower(["interest", "item", "age"], pooled + ITEM + 1)


MODELS = {"rowwise": 4, "encoder": 20, "attention": 40, "stacked": 10}


def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="one model: rowwise.3")
    parser.add_argument("--keep", help="with --only: a folder to leave the bundle in")
    args = parser.parse_args()
    failed = done = 0
    with tempfile.TemporaryDirectory() as root:
        for kind, count in MODELS.items():
            for index in range(count):
                name = f"{kind}.{index}"
                if args.only and name != args.only:
                    continue
                draw = Draw(args.seed * 100000 + list(MODELS).index(kind) * 1000 + index)
                getattr(draw, kind)()
                built = draw.b.build(ORIGIN)
                goldens = golden_requests_of(built)
                folder = write_bundle(args.keep or root, done + 1, built.manifest, built.tensors, goldens)
                result = subprocess.run([DINGHY, "validate", folder], capture_output=True, text=True)
                done += 1
                if result.returncode != 0:
                    failed += 1
                    text = (result.stdout + result.stderr).strip()
                    print(f"{name}: FAILED: {text[:600]}")
    print(f"{done} models, {failed} failed")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(run())
