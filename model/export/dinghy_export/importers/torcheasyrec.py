"""TorchEasyRec's MultiTowerDIN and MultiTower: pipeline.config and a state dict become a bundle.

    python3 -m dinghy_export import --from torcheasyrec \\
        --config pipeline.config --checkpoint model.pth --item adgroup_id \\
        --action click_50_seq=click --keep newest --catalog items.jsonl \\
        --name ads --version 1 --out models

Taken over: deep feature groups with their sequence encoders (DINEncoder, SimpleAttention, PoolingEncoder,
MultiWindowDINEncoder, SelfAttentionEncoder), sequence groups, towers, DIN towers and the final MLP; id_feature,
raw_feature and sequence_feature of these. All else is refused by its name.

TorchEasyRec writes a folder of torch.distributed.checkpoint; PyTorch 2 makes one file of it:

    python3 -m torch.distributed.checkpoint.format_utils dcp_to_torch \\
        experiments/ads/model.ckpt-1000/model model.pth
"""

import json
import os

from dinghy_export.builder import Builder
from dinghy_export.importers import torcheasyrec_layers as layers
from dinghy_export.importers.text_format import parse
from dinghy_export.importers.torcheasyrec_features import DEEP, SEQUENCES, Inputs, Settings
from dinghy_export.importers.torcheasyrec_layers import Columns, MlpSpec
from dinghy_export.importers.weights import ImportRefused, Weights
from dinghy_export.manifest import provenance

_TRAINING_ONLY = ("metrics", "train_metrics", "use_pareto_loss_weight", "kernel")

# --- The command ----------------------------------------------------------------------------------------------------


def add_arguments(parser):
    parser.add_argument("--config", required=True, metavar="FILE", help="pipeline.config, protobuf's text format")
    parser.add_argument("--item", required=True, metavar="FEATURE",
                        help="the feature that holds the candidates' item id")
    parser.add_argument(
        "--action", action="append", default=[], dest="actions", metavar="[SEQUENCE=]ACTION",
        help="action of the events that make a sequence, of all sequences where none is named; may be repeated")
    parser.add_argument("--keep", required=True, choices=("newest", "oldest"),
                        help="which behaviors stay of more than sequence_length, as the training data was cut")
    parser.add_argument(
        "--order", choices=("newest-first", "oldest-first"), help="the order of behaviors in the training "
        "data; needed where windows or max_seq_length are counted from the first")
    parser.add_argument("--encoded", action="store_true",
                        help="requests bring the row numbers that pyfg gives, as data of "
                        "fg_mode FG_NONE does")
    parser.add_argument(
        "--catalog", metavar="FILE", help="item features: JSON lines, one object an item, such as "
        '{"adgroup_id": 5, "cate_id": 3, "tags": [1, 2]}')
    parser.add_argument("--user", action="append", default=[], metavar="FEATURE",
                        help="this feature is the same for all candidates, where its expression does not say it")
    parser.add_argument("--candidate", action="append", default=[], metavar="FEATURE",
                        help="this feature is a candidate's, where its expression does not say it")


def import_model(args):
    if os.path.isdir(args.checkpoint):
        raise ImportRefused(
            f"{args.checkpoint}: expected a file, got a folder; where it is torch.distributed.checkpoint's, "
            f"make a file of it with PyTorch 2: python3 -m torch.distributed.checkpoint.format_utils "
            f"dcp_to_torch {args.checkpoint} model.pth")
    with open(args.config, encoding="utf-8") as file:
        config = parse(file.read(), args.config)
    settings = Settings(item=args.item, actions=_actions(args.actions), keep=args.keep.upper(),
                        newest_first={None: None, "newest-first": True,
                                      "oldest-first": False}[args.order], encoded=args.encoded, user=tuple(args.user),
                        candidate=tuple(args.candidate), catalog=_read_catalog(args.catalog))
    return build_model(Weights.of_file(args.checkpoint), config, settings, args.name,
                       provenance("TorchEasyRec", args.data, args.created))


