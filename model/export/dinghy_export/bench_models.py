"""The models that speed is measured on: DIN, DIN over a SASRec encoder, and SASRec alone, with fixed random weights.

    python3 -m dinghy_export.bench_models --weights ../shared/bench --out build/bench
    dinghy bench --bundle build/bench/din/1

Nobody trained them. They are the models of the ONNX files in the folder of --weights, so that Dinghy and another
runtime compute the same numbers: DIN's weights lie there (din_weights.npz), the encoder's are drawn here in the same
order from the same generator, and the golden requests carry the outputs that lie there (expected.npz).

    din                 histories of up to 1000; 64 wide, attention 80-40-1 with sigmoid, tower 200-80-1 with PReLU
    din_sasrec_LENGTH   the same over the rows of a SASRec encoder of two blocks and two heads
    sasrec_LENGTH       the encoder's newest row alone, projected to one number

With --scores also a model for each other attention score, which has no peer: din with that score instead, under softmax
(but linear), and weights of its own.

    din_dot, din_additive, din_bilinear, din_multi_head, din_multi_query, din_latent, din_linear

The generator draws the table of positions first, so the encoder's other weights depend on its length as well: hence a
bundle for each. Of a history of L the peers take the last L // 8 places as padding, whose attention weight they set to
zero; no real behavior looks at them, since the encoder is causal. So the requests here hold the real ones alone.
"""

import argparse
import os
import sys

import numpy as np

from dinghy_export import attention, features
from dinghy_export.builder import Builder, Built
from dinghy_export.bundle import write_bundle
from dinghy_export.goldens import golden_requests_of
from dinghy_export.importers.weights import Weights
from dinghy_export.manifest import provenance
from dinghy_export.precision import add_precision_option, lower

ITEMS, CATEGORIES, USER_WIDTH, WIDTH = 10_000, 1_000, 32, 64
GRID = ((50, 100), (100, 500), (200, 1000), (1000, 200))  # history x candidates
LONGEST = 1000
DIN_SASREC_LENGTHS = (50, 100, 200, 1000)
SASREC_LENGTHS = (50, 200)
SASREC_HISTORIES = 32  # whose states expected.npz holds
BLOCKS, HEADS = 2, 2
SCORES = ("dot", "additive", "bilinear", "multi_head", "multi_query", "latent", "linear")
SCORE_HEADS = 8
EPSILON = 1e-5
SEQUENCE, ACTION = "clicks", "click"
VERSION = 1
TIME_MS = 1717200000000


# --- Weights and requests, as the peers draw them -------------------------------------------------------------------


def encoder_weights(length) -> dict:
    """The SASRec encoder's tensors for histories of `length`, float32, and its own item table."""
    random = np.random.RandomState(3)

    def normal(deviation, *shape):
        return (random.randn(*shape) * deviation).astype(np.float32)

    tensors = {"positions": normal(0.3, length, WIDTH), "items": normal(0.5, ITEMS, WIDTH)}
    for block in range(BLOCKS):
        # The order of the draws: both input projections before their biases, then the others one by one.
        tensors[f"{block}.query.weight"] = normal(1 / 8, WIDTH, WIDTH)
        tensors[f"{block}.key_value.weight"] = normal(1 / 8, 2 * WIDTH, WIDTH)
        tensors[f"{block}.query.bias"] = normal(0.1, WIDTH)
        tensors[f"{block}.key_value.bias"] = normal(0.1, 2 * WIDTH)
        for part in ("out", "ffn.0", "ffn.1"):
            tensors[f"{block}.{part}.weight"] = normal(1 / 8, WIDTH, WIDTH)
            tensors[f"{block}.{part}.bias"] = normal(0.1, WIDTH)
    return tensors


def din_request(history, candidates) -> dict:
    """The ScoreRequest of a grid point, with its real behaviors alone."""
    random = np.random.RandomState(1 + 7919 * history + candidates)
    clicked = random.randint(0, ITEMS, (1, history))[0]
    clicked_category = random.randint(0, CATEGORIES, (1, history))[0]
    items, categories = random.randint(0, ITEMS, (candidates,)), random.randint(0, CATEGORIES, (candidates,))
    user = (random.randn(1, USER_WIDTH) * 0.5).astype(np.float32)[0]
    real = history - history // 8
    return _request(f"{history}x{candidates}", items, categories, user, clicked[:real], clicked_category[:real])


