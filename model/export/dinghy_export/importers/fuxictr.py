"""FuxiCTR's DIN (reczoo/FuxiCTR 2, model_zoo/DIN) becomes a bundle.

    python3 -m dinghy_export import --from fuxictr \\
        --checkpoint checkpoints/taobao/DIN_taobao.model \\
        --config config --experiment DIN_taobao --data_dir data/taobao \\
        --user userid --candidate price --actions click_history=click \\
        --name taobao --version 1 --out models

What decides the numbers is read from FuxiCTR's own files: every option of the model from its configuration, features
and their order from feature_map.json, rows of raw ids from feature_vocab.json, padding and scaling from
feature_processor.pkl or dataset_config.yaml. What FuxiCTR does not know is asked for: which features are a user's
(--user) and which a candidate's (--candidate), and which actions make up a sequence (--actions).

The sequence fields of a group become one sequence, named after the first of them, with fields named after the target's:
click_history.item_id, click_history.cate_id.
"""

from dataclasses import dataclass, field

import numpy as np

from dinghy_export.builder import Builder, Built
from dinghy_export.importers import fuxictr_dataset
from dinghy_export.importers.fuxictr_features import FeatureImporter
from dinghy_export.importers.fuxictr_mlp import mlp_block
from dinghy_export.importers.options import add_level_arguments, levels_of, read_object, split_assignments, split_names
from dinghy_export.importers.weights import ImportRefused, Weights
from dinghy_export.manifest import provenance

# What DIN takes where its configuration does not say (model_zoo/DIN/src/DIN.py at 0245987).
DEFAULTS = {
    "task": "binary_classification",
    "dnn_hidden_units": [512, 128, 64],
    "dnn_activations": "ReLU",
    "attention_hidden_units": [64],
    "attention_hidden_activations": "Dice",
    "attention_output_activation": None,
    "attention_dropout": 0,
    "net_dropout": 0,
    "batch_norm": False,
    "bn_only_once": False,
    "din_use_softmax": False,
}
REQUIRED = ("embedding_dim", "din_target_field", "din_sequence_field")
MASK = -1e9
LINKS = {"binary_classification": "SIGMOID", "regression": "RAW"}
LEVELS = {
    "user": "USER",
    "context": "USER",
    "item": "CANDIDATE",
}  # of a feature's `source`, where the configuration has one


@dataclass
class Serving:
    """What FuxiCTR does not know of a model and its server needs."""

    name: str
    actions: dict  # sequence -> actions
    levels: dict = field(default_factory=dict)  # feature -> USER or CANDIDATE; targets need no entry
    item: str = None  # the candidate feature that is the item's id; None: the first target
    catalog: dict = None  # Catalog
    provenance: dict = field(default_factory=lambda: provenance("FuxiCTR", "", ""))


@dataclass
class Group:
    """A target and the sequence that it attends to."""

    target: list
    sequence: list

    @property
    def name(self):
        return self.sequence[0]


def add_arguments(parser):
    parser.add_argument(
        "--config",
        required=True,
        metavar="PATH",
        help="FuxiCTR's configuration folder, its model_config.yaml, or the expanded parameters as JSON",
    )
    parser.add_argument("--experiment", metavar="ID", help="the experiment's name in the configuration")
    parser.add_argument(
        "--data_dir",
        required=True,
        metavar="FOLDER",
        help="the dataset's folder: feature_map.json, feature_vocab.json, feature_processor.pkl",
    )
    parser.add_argument(
        "--actions",
        action="append",
        metavar="SEQUENCE=ACTION,...",
        help="actions that make up a sequence, named by its (first) sequence field; repeat for each",
    )
    parser.add_argument("--item", metavar="FEATURE", help="the item's id; by default the first target field")
    parser.add_argument(
        "--padding",
        action="append",
        metavar="SEQUENCE=pre|post",
        help="side of padding and truncation, where no file of FuxiCTR says it",
    )
    parser.add_argument(
        "--scaling",
        action="append",
        metavar="FEATURE=MEAN,STDDEV",
        help="(x - mean) / stddev before the model, where no file of FuxiCTR says it; 0,1 for none",
    )
    add_level_arguments(parser)


