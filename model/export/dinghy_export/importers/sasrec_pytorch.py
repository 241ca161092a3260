"""SASRec.pytorch (github.com/pmixer/SASRec.pytorch): its saved state dicts, in all wirings that the repository has had.

    python3 -m dinghy_export import --from sasrec-pytorch --wiring original \\
        --checkpoint SASRec.epoch=860...head=1...maxlen=200.pth \\
        --action rate --name movies --version 1 --out models

The tensors have the same names and shapes in every wiring, so --wiring says how the module computed them; which it
was depends on when the repository was cloned:

    2020        September to 10 October 2020: no ReLU in the FFN; pad rows are
                zeroed; positions 0 to maxlen - 1
    2020-relu   until 25 June 2024: the same with a ReLU
    original    until 21 May 2025: pads take part as keys; positions 1 to
                maxlen, 0 for pads
    norm-first  since then, with --norm_first
    post-norm   since then, without

Only the rows of the position table tell the first two from the others. A golden request made by the module itself
(--expected) tells all of them apart. The bundle gives the logit, as the module's predict() does.
"""

import math
import os
import re
from dataclasses import dataclass

from dinghy_export import features
from dinghy_export.builder import Builder, Built
from dinghy_export.importers.weights import ImportRefused, Weights
from dinghy_export.manifest import provenance

EPSILON = 1e-8
SEQUENCE = "history"


@dataclass(frozen=True)
class Wiring:
    order: str  # SelfAttention.Wiring
    pads: str  # SelfAttention.Pads
    activation: str  # between the two convolutions
    pad_position: bool  # row 0 of the position table is the pads'


WIRINGS = {
    "2020": Wiring("SASREC_ORIGINAL", "ZEROED", "LINEAR", False),
    "2020-relu": Wiring("SASREC_ORIGINAL", "ZEROED", "RELU", False),
    "original": Wiring("SASREC_ORIGINAL", "ATTENDED", "RELU", True),
    "norm-first": Wiring("PRE_NORM", "ATTENDED", "RELU", True),
    "post-norm": Wiring("POST_NORM", "ATTENDED", "RELU", True),
}


def add_arguments(parser):
    parser.add_argument("--wiring", required=True, choices=list(WIRINGS), help="how the module computed; see above")
    parser.add_argument("--heads", type=int, help="num_heads; default: from the file's name")
    parser.add_argument(
        "--maxlen", type=int, help="maxlen; default: from the file's name, else from the position table"
    )
    parser.add_argument(
        "--action",
        action="append",
        required=True,
        dest="actions",
        help="action of the events that make the history; may be repeated",
    )
    parser.add_argument("--item", default="item", help="name of the item feature; default: item")


def import_model(args) -> Built:
    named = settings_of_name(args.checkpoint)
    heads, maxlen = args.heads, args.maxlen
    for option, value, name in (("--heads", heads, "head"), ("--maxlen", maxlen, "maxlen")):
        if value is not None and value != named.get(name, value):
            raise ImportRefused(f"{option}: expected {named[name]} as the file's name says, got {value}")
    heads = named.get("head") if heads is None else heads
    if heads is None:
        raise ImportRefused(
            "--heads: the weights do not say it, nor does the file's name; give the num_heads of training"
        )
    weights = Weights.of_file(args.checkpoint)
    built = build_sasrec(
        weights,
        name=args.name,
        wiring=args.wiring,
        heads=heads,
        maxlen=named.get("maxlen") if maxlen is None else maxlen,
        blocks=named.get("layer"),
        hidden=named.get("hidden"),
        actions=tuple(args.actions),
        item=args.item,
        origin=provenance(
            "SASRec.pytorch",
            args.data,
            args.created,
            wiring=args.wiring,
            **{f"file_{key}": value for key, value in named.items()},
        ),
    )
    return built


def settings_of_name(path) -> dict:
    """What the repository writes into a checkpoint's name: {"layer": 2, "head": 1, "hidden": 50, ...}."""
    found = re.fullmatch(
        r"SASRec\.epoch=(\d+)\.lr=(.+)\.layer=(\d+)\.head=(\d+)\.hidden=(\d+)\.maxlen=(\d+)\.pth",
        os.path.basename(path),
    )
    if not found:
        return {}
    values = dict(zip(("epoch", "lr", "layer", "head", "hidden", "maxlen"), found.groups()))
    return {key: value if key == "lr" else int(value) for key, value in values.items()}


