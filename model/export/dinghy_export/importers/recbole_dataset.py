"""What RecBole's files say beside the weights: configuration, tokens and item features.

    config = config_of(read_checkpoint(path).objects)          # the final_config_dict
    items = find_items(objects, Sources(dataset="saved/ml-100k-SequentialDataset.pth"), config)
    items.fields[0].tokens[1]                                   # the token of internal id 1 of the item field

Internal id 0 is [PAD] in every field. Pickles are read inertly.
"""

import pickle
from dataclasses import dataclass, field

import numpy as np

from dinghy_export.importers.unpickling import CheckpointError, Inert, InertUnpickler, StoredTensor
from dinghy_export.importers.weights import ImportRefused

PAD = "[PAD]"
_KINDS = ("token", "token_seq", "float", "float_seq")


@dataclass
class ItemField:
    """A token or token_seq field of the items."""

    name: str
    kind: str  # "token" or "token_seq"
    rows: int  # internal ids, [PAD] counted
    tokens: list = None  # by internal id; None: requests bring internal ids

    def value(self, id, integer):
        """What a request calls an internal id."""
        if self.tokens is None:
            return int(id)
        return int(self.tokens[id]) if integer else str(self.tokens[id])

    def checked_tokens(self, integer):
        """Tokens of the ids from 1, as a vocabulary file takes them."""
        tokens = [str(token) for token in self.tokens]
        if len(tokens) != self.rows or tokens[:1] != [PAD]:
            raise ImportRefused(f'field "{self.name}": expected {self.rows} tokens, {PAD} first, got {len(tokens)}, '
                                f"{(tokens or ['none'])[0]} first")
        bad = next((token for token in tokens[1:] if not token or "\n" in token or "\r" in token), None)
        if bad is not None:
            raise ImportRefused(f'field "{self.name}": expected tokens of one line, got {bad!r}')
        if integer:
            bad = next((token for token in tokens[1:] if str(_whole(token)) != token), None)
            if bad is not None:
                raise ImportRefused(
                    f'field "{self.name}": expected decimal numbers, as it is to come as integers, got {bad!r}')
        return tokens[1:]


@dataclass
class ItemData:
    """The item features of a dataset, in the order of its item_feat, the item id first."""

    fields: list  # of ItemField
    values: dict = field(default_factory=dict)  # field name -> by internal item id: an internal id, or a list of them
    numerical: list = field(default_factory=list)  # float fields, which a model may embed


@dataclass
class Sources:
    """Where tokens and item features are looked for, after the checkpoint itself."""

    dataset: str = None  # path of the saved dataset
    vocabularies: dict = field(default_factory=dict)  # field -> path of its tokens, from internal id 1
    item_features: str = None  # path of the .item file
    internal_ids: bool = False  # requests bring internal ids: no tokens needed


def config_of(objects) -> dict:
    """The configuration of a checkpoint of RecBole's trainer."""
    config = objects.get("config") if isinstance(objects, dict) else None
    values = config.attribute("final_config_dict") if isinstance(config, Inert) else config
    if not isinstance(values, dict):
        raise ImportRefused(
            'checkpoint: expected "config" as RecBole\'s trainer saves it, with a final_config_dict, got '
            f"{'no config' if config is None else type(config).__name__}")
    return values


def find_items(objects, sources, config) -> ItemData:
    """Fields, tokens and features of the items. DIN's checkpoint holds its dataset; else `sources` must say."""
    item_id = config.get("ITEM_ID_FIELD")
    if not isinstance(item_id, str):
        raise ImportRefused(f'config "ITEM_ID_FIELD": expected the name of a field, got {item_id!r}')
    dataset, found = _embedded(objects), "the checkpoint"
    if sources.dataset is not None:
        dataset, found = _saved(sources.dataset), sources.dataset
    tokens = {} if dataset is None else dataset.attribute("field2id_token")
    if not isinstance(tokens, dict):
        raise ImportRefused(f"{found}: expected a dataset with field2id_token, got one without")
    tokens = {name: [str(token) for token in values] for name, values in tokens.items()}
    for name, path in sources.vocabularies.items():
        with open(path, encoding="utf-8") as file:
            tokens[name] = [PAD] + file.read().splitlines()
    if sources.item_features is not None:
        items = _from_atomic_file(sources.item_features, item_id, tokens, config)
    elif dataset is not None and dataset.attribute("item_feat") is not None:
        items = _from_interaction(found, dataset, item_id, tokens, config)
    else:
        items = ItemData([ItemField(item_id, "token", 0)])
    for item in items.fields:
        if item.name in tokens:
            item.tokens, item.rows = tokens[item.name], len(tokens[item.name])
        elif not sources.internal_ids:
            raise ImportRefused(
                f'field "{item.name}": expected its tokens, got none: RecBole keeps them in the dataset; name '
                f"the saved one with --dataset (save_dataset: True), a file with --vocabulary "
                f"{item.name}=FILE, or say --internal_ids")
        if sources.internal_ids:
            item.tokens = None
    return items


def _embedded(objects):
    """The dataset that a layer of the model refers to, as DIN's embedding layer does."""
    layers = objects.get("other_parameter") if isinstance(objects, dict) else None
    for layer in (layers or {}).values() if isinstance(layers, dict) else ():
        dataset = layer.attribute("dataset") if isinstance(layer, Inert) else None
        if isinstance(dataset, Inert):
            return dataset
    return None


