"""DeepCTR-Torch's feature columns, as the training script wrote them down, and what each of them is in a bundle.

columns = Columns(description, Serving("books", {"hist_item_id": ["click"]}, "NEWEST", {"user": "USER"}))
columns.history, columns.targets       # what DIN attends to, and with what, in the order of its embeddings
columns.level(column)                  # USER, CANDIDATE, SEQUENCE
"""

from dataclasses import dataclass, field

from dinghy_export.importers.dense_layers import is_number
from dinghy_export.importers.weights import ImportRefused
from dinghy_export.manifest import provenance

KINDS = ("SparseFeat", "VarLenSparseFeat", "DenseFeat")
HISTORY_PREFIX = "hist_"


@dataclass
class Serving:
    """What DeepCTR-Torch does not know of a model and its server needs."""

    name: str
    actions: dict  # sequence -> actions
    keep: str = None  # NEWEST or OLDEST
    levels: dict = field(default_factory=dict)  # feature -> USER or CANDIDATE; those of the history need no entry
    padding_id: int = None  # what stands behind a history that is shorter than maxlen
    vocabularies: dict = field(default_factory=dict)  # feature -> tokens; absent: ids are rows
    first_rows: dict = field(default_factory=dict)  # feature -> row of its first token; absent: 0, as of LabelEncoder
    oov_rows: dict = field(default_factory=dict)  # feature -> row of ids without a row; absent: refused
    item: str = None  # the candidate feature that is the item's id; None: the history's first
    catalog: dict = None  # Catalog
    output: str = "click"
    provenance: dict = field(default_factory=lambda: provenance("DeepCTR-Torch", "", ""))


@dataclass
class Column:
    """A feature column."""

    kind: str
    name: str
    rows: int = 0
    dim: int = 0
    table: str = ""
    group: str = ""
    max_length: int = 0
    combiner: str = ""
    length_name: str = None

    @property
    def sparse(self):
        return self.kind == "SparseFeat"

    @property
    def listed(self):
        return self.kind == "VarLenSparseFeat"


