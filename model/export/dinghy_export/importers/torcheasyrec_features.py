"""TorchEasyRec's features as its configuration describes them: what a request brings for each, and its columns.

    settings = Settings(item="adgroup_id", actions={"click_50_seq": ("click",)}, keep="NEWEST")
    inputs = Inputs(builder, weights, settings, config.messages("feature_configs"), fg_mode="FG_DAG")
    inputs.use("cate_id", DEEP); inputs.use("click_50_seq__cate_id", SEQUENCES)
    inputs.define()
    name, width = inputs.column("cate_id", DEEP)

What makes ids of values in training is pyfg, a program without source. Taken over is what its documentation fixes:
num_buckets, vocab_list, and zscore and minmax of numbers. The rest can only come as the row numbers that pyfg gives: as
data of fg_mode FG_NONE has them, or with Settings.encoded.
"""

from dataclasses import dataclass, field

import numpy as np

from dinghy_export import features
from dinghy_export.importers.weights import ImportRefused

DEEP, SEQUENCES = "deep", "sequences"  # kinds of feature groups; each kind has embedding tables of its own
_TRAINING_ONLY = ("init_fn", "use_mask", "trainable", "embedding_constraints", "separator", "sequence_delim",
                  "data_type")


@dataclass
class Settings:
    """What the configuration does not say."""

    item: str  # the feature that holds the candidates' item id
    actions: dict  # sequence -> actions of its events; "" stands for all others
    keep: str  # NEWEST or OLDEST: which behaviors stay of more than fit, as the training data was cut
    newest_first: bool = None  # the order of behaviors in the training data; None: not said
    encoded: bool = False  # requests bring the row numbers that pyfg gives, whatever fg_mode
    user: tuple = ()  # features that are the same for all candidates
    candidate: tuple = ()  # features of a candidate
    catalog: list = None  # item features, one dict an item: field -> value, or list of values


@dataclass
class _Feature:
    name: str
    config: object  # Message of an IdFeature or RawFeature
    sparse: bool  # has an embedding
    raw: bool
    sequence: str = ""
    length: int = 0  # of the sequence
    table: str = ""  # ours
    rows: int = 0
    tables: dict = field(default_factory=dict)  # kind of group -> the table's tensor
    columns: dict = field(default_factory=dict)  # kind of group -> (name, width)

    def field(self):
        return self.name[len(self.sequence) + 2:] if self.sequence else self.name

    def ours(self):
        return f"{self.sequence}.{self.field()}" if self.sequence else self.name


