"""FuxiCTR's features as the manifest's: tables, vocabularies, sequences, numbers.

Rows of a table are FuxiCTR's: row 0 is padding, the last row stands for tokens that training did not see. Where a
vocabulary leaves rows out, the table is written without them.
"""

import numpy as np

from dinghy_export import features
from dinghy_export.importers.dense_layers import is_number
from dinghy_export.importers.fuxictr_dataset import OOV, PAD
from dinghy_export.importers.weights import ImportRefused

POOLINGS = {
    "layers.MaskedAveragePooling()": "MEAN",
    "layers.MaskedSumPooling()": "SUM",
    "MaskedAveragePooling()": "MEAN",
    "MaskedSumPooling()": "SUM",
}
KEEPS = {"pre": ("NEWEST", "LEFT"), "post": ("OLDEST", "RIGHT")}  # FuxiCTR cuts on the side that it pads


class FeatureImporter:
    """Adds to the builder what is asked for, once each."""

    def __init__(self, b, weights, dataset, serving, embedding_dim, levels):
        self._b, self._weights, self._dataset, self._serving = b, weights, dataset, serving
        self._dim = embedding_dim
        self._levels = levels
        self._tables = {}  # owner -> rows in the checkpoint, and their order in the bundle (None: the same)
        self._added = {}  # FuxiCTR's name -> the manifest's
        self._types = {}  # feature -> INT64 or STRING
        self._unmapped = []  # the manifest's names of features without a vocabulary
        self._targets = set()
        catalog = serving.catalog or {"columns": []}
        self._catalog_columns = {column["feature"] for column in catalog["columns"]}
        if serving.catalog is not None:
            b.catalog = serving.catalog

    # --- What the user says -------------------------------------------------------------------------------------------

    def check_names(self, groups):
        """Refuses options that name no feature and features that no option names; chooses the types of ids."""
        specs = self._dataset.features
        self._targets = {name for group in groups for name in group.target}
        in_groups = {name for group in groups for name in group.sequence}
        for option, names in (("--actions", self._serving.actions), ("--user and --candidate", self._serving.levels)):
            for name in names:
                if name not in specs or specs[name]["type"] == "meta":
                    raise ImportRefused(f'{option}: expected features of feature_map.json, got "{name}"')
        item = self._b.item_feature
        if item not in self._targets and not (item in specs and specs[item]["type"] == "categorical"):
            raise ImportRefused(f'--item: expected a categorical feature of feature_map.json, got "{item}"')
        for group in groups:
            if group.name not in self._serving.actions:
                raise ImportRefused(
                    f'sequence "{group.name}": expected --actions {group.name}=ACTION,... for the events that '
                    "it is made of, got none"
                )
        unknown = [
            name
            for name, spec in specs.items()
            if spec["type"] != "meta" and name not in in_groups and self._level(name) is None
        ]
        if unknown:
            raise ImportRefused(f"features {', '.join(unknown)}: expected --user or --candidate to name each, got neither")
        for name in self._serving.actions:
            if name in in_groups and name not in {group.name for group in groups}:
                raise ImportRefused(f'--actions: expected the first field of a group, got "{name}"')
        self._choose_types(groups)

    def _level(self, name):
        """USER, CANDIDATE, SEQUENCE; None: not known."""
        if name in self._targets or name == self._b.item_feature:
            if self._serving.levels.get(name) == "USER":
                raise ImportRefused(
                    f'feature "{name}": expected a candidate\'s, as it is a target or the item, got --user'
                )
            return "CANDIDATE"
        if name in self._serving.actions:
            return "SEQUENCE"
        return self._serving.levels.get(name) or self._levels.get(self._dataset.features[name].get("source"))

    def _choose_types(self, groups):
        """Ids are INT64 where all tokens are decimal numbers; targets and the sequences of them have one type."""
        together = {name: {name} for name in self._dataset.features}
        for group in groups:
            for target, sequence in zip(group.target, group.sequence):
                merged = together[target] | together[sequence]
                for name in merged:
                    together[name] = merged
        for name, names in together.items():
            numbers = all(
                is_number(token)
                for one in names
                for token in self._dataset.vocabularies.get(one, ())
                if token not in (PAD, OOV)
            )
            self._types[name] = "INT64" if numbers else "STRING"

    # --- Features -----------------------------------------------------------------------------------------------------

    def candidate_id(self, name):
        """The manifest's name of a target."""
        return self.input(name)[0]

    def input(self, name):
        """The manifest's name of what stands for a feature in the tower, and its width."""
        spec = self._dataset.features[name]
        if name not in self._added:
            adder = {
                "categorical": self._add_categorical,
                "numeric": self._add_numeric,
                "embedding": self._add_vector,
                "sequence": self._add_pooled,
            }.get(spec["type"])
            if adder is None:
                raise ImportRefused(f'feature "{name}": type {spec["type"]} is not supported')
            self._added[name] = adder(name, spec)
        return self._added[name], spec.get("embedding_dim") or self._dim

    def sequence(self, name, fields, columns) -> list:
        """A sequence with a feature for each of FuxiCTR's sequence fields, and its features' names. `columns`: what
        they are called in requests and events."""
        specs = [self._dataset.features[field] for field in fields]
        lengths = {spec.get("max_len") for spec in specs}
        if len(lengths) > 1 or not all(type(length) is int and length > 0 for length in lengths):
            raise ImportRefused(f"sequence fields {fields}: expected one max_len, got {sorted(map(str, lengths))}")
        sides = {self._padding(field) for field in fields}
        if len(sides) > 1:
            raise ImportRefused(f"sequence fields {fields}: expected padding on one side, got {sorted(sides)}")
        keep, pad = KEEPS[sides.pop()]
        named = [f"{name}.{column}" for column in columns]
        self._b.sequence(name, self._serving.actions[name], lengths.pop(), keep=keep, pad=pad, skip_pad_of=named[0])
        for field, column, full in zip(fields, columns, named):
            source = "CATALOG" if column in self._catalog_columns and column != self._b.item_feature else "EVENT"
            # An empty token is padding to FuxiCTR; of the first field it would take the behavior away.
            missing = None if full == named[0] else "PAD_ROW"
            self._add_id(field, full, "SEQUENCE", source, missing_id=missing)
        return named

    def _padding(self, name):
        side = self._dataset.padding.get(name)
        if side not in KEEPS:
            raise ImportRefused(
                f'sequence "{name}": expected its padding, pre or post, in feature_processor.pkl or '
                f"dataset_config.yaml or as --padding {name}=SIDE, got {'none' if side is None else repr(side)}"
            )
        return side

    def _add_categorical(self, name, spec):
        self._refuse_encoder(name, spec)
        level = self._level(name)
        source = (
            "CATALOG"
            if level == "CANDIDATE" and name in self._catalog_columns and name != self._b.item_feature
            else "REQUEST"
        )
        self._add_id(name, name, level, source, missing_id=self._missing_id(name))
        return name

    def _missing_id(self, name):
        """FuxiCTR fills nulls with fill_na, which is no token of the vocabulary unless another column brought it."""
        column, vocabulary = self._dataset.columns.get(name), self._dataset.vocabularies.get(name)
        if column is None or vocabulary is None or name == self._b.item_feature:
            return None
        filled = column.get("fill_na", "" if str(column.get("dtype")) == "str" else 0)
        return None if str(filled) in vocabulary else "OOV_ROW"

    def _add_numeric(self, name, spec):
        self._refuse_encoder(name, spec)
        if name not in self._dataset.scaling:
            raise ImportRefused(
                f'feature "{name}": expected its normalizer in feature_processor.pkl, or none in '
                f"dataset_config.yaml, or --scaling {name}=MEAN,STDDEV (0,1 for none), got none of them"
            )
        mean, stddev = self._dataset.scaling[name]
        column = self._dataset.columns.get(name)
        missing = None if column is None else float(column.get("fill_na", 0.0))
        self._b.feature(features.numeric_feature(name, self._level(name), mean, stddev, missing=missing))
        width = spec.get("embedding_dim") or self._dim
        weight = self._weights.take(f"embedding_layer.embedding_layers.{name}.weight", [width, 1])
        return self._project(name, weight)

    def _add_vector(self, name, spec):
        self._refuse_encoder(name, spec)
        if not spec.get("pretrain_dim"):
            raise ImportRefused(f'feature "{name}": expected its pretrain_dim in feature_map.json, got none')
        self._b.feature(features.vector_feature(name, self._level(name), spec["pretrain_dim"]))
        width = spec.get("embedding_dim") or self._dim
        return self._project(
            name, self._weights.take(f"embedding_layer.feature_encoders.{name}.weight", [width, spec["pretrain_dim"]])
        )

    def _project(self, name, weight):
        layer = f"{name}.embedding"
        return self._b.layer(layer, "dense", inputs=[name], **self._b.dense(layer, weight))

    @staticmethod
    def _refuse_encoder(name, spec):
        if spec.get("feature_encoder"):
            raise ImportRefused(
                f'feature "{name}": feature_encoder {spec["feature_encoder"]} is not supported for type {spec["type"]}'
            )

    def _add_pooled(self, name, spec):
        """A sequence outside attention: a sequence of its own where --actions names it, else a bag."""
        encoder = spec.get("feature_encoder")
        if encoder not in POOLINGS:
            raise ImportRefused(
                f'feature "{name}": expected feature_encoder {" or ".join(list(POOLINGS)[:2])} for a sequence '
                f"that no attention reads, got {encoder}"
            )
        self._check_pooled_rows(name, POOLINGS[encoder])
        level = self._level(name)
        if level == "SEQUENCE":
            keys = self.sequence(name, [name], [name])
            return self._b.layer(f"{name}.pooled", "pooling", inputs=keys, method=POOLINGS[encoder], empty="ZEROS")
        self._b.notes.append(
            f'feature "{name}" is a bag of ids: send at most {spec.get("max_len")} a row, as training kept, '
            "and none that stands for padding"
        )
        source = "CATALOG" if level == "CANDIDATE" and name in self._catalog_columns else "REQUEST"
        self._add_id(name, name, level, source, bag=f"BAG_{POOLINGS[encoder]}", missing_id="PAD_ROW")
        return name

    def _check_pooled_rows(self, name, method):
        """FuxiCTR pools pads too, as rows of zeros, and takes every behavior whose embedding sums to 0 for one."""
        owner = self._owner(name)
        weight = self._embedding(owner, owner)
        if weight[0].any():
            raise ImportRefused(
                f'feature "{name}": expected zeros in the row of padding, which FuxiCTR pools with the rest, '
                f"got {weight[0][weight[0] != 0][0]}"
            )
        zeros = (weight[1:].sum(axis=1) == 0).nonzero()[0]
        if method == "MEAN" and len(zeros):
            raise ImportRefused(
                f'feature "{name}": expected embeddings that do not sum to 0, as FuxiCTR takes these for '
                f"padding, got row {zeros[0] + 1}"
            )

    def add_notes(self):
        if self._unmapped:
            self._b.notes.append(
                f'ids of {", ".join(self._unmapped)} are rows of their tables, as FuxiCTR encodes them, and others are '
                "refused: feature_vocab.json does not hold these features"
            )

    # --- Ids and tables -----------------------------------------------------------------------------------------------

    def _add_id(self, name, full_name, level, source, bag="SINGLE", missing_id=None):
        spec = self._dataset.features[name]
        if spec.get("category_processor"):
            raise ImportRefused(f'feature "{name}": category_processor {spec["category_processor"]} is not supported')
        owner = self._owner(name)
        rows, order = self._table(owner)
        if spec.get("vocab_size") != rows:
            raise ImportRefused(
                f'feature "{name}": expected vocab_size {rows}, the rows of table "{owner}", got '
                f'{spec.get("vocab_size")}'
            )
        vocabulary = self._dataset.vocabularies.get(name)
        kind, oov_row, unknown = features.identity(rows), None, "REFUSE"
        if vocabulary is None:
            self._unmapped.append(full_name)
        else:
            own = order_of(name, vocabulary, rows)
            if own != order:
                raise ImportRefused(
                    f'feature "{name}": expected the vocabulary of "{owner}", whose table it shares and which '
                    "leaves rows out, got another"
                )
            kind = self._vocabulary(name, full_name, vocabulary, level, bag)
            oov_row, unknown = (rows if own is None else len(own)) - 1, "OOV_ROW"
        self._b.feature(
            features.id_feature(
                full_name,
                level,
                owner,
                kind,
                source=source,
                type=self._types[name],
                bag=bag,
                pad_row=0,
                oov_row=oov_row,
                unknown=unknown,
                negative=unknown,
                missing_id=missing_id,
            )
        )

    def _owner(self, name):
        """The feature whose table this one uses: FuxiCTR shares with an earlier feature only."""
        owner = self._dataset.features[name].get("share_embedding")
        names = list(self._dataset.features)
        if owner in names and names.index(owner) < names.index(name):
            return self._owner(owner)
        return name

    def _table(self, owner):
        """The rows of a table in the checkpoint, and the order in which the bundle's table takes them."""
        if owner not in self._tables:
            weight = self._embedding(owner, owner)
            for name in self._dataset.features:
                if name != owner and self._owner(name) == owner and self._weights.names(self._embedding_key(name)):
                    if not np.array_equal(self._embedding(owner, name), weight):
                        raise ImportRefused(
                            f'feature "{name}": expected the table of "{owner}", which it shares, got other numbers'
                        )
            vocabulary = self._dataset.vocabularies.get(owner)
            order = None if vocabulary is None else order_of(owner, vocabulary, len(weight))
            self._b.table(owner, weight if order is None else weight[order])
            self._tables[owner] = (len(weight), order)
        return self._tables[owner]

    @staticmethod
    def _embedding_key(name):
        return f"embedding_layer.embedding_layers.{name}."

    def _embedding(self, owner, name):
        """The embeddings [rows, width] that feature `name` looks up, in a module made for `owner`. A pretrained table
        is worked out with what FuxiCTR does to its rows: everything about a row depends on the row alone."""
        spec, key = self._dataset.features[owner], self._embedding_key(name)
        width = spec.get("embedding_dim") or self._dim
        if not spec.get("pretrained_emb"):
            return self._weights.take(f"{key}weight", [None, width])
        usage, oov = spec.get("pretrain_usage", "init"), spec.get("oov_idx")
        if usage not in ("init", "sum", "concat") or type(oov) is not int:
            raise ImportRefused(
                f'feature "{owner}": expected pretrain_usage init, sum or concat and an oov_idx in '
                f"feature_map.json, got {usage!r} and {oov!r}"
            )
        rows, wide = spec.get("vocab_size"), spec.get("pretrain_dim", width)
        known = (np.arange(rows) <= oov)[
            :, None
        ]  # rows behind are tokens of the pretrained file that training did not see
        pretrained = self._weights.take(f"{key}pretrain_embedding.weight", [rows, wide]).astype(np.float64)
        if not spec.get("freeze_emb"):
            pretrained = pretrained * known
        own = None if usage == "init" else self._weights.take(f"{key}id_embedding.weight", [rows, width]) * known
        if usage == "concat":
            pretrained = np.concatenate([pretrained, own], axis=1)
        if usage == "concat" or wide != width:
            pretrained = pretrained @ self._weights.take(f"{key}proj.weight", [width, pretrained.shape[1]]).T.astype(
                np.float64
            )
        return (pretrained + own if usage == "sum" else pretrained).astype(np.float32)

    def _vocabulary(self, name, full_name, vocabulary, level, bag):
        by_row = sorted((row, token) for token, row in vocabulary.items() if token not in (PAD, OOV))
        tokens = [token for _, token in by_row]
        first_row = 0 if PAD not in vocabulary else 1
        if self._types[name] == "INT64" and first_row == 0 and tokens == [str(row) for row in range(len(tokens))]:
            return features.identity(len(tokens))
        # In sequences FuxiCTR takes the empty token for padding.
        if first_row == 1 and (level == "SEQUENCE" or bag != "SINGLE"):
            empty = str(self._dataset.columns.get(name, {}).get("fill_na", ""))
            if empty in vocabulary and empty not in (PAD, OOV):
                raise ImportRefused(
                    f'feature "{name}": expected no row for {empty!r}, which stands for padding, got '
                    f"{vocabulary[empty]}"
                )
            if self._types[name] == "STRING" or is_number(empty):
                tokens, first_row = [empty] + tokens, 0
        bad = next((token for token in tokens if "\n" in token or "\r" in token), None)
        if bad is not None:
            raise ImportRefused(f'feature "{name}": expected tokens without line ends, got {bad!r}')
        path = f"{full_name}.vocabulary.txt"
        for other, known in self._b.vocabularies.items():
            if known == tokens:
                path = other
        self._b.vocabularies[path] = tokens
        return features.file_vocabulary(path, first_row)


def order_of(name, vocabulary, rows) -> list:
    """The rows of padding, of the tokens, and of unseen tokens; None: they are all rows, in this order."""
    if OOV not in vocabulary:
        raise ImportRefused(f'feature_vocab.json: "{name}": expected {OOV}, got none')
    taken = sorted(row for token, row in vocabulary.items() if token not in (PAD, OOV))
    order = ([vocabulary[PAD]] if PAD in vocabulary else []) + taken + [vocabulary[OOV]]
    if order[0] != 0 or len(set(order)) != len(order) or max(order) >= rows:
        raise ImportRefused(
            f'feature_vocab.json: "{name}": expected rows of their own below {rows} with {PAD} in row 0, got '
            f"rows {order[0]} to {max(order)} for {len(set(order))} of {len(order)} tokens"
        )
    return None if order == list(range(rows)) else order
