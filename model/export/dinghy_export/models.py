"""The reference model and its ablations, built from a declarative ModelSpec.

A ReferenceModel is a short list of nodes, each one layer of proto/bundle.proto: forward() runs the list and the
exporter writes the same list, so that the two cannot drift apart.

Example:
    spec = ModelSpec(
        name="shop", variant="din_sasrec", tables={"item": Table(2002, 32)},
        candidate=(IdFeature("item", "item", vocabulary={"identity": {"rows": 2002}}, pad_row=0, oov_row=1),),
        sequences=(SequenceSpec("clicks", ("click",), 50, fields=("item",)),), outputs=("click",))
    model = ReferenceModel(spec)
    logits = model(batch)["click"]  # [B, C]
    for node in model.nodes: ...    # name, kind, inputs, module
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

import torch
from torch import nn

from dinghy_export.layers import (AutoTargetAttention, Dense, EmbeddingTable, Mlp, Pooling, SelfAttention,
                                  TargetAttention)

VARIANTS = ("no_history", "mean_pooling", "sasrec", "din", "din_auto", "din_sasrec")


@dataclass(frozen=True)
class Table:
    """An embedding table [rows, dim]; zero_row stays zero (padding)."""
    rows: int
    dim: int
    zero_row: Optional[int] = None


@dataclass(frozen=True)
class IdFeature:
    """An id or bag of ids; the fields are those of Feature and IdFeature in proto/bundle.proto."""
    name: str
    table: str
    vocabulary: dict = field(default_factory=dict)  # protobuf JSON of the oneof, e.g. {"identity": {"rows": 10}}
    bag: str = "SINGLE"
    type: str = "INT64"
    source: str = "REQUEST"  # of the candidate; see SequenceSpec for sequences
    pad_row: Optional[int] = None
    oov_row: Optional[int] = None
    unknown: str = "OOV_ROW"
    negative: str = "OOV_ROW"
    missing_id: Optional[str] = None


@dataclass(frozen=True)
class NumericFeature:
    """(x - mean) / stddev, one float a row."""
    name: str
    mean: float
    stddev: float
    missing: Optional[float] = None


@dataclass(frozen=True)
class TimeSince:
    """Age of a behavior in buckets: row = number of boundaries <= age in milliseconds."""
    table: str
    boundaries_ms: Tuple[int, ...]


@dataclass(frozen=True)
class SequenceSpec:
    """One kind of history.

    `fields` name candidate features that behaviors have too, in the candidate's order and sharing its tables: the item
    comes from the event, the others from where the candidate's come from. `side` are id features that only behaviors
    have (such as the action, from EVENT). Time and side features are added after a projection to the fields' width.
    """
    name: str
    actions: Tuple[str, ...]
    max_length: int
    fields: Tuple[str, ...]
    side: Tuple[IdFeature, ...] = ()
    time_since: Optional[TimeSince] = None
    max_short: Optional[int] = None  # din_auto: the longest history that takes the first score; None: half of max_length


@dataclass(frozen=True)
class ModelSpec:
    name: str
    variant: str
    tables: Dict[str, Table]
    candidate: Tuple[IdFeature, ...]
    sequences: Tuple[SequenceSpec, ...]
    outputs: Tuple[str, ...]
    user: tuple = ()  # IdFeature and NumericFeature
    item_feature: str = "item"
    files: Dict[str, List[str]] = field(default_factory=dict)  # vocabulary files: path in the bundle -> tokens
    attention_hidden: Tuple[int, ...] = (64, 32)
    attention_activation: str = "SIGMOID"
    attention_normalization: str = "NONE"
    attention_scale: float = 1.0
    blocks: int = 1
    heads: int = 2
    wiring: str = "PRE_NORM"
    position_origin: Optional[str] = "FROM_NEWEST"
    causal: bool = True
    input_scale: float = 1.0
    tower_hidden: Tuple[int, ...] = (128, 64)
    tower_activation: str = "RELU"
    dropout: float = 0.1

    def with_variant(self, variant, **changes):
        return dataclasses.replace(self, variant=variant, **changes)

    def features(self):
        """All features: (level, name, IdFeature, NumericFeature or TimeSince)."""
        found = [("CANDIDATE", feature.name, feature) for feature in self.candidate]
        found += [("USER", feature.name, feature) for feature in self.user]
        for sequence in self.sequences:
            for name in sequence.fields:
                found.append(("SEQUENCE", f"{sequence.name}.{name}", self.candidate_feature(name)))
            for feature in sequence.side:
                found.append(("SEQUENCE", f"{sequence.name}.{feature.name}", feature))
            if sequence.time_since:
                found.append(("SEQUENCE", f"{sequence.name}.time", sequence.time_since))
        return found

    def candidate_feature(self, name):
        for feature in self.candidate:
            if feature.name == name:
                return feature
        raise ValueError(f"model {self.name!r}: sequence field {name!r} is no candidate feature")


@dataclass
class Batch:
    """Requests side by side, as features.FeatureEncoder and features.collate make them too.

    values: feature name -> USER [B, 1], SEQUENCE [B, T] or CANDIDATE [B, C]; ids are table rows (int64), time features
    are buckets; bags have one more axis, padded with -1; numeric features are normalised floats with one more axis of
    1. Rows beyond a request's own are padding, at the end; behaviors are oldest first.
    lengths: sequence -> behaviors, int64 [B]. candidates: their number, int64 [B].
    """
    values: Dict[str, torch.Tensor]
    lengths: Dict[str, torch.Tensor]
    candidates: torch.Tensor


@dataclass
class Node:
    """One layer: kind is the field name of Layer.kind in proto/bundle.proto.

    inputs: names in concatenation order (of target_attention: the query). terms: of add and multiply. keys: of
    target_attention, keys and values alike. module: the weights, under the same name in ReferenceModel.layers.
    """
    name: str
    kind: str
    inputs: Tuple[str, ...] = ()
    terms: Tuple[Tuple[str, ...], ...] = ()
    keys: Tuple[str, ...] = ()
    sequence: str = ""  # of layers that need its mask
    module: Optional[nn.Module] = None


class ReferenceModel(nn.Module):
    """Scores the candidates of a Batch; the history of a request is encoded once."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        if spec.variant not in VARIANTS:
            raise ValueError(f"model {spec.name!r}: variant: expected one of {VARIANTS}, got {spec.variant!r}")
        self.spec = spec
        self.nodes: List[Node] = []
        self.layers = nn.ModuleDict()
        self._width = {}
        for feature in spec.candidate:
            self._width[feature.name] = spec.tables[feature.table].dim
        for feature in spec.user:
            self._width[feature.name] = spec.tables[feature.table].dim if isinstance(feature, IdFeature) else 1
        query = tuple(feature.name for feature in spec.candidate)
        tower_inputs = tuple(feature.name for feature in spec.user) + query
        for sequence in self.read_sequences():
            tower_inputs += self._add_sequence(sequence)
        self._add_tower(tower_inputs)
        used = {feature.table for feature in spec.candidate}
        used |= {feature.table for feature in spec.user if isinstance(feature, IdFeature)}
        for sequence in self.read_sequences():
            used |= {feature.table for feature in sequence.side}
            used |= {sequence.time_since.table} if sequence.time_since else set()
        # Only tables that a feature of this variant reads.
        self.tables = nn.ModuleDict({
            name: EmbeddingTable(table.rows, table.dim, table.zero_row)
            for name, table in spec.tables.items() if name in used})

    def read_sequences(self):
        """The sequences that this variant reads."""
        return () if self.spec.variant == "no_history" else self.spec.sequences

    def width(self, name):
        """Width of a feature or layer."""
        return self._width[name]

    def _total(self, names):
        return sum(self._width[name] for name in names)

    def _add(self, node, width):
        self.nodes.append(node)
        self._width[node.name] = width
        if node.module is not None:
            self.layers[node.name] = node.module
        return node.name

    def _add_sequence(self, sequence):
        """Adds the layers of one sequence; returns its inputs to the tower."""
        spec = self.spec
        prefix = f"{sequence.name}_" if len(spec.sequences) > 1 else ""
        query = tuple(sequence.fields)
        rows = tuple(f"{sequence.name}.{name}" for name in sequence.fields)
        for name in sequence.fields:
            self._width[f"{sequence.name}.{name}"] = spec.tables[spec.candidate_feature(name).table].dim
        width = self._total(query)
        extra = ()
        for feature in sequence.side:
            extra += (f"{sequence.name}.{feature.name}",)
            self._width[extra[-1]] = spec.tables[feature.table].dim
        if sequence.time_since:
            extra += (f"{sequence.name}.time",)
            self._width[extra[-1]] = spec.tables[sequence.time_since.table].dim
        if extra:
            projection = self._add(
                Node(f"{prefix}time_projection", "dense", extra, module=Dense(self._total(extra), width)), width)
            rows = (self._add(Node(f"{prefix}behavior", "add", terms=(rows, (projection,))), width),)
        if spec.variant in ("sasrec", "din_sasrec"):
            module = SelfAttention(width, sequence.max_length, spec.blocks, spec.heads, spec.wiring, spec.causal,
                                   spec.input_scale, spec.position_origin, dropout=spec.dropout)
            rows = (self._add(Node(f"{prefix}history", "self_attention", rows, sequence=sequence.name, module=module),
                              width),)
        if spec.variant in ("din", "din_sasrec", "din_auto"):
            score = dict(hidden=spec.attention_hidden, activation=spec.attention_activation,
                         normalization=spec.attention_normalization, scale=spec.attention_scale)
            if spec.variant == "din_auto":
                module = AutoTargetAttention(width, sequence.max_short or max(1, sequence.max_length // 2), **score)
            else:
                module = TargetAttention(width, **score)
            node = Node(f"{prefix}interest", "target_attention", query, keys=rows, sequence=sequence.name,
                        module=module)
        else:
            module = Pooling("LAST" if spec.variant == "sasrec" else "MEAN")
            node = Node(f"{prefix}interest", "pooling", rows, sequence=sequence.name, module=module)
        interest = self._add(node, width)
        interaction = self._add(Node(f"{prefix}interaction", "multiply", terms=((interest,), query)), width)
        return (interest, interaction)

    def _add_tower(self, inputs):
        spec = self.spec
        hidden = [spec.tower_activation] * len(spec.tower_hidden)
        widths = [self._total(inputs), *spec.tower_hidden]
        if len(spec.outputs) == 1:
            module = Mlp([*widths, 1], [*hidden, "LINEAR"], spec.dropout)
            self.output_layers = {spec.outputs[0]: self._add(Node("tower", "mlp", inputs, module=module), 1)}
            return
        self._add(Node("tower", "mlp", inputs, module=Mlp(widths, hidden, spec.dropout)), widths[-1])
        self.output_layers = {
            output: self._add(Node(f"{output}_logit", "dense", ("tower",), module=Dense(widths[-1], 1)), 1)
            for output in spec.outputs}

    def _features(self, batch):
        """Embedded features by name, and the level of each."""
        values, levels = {}, {}
        sequences = self.read_sequences()
        for level, name, feature in self.spec.features():
            if level == "SEQUENCE" and name.split(".", 1)[0] not in {sequence.name for sequence in sequences}:
                continue
            raw = batch.values[name]
            if isinstance(feature, NumericFeature):
                value = raw
            else:
                value = self.tables[feature.table](raw, getattr(feature, "bag", "SINGLE"))
            values[name] = value.squeeze(1) if level == "USER" else value
            levels[name] = level.lower()
        return values, levels

    def forward(self, batch):
        """Logits by output, [B, C]. Rows of padded candidates hold arbitrary finite numbers."""
        values, levels = self._features(batch)
        candidates = batch.values[self.spec.item_feature].shape[1]
        masks = {}
        for sequence in self.read_sequences():
            behaviors = batch.values[f"{sequence.name}.{sequence.fields[0]}"].shape[1]
            masks[sequence.name] = torch.arange(behaviors) < batch.lengths[sequence.name][:, None]

        def read(names, level=None):
            level = level or next((levels[n] for n in names if levels[n] != "user"), "user")
            parts = []
            for name in names:
                value = values[name]
                if levels[name] == "user" and level == "candidate":
                    value = value[:, None].expand(-1, candidates, -1)
                parts.append(value)
            return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)), level

        for node in self.nodes:
            mask = masks.get(node.sequence)
            if node.kind in ("dense", "mlp"):
                x, level = read(node.inputs)
                y = node.module(x)
            elif node.kind == "self_attention":
                x, level = read(node.inputs)
                y = node.module(x, mask)
            elif node.kind == "pooling":
                y, level = node.module(read(node.inputs)[0], mask), "user"
            elif node.kind == "target_attention":
                level = "candidate"
                keys = read(node.keys)[0]
                y = node.module(read(node.inputs, level)[0], keys, keys, mask)
            else:  # add, multiply
                names = [name for term in node.terms for name in term]
                level = next((levels[n] for n in names if levels[n] != "user"), "user")
                y = read(node.terms[0], level)[0]
                for term in node.terms[1:]:
                    other = read(term, level)[0]
                    y = y + other if node.kind == "add" else y * other
            values[node.name], levels[node.name] = y, level
        return {output: values[name].squeeze(-1) for output, name in self.output_layers.items()}

    def probabilities(self, batch):
        """Scores as served, by output: sigmoid of the logits."""
        return {output: torch.sigmoid(logits) for output, logits in self.forward(batch).items()}