class Inputs:
    def __init__(self, builder, weights, settings, feature_configs, *, fg_mode, prefix=""):
        """`prefix`: of the tensors of the embedding group, such as "model.embedding_group."."""
        self._builder, self._weights, self._settings, self._prefix = builder, weights, settings, prefix
        self._encoded = settings.encoded or fg_mode == "FG_NONE"
        self._fg_none = fg_mode == "FG_NONE"
        self._features = {}
        self._lengths = {}  # sequence -> length
        self._fields = {name for row in settings.catalog or [] for name in row}
        for config in feature_configs:
            self._read(config)

    # --- The configuration ------------------------------------------------------------------------------------------

    def _read(self, config):
        kind = config.names()[0] if len(config.names()) == 1 else ""
        if kind in ("id_feature", "raw_feature"):
            self._add(config.message(kind), kind)
        elif kind == "sequence_feature":
            sequence = config.message(kind)
            name, length = sequence.text("sequence_name"), sequence.integer("sequence_length")
            if not name or not length:
                raise sequence.refusal("sequence_name", "expected a name and a sequence_length")
            for entry in sequence.messages("features"):
                inner = entry.names()[0] if len(entry.names()) == 1 else ""
                if inner not in ("id_feature", "raw_feature"):
                    self._features[f"{name}__{_name_of(entry)}"] = f'{entry.path} "{inner}"'
                    continue
                self._add(entry.message(inner), inner, name, length)
        else:
            self._features[_name_of(config)] = f'{config.path} "{kind}"'

    def _add(self, config, kind, sequence="", length=0):
        name = config.text("feature_name")
        if not name:
            raise config.refusal("feature_name", "expected a name, got none")
        name = f"{sequence}__{name}" if sequence else name
        raw = kind == "raw_feature"
        self._features[name] = _Feature(name, config, not raw or config.has("boundaries"), raw, sequence, length)

    # --- What the model reads ---------------------------------------------------------------------------------------

    def use(self, name, kind):
        """The model reads this feature in a group of this kind."""
        feature = self._feature(name)
        if not feature.sparse:
            feature.columns[""] = (feature.ours(), feature.config.integer("value_dim", 1))
            return
        dim, table = feature.config.integer("embedding_dim"), feature.config.text("embedding_name") or f"{name}_emb"
        if not dim:
            raise feature.config.refusal("embedding_dim", f'expected it for feature "{name}", got none')
        where = f"seq_emb_impls.__BASE__.ec_dict.{dim}.embeddings" if kind == SEQUENCES else \
            "emb_impls.__BASE__.ebc.embedding_bags"
        feature.tables[kind] = f"{self._prefix}{where}.{table}.weight"

    def sequence_of(self, name) -> str:
        """The sequence of a feature; "" for one that is in none."""
        return self._feature(name).sequence

    def length_of(self, sequence) -> int:
        return next(feature.length for feature in self._features.values()
                    if isinstance(feature, _Feature) and feature.sequence == sequence)

    def cut(self, sequence, length):
        """The sequence has at most so many behaviors. Every encoder that reads it must say the same."""
        if self._lengths.setdefault(sequence, length) != length:
            raise ImportRefused(f'sequence "{sequence}": expected one max_seq_length for all its encoders, got '
                                f"{self._lengths[sequence]} and {length}")

    def column(self, name, kind):
        """(name of a feature or layer, width), after define()."""
        return self._features[name].columns[kind if self._features[name].sparse else ""]

    def define(self):
        """Adds sequences, tables, features and catalog of what was used to the builder."""
        used = [
            feature for feature in self._features.values()
            if isinstance(feature, _Feature) and (feature.tables or feature.columns)
        ]
        stray = [name for name in self._settings.actions if name and name not in self._lengths]
        if stray:
            raise ImportRefused(f'--action: expected a sequence that the model reads ({", ".join(self._lengths)}), '
                                f'got "{stray[0]}"')
        for sequence, length in self._lengths.items():
            actions = self._settings.actions.get(sequence) or self._settings.actions.get("")
            if not actions:
                raise ImportRefused(f'sequence "{sequence}": expected the actions of its events, '
                                    f"--action {sequence}=ACTION, got none")
            self._builder.sequence(sequence, actions, length, keep=self._settings.keep, pad="NONE")
        if not any(feature.name == self._settings.item for feature in used):
            raise ImportRefused(f'item feature "{self._settings.item}": expected one that the model reads, got one of '
                                f"{', '.join(feature.name for feature in used if not feature.sequence)}")
        for feature in used:
            if feature.sparse:
                self._define_tables(feature)
                self._define_id(feature)
            else:
                self._define_number(feature)
            feature.config.ignore(*_TRAINING_ONLY, *(() if feature.sequence else ("sequence_length",)))
            for name in ("stub_type", "weighted"):
                if feature.config.flag(name, False):
                    raise feature.config.refusal(name, f'feature "{feature.name}": expected false, got true')
            feature.config.finish()
        if self._fields:
            self._builder.catalog = self._catalog(used)

    def _feature(self, name) -> _Feature:
        feature = self._features.get(name)
        if feature is None:
            raise ImportRefused(f'feature "{name}": expected it in feature_configs, got none of that name')
        if not isinstance(feature, _Feature):
            raise ImportRefused(
                f'feature "{name}": {feature}: expected an id_feature, raw_feature or sequence_feature of '
                "these; others are not supported")
        return feature

    # --- Tables and features ----------------------------------------------------------------------------------------

    def _define_tables(self, feature):
        """One table a feature. A feature that stands in groups of both kinds has two: side by side, and a layer for
        each picks its columns."""
        dim = feature.config.integer("embedding_dim")
        tensors = [self._weights.take(tensor, [None, dim]) for tensor in feature.tables.values()]
        rows = {len(tensor) for tensor in tensors}
        if len(rows) != 1:
            raise ImportRefused(f'feature "{feature.name}": expected tables of equal rows, got {sorted(rows)}')
        known = {table["name"] for table in self._builder.tables}
        table = feature.name if len(tensors) > 1 else next(iter(feature.tables.values()))[len(self._prefix):]
        table = table.removesuffix(".weight")
        if table not in known:
            self._builder.table(table, np.concatenate(tensors, axis=1))
        feature.table, feature.rows = table, rows.pop()
        if len(tensors) == 1:
            feature.columns = {kind: (feature.ours(), dim) for kind in feature.tables}
            return
        for place, kind in enumerate(feature.tables):
            pick = np.zeros((dim, dim * len(tensors)), dtype=np.float32)
            pick[:, place * dim:(place + 1) * dim] = np.eye(dim)
            name = f"{feature.ours()}@{kind}"
            self._builder.layer(name, "dense", inputs=[feature.ours()], **self._builder.dense(name, pick))
            feature.columns[kind] = (name, dim)

    def _define_id(self, feature):
        single = feature.name == self._settings.item or (feature.sequence
                                                         and feature.config.integer("value_dim", 1) == 1)
        pooling = feature.config.text("pooling", "sum")
        if pooling not in ("sum", "mean"):
            raise feature.config.refusal("pooling", f"expected sum or mean, got {pooling}")
        feature.config.integer("value_dim")
        policy = self._encoded_ids(feature) if self._encoded else self._plain_ids(feature)
        if feature.name == self._settings.item:
            policy["missing_id"] = None
        level, source = self._place(feature)
        self._builder.feature(
            features.id_feature(feature.ours(), level, feature.table, source=source,
                                bag="SINGLE" if single else f"BAG_{pooling.upper()}", **policy))

    def _encoded_ids(self, feature):
        """Row numbers, as pyfg has made them."""
        feature.config.ignore("hash_bucket_size", "num_buckets", "vocab_list", "vocab_dict", "vocab_file", "asset_dir",
                              "boundaries", "default_value", "default_bucketize_value", "fg_value_type", "normalizer",
                              "sequence_fields")
        policy = {
            "vocabulary": features.identity(feature.rows), "type": "INT64", "pad_row": 0, "oov_row": None,
            "unknown": "REFUSE", "negative": "REFUSE", "missing_id": None if feature.sequence else "PAD_ROW"
        }
        default = feature.config.text("fg_encoded_default_value", "") if self._fg_none else ""
        feature.config.ignore("fg_encoded_default_value")
        if default:
            if not default.isdecimal() or int(default) >= feature.rows:
                raise feature.config.refusal("fg_encoded_default_value", f"expected one row below {feature.rows}, got "
                                             f"{default!r}")
            policy.update(oov_row=int(default), missing_id="OOV_ROW")
        return policy

    def _plain_ids(self, feature):
        """Values as training read them, before pyfg."""
        config = feature.config
        config.ignore("fg_encoded_default_value")
        default = config.text("default_value", "") or ("0" if feature.sequence else "")
        policy = {"pad_row": 0, "oov_row": None, "missing_id": None if feature.sequence or default else "PAD_ROW"}
        if config.has("num_buckets"):
            rows = config.integer("num_buckets")
            if rows != feature.rows:
                raise config.refusal("num_buckets", f"expected the {feature.rows} rows of the table, got {rows}")
            policy.update(vocabulary=features.identity(rows), type="INT64", unknown="REFUSE", negative="REFUSE")
            if default:
                if not default.isdecimal() or int(default) >= rows:
                    raise config.refusal("default_value", f"expected an id below {rows}, got {default!r}")
                policy.update(oov_row=int(default), missing_id="OOV_ROW")
            return policy
        if config.has("vocab_list"):
            return {**policy, **self._vocabulary(feature, default)}
        how = next((name for name in ("hash_bucket_size", "vocab_dict", "vocab_file", "zch", "dynamicemb", "boundaries")
                    if config.has(name)), None)
        if how in ("zch", "dynamicemb") or how is None:
            raise config.refusal(
                how or "num_buckets", f'feature "{feature.name}": expected num_buckets or vocab_list, got '
                f"{how or 'neither'}")
        raise config.refusal(
            how, f'feature "{feature.name}": pyfg makes its ids, and its source is not open; send the row '
            "numbers that it gives, with --encoded")

    def _vocabulary(self, feature, default):
        config = feature.config
        tokens = config.texts("vocab_list")
        first, unknown = 0, config.integer("default_bucketize_value")
        if unknown is None:  # row 0 is the default's, row 1 that of unknown tokens
            tokens, unknown = [default, "<OOV>", *tokens], 1
        if tokens[0] == "":
            tokens, first = tokens[2:], 2
        if len(tokens) + first != feature.rows or unknown >= feature.rows:
            raise config.refusal("vocab_list", f"expected tokens for {feature.rows} rows, got {len(tokens) + first}")
        bad = next((token for token in tokens if not token or "\n" in token or tokens.count(token) > 1), None)
        if bad is not None:
            raise config.refusal("vocab_list", f"expected tokens of one line that differ, got {bad!r}")
        path = f"{feature.name}.txt"
        self._builder.vocabularies[path] = tokens
        policy = {
            "vocabulary": features.file_vocabulary(path, first), "type": "STRING", "unknown": "OOV_ROW",
            "oov_row": unknown
        }
        if default and default in tokens and first + tokens.index(default) == unknown:
            policy["missing_id"] = "OOV_ROW"
        elif default:
            self._builder.notes.append(
                f'feature "{feature.name}" must be sent: where it is missing, send its default value '
                f"{default!r}")
        return policy

    def _define_number(self, feature):
        config, width = feature.config, feature.columns[""][1]
        mean, stddev, normalizer = 0.0, 1.0, config.text("normalizer", "")
        config.ignore("embedding_dim", "pooling", "sequence_fields")
        if self._fg_none:
            default = config.text("fg_encoded_default_value")
            config.ignore("default_value")
        else:
            default = None if normalizer else config.text("default_value", "0")
            config.ignore("default_value", "fg_encoded_default_value")
            if self._encoded and normalizer:
                self._builder.notes.append(f'feature "{feature.name}" comes normalized ({normalizer})')
            elif normalizer:
                mean, stddev = _normalizer(config, normalizer)
        missing = None
        if default and not feature.sequence and width == 1:
            missing = _float(config, "default_value", default)
        level, source = self._place(feature)
        if width == 1:
            self._builder.feature(
                features.numeric_feature(feature.ours(), level, mean, stddev, source=source, missing=missing))
        elif (mean, stddev) == (0.0, 1.0):
            self._builder.feature(features.vector_feature(feature.ours(), level, width, source=source))
        else:
            raise config.refusal("normalizer", f"expected none for a vector of {width} numbers, got {normalizer}")

    def _place(self, feature):
        """Level and source of a feature."""
        side = (feature.config.text("expression") or "").partition(":")[0]
        if feature.sequence:
            shared = feature.field() in self._fields and side != "user" and feature.field() != self._settings.item
            return "SEQUENCE", "CATALOG" if shared else "EVENT"
        if feature.name in self._settings.user and feature.name in self._settings.candidate:
            raise ImportRefused(f'feature "{feature.name}": expected --user or --candidate, got both')
        if feature.name in self._settings.user or (side == "user" and feature.name not in self._settings.candidate):
            return "USER", "REQUEST"
        if feature.name not in self._settings.candidate and side != "item":
            raise ImportRefused(
                f'feature "{feature.name}": expected to know whether it is the same for all candidates; its '
                f"expression says {side or 'nothing'}: say --user or --candidate")
        known = feature.name in self._fields and feature.name != self._settings.item
        return "CANDIDATE", "CATALOG" if known else "REQUEST"

    def _catalog(self, used):
        """Columns of the fields that the model reads from the catalog."""
        rows, columns = self._settings.catalog, []
        by_name = {feature["name"]: feature for feature in self._builder.features}
        wanted = {self._settings.item: by_name[self._settings.item]}
        for feature in used:
            if by_name[feature.ours()]["from"] == "CATALOG":
                wanted.setdefault(feature.field(), by_name[feature.ours()])
        unused = [name for name in sorted(self._fields) if name not in wanted]
        if unused:
            self._builder.notes.append(
                f"left out of the catalog: {', '.join(unused)}, which the model does not read there")
        for name, feature in wanted.items():
            single = name == self._settings.item
            values = [row.get(name) for row in rows]
            if single and any(value is None for value in values):
                raise ImportRefused(
                    f'catalog: expected "{name}" in every line, got line {values.index(None) + 1} without')
            lists = [value if isinstance(value, list) else [] if value is None else [value] for value in values]
            flat = [value for row in lists for value in row]
            make = features.floats if "id" not in feature else \
                features.ints if feature["id"]["type"] == "INT64" else features.strings
            kinds = {features.floats: (int, float), features.ints: int, features.strings: str}[make]
            bad = next((value for value in flat if not isinstance(value, kinds) or isinstance(value, bool)), None)
            if bad is not None:
                raise ImportRefused(f'catalog "{name}": expected {make.__name__}, got {bad!r}')
            columns.append(make(name, flat, None if single else [len(row) for row in lists]))
        return {"columns": columns}


def _name_of(config):
    """The feature's name in a configuration of a kind that is not read."""
    for kind in config.names():
        inner = config.messages(kind)[0] if config.messages(kind) else None
        if inner is not None and inner.has("feature_name"):
            return inner.text("feature_name")
    return ""


def _normalizer(config, text):
    """Mean and divisor of "method=zscore,mean=0.0,standard_deviation=10.0" or "method=minmax,min=2.1,max=2.2"."""
    options = dict(option.strip().split("=", 1) for option in text.split(",") if "=" in option)
    method = options.pop("method", "")
    names = {"zscore": ["mean", "standard_deviation"], "minmax": ["min", "max"]}.get(method)
    if names is None or sorted(options) != sorted(names):
        raise config.refusal("normalizer", f"expected zscore or minmax, got {text}")
    first, second = (_float(config, "normalizer", options[name]) for name in names)
    divisor = second if method == "zscore" else second - first
    if divisor <= 0:
        raise config.refusal("normalizer", f"expected a positive width, got {text}")
    return first, divisor


def _float(config, name, text):
    try:
        return float(text)
    except ValueError:
        raise config.refusal(name, f"expected a number, got {text!r}") from None
