"""RecBole's DIN and SASRec: a checkpoint of its trainer becomes a bundle.

    python3 -m dinghy_export import --from recbole \\
        --checkpoint saved/DIN-Jun-01-2024_08-00-00.pth \\
        --unknown pad --action click --name news --version 1 --out models

The checkpoint holds the configuration (a pickled Config) and the state dict. A DIN checkpoint holds its dataset too,
with tokens and item features; a SASRec checkpoint does not: its tokens come from the saved dataset (`save_dataset:
True`) or from text files. Read inertly: nothing in these files is run, and RecBole is not needed.

Below the command there are build_din and build_sasrec, from weights and what the dataset says, without files.
"""

import math
from dataclasses import dataclass

from dinghy_export import features
from dinghy_export.builder import Builder
from dinghy_export.importers.checkpoint import read_checkpoint
from dinghy_export.importers.recbole_dataset import ItemField, Sources, config_of, find_items
from dinghy_export.importers.weights import ImportRefused, Weights
from dinghy_export.manifest import provenance

DICE_NORM_EPSILON = 1e-5  # torch's default; RecBole leaves it
_HIDDEN_ACTIVATIONS = {"gelu": "GELU_ERF", "relu": "RELU", "swish": "SILU", "tanh": "TANH", "sigmoid": "SIGMOID"}
_ITEM_TABLES = "embedding_layer.token_embedding_table.item.embedding.weight"
_SEQ_TABLES = "embedding_layer.token_seq_embedding_table.item"


@dataclass
class Requests:
    """What a request and the history store bring, which RecBole does not know."""

    actions: tuple  # events with one of these are the history
    unknown: str  # items that training did not see: "REFUSE" or "PAD_ROW"
    sequence: str = "history"
    output: str = "score"
    integer: tuple = ()  # fields whose tokens are decimal numbers, sent as integers; the rest are texts


# --- The command ----------------------------------------------------------------------------------------------------


def add_arguments(parser):
    parser.add_argument(
        "--dataset", metavar="FILE", help="RecBole's saved dataset, <checkpoint_dir>/<dataset>-<class>.pth "
        "(save_dataset: True): tokens, where the checkpoint does not hold them")
    parser.add_argument(
        "--vocabulary", action="append", default=[], metavar="FIELD=FILE",
        help="instead of a dataset: the tokens of a field, one a line, in the order of the internal ids "
        "from 1 (0 is [PAD] and has no line)")
    parser.add_argument("--item_features", metavar="FILE",
                        help="instead of a dataset: RecBole's .item file, with the same "
                        "columns as in training")
    parser.add_argument("--internal_ids", action="store_true",
                        help="requests and histories bring RecBole's internal ids")
    parser.add_argument("--action", action="append", required=True, dest="actions", metavar="ACTION",
                        help="events with this action are the history; may be repeated")
    parser.add_argument(
        "--unknown", required=True, choices=("refuse", "pad"),
        help="items that training did not see: refuse the request, or take the pad row as a candidate "
        "and leave them out of the history. RecBole itself refuses them")
    parser.add_argument("--integer", action="append", default=[], metavar="FIELD",
                        help="this field's tokens are decimal numbers and come as integers; may be repeated")
    parser.add_argument("--sequence", default="history", metavar="NAME", help="name of the history (default: history)")
    parser.add_argument("--output_name", default="score", metavar="NAME", help="name of the output (default: score)")


def import_model(args):
    checkpoint = read_checkpoint(args.checkpoint)
    config = config_of(checkpoint.objects)
    weights = Weights.of_checkpoint(checkpoint)
    model = str(config.get("model"))
    requests = Requests(tuple(args.actions), "PAD_ROW" if args.unknown == "pad" else "REFUSE", args.sequence,
                        args.output_name, tuple(args.integer))
    items = find_items(checkpoint.objects,
                       Sources(args.dataset, _paths(args.vocabulary), args.item_features, args.internal_ids), config)
    origin = provenance(f"RecBole {model}", args.data or str(config.get("dataset")), args.created,
                        **{name: config[name] for name in ("seed", "epochs") if name in config})
    builders = {"DIN": build_din, "SASRec": build_sasrec}
    if model not in builders:
        raise ImportRefused(f'config "model": expected one of {", ".join(builders)}, got {model}')
    return builders[model](weights, config, items, requests, args.name, origin)


# --- The models -----------------------------------------------------------------------------------------------------