def sasrec_requests(length) -> list:
    """ScoreRequests of full histories, one a row of expected.npz."""
    clicked = (np.arange(SASREC_HISTORIES * length) * 7919 % ITEMS).reshape(SASREC_HISTORIES, length)
    return [_request(f"history {row}", [0], None, None, ids, None) for row, ids in enumerate(clicked)]


def _request(title, items, categories, user, clicked, clicked_categories):
    request = {
        "requestId": title,
        "userId": "bench",
        "requestTimeMs": TIME_MS,
        "candidates": [features.ints("item", items)],
        "sequences": [
            {
                "sequence": SEQUENCE,
                "eventTimeMs": [TIME_MS - 1000 * age for age in range(len(clicked), 0, -1)],
                "columns": [features.ints("item", clicked)],
            }
        ],
    }
    if categories is not None:
        request["candidates"].append(features.ints("category", categories))
        request["sequences"][0]["columns"].append(features.ints("category", clicked_categories))
        request["user"] = [features.floats("user", user, [len(user)])]
    return request


# --- The models -----------------------------------------------------------------------------------------------------


def build_din(weights, encoder=None, score=None) -> Built:
    """`weights`: the tensors of din_weights.npz by name; `encoder`: those of encoder_weights, None: DIN alone; `score`:
    one of SCORES instead of din's."""
    weights = Weights(weights, source="DIN's weights")
    length = LONGEST if encoder is None else len(encoder["positions"])
    name = "din" if encoder is None else f"din_sasrec_{length}"
    b = Builder(name if score is None else f"{name}_{score}", item_feature="item")
    b.table("item", weights.take("item_embedding", [ITEMS, WIDTH // 2]))
    b.table("category", weights.take("category_embedding", [CATEGORIES, WIDTH // 2]))
    b.sequence(SEQUENCE, [ACTION], length, keep="NEWEST", pad="NONE")
    b.feature(features.vector_feature("user", "USER", USER_WIDTH))
    for table, rows in (("item", ITEMS), ("category", CATEGORIES)):
        b.feature(_id(table, "CANDIDATE", table, rows, "REQUEST"))
        b.feature(_id(f"{SEQUENCE}.{table}", "SEQUENCE", table, rows, "EVENT"))
    candidate = ["item", "category"]
    keys = [f"{SEQUENCE}.{name}" for name in candidate]
    if encoder is not None:
        keys = [_encoder(b, encoder, keys, final_norm=False)]
    if score is None:
        _din_score(b, weights, candidate, keys)
    else:
        _other_score(b, score, candidate, keys)
    b.layer("product", "multiply", terms=[{"inputs": ["interest"]}, {"inputs": candidate}])
    tower = []
    for place in range(3):
        name = f"tower.{place}"
        alpha = weights.optional(f"{name}.alpha")
        parameters = None if alpha is None else b.prelu(name, alpha)
        tower.append(_dense(b, weights, name, "LINEAR" if alpha is None else "PRELU", parameters))
    b.layer("tower", "mlp", inputs=["user", "interest", *candidate, "product"], layers=tower)
    b.output("click", "tower")
    weights.finish(ignore=["attention.*"] if score else ())
    return b.build(_origin())


def _din_score(b, weights, query, keys):
    b.layer(
        "interest",
        "targetAttention",
        query=query,
        keys=keys,
        values=keys,
        din={
            "parts": ["QUERY", "KEY", "DIFFERENCE", "PRODUCT"],
            "layers": [
                _dense(b, weights, f"attention.{place}", activation)
                for place, activation in enumerate(("SIGMOID", "SIGMOID", "LINEAR"))
            ],
        },
        normalization="NONE",
        empty="ZEROS",
        scale=1.0,
    )


def _other_score(b, score, query, keys):
    random = np.random.RandomState(7)

    def drawn(*shape):
        return (random.randn(*shape) / np.sqrt(shape[-1])).astype(np.float32)

    def dense(width=WIDTH):
        return drawn(width, WIDTH), drawn(width)

    layer = dict(b=b, name="interest", query=query, keys=keys, empty="ZEROS")
    heads = dict(layer, heads=SCORE_HEADS)
    if score == "dot":
        attention.scaled_dot(**layer, normalization="SOFTMAX")
    elif score == "additive":
        attention.additive(**layer, query_weight=drawn(WIDTH, WIDTH), key_weight=drawn(WIDTH, WIDTH), bias=drawn(WIDTH),
                           vector=drawn(WIDTH), normalization="SOFTMAX")
    elif score == "bilinear":
        attention.bilinear(**layer, weight=drawn(WIDTH, WIDTH), normalization="SOFTMAX")
    elif score == "multi_head":
        attention.multi_head(**heads, query_projection=dense(), key_projection=dense(), value_projection=dense(),
                             out_projection=dense())
    elif score == "multi_query":
        shared = WIDTH // SCORE_HEADS
        attention.multi_query(**heads, query_projection=dense(), key_projection=dense(shared),
                              value_projection=dense(shared), out_projection=dense())
    elif score == "latent":
        attention.latent(**heads, query_projection=dense(), latent_projection=dense(WIDTH // 2),
                         key_up=drawn(WIDTH, WIDTH // 2), value_up=drawn(WIDTH, WIDTH // 2), out_projection=dense())
    elif score == "linear":
        attention.linear_attention(**heads, query_projection=dense(), key_projection=dense(), value_projection=dense(),
                                   out_projection=dense())
    else:
        raise ValueError(f"score: expected one of {', '.join(SCORES)}, got {score!r}")


def build_sasrec(encoder) -> Built:
    """The state of the newest behavior, times `state_projection`: an output is one number."""
    length = len(encoder["positions"])
    b = Builder(f"sasrec_{length}", item_feature="item")
    b.table("item", encoder["items"])
    b.sequence(SEQUENCE, [ACTION], length, keep="NEWEST", pad="NONE")
    b.feature(_id("item", "CANDIDATE", "item", ITEMS, "REQUEST"))
    b.feature(_id(f"{SEQUENCE}.item", "SEQUENCE", "item", ITEMS, "EVENT"))
    rows = _encoder(b, encoder, [f"{SEQUENCE}.item"], final_norm=True)
    b.layer("state", "pooling", inputs=[rows], method="LAST", empty="ZEROS")
    b.layer("projected", "dense", inputs=["state"], **b.dense("projected", state_projection()[None]))
    b.output("state", "projected", "RAW")
    return b.build(_origin())


def state_projection():
    """[64]: what makes one number of a state, so that no column of it can be wrong unseen."""
    return (np.random.RandomState(11).randn(WIDTH) / 8).astype(np.float32)


def _origin():
    return provenance("none: random weights to measure speed on", "none", "2024-06-01T08:00:00Z")


def _id(name, level, table, rows, source):
    kind = dict(pad_row=None, oov_row=None, unknown="REFUSE", negative="REFUSE")
    return features.id_feature(name, level, table, features.identity(rows), source=source, **kind)


def _dense(b, weights, name, activation, parameters=None):
    weight = weights.take(f"{name}.weight", [None, None])
    return b.dense(name, weight, weights.take(f"{name}.bias", weight.shape[:1]), activation, parameters=parameters)


def _encoder(b, tensors, inputs, final_norm):
    """Adds the layer; returns its name. Its layer norms are plain."""

    def norm(prefix):
        return b.layer_norm(prefix, np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32), epsilon=EPSILON)

    blocks = []
    for index in range(BLOCKS):
        prefix = f"encoder.{index}"
        weight = np.split(tensors[f"{index}.key_value.weight"], 2)
        bias = np.split(tensors[f"{index}.key_value.bias"], 2)
        block = {"attentionNorm": norm(f"{prefix}.attention_norm"), "ffnNorm": norm(f"{prefix}.ffn_norm")}
        for place, part in enumerate(("key", "value")):
            block[part] = b.dense(f"{prefix}.{part}", weight[place], bias[place])
        for part in ("query", "out"):
            block[part] = b.dense(f"{prefix}.{part}", tensors[f"{index}.{part}.weight"],
                                  tensors[f"{index}.{part}.bias"])
        block["ffn"] = [
            b.dense(f"{prefix}.ffn.{place}", tensors[f"{index}.ffn.{place}.weight"],
                    tensors[f"{index}.ffn.{place}.bias"], activation)
            for place, activation in enumerate(("RELU", "LINEAR"))
        ]
        blocks.append(block)
    place = {"tensor": b.tensor("encoder.positions", tensors["positions"]), "origin": "FROM_OLDEST"}
    return b.layer("encoder", "selfAttention", inputs=inputs, blocks=blocks, heads=HEADS, wiring="SASREC_ORIGINAL",
                   causal=True, inputScale=8.0, positions=place,
                   finalNorm=norm("encoder.final_norm") if final_norm else None)


# --- Bundles --------------------------------------------------------------------------------------------------------


def models(weights, expected):
    """Yields each model as a Built, with what the peers gave as its `expected`. `weights`, `expected`: the arrays of
    the two files by name. There are no outputs of din_sasrec at length 1000."""
    din = build_din(weights)
    din.expected = [_log(din_request(*point), "click", expected, f"din_{point[0]}x{point[1]}") for point in GRID]
    yield din
    for length in DIN_SASREC_LENGTHS:
        built = build_din(weights, encoder_weights(length))
        for history, candidates in GRID:
            name = f"din_sasrec_{history}x{candidates}"
            if history == length and name in expected:
                built.expected.append(_log(din_request(history, candidates), "click", expected, name))
        yield built
    for length in SASREC_LENGTHS:
        built = build_sasrec(encoder_weights(length))
        states = _take(expected, f"sasrec_{length}") @ state_projection()
        built.expected = [
            {"request": request, "outputs": [{"output": "state", "scores": [state]}]}
            for request, state in zip(sasrec_requests(length), states)
        ]
        yield built


def _log(request, output, expected, name):
    return {"request": request, "outputs": [{"output": output, "scores": _take(expected, name)}]}


def _take(expected, name):
    if name not in expected:
        raise ValueError(f'expected.npz: expected an array "{name}", got none of that name')
    return expected[name]


def write_models(folder, out, precision="f32", scores=()) -> list:
    """Writes the bundles, <out>/<name>/1/, from the files in `folder`; returns their folders. Refuses, with
    GoldenMismatch, what is not the peers' model. A bundle that is there already stays. In bf16 those that have a din
    score alone. `scores`: of SCORES, those to write a model for too."""
    weights, expected = ({**np.load(os.path.join(folder, name))} for name in ("din_weights.npz", "expected.npz"))
    folders = []
    for built in [*models(weights, expected), *(build_din(weights, score=score) for score in scores)]:
        attentions = [layer.get("targetAttention", {}) for layer in built.manifest["layers"]]
        if precision == "bf16" and not any("din" in found for found in attentions):
            continue
        place = os.path.join(out, built.manifest["name"], str(VERSION))
        if not os.path.exists(place):
            goldens = golden_requests_of(built, None, built.expected)
            for note in lower(built.manifest, built.tensors, goldens, built.encoder(), precision=precision):
                print(note)
            write_bundle(out, VERSION, built.manifest, built.tensors, goldens)
        folders.append(place)
    return folders


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        prog="dinghy_export.bench_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", required=True, help="folder with din_weights.npz and expected.npz")
    parser.add_argument("--out", required=True, help="model root, where <name>/1/ is written")
    parser.add_argument("--scores", action="store_true", help="also a model for each attention score but din's")
    add_precision_option(parser)
    args = parser.parse_args(arguments)
    try:
        folders = write_models(args.weights, args.out, args.precision, SCORES if args.scores else ())
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    print("\n".join(folders))
    return 0


if __name__ == "__main__":
    sys.exit(main())
