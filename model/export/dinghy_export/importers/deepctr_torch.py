"""DeepCTR-Torch's DIN (shenweichen/DeepCTR-Torch) becomes a bundle.

    python3 -m dinghy_export import --from deepctr-torch --checkpoint din.pth \\
        --columns din.json --keep NEWEST --user user --candidate pay_score \\
        --actions hist_item_id=click --name books --version 1 --out models

A checkpoint does not hold the feature columns, so the training script writes them down (din.json):

    keys = ("name", "vocabulary_size", "embedding_dim", "embedding_name",
            "group_name", "maxlen", "combiner", "length_name", "dimension")
    columns = [{"kind": type(c).__name__,
                **{k: getattr(c, k) for k in keys if hasattr(c, k)}}
               for c in feature_columns]
    json.dump({"feature_columns": columns,
               "history_feature_list": behavior_feature_list,
               "dnn_use_bn": False, "dnn_hidden_units": [256, 128],
               "dnn_activation": "relu", "att_hidden_size": [64, 16],
               "att_activation": "Dice", "att_weight_normalization": False,
               "task": "binary"}, open("din.json", "w"))

with the arguments that DIN was made with. What the caller of DeepCTR-Torch decides is asked for: which end of a long
history is kept (--keep), what stands in the padding (--padding_id, where the attention has a softmax), how raw ids were
encoded (--vocabulary; else they are rows), which features are a user's and which a candidate's.

The history is one sequence, named after its first column, with fields named after the features: hist_item_id.item_id.
"""

from dinghy_export import features
from dinghy_export.builder import Builder, Built
from dinghy_export.importers import dense_layers
from dinghy_export.importers.deepctr_torch_columns import Columns, Serving, grouped, target_of
from dinghy_export.importers.dense_layers import is_number
from dinghy_export.importers.options import add_level_arguments, levels_of, read_object, split_assignments, split_names
from dinghy_export.importers.weights import ImportRefused, Weights
from dinghy_export.manifest import provenance

OPTIONS = (
    "dnn_use_bn",
    "dnn_hidden_units",
    "dnn_activation",
    "att_hidden_size",
    "att_activation",
    "att_weight_normalization",
    "task",
)
LINKS = {"binary": "SIGMOID", "regression": "RAW"}
COMBINERS = {"sum": "SUM", "mean": "MEAN"}
MASK = -(2.0**32) + 1
DICE_EPSILON = 1e-8
BATCH_NORM_EPSILON = 1e-5
LARGEST_ID = 2**24  # the largest up to which float32 holds every integer


def add_arguments(parser):
    parser.add_argument(
        "--columns", required=True, metavar="FILE", help="the feature columns and DIN's arguments as JSON"
    )
    parser.add_argument(
        "--keep",
        choices=["NEWEST", "OLDEST"],
        help="which behaviors of a history longer than maxlen the training data kept",
    )
    parser.add_argument(
        "--padding_id",
        type=int,
        metavar="ID",
        help="the id that stands in the history's padding; needed with att_weight_normalization",
    )
    parser.add_argument(
        "--actions",
        action="append",
        metavar="COLUMN=ACTION,...",
        help="actions that make up the history, named by its first column; repeat for other lists of events",
    )
    parser.add_argument(
        "--vocabulary",
        action="append",
        metavar="FEATURE=FILE",
        help="raw ids, one a line, in the order of LabelEncoder.classes_; without it ids are rows",
    )
    parser.add_argument(
        "--first_row",
        action="append",
        metavar="FEATURE=ROW",
        help="row of the vocabulary's first line, such as 1 where the encoder's codes had 1 added; default 0",
    )
    parser.add_argument(
        "--oov_row",
        action="append",
        metavar="FEATURE=ROW",
        help="row for ids outside the vocabulary; without it they are refused",
    )
    parser.add_argument("--item", metavar="FEATURE", help="the item's id; by default the history's first feature")
    parser.add_argument("--output", default="click", metavar="NAME", help="the name of the output")
    add_level_arguments(parser)