class Columns:
    """Checked: raises ImportRefused for columns that DIN does not run with, and where the user has to say more."""

    def __init__(self, description, serving):
        self._options, self._serving = description, serving
        self.all = [_column(entry) for entry in description["feature_columns"]]
        self._by_name = {column.name: column for column in self.all}
        if len(self._by_name) != len(self.all):
            names = [column.name for column in self.all]
            twice = next(name for name in names if names.count(name) > 1)
            raise ImportRefused(f'feature_columns: expected "{twice}" once, got it twice')
        history = description["history_feature_list"]
        self.targets = grouped(column for column in self.all if column.sparse and column.name in history)
        self.history = grouped(
            column
            for column in self.all
            if column.listed and column.name.startswith(HISTORY_PREFIX) and target_of(column) in history
        )
        self.lists = [column for column in self.all if column.listed and column not in self.history]
        self._check_history(history)
        self._check_names()
        self.item = serving.item or target_of(self.history[0])
        self.types = self._types_of()

    def _check_history(self, history):
        if not self.history or len(self.history) != len(history) or len(self.targets) != len(history):
            raise ImportRefused(
                "history_feature_list: expected a SparseFeat NAME and a VarLenSparseFeat hist_NAME for each of "
                f"{history}, got {[column.name for column in self.targets + self.history]}"
            )
        widths = [sum(column.dim for column in columns) for columns in (self.targets, self.history)]
        if widths[0] != widths[1]:
            raise ImportRefused(
                f"history_feature_list: expected embeddings of hist_NAME as wide as those of NAME, got {widths}"
            )
        lengths = {column.max_length for column in self.history}
        if len(lengths) != 1:
            raise ImportRefused(f"history: expected one maxlen, got {sorted(lengths)}")
        named = [column.length_name for column in self.all if column.listed and column.length_name is not None]
        own = {column.length_name for column in self.history} - {None}
        if not named or named[0] not in own:
            raise ImportRefused(
                "history: expected the first length_name of all VarLenSparseFeat to be the history's, as DIN "
                f"takes the first for its mask, got {named[0] if named else 'none'}"
            )
        if self._serving.keep not in ("NEWEST", "OLDEST"):
            raise ImportRefused(
                "--keep: expected NEWEST or OLDEST, whichever the training data kept of a history longer than "
                f"maxlen, got {self._serving.keep}"
            )
        if self._options["att_weight_normalization"] and self._serving.padding_id is None:
            raise ImportRefused(
                "--padding_id: expected the id that stands in the history's padding, as an empty history takes "
                "its embedding under att_weight_normalization, got none"
            )

    def _check_names(self):
        serving = self._serving
        for option, names in (
            ("--actions", serving.actions),
            ("--user and --candidate", serving.levels),
            ("--vocabulary", serving.vocabularies),
            ("--first_row", serving.first_rows),
            ("--oov_row", serving.oov_rows),
        ):
            bad = next((name for name in names if name not in self._by_name), None)
            if bad is not None:
                raise ImportRefused(f'{option}: expected features of feature_columns, got "{bad}"')
        if serving.item is not None and not (serving.item in self._by_name and self._by_name[serving.item].sparse):
            raise ImportRefused(f'--item: expected a SparseFeat, got "{serving.item}"')
        first = self.history[0].name
        if first not in serving.actions:
            raise ImportRefused(
                f"history: expected --actions {first}=ACTION,... for the events that it is made of, got none"
            )
        bad = next((column.name for column in self.history[1:] if column.name in serving.actions), None)
        if bad is not None:
            raise ImportRefused(f'--actions: expected the history\'s first column, "{first}", got "{bad}"')
        unknown = [column.name for column in self.all if column not in self.history and self.level(column) is None]
        if unknown:
            raise ImportRefused(f"features {', '.join(unknown)}: expected --user or --candidate to name each, got neither")

    def level(self, column):
        """USER, CANDIDATE, SEQUENCE; None: not known."""
        if column in self.targets or column.name == self._serving.item:
            if self._serving.levels.get(column.name) == "USER":
                raise ImportRefused(
                    f'feature "{column.name}": expected a candidate\'s, as the history is of its kind, got --user'
                )
            return "CANDIDATE"
        if column.listed and column.name in self._serving.actions:
            return "SEQUENCE"
        return self._serving.levels.get(column.name)

    def vocabulary_of(self, column):
        """The feature whose --vocabulary holds for a column: its own, or of a history column the target's in whose
        table it looks up."""
        target = self._by_name.get(target_of(column))
        if column.name not in self._serving.vocabularies and column in self.history and target.table == column.table:
            return target.name
        return column.name

    def _types_of(self):
        types = {}
        for column in self.all:
            tokens = self._serving.vocabularies.get(self.vocabulary_of(column), ())
            types[column.name] = "INT64" if all(is_number(token) for token in tokens) else "STRING"
        for column in self.history:  # an event's id is of one type
            target = target_of(column)
            if "STRING" in (types[column.name], types[target]):
                types[column.name] = types[target] = "STRING"
        return types


def target_of(column) -> str:
    """The feature whose values a history column lists."""
    return column.name.removeprefix(HISTORY_PREFIX)


def grouped(columns) -> list:
    """Embeddings come group by group, in the order in which the groups appear."""
    groups = {}
    for column in columns:
        groups.setdefault(column.group, []).append(column)
    return [column for group in groups.values() for column in group]


def _column(entry) -> Column:
    kind, name = entry.get("kind"), entry.get("name")
    if kind not in KINDS or not isinstance(name, str):
        raise ImportRefused(f'feature column {name!r}: expected a kind of {", ".join(KINDS)} and a name, got {kind!r}')
    needed = {
        "SparseFeat": ("vocabulary_size", "embedding_dim"),
        "DenseFeat": ("dimension",),
        "VarLenSparseFeat": ("vocabulary_size", "embedding_dim", "maxlen", "combiner", "length_name"),
    }[kind]
    for key in needed:
        if key not in entry:
            raise ImportRefused(f'feature column "{name}": expected {key}, got none')
        if key not in ("combiner", "length_name") and not (type(entry[key]) is int and entry[key] > 0):
            raise ImportRefused(f'feature column "{name}": expected a positive number for {key}, got {entry[key]!r}')
    if kind == "DenseFeat":
        return Column(kind, name, dim=entry["dimension"])
    return Column(
        kind,
        name,
        entry["vocabulary_size"],
        entry["embedding_dim"],
        entry.get("embedding_name") or name,
        entry.get("group_name") or "default_group",
        entry.get("maxlen", 0),
        entry.get("combiner", ""),
        entry.get("length_name"),
    )