def build_din(weights, config, items, requests, name, origin=None):
    """DIN (Zhou et al., 2018) as RecBole has it. `config`: its final_config_dict; `items`: ItemData."""
    embedded = [name for name in items.numerical if name in (config.get("numerical_features") or [])]
    if embedded:
        raise ImportRefused(
            f'config "numerical_features": expected no item field, got {", ".join(embedded)}: embeddings of '
            "float fields are not supported")
    if len(items.fields) > 1 and not items.values:
        raise ImportRefused(f'field "{items.fields[1].name}": expected its values for every item, got none')
    pooling = config.get("pooling_mode")
    bag = {"mean": "BAG_MEAN", "sum": "BAG_SUM"}.get(pooling)
    if bag is None:
        raise ImportRefused(
            f'config "pooling_mode": expected mean or sum, got {pooling!r}: a maximum over a token_seq field '
            "is not supported")
    max_length = _positive(config, "MAX_ITEM_LIST_LENGTH")
    for kind in ("float_embedding_table", "float_seq_embedding_table"):
        if weights.names(f"embedding_layer.{kind}.item"):
            raise ImportRefused(
                f'tensor "{weights.names(f"embedding_layer.{kind}.item")[0]}": expected no float fields of '
                "items in numerical_features, which are not supported")
    builder = Builder(name, items.fields[0].name)
    names = _add_item_features(builder, weights, items, requests, max_length, bag)
    width = sum(table["dim"] for table in builder.tables)
    keys = [f"{requests.sequence}.{feature}" for feature in names]

    attention = _walk_mlp(weights, "attention.att_mlp_layers.mlp_layers")
    _check_widths(config, "attention.att_mlp_layers", attention)
    layers, columns = [], 4 * width
    for index, prefix in enumerate(attention):
        weight = weights.take(f"{prefix}.weight", [None, columns])
        layers.append(builder.dense(f"interest.{index}", weight, weights.take(f"{prefix}.bias"), "SIGMOID"))
        columns = weight.shape[0]
    layers.append(
        builder.dense(f"interest.{len(attention)}", weights.take("attention.dense.weight", [1, columns]),
                      weights.take("attention.dense.bias", [1])))
    builder.layer("interest", "targetAttention", query=names, keys=keys, values=keys,
                  din={"parts": ["QUERY", "KEY", "DIFFERENCE", "PRODUCT"],
                       "layers": layers}, normalization="NONE", empty="ZEROS", scale=1.0 / math.sqrt(width))
    builder.layer("crossed", "multiply", terms=[{"inputs": ["interest"]}, {"inputs": names}])

    top = _walk_mlp(weights, "dnn_mlp_layers.mlp_layers")
    _check_widths(config, "dnn_mlp_layers", top)
    layers, columns = [], 3 * width
    for index, prefix in enumerate(top):
        weight = weights.take(f"{prefix}.weight", [None, columns])
        columns = weight.shape[0]
        norm = _batch_norm(builder, weights, prefix, f"tower.{index}.norm", columns)
        # RecBole's Dice: alpha is a constant 0 outside the state dict, and p has no norm of its own.
        layers.append(
            builder.dense(f"tower.{index}", weight, weights.take(f"{prefix}.bias"), "DICE", norm,
                          builder.dice(f"tower.{index}", [0.0])))
    layers.append(
        builder.dense(f"tower.{len(top)}", weights.take("dnn_predict_layers.weight", [1, columns]),
                      weights.take("dnn_predict_layers.bias", [1])))
    builder.layer("tower", "mlp", inputs=["interest", *names, "crossed"], layers=layers)
    builder.output(requests.output, "tower", "SIGMOID")
    users = [
        tensor for kind in ("token", "token_seq", "float", "float_seq")
        for tensor in weights.names(f"embedding_layer.{kind}_embedding_table.user")
    ]
    if users:
        builder.notes.append("user features are left out: RecBole's DIN embeds them and then does not use them")
    builder.notes += weights.finish(ignore=["*.num_batches_tracked", *users])
    return builder.build(origin or provenance("RecBole", "", "1970-01-01T00:00:00Z"))