def _actions(arguments):
    actions = {}
    for argument in arguments:
        sequence, separator, action = argument.rpartition("=")
        if not action or (separator and not sequence):
            raise ImportRefused(f"--action: expected SEQUENCE=ACTION or ACTION, got {argument!r}")
        actions[sequence] = (*actions.get(sequence, ()), action)
    return actions


def _read_catalog(path):
    if path is None:
        return None
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ImportRefused(f"{path}, line {number}: expected a JSON object, got {error}") from None
            if not isinstance(row, dict):
                raise ImportRefused(f"{path}, line {number}: expected a JSON object, got {type(row).__name__}")
            rows.append(row)
    return rows


# --- The model ------------------------------------------------------------------------------------------------------


def build_model(weights, config, settings, name, origin=None):
    """`config`: the pipeline's Message; `settings`: Settings."""
    config.ignore("train_input_path", "eval_input_path", "model_dir", "train_config", "eval_config", "export_config")
    data, model = config.message("data_config"), config.message("model_config")
    if data is None or model is None:
        raise config.refusal("model_config", "expected data_config and model_config, got one or none")
    fg_mode = _fg_mode(data)
    prefix = "model." if weights.has("model.output_mlp.weight") else ""
    builder = Builder(name, settings.item)
    inputs = Inputs(builder, weights, settings, config.messages("feature_configs"), fg_mode=fg_mode,
                    prefix=f"{prefix}embedding_group.")
    model.ignore(*_TRAINING_ONLY)
    if model.has("variational_dropout"):
        raise model.refusal("variational_dropout", "it scales features at inference too, and is not supported")
    groups = _Groups(builder, weights, settings, inputs, f"{prefix}embedding_group.", model.messages("feature_groups"))
    kinds = [kind for kind in ("multi_tower", "multi_tower_din") if model.has(kind)]
    if len(kinds) != 1:
        others = [
            field for field in model.names() if field not in ("feature_groups", "num_class", "losses", *_TRAINING_ONLY)
        ]
        raise model.refusal("model", f"expected multi_tower or multi_tower_din, got {', '.join(others) or 'none'}")
    towers = _add_towers(builder, weights, groups, prefix, model.message(kinds[0]))
    _add_output(builder, weights, f"{prefix}output_mlp", towers, model)
    model.finish()
    config.finish()
    builder.notes += weights.finish(ignore=[
        "*.num_batches_tracked", "*.windows_len", "*.cumsum_windows_len", *(
            f"{prefix}_{kind}_modules.*" for kind in ("loss", "metric", "train_metric"))
    ])
    return builder.build(origin or provenance("TorchEasyRec", "", "1970-01-01T00:00:00Z"))


def _fg_mode(data):
    mode = data.word("fg_mode", "FG_NONE")
    if data.has("fg_encoded") and not data.has("fg_mode"):
        mode = "FG_NONE" if data.flag("fg_encoded") else "FG_NORMAL"
    samplers = [name for name in data.names() if name.endswith(("sampler", "sampler_v2"))]
    if samplers:
        raise data.refusal(samplers[0], "models with sampled negatives are not supported")
    return mode


def _mlp_spec(message):
    message.ignore("dropout_ratio")
    spec = MlpSpec(message.integers("hidden_units"), message.text("activation", "nn.ReLU"),
                   message.flag("use_bn", False), message.flag("bias", True), message.flag("use_ln", False))
    message.finish()
    return spec


def _required(message, name):
    inner = message.message(name)
    if inner is None:
        raise message.refusal(name, "expected it, got none")
    return inner


def _add_towers(builder, weights, groups, prefix, model) -> Columns:
    """All that comes before the last Linear."""
    output = Columns()
    for tower in model.messages("towers"):
        group = tower.text("input")
        output += layers.add_mlp(builder, weights, f"{prefix}towers.{group}", f"tower.{group}", groups.deep(group),
                                 _mlp_spec(_required(tower, "mlp")))
        tower.finish()
    for index, tower in enumerate(model.messages("din_towers")):
        group = tower.text("input")
        query, sequence = groups.sequence(group)
        output += layers.add_din_encoder(builder, weights, f"{prefix}din_towers.{index}", f"din.{group}", query,
                                         sequence, _mlp_spec(_required(tower, "attn_mlp")))
        tower.finish()
    if model.has("final"):
        output = layers.add_mlp(builder, weights, f"{prefix}final_mlp", "final", output,
                                _mlp_spec(model.message("final")))
    model.finish()
    return output