def build_sasrec(
    weights, *, name, wiring, heads, maxlen=None, blocks=None, hidden=None, actions=("view",), item="item", origin=None
) -> Built:
    """`wiring`: one of WIRINGS. `maxlen`, `blocks`, `hidden`: what is known of them besides the tensors, which must
    agree; None: the tensors say it."""
    how = WIRINGS[wiring]
    table = weights.take("item_emb.weight", [None, hidden])
    rows, width = table.shape
    if rows < 2:
        raise ImportRefused(f'tensor "item_emb.weight": expected 2 rows or more, as row 0 is the pads\', got {rows}')
    positions = weights.take("pos_emb.weight", [None, width])
    longest = len(positions) - how.pad_position
    if maxlen is not None and maxlen != longest:
        raise ImportRefused(_position_message(wiring, how, len(positions), maxlen))
    if longest < 1:
        raise ImportRefused(f'tensor "pos_emb.weight": expected 2 rows or more, got {len(positions)}')
    if heads < 1 or width % heads:
        raise ImportRefused(f"heads: expected a divisor of the width {width}, got {heads}")
    found = len([tensor for tensor in weights.names("attention_layers.") if tensor.endswith(".in_proj_weight")])
    if found < 1 or found != (found if blocks is None else blocks):
        raise ImportRefused(f"blocks: expected {blocks or 'at least 1'}, got attention_layers of {found}")

    b = Builder(name, item_feature=item)
    b.table("item", table)
    kind = dict(pad_row=0, oov_row=None, unknown="PAD_ROW", negative="PAD_ROW")
    vocabulary = features.identity(rows)
    behavior = f"{SEQUENCE}.{item}"
    b.feature(features.id_feature(item, "CANDIDATE", "item", vocabulary, **kind))
    b.feature(features.id_feature(behavior, "SEQUENCE", "item", vocabulary, source="EVENT", **kind))
    b.sequence(SEQUENCE, actions, longest, keep="NEWEST", pad="LEFT", skip_pad_of=behavior)
    place = {
        "tensor": b.tensor("encoder.positions", positions),
        "origin": "FROM_SLOT",
        "firstRow": int(how.pad_position),
    }
    if how.pad_position:
        place["padRow"] = 0
    b.layer(
        "encoder",
        "selfAttention",
        inputs=[behavior],
        blocks=[_block(b, weights, index, width, how) for index in range(found)],
        heads=heads,
        wiring=how.order,
        causal=True,
        inputScale=math.sqrt(width),
        positions=place,
        pads=how.pads,
        finalNorm=_norm(b, weights, "encoder.final_norm", "last_layernorm", width),
    )
    b.layer("final_feat", "pooling", inputs=["encoder"], method="LAST", empty="PAD_VALUE")
    b.layer("logit", "dot", left=["final_feat"], right=[item])
    b.output("logit", "logit", "RAW")
    b.notes += weights.finish()
    if (table[0] != 0).any():
        b.notes.append(
            "the pad row of item_emb is not zero, as in checkpoints before June 2024; it is used as it stands"
        )
    b.notes.append(
        f"item ids are 1 to {rows - 1}, as in the training file; an unknown item scores as item 0, and is left "
        f"out of a history"
    )
    return b.build(origin or provenance("SASRec.pytorch", "", "1970-01-01T00:00:00Z", wiring=wiring))


def _position_message(wiring, how, rows, maxlen):
    fitting = [name for name, other in WIRINGS.items() if rows - other.pad_position == maxlen]
    text = (
        f'tensor "pos_emb.weight": expected {maxlen + how.pad_position} rows for maxlen {maxlen} in wiring {wiring}, '
        f"got {rows}"
    )
    return text + (f"; so many are in wiring {', '.join(fitting)}" if fitting else "")


def _norm(b, weights, prefix, source, width):
    return b.layer_norm(
        prefix, weights.take(f"{source}.weight", [width]), weights.take(f"{source}.bias", [width]), epsilon=EPSILON
    )


def _block(b, weights, index, width, how):
    prefix, attention, forward = f"encoder.{index}", f"attention_layers.{index}", f"forward_layers.{index}"
    weight = weights.take(f"{attention}.in_proj_weight", [3 * width, width])
    bias = weights.take(f"{attention}.in_proj_bias", [3 * width])
    block = {"attentionNorm": _norm(b, weights, f"{prefix}.attention_norm", f"attention_layernorms.{index}", width)}
    for place, part in enumerate(("query", "key", "value")):
        rows = slice(place * width, (place + 1) * width)
        block[part] = b.dense(f"{prefix}.{part}", weight[rows], bias[rows])
    block["out"] = b.dense(
        f"{prefix}.out",
        weights.take(f"{attention}.out_proj.weight", [width, width]),
        weights.take(f"{attention}.out_proj.bias", [width]),
    )
    block["ffnNorm"] = _norm(b, weights, f"{prefix}.ffn_norm", f"forward_layernorms.{index}", width)
    block["ffn"] = [
        b.dense(
            f"{prefix}.ffn.{place}",
            weights.take(f"{forward}.{name}.weight", [width, width, 1])[:, :, 0],
            weights.take(f"{forward}.{name}.bias", [width]),
            activation,
        )
        for place, (name, activation) in enumerate((("conv1", how.activation), ("conv2", "LINEAR")))
    ]
    return block