def build_sasrec(weights, config, items, requests, name, origin=None):
    """SASRec (Kang and McAuley, 2018) as RecBole has it. `items`: ItemData, of which only the item id is read."""
    layers, heads = _positive(config, "n_layers"), _positive(config, "n_heads")
    epsilon = config.get("layer_norm_eps")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ImportRefused(f'config "layer_norm_eps": expected a small positive number, got {epsilon!r}')
    activation = _HIDDEN_ACTIVATIONS.get(config.get("hidden_act"))
    if activation is None:
        raise ImportRefused(f'config "hidden_act": expected one of {", ".join(_HIDDEN_ACTIVATIONS)}, got '
                            f'{config.get("hidden_act")!r}')
    max_length = _positive(config, "MAX_ITEM_LIST_LENGTH")
    table = weights.take("item_embedding.weight", [None, _positive(config, "hidden_size")])
    width = table.shape[1]
    if width % heads:
        raise ImportRefused(f'config "hidden_size": expected a multiple of n_heads {heads}, got {width}')
    builder = Builder(name, items.fields[0].name)
    item = items.fields[0]
    if item.tokens is None and item.rows == 0:
        item = ItemField(item.name, item.kind, table.shape[0])
    if item.rows != table.shape[0]:
        raise ImportRefused(
            f'field "{item.name}": expected {table.shape[0]} internal ids as the item embedding has rows, '
            f"got {item.rows}")
    builder.table(item.name, table)
    _add_sequence(builder, requests, item.name, max_length)
    _add_field(builder, item, requests, "REQUEST", "EVENT", None)

    def linear(prefix, name, shape, function="LINEAR"):
        return builder.dense(name, weights.take(f"{prefix}.weight", shape), weights.take(f"{prefix}.bias", shape[:1]),
                             function)

    def norm(prefix, name):
        return builder.layer_norm(name, weights.take(f"{prefix}.weight", [width]),
                                  weights.take(f"{prefix}.bias", [width]), epsilon=epsilon)

    inner = _positive(config, "inner_size")
    blocks = []
    for index in range(layers):
        attention, ffn = (f"trm_encoder.layer.{index}.{part}" for part in ("multi_head_attention", "feed_forward"))
        ours = f"encoder.blocks.{index}"
        blocks.append({
            **{part: linear(f"{attention}.{part}", f"{ours}.{part}", [width, width])
               for part in ("query", "key", "value")},
            "out": linear(f"{attention}.dense", f"{ours}.out", [width, width]),
            "attentionNorm": norm(f"{attention}.LayerNorm", f"{ours}.attention_norm"),
            "ffn": [
                linear(f"{ffn}.dense_1", f"{ours}.ffn.0", [inner, width], activation),
                linear(f"{ffn}.dense_2", f"{ours}.ffn.1", [width, inner])
            ],
            "ffnNorm": norm(f"{ffn}.LayerNorm", f"{ours}.ffn_norm"),
        })
    # Causal, and the pads come behind: no real behavior sees one, so its additive mask of -10000 is as good as a mask.
    builder.layer(
        "encoder", "selfAttention", inputs=[f"{requests.sequence}.{item.name}"], blocks=blocks, heads=heads,
        wiring="POST_NORM", causal=True, inputScale=1.0, pads="MASKED",
        inputNorm=norm("LayerNorm", "encoder.input_norm"), positions={
            "tensor": builder.tensor("encoder.positions", weights.take("position_embedding.weight",
                                                                       [max_length, width])), "origin": "FROM_OLDEST"
        })
    builder.layer("state", "pooling", inputs=["encoder"], method="LAST", empty="ZEROS")
    builder.layer("logit", "dot", left=["state"], right=[item.name])
    builder.output(requests.output, "logit", "RAW")
    builder.notes.append("scores are logits, as RecBole's predict gives them")
    builder.notes.append("a history without a known item scores 0; RecBole itself does not answer it")
    builder.notes += weights.finish()
    return builder.build(origin or provenance("RecBole", "", "1970-01-01T00:00:00Z"))


# --- Features -------------------------------------------------------------------------------------------------------


def _add_item_features(builder, weights, items, requests, max_length, bag):
    """Features of candidates and of the history, with their tables; returns the names in the order of the model's
    input: single tokens first, then the sets of tokens."""
    single = [item for item in items.fields if item.kind == "token"]
    several = [item for item in items.fields if item.kind == "token_seq"]
    table = weights.take(_ITEM_TABLES, [sum(item.rows for item in single), None])
    begin = 0
    for item in single:
        builder.table(item.name, table[begin:begin + item.rows])
        begin += item.rows
    for index, item in enumerate(several):
        builder.table(item.name, weights.take(f"{_SEQ_TABLES}.{index}.weight", [item.rows, table.shape[1]]))
    _add_sequence(builder, requests, items.fields[0].name, max_length)
    for item in single + several:
        sources = ("REQUEST", "EVENT") if item is items.fields[0] else ("CATALOG", "CATALOG")
        _add_field(builder, item, requests, *sources, bag if item.kind == "token_seq" else None)
    if len(items.fields) > 1:
        builder.catalog = _catalog(items, requests)
    return [item.name for item in single + several]