def import_model(args) -> Built:
    params = fuxictr_dataset.read_params(args.config, args.experiment)
    padding = split_assignments("--padding", args.padding)
    scaling = {name: _two_numbers(name, text) for name, text in split_assignments("--scaling", args.scaling).items()}
    dataset = fuxictr_dataset.read_dataset(args.data_dir, params, padding, scaling)
    actions = {name: split_names([text]) for name, text in split_assignments("--actions", args.actions).items()}
    levels = levels_of(args.user, args.candidate)
    catalog = read_object(args.catalog) if args.catalog else None
    origin = provenance(
        "FuxiCTR",
        args.data or str(params.get("dataset_id", "")),
        args.created,
        experiment=args.experiment or params.get("model_id", ""),
    )
    weights = Weights.of_file(args.checkpoint)
    return build_din(weights, params, dataset, Serving(args.name, actions, levels, args.item, catalog, origin))


def _two_numbers(name, text):
    try:
        mean, stddev = (float(part) for part in text.split(","))
    except ValueError:
        raise ImportRefused(f"--scaling {name}: expected MEAN,STDDEV, got {text!r}") from None
    return mean, stddev


def build_din(weights, params, dataset, serving) -> Built:
    """A Built of the weights (Weights) of a DIN; refuses what it cannot take with ImportRefused. `params`: the expanded
    configuration, `dataset`: a fuxictr_dataset.Dataset, `serving`: a Serving."""
    options = _options(params, weights)
    groups = _groups(options, dataset)
    b = Builder(serving.name, serving.item or groups[0].target[0])
    importer = FeatureImporter(b, weights, dataset, serving, options["embedding_dim"], LEVELS)
    importer.check_names(groups)
    _add_attention(b, weights, options, groups, importer)
    _add_tower(b, weights, options, dataset, groups, importer)
    importer.add_notes()
    b.output(dataset.labels[0], "tower", LINKS[options["task"]])
    b.notes += weights.finish(ignore=["*.num_batches_tracked"])
    return b.build(serving.provenance)


# --- Options --------------------------------------------------------------------------------------------------------


def _options(params, weights):
    if params.get("model", "DIN") != "DIN":
        raise ImportRefused(f'model: expected DIN, got {params["model"]}')
    if any(name.startswith("dnn.dnn.") for name in weights.names()):
        raise ImportRefused("checkpoint: expected one of FuxiCTR 2, got one of FuxiCTR 1, which pads with the last id")
    for name in REQUIRED:
        if params.get(name) is None:
            raise ImportRefused(f"configuration: expected {name}, got none")
    options = {**DEFAULTS, **{name: params[name] for name in (*DEFAULTS, *REQUIRED) if name in params}}
    if options["task"] not in LINKS:
        raise ImportRefused(f'task: expected {" or ".join(LINKS)}, got {options["task"]!r}')
    for name in ("dnn_hidden_units", "attention_hidden_units"):
        units = options[name]
        if not isinstance(units, list) or not all(type(unit) is int and unit > 0 for unit in units):
            raise ImportRefused(f"{name}: expected a list of widths, got {units!r}")
    return options


def _groups(options, dataset):
    targets, sequences = (_fields(options[name]) for name in ("din_target_field", "din_sequence_field"))
    if len(targets) != len(sequences):
        raise ImportRefused(f"din_sequence_field: expected {len(targets)} as din_target_field, got {len(sequences)}")
    groups = [Group(target, sequence) for target, sequence in zip(targets, sequences)]
    seen = set()
    for group in groups:
        _check_group(group, options["embedding_dim"], dataset)
        for name in group.sequence:
            if name in seen:
                raise ImportRefused(f'din_sequence_field: expected each sequence once, got "{name}" twice')
            seen.add(name)
    return groups


def _fields(value):
    """Lists of names. A list holds groups; a group of several fields is a tuple, or in JSON a list in the list."""
    return [
        [entry] if isinstance(entry, str) else list(entry) for entry in (value if isinstance(value, list) else [value])
    ]