def manifest_inputs(spec):
    """The sequences and features that the spec's variant reads, in the protobuf JSON of BundleManifest."""
    read = () if spec.variant == "no_history" else spec.sequences
    sequences = [
        {"name": s.name, "actions": list(s.actions), "maxLength": s.max_length, "keep": "NEWEST", "pad": "NONE"}
        for s in read]
    features = []
    for level, name, feature in spec.features():
        sequence, _, column = name.partition(".")
        if level == "SEQUENCE" and sequence not in {s.name for s in read}:
            continue
        entry = {"name": name, "level": level, "from": "REQUEST"}
        if level == "SEQUENCE":
            entry["sequence"] = sequence
            catalog = isinstance(feature, IdFeature) and feature.source == "CATALOG"
            entry["from"] = "CATALOG" if catalog else "EVENT"
        elif isinstance(feature, IdFeature):
            entry["from"] = feature.source
        if isinstance(feature, TimeSince):
            entry["timeSince"] = {"boundariesMs": [str(b) for b in feature.boundaries_ms], "firstRow": 0}
            entry["table"] = feature.table
        elif isinstance(feature, NumericFeature):
            entry["numeric"] = {"mean": feature.mean, "stddev": feature.stddev}
            if feature.missing is not None:
                entry["missing"] = feature.missing
        else:
            entry["id"] = {"type": feature.type, "bag": feature.bag, **feature.vocabulary, "unknown": feature.unknown}
            if feature.pad_row is not None:
                entry["id"]["padRow"] = feature.pad_row
            if feature.oov_row is not None:
                entry["id"]["oovRow"] = feature.oov_row
            if feature.type == "INT64":
                entry["id"]["negative"] = feature.negative
            entry["table"] = feature.table
            if feature.missing_id is not None:
                entry["missingId"] = feature.missing_id
        features.append(entry)
    return sequences, features