def import_model(args) -> Built:
    description = read_object(args.columns)
    vocabularies = {}
    for name, path in split_assignments("--vocabulary", args.vocabulary).items():
        with open(path, encoding="utf-8", newline="\n") as file:
            vocabularies[name] = file.read().split("\n")
        if vocabularies[name][-1] == "":
            vocabularies[name].pop()
    catalog = read_object(args.catalog) if args.catalog else None
    levels = levels_of(args.user, args.candidate)
    serving = Serving(
        args.name,
        {name: split_names([text]) for name, text in split_assignments("--actions", args.actions).items()},
        args.keep,
        levels,
        args.padding_id,
        vocabularies,
        _rows("--first_row", args.first_row),
        _rows("--oov_row", args.oov_row),
        args.item,
        catalog,
        args.output,
        provenance("DeepCTR-Torch", args.data, args.created),
    )
    return build_din(Weights.of_file(args.checkpoint), description, serving)


def _rows(option, texts):
    rows = split_assignments(option, texts)
    bad = next((name for name, text in rows.items() if not is_number(text)), None)
    if bad is not None:
        raise ImportRefused(f"{option} {bad}: expected a row, got {rows[bad]!r}")
    return {name: int(text) for name, text in rows.items()}


def build_din(weights, description, serving) -> Built:
    """A Built of the weights (Weights) of a DIN; refuses what it cannot take with ImportRefused. `description`: feature
    columns and arguments, as in the module's docstring."""
    for name in ("feature_columns", "history_feature_list", *OPTIONS):
        if name not in description:
            raise ImportRefused(f"description: expected {name}, got none")
    if description["task"] not in LINKS:
        raise ImportRefused(f'task: expected {" or ".join(LINKS)}, got {description["task"]!r}')
    return _Din(weights, description, serving).build()