def _check_group(group, dim, dataset):
    for names, option, kind in (
        (group.target, "din_target_field", "categorical"),
        (group.sequence, "din_sequence_field", "sequence"),
    ):
        widths = []
        for name in names:
            spec = dataset.features.get(name)
            if spec is None or spec["type"] != kind:
                got = "no such feature" if spec is None else f'type {spec["type"]}'
                raise ImportRefused(f'{option}: "{name}": expected a {kind} feature of feature_map.json, got {got}')
            if spec.get("feature_encoder"):
                raise ImportRefused(
                    f'{option}: "{name}": expected no feature_encoder, got {spec["feature_encoder"]}; '
                    "attention needs the embeddings as they are"
                )
            widths.append(spec.get("embedding_dim") or dim)
        # The attention is so wide, whatever the fields are, and its result is cut into pieces of embedding_dim.
        if sum(widths) != dim * len(group.target):
            raise ImportRefused(
                f"{option} {names}: expected embeddings of {dim * len(group.target)} together, embedding_dim "
                f"times {len(group.target)} targets, got {sum(widths)}"
            )
    if len(set(group.target)) != len(group.target):
        raise ImportRefused(f"din_target_field {group.target}: expected each field once in a group, got one twice")
    if len(group.sequence) != len(group.target):
        raise ImportRefused(
            f"din_sequence_field {group.sequence}: expected as many fields as in {group.target}, got "
            f"{len(group.sequence)}"
        )


# --- Layers ---------------------------------------------------------------------------------------------------------


def _add_attention(b, weights, options, groups, importer):
    found = len({name.split(".")[1] for name in weights.names("attention_layers.")})
    if found != len(groups):
        raise ImportRefused(
            f"din_target_field: expected {len(groups)} attention layers in the checkpoint, got {found}; fields "
            "that form one group stand in a tuple (in JSON: in a list of their own)"
        )
    for index, group in enumerate(groups):
        query = [importer.candidate_id(name) for name in group.target]
        keys = importer.sequence(group.name, group.sequence, group.target)
        width = options["embedding_dim"] * len(group.target)
        name = interest(groups, index)
        _, layers = mlp_block(
            b,
            weights,
            f"attention_layers.{index}.attention_layer.mlp",
            f"{name}.layers",
            4 * width,
            options["attention_hidden_units"],
            options["attention_hidden_activations"],
            options["attention_dropout"],
            "attention",
            output_activation=options["attention_output_activation"],
        )
        softmax = bool(options["din_use_softmax"])
        b.layer(
            name,
            "targetAttention",
            query=query,
            keys=keys,
            values=keys,
            din={"parts": ["QUERY", "KEY", "DIFFERENCE", "PRODUCT"], "layers": layers},
            normalization="SOFTMAX" if softmax else "NONE",
            scale=1.0,
            mask=MASK if softmax else None,
            empty="PAD_VALUE" if softmax else "ZEROS",
        )


def interest(groups, index):
    """The name of a group's attention layer."""
    return "interest" if len(groups) == 1 else f"interest.{index}"


def _add_tower(b, weights, options, dataset, groups, importer):
    """The tower over all features in the feature map's order. FuxiCTR cuts each pooled vector into pieces and puts one
    in each sequence field's place; here it stays whole, and the columns of what reads it are put in its order."""
    dim, at, pieces = options["embedding_dim"], 0, {}
    for index, group in enumerate(groups):
        for number, name in enumerate(group.sequence):
            pieces[name] = (interest(groups, index), number * dim)
    inputs, widths, places = [], {}, []  # places: (input, its first column, columns) in FuxiCTR's order
    for name, spec in dataset.features.items():
        if spec["type"] == "meta":
            continue
        if name in pieces:
            layer, begin = pieces[name]
            places.append((layer, begin, dim))
            widths[layer] = max(widths.get(layer, 0), begin + dim)
        else:
            layer, width = importer.input(name)
            places.append((layer, 0, width))
            widths[layer] = width
        if layer not in inputs:
            inputs.append(layer)
    begins = {}
    for layer in inputs:
        begins[layer], at = at, at + widths[layer]
    order = np.concatenate(
        [np.arange(begins[layer] + begin, begins[layer] + begin + width) for layer, begin, width in places]
    )
    columns = np.argsort(order)  # of the manifest's input number i: its column in FuxiCTR
    norm, layers = mlp_block(
        b,
        weights,
        "dnn.mlp",
        "tower",
        at,
        options["dnn_hidden_units"],
        options["dnn_activations"],
        options["net_dropout"],
        "dnn",
        batch_norm=bool(options["batch_norm"]),
        only_once=bool(options["bn_only_once"]),
        columns=None if (columns == np.arange(at)).all() else columns,
    )
    if norm is not None:
        inputs = [b.layer("tower.input", "batchNorm", inputs=inputs, **norm)]
    b.layer("tower", "mlp", inputs=inputs, layers=layers)