def _saved(path):
    try:
        with open(path, "rb") as file:
            dataset = InertUnpickler(file).load()
    except (CheckpointError, pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError,
            TypeError) as error:
        raise ImportRefused(f"{path}: expected a dataset that RecBole saved, got something else ({error})") from None
    if not isinstance(dataset, Inert) or dataset.attribute("field2id_token") is None:
        raise ImportRefused(f"{path}: expected a dataset that RecBole saved, got {dataset!r}"[:300])
    return dataset


def _from_interaction(found, dataset, item_id, tokens, config):
    """item_feat as tensors, as the dataset of a trained model has them."""
    table = dataset.attribute("item_feat")
    values = table.attribute("interaction") if isinstance(table, Inert) else None
    if not isinstance(values, dict):
        if config.get("model") != "DIN":  # only the item id is read
            return ItemData([ItemField(item_id, "token", 0)])
        raise ImportRefused(
            f"{found}: expected item features as tensors, got "
            f"{getattr(table, 'path', 'nothing')}; give RecBole's .item file with "
            "--item_features")
    kinds = {name: _kind(kind) for name, kind in (dataset.attribute("field2type") or {}).items()}
    items = ItemData([])
    for name, column in values.items():
        if kinds.get(name) not in _KINDS:
            raise ImportRefused(f'field "{name}": expected a type, one of {", ".join(_KINDS)}, got {kinds.get(name)!r}')
        if kinds[name] in ("float", "float_seq"):
            items.numerical.append(name)
            continue
        array = column.array() if isinstance(column, StoredTensor) else np.asarray(column)
        if array.ndim != (2 if kinds[name] == "token_seq" else 1) or array.dtype.kind != "i":
            raise ImportRefused(
                f'field "{name}": expected internal ids, got {array.dtype} of shape {list(array.shape)}')
        items.fields.append(ItemField(name, kinds[name], int(array.max(initial=0)) + 1))
        items.values[name] = array.tolist()
    _check_item_id(items, item_id, found)
    if items.values[item_id] != list(range(len(items.values[item_id]))):
        raise ImportRefused(f'field "{item_id}": expected a row for every internal id, in order, got others')
    return items


def _from_atomic_file(path, item_id, tokens, config):
    """RecBole's .item file: a head with types, then a line an item; of tokens only those that training kept."""
    separator, inner = config.get("field_separator") or "\t", config.get("seq_separator") or " "
    with open(path, encoding=config.get("encoding") or "utf-8") as file:
        lines = file.read().splitlines()
    head = [column.split(":") for column in (lines or [""])[0].split(separator)]
    if any(len(column) != 2 or column[1] not in _KINDS for column in head):
        raise ImportRefused(f"{path}: expected a first line of name:type, got {(lines or [''])[0]!r}"[:300])
    load, unload = ((config.get(name) or {}).get("item") for name in ("load_col", "unload_col"))
    if config.get("load_col") is not None and load is None:
        load = []
    read = [(place, name, kind) for place, (name, kind) in enumerate(head)
            if (load is None or load == "*" or name in load) and name not in (unload or ())]
    read.sort(key=lambda column: column[1] != item_id)
    items = ItemData([ItemField(name, kind, 0) for _, name, kind in read if kind in ("token", "token_seq")], {},
                     [name for _, name, kind in read if kind in ("float", "float_seq")])
    _check_item_id(items, item_id, path)
    ids = {}
    for item in items.fields:
        if item.name not in tokens:
            raise ImportRefused(
                f'field "{item.name}": expected its tokens, to find the ids of {path}, got none; give them with '
                "--dataset or --vocabulary")
        ids[item.name] = {token: id for id, token in enumerate(tokens[item.name])}
        count = len(tokens[item_id])
        items.values[item.name] = [[] if item.kind == "token_seq" else 0 for _ in range(count)]
    items.values[item_id] = list(range(len(tokens[item_id])))
    cut = config.get("seq_len") or {}
    seen = set()
    for number, line in enumerate(lines[1:], 2):
        cells = line.split(separator)
        if len(cells) != len(head):
            raise ImportRefused(f"{path}, line {number}: expected {len(head)} columns, got {len(cells)}")
        by_name = {name: cells[place] for place, name, _ in read}
        row = ids[item_id].get(by_name[item_id])
        if row is None or row in seen:
            continue  # an item that training left out, or a repetition, of which RecBole keeps the first
        seen.add(row)
        for item in items.fields[1:]:
            texts = [text for text in by_name[item.name].split(inner) if text] if item.kind == "token_seq" else \
                [by_name[item.name]] if by_name[item.name] else []
            unknown = next((text for text in texts if text not in ids[item.name]), None)
            if unknown is not None:
                raise ImportRefused(
                    f'{path}, line {number}: expected tokens of "{item.name}" that training saw, got {unknown!r}')
            found = [ids[item.name][text] for text in texts][:cut.get(item.name)]
            items.values[item.name][row] = found if item.kind == "token_seq" else (found or [0])[0]
    return items


def _check_item_id(items, item_id, found):
    if not items.fields or items.fields[0].name != item_id or items.fields[0].kind != "token":
        raise ImportRefused(f'{found}: expected the item field "{item_id}" first, as a token, got '
                            f"{', '.join(item.name for item in items.fields) or 'no field'}")


def _kind(value):
    """A FeatureType: an enum, pickled by its value, or by its name as Python 3.11 does."""
    if isinstance(value, Inert) and value.args:
        return value.args[1].lower() if value.path.endswith(".getattr") else value.args[0]
    return value


def _whole(token):
    try:
        return int(token)
    except ValueError:
        return None