def _add_sequence(builder, requests, item_name, max_length):
    # Padded behind the newest; the mask goes by length. Pads then neither score nor are seen.
    builder.sequence(requests.sequence, requests.actions, max_length, keep="NEWEST", pad="RIGHT",
                     skip_pad_of=f"{requests.sequence}.{item_name}" if requests.unknown == "PAD_ROW" else None)


def _add_field(builder, item, requests, candidate_source, sequence_source, bag):
    """The item field of the candidates and the one of the history, which share a table."""
    integer = item.tokens is None or item.name in requests.integer
    if item.tokens is None:
        vocabulary = features.identity(item.rows)
    else:
        path = f"{item.name}.txt"
        vocabulary = features.file_vocabulary(path, 1)
        builder.vocabularies[path] = item.checked_tokens(integer)
    # An unknown token in a set would be looked up as the pad row, which RecBole leaves out: refused.
    unknown = requests.unknown if bag is None else "REFUSE"
    missing = None if candidate_source == "REQUEST" else "PAD_ROW"
    for level, name, source in (("CANDIDATE", item.name, candidate_source),
                                ("SEQUENCE", f"{requests.sequence}.{item.name}", sequence_source)):
        builder.feature(
            features.id_feature(name, level, item.name, vocabulary, source=source,
                                type="INT64" if integer else "STRING", bag=bag or "SINGLE", pad_row=0, oov_row=None,
                                unknown=unknown, negative=unknown, missing_id=missing))


def _catalog(items, requests):
    """Every item that has a token, with its features; what RecBole knows nothing of is a missing value (row 0)."""
    rows = range(items.fields[0].rows) if items.fields[0].tokens is None else range(1, items.fields[0].rows)
    columns = []
    for item in items.fields:
        values = list(rows) if item is items.fields[0] else [items.values[item.name][row] for row in rows]
        integer = item.tokens is None or item.name in requests.integer
        make = features.ints if integer else features.strings
        if item is items.fields[0]:
            columns.append(make(item.name, [item.value(row, integer) for row in values]))
        else:
            known = [[id for id in (value if item.kind == "token_seq" else [value]) if id != 0] for value in values]
            columns.append(
                make(item.name, [item.value(id, integer) for row in known for id in row], [len(row) for row in known]))
    return {"columns": columns}


# --- Checks and walks -----------------------------------------------------------------------------------------------


def _walk_mlp(weights, prefix):
    """Prefixes of the Linears of an MLPLayers, in order: dropout, batch norm and activation shift their numbers."""
    numbers = sorted({int(name[len(prefix) + 1:].split(".")[0]) for name in weights.names(f"{prefix}.")})
    linear = [number for number in numbers if not weights.has(f"{prefix}.{number}.running_mean")]
    if not linear:
        raise ImportRefused(f'tensor "{prefix}.1.weight": expected in the checkpoint, got no tensor under "{prefix}"')
    return [f"{prefix}.{number}" for number in linear]


def _batch_norm(builder, weights, linear, name, width):
    """The batch norm that follows a Linear in RecBole's DIN, always affine."""
    stem, number = linear.rsplit(".", 1)
    norm = f"{stem}.{int(number) + 1}"
    mean, variance, weight, bias = (
        weights.take(f"{norm}.{part}", [width]) for part in ("running_mean", "running_var", "weight", "bias"))
    return builder.batch_norm(name, mean, variance, weight, bias, epsilon=DICE_NORM_EPSILON)


def _check_widths(config, what, linear):
    expected = config.get("mlp_hidden_size")
    if expected is not None and len(expected) != len(linear):
        raise ImportRefused(f"{what}: expected {len(expected)} layers as mlp_hidden_size says, got {len(linear)}")


def _positive(config, name):
    value = config.get(name)
    if type(value) is not int or value <= 0:
        raise ImportRefused(f'config "{name}": expected a positive whole number, got {value!r}')
    return value


def _paths(vocabularies):
    paths = {}
    for entry in vocabularies:
        name, separator, path = entry.partition("=")
        if not separator or not name or not path:
            raise ImportRefused(f"--vocabulary: expected FIELD=FILE, got {entry!r}")
        paths[name] = path
    return paths