_LINKS = {
    "binary_cross_entropy": "probs", "binary_focal_loss": "probs", "softmax_cross_entropy": "probs1",
    "jrc_loss": "probs1", "l2_loss": "y"
}


def _add_output(builder, weights, prefix, towers, model):
    """The prediction, under TorchEasyRec's name for it."""
    classes = model.integer("num_class", 1)
    losses = [loss.names()[0] for loss in model.messages("losses") if len(loss.names()) == 1]
    names = {_LINKS.get(loss) for loss in losses}
    if len(names) != 1 or None in names:
        raise model.refusal(
            "losses", f"expected losses of one prediction, of {', '.join(_LINKS)}, got "
            f"{', '.join(losses) or 'none'}")
    name = names.pop()
    if classes != (2 if name == "probs1" else 1):
        raise model.refusal("num_class", f"expected {2 if name == 'probs1' else 1} with {losses[0]}, got {classes}")
    weight = towers.kept(weights.take(f"{prefix}.weight", [classes, towers.width()]))
    bias = weights.take(f"{prefix}.bias", [classes])
    if classes == 2:  # softmax(a, b)[1] = sigmoid(b - a)
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    builder.layer("logit", "dense", inputs=towers.names(), **builder.dense("logit", weight, bias))
    builder.output(name, "logit", "RAW" if name == "y" else "SIGMOID")


# --- Feature groups -------------------------------------------------------------------------------------------------