class _Din:
    def __init__(self, weights, options, serving):
        self._weights, self._options, self._serving = weights, options, serving
        self._columns = Columns(options, serving)
        self._b = Builder(serving.name, self._columns.item)
        self._tables = set()
        catalog = serving.catalog or {"columns": []}
        self._catalog_columns = {column["feature"] for column in catalog["columns"]}
        self._b.catalog = serving.catalog

    def build(self) -> Built:
        self._add_attention()
        self._add_tower()
        refused = [feature["name"] for feature in self._b.features if feature.get("id", {}).get("unknown") == "REFUSE"]
        if refused:
            self._b.notes.append(
                f'requests with ids of {", ".join(refused)} that have no row are refused, as DeepCTR-Torch fails on'
                " them; --oov_row gives them one"
            )
        self._b.output(self._serving.output, "tower", LINKS[self._options["task"]])
        self._b.notes += self._weights.finish(ignore=["*.num_batches_tracked"])
        return self._b.build(self._serving.provenance)

    # --- Layers -------------------------------------------------------------------------------------------------------

    def _add_attention(self):
        options, softmax = self._options, bool(self._options["att_weight_normalization"])
        query = [self._add_sparse(column) for column in self._columns.targets]
        keys = self._add_sequence(
            self._columns.history,
            [target_of(column) for column in self._columns.history],
            self._serving.padding_id if softmax else None,
            skip_pad=False,
        )
        width = sum(column.dim for column in self._columns.targets)
        layers = self._mlp(
            "attention.local_att.dnn",
            "interest.layers",
            4 * width,
            options["att_hidden_size"],
            options["att_activation"],
            False,
        )
        layers.append(
            dense_layers.linear(
                self._b,
                self._weights,
                "attention.local_att.dense",
                f"interest.layers.{len(layers)}",
                options["att_hidden_size"][-1],
                1,
            )
        )
        self._b.layer(
            "interest",
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

    def _add_tower(self):
        """DNN over the sparse embeddings, the other lists, the history and the dense features, in this order."""
        options = self._options
        inputs, width = [], 0
        for column in grouped(column for column in self._columns.all if column.sparse):
            inputs.append(column.name if column in self._columns.targets else self._add_sparse(column))
            width += column.dim
        for column in self._columns.lists:
            inputs.append(self._add_list(column))
            width += column.dim
        inputs.append("interest")
        width += sum(column.dim for column in self._columns.history)
        for column in self._columns.all:
            if column.kind == "DenseFeat":
                inputs.append(self._add_dense(column))
                width += column.dim
        layers = self._mlp(
            "dnn", "tower", width, options["dnn_hidden_units"], options["dnn_activation"], bool(options["dnn_use_bn"])
        )
        layers.append(
            dense_layers.linear(
                self._b,
                self._weights,
                "dnn_linear",
                f"tower.{len(layers)}",
                options["dnn_hidden_units"][-1],
                1,
                bias="out.bias",
            )
        )
        self._b.layer("tower", "mlp", inputs=inputs, layers=layers)

    def _mlp(self, key, out, inputs, units, activation, norm):
        if not isinstance(units, list) or not units or not all(type(unit) is int and unit > 0 for unit in units):
            raise ImportRefused(f"hidden units of {key}: expected a list of widths, got {units!r}")
        layers = []
        for index, width in enumerate(units):
            own_norm = None
            if norm:
                own_norm = dense_layers.batch_norm(
                    self._b, self._weights, f"{key}.bn.{index}", f"{out}.{index}.norm", width, BATCH_NORM_EPSILON
                )
            function, parameters = self._activation(
                key, f"{key}.activation_layers.{index}", f"{out}.{index}", activation, width
            )
            layers.append(
                dense_layers.linear(
                    self._b,
                    self._weights,
                    f"{key}.linears.{index}",
                    f"{out}.{index}",
                    inputs,
                    width,
                    activation=function,
                    norm=own_norm,
                    parameters=parameters,
                )
            )
            inputs = width
        return layers

    def _activation(self, owner, key, out, name, width):
        lower = name.lower() if isinstance(name, str) else None
        if lower in ("sigmoid", "linear", "relu"):
            return lower.upper(), None
        if lower == "prelu":
            return "PRELU", self._b.prelu(f"{out}.prelu", self._weights.take(f"{key}.weight", [1]))
        if lower == "dice" and owner == "dnn":
            raise ImportRefused(
                "dnn_activation: expected anything but Dice, which DeepCTR-Torch's DIN does not run in its DNN"
            )
        if lower == "dice":
            norm = dense_layers.batch_norm(self._b, self._weights, f"{key}.bn", f"{out}.dice.norm", width, DICE_EPSILON)
            return "DICE", self._b.dice(f"{out}.dice", self._weights.take(f"{key}.alpha", [width, 1]), norm)
        raise ImportRefused(f"activation of {owner}: expected Dice, PReLU, ReLU, sigmoid or linear, got {name!r}")

    # --- Features -----------------------------------------------------------------------------------------------------

    def _add_sparse(self, column):
        level = self._columns.level(column)
        source = "CATALOG" if level == "CANDIDATE" and self._in_catalog(column.name) else "REQUEST"
        return self._add_id(column, column.name, level, source)

    def _in_catalog(self, name):
        return name in self._catalog_columns and name != self._b.item_feature

    def _add_dense(self, column):
        level = self._columns.level(column)
        source = "CATALOG" if level == "CANDIDATE" and self._in_catalog(column.name) else "REQUEST"
        if column.dim == 1:
            return self._b.feature(features.numeric_feature(column.name, level, source=source))
        return self._b.feature(features.vector_feature(column.name, level, column.dim, source=source))

    def _add_list(self, column):
        """A VarLenSparseFeat outside the attention: a sequence of its own where --actions names it, else a bag. Without
        a length_name, ids of row 0 are padding."""
        if column.combiner not in COMBINERS:
            raise ImportRefused(f'feature "{column.name}": expected combiner sum or mean, got {column.combiner}')
        level, by_id = self._columns.level(column), column.length_name is None
        if level == "SEQUENCE":
            keys = self._add_sequence([column], [column.name], 0 if by_id else None, skip_pad=by_id)
            return self._b.layer(
                f"{column.name}.pooled", "pooling", inputs=keys, method=COMBINERS[column.combiner], empty="ZEROS"
            )
        self._b.notes.append(
            f'feature "{column.name}" is a bag of ids: send at most {column.max_length} a row, as training kept'
            + ("; ids of row 0, which is padding, are refused" if by_id else "")
        )
        source = "CATALOG" if level == "CANDIDATE" and self._in_catalog(column.name) else "REQUEST"
        bag = f"BAG_{COMBINERS[column.combiner]}"
        return self._add_id(column, column.name, level, source, bag=bag, without_row_0=by_id)

    def _add_sequence(self, columns, fields, pad_row, skip_pad):
        name = columns[0].name
        named = [f"{name}.{field}" for field in fields]
        self._b.sequence(
            name,
            self._serving.actions[name],
            columns[0].max_length,
            keep=self._serving.keep,
            pad="NONE" if pad_row is None else "RIGHT",
            skip_pad_of=named[0] if skip_pad else None,
        )
        for column, field, full_name in zip(columns, fields, named):
            source = "CATALOG" if self._in_catalog(field) else "EVENT"
            self._add_id(column, full_name, "SEQUENCE", source, pad_row=pad_row)
        return named

    def _add_id(self, column, full_name, level, source, bag="SINGLE", pad_row=None, without_row_0=False):
        """`without_row_0`: the library leaves ids of that row out, so none may take it."""
        rows = self._table(column)
        owner = self._columns.vocabulary_of(column)
        tokens = self._serving.vocabularies.get(owner)
        first_row = self._serving.first_rows.get(owner, 0)
        oov_row = self._serving.oov_rows.get(column.name, self._serving.oov_rows.get(owner))
        for option, row in (("--oov_row", oov_row), ("--padding_id", pad_row)):
            if row is not None and not 0 <= row < rows:
                raise ImportRefused(f'{option} of "{full_name}": expected a row below {rows}, got {row}')
        vocabulary = features.identity(rows)
        if without_row_0 and oov_row == 0:
            raise ImportRefused(f'--oov_row of "{full_name}": expected another row than 0, which is padding in this list')
        if without_row_0 and tokens is None:
            vocabulary = self._file_vocabulary(full_name, [str(row) for row in range(1, rows)], 1, rows)
        elif without_row_0 and first_row == 0:
            raise ImportRefused(f'--first_row {owner}: expected 1 or more, since row 0 is padding in "{full_name}", got 0')
        elif tokens is not None:
            vocabulary = self._file_vocabulary(owner, tokens, first_row, rows)
        elif first_row:
            raise ImportRefused(f"--first_row {owner}: expected --vocabulary {owner}=FILE with it, got none")
        unknown = "REFUSE" if oov_row is None else "OOV_ROW"
        return self._b.feature(
            features.id_feature(
                full_name,
                level,
                column.table,
                vocabulary,
                source=source,
                type=self._columns.types[column.name],
                bag=bag,
                pad_row=pad_row,
                oov_row=oov_row,
                unknown=unknown,
                negative=unknown,
                missing_id=None,
            )
        )

    def _file_vocabulary(self, owner, tokens, first_row, rows):
        if not tokens:
            raise ImportRefused(f"--vocabulary {owner}: expected tokens, one a line, got an empty file")
        if first_row + len(tokens) > rows:
            raise ImportRefused(
                f"--vocabulary {owner}: expected at most {rows - first_row} tokens from row {first_row} on, as the "
                f"table has {rows} rows, got {len(tokens)}"
            )
        bad = next((token for token in tokens if "\r" in token), None)
        if bad is not None or len(set(tokens)) != len(tokens):
            raise ImportRefused(
                f"--vocabulary {owner}: expected tokens of their own, one a line, got "
                + ("one twice" if bad is None else "carriage returns")
            )
        path = f"{owner}.vocabulary.txt"
        self._b.vocabularies[path] = tokens
        return features.file_vocabulary(path, first_row)

    def _table(self, column):
        """The rows of a column's table."""
        weight = self._weights.take(f"embedding_dict.{column.table}.weight", [None, column.dim])
        if max(column.rows, len(weight)) - 1 > LARGEST_ID:
            raise ImportRefused(
                f'feature "{column.name}": expected ids up to {LARGEST_ID}, got {column.rows - 1}: DeepCTR-Torch '
                "passes ids as float32, so that larger ones share the rows of others in training"
            )
        if not any(other.table == column.table and other.rows == len(weight) for other in self._columns.all):
            raise ImportRefused(
                f'tensor "embedding_dict.{column.table}.weight": expected vocabulary_size {column.rows} rows, got '
                f"{len(weight)}"
            )
        if column.table not in self._tables:
            self._b.table(column.table, weight)
            self._tables.add(column.table)
        return len(weight)