class _Groups:
    """Feature groups by name, and what they consist of."""
    def __init__(self, builder, weights, settings, inputs, prefix, groups):
        self._builder, self._weights, self._settings, self._prefix = builder, weights, settings, prefix
        self._inputs = inputs
        self._features, self._encoders, self._sequences = {}, {}, {}
        for group in groups:
            name, kind = group.text("group_name"), group.word("group_type", "DEEP")
            if kind == "DEEP":
                self._features[name] = group.texts("feature_names")
                nested = group.messages("sequence_groups")
                for sequence in nested:
                    self._add_sequence(sequence, sequence.text("group_name") or (name if len(nested) == 1 else None))
                self._encoders[name] = [
                    self._encoder(encoder, nested, name) for encoder in group.messages("sequence_encoders")
                ]
            elif kind == "SEQUENCE":
                self._add_sequence(group, name)
            else:
                raise group.refusal("group_type", f"expected DEEP or SEQUENCE, got {kind}")
            group.finish()
        for name, members in self._features.items():
            for feature in members:
                if inputs.sequence_of(feature):
                    raise ImportRefused(f'feature group "{name}": expected no features of a sequence, got {feature}')
                inputs.use(feature, DEEP)
        for name, (members, sequence) in self._sequences.items():
            for feature in members:
                inputs.use(feature, SEQUENCES)
            inputs.cut(sequence, self._length(name, sequence))
        inputs.define()

    def deep(self, name) -> Columns:
        """The features of a deep group, then the results of its encoders."""
        if name not in self._features:
            raise ImportRefused(f'tower "{name}": expected a feature group of type DEEP, got none of that name')
        columns = Columns([self._inputs.column(feature, DEEP) for feature in self._features[name]])
        for index, (kind, group, encoder) in enumerate(self._encoders[name]):
            columns += self._add_encoder(kind, group, encoder,
                                         f"{self._prefix}_group_name_to_seq_encoders.{name}.{index}",
                                         f"encoder.{name}.{index}")
        return columns

    def sequence(self, name):
        """Query and sequence of a sequence group."""
        if name not in self._sequences:
            raise ImportRefused(f'sequence group "{name}": expected in feature_groups, got none of that name')
        members, _ = self._sequences[name]
        behavior = [feature for feature in members if self._inputs.sequence_of(feature)]
        return (Columns([self._inputs.column(feature, SEQUENCES) for feature in members if feature not in behavior]),
                Columns([self._inputs.column(feature, SEQUENCES) for feature in behavior]))

    def _add_sequence(self, group, name):
        members = group.texts("feature_names")
        sequences = {self._inputs.sequence_of(feature) for feature in members} - {""}
        if name is None or name in self._sequences:
            raise group.refusal("group_name", f"expected a name of its own, got {name or 'none'}")
        if len(sequences) != 1:
            raise group.refusal(
                "feature_names", f'group "{name}": expected features of one sequence, got '
                f"{', '.join(sorted(sequences)) or 'none'}")
        self._sequences[name] = (members, sequences.pop())
        group.finish()

    def _encoder(self, message, nested, name):
        kinds = message.names()
        encoder = message.message(kinds[0]) if len(kinds) == 1 else None
        if encoder is None:
            raise message.refusal("seq_module", f"expected one, got {', '.join(kinds) or 'none'}")
        group = encoder.text("input") or (name if len(nested) == 1 and not nested[0].has("group_name") else
                                          nested[0].text("group_name") if len(nested) == 1 else None)
        encoder.ignore("name", "dropout")
        return kinds[0], group, encoder

    def _length(self, name, sequence):
        """Behaviors that the encoders of a sequence group see: they take the first max_seq_length."""
        whole = self._inputs.length_of(sequence)
        encoders = [
            (kind, encoder) for members in self._encoders.values() for kind, group, encoder in members if group == name
        ]
        lengths = {min(whole, encoder.integer("max_seq_length", 0) or whole) for _, encoder in encoders} or {whole}
        length = min(lengths)
        if len(lengths) > 1:
            raise ImportRefused(f'sequence group "{name}": expected one max_seq_length for all its encoders, got '
                                f"{', '.join(map(str, sorted(lengths)))}")
        if length == whole:
            return whole
        encoder = encoders[0][1]
        if any(kind == "self_attention_encoder" for kind, _ in encoders):
            raise encoder.refusal(
                "max_seq_length", f"expected 0 or at least the {whole} of sequence_length, got {length}: "
                "SelfAttentionEncoder cuts the sequence and then divides by its full length")
        newest_first = self._settings.newest_first
        if newest_first is None or newest_first != (self._settings.keep == "NEWEST"):
            said = "nothing" if newest_first is None else f"{'newest' if newest_first else 'oldest'} first"
            raise encoder.refusal(
                "max_seq_length", f"expected behaviors in the order {self._settings.keep.lower()} first, so that "
                f"the first {length} are those that stay, got {said} (--order, --keep)")
        return length

    def _add_encoder(self, kind, group, encoder, prefix, name) -> Columns:
        query, sequence = self.sequence(group)
        if kind == "din_encoder":
            result = layers.add_din_encoder(self._builder, self._weights, prefix, name, query, sequence,
                                            _mlp_spec(_required(encoder, "attn_mlp")))
        elif kind == "simple_attention":
            result = layers.add_simple_attention(self._builder, prefix, name, query, sequence)
        elif kind == "pooling_encoder":
            result = layers.add_pooling_encoder(self._builder, prefix, name, sequence,
                                                encoder.text("pooling_type", "mean"))
        elif kind == "self_attention_encoder":
            result = layers.add_self_attention_encoder(self._builder, self._weights, prefix, name, sequence,
                                                       encoder.integer("multihead_attn_dim", 512),
                                                       encoder.integer("num_heads", 8))
        elif kind == "multi_window_din_encoder":
            if self._settings.newest_first is None:
                raise encoder.refusal("windows_len",
                                      "expected the order of behaviors in the training data, --order, got none")
            result = layers.add_multi_window_din_encoder(self._builder, self._weights, prefix, name, query, sequence,
                                                         _mlp_spec(_required(encoder, "attn_mlp")),
                                                         encoder.integers("windows_len"), self._settings.newest_first)
        else:
            raise ImportRefused(
                f'sequence encoder "{kind}": expected one of din_encoder, simple_attention, pooling_encoder, '
                "multi_window_din_encoder, self_attention_encoder")
        encoder.finish()
        return result
