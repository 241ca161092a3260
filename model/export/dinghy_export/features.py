"""Features: a request and its history become rows of tables and numbers, as the server does it.

Features, sequences and catalogs are plain dicts in the protobuf JSON of proto/bundle.proto and proto/catalog.proto, and
requests are those of ScoreRequest, so that what trains a model is what serves it:

    encoder = FeatureEncoder(sequences, features, item_feature="item", catalog=catalog)
    batch = collate([encoder.encode(request) for request in requests])
    batch.values["clicks.item"]     # int64 [requests, behaviors], padded at the end
    batch.lengths["clicks"]         # int64 [requests]

Values of a column may be lists or numpy arrays.
"""

import bisect
from dataclasses import dataclass

import numpy as np
import torch

from dinghy_export import hash_vocabularies
from dinghy_export.hash_vocabularies import farm_hash, murmur3  # noqa: F401, beside the other vocabularies

USER, SEQUENCE, CANDIDATE = "USER", "SEQUENCE", "CANDIDATE"


# --- Columns, as in a request ---------------------------------------------------------------------------------------


def ints(feature, values, lengths=None):
    return _column(feature, "ints", values, lengths)


def strings(feature, values, lengths=None):
    return _column(feature, "strings", values, lengths)


def floats(feature, values, lengths=None):
    return _column(feature, "floats", values, lengths)


def _column(feature, kind, values, lengths):
    column = {"feature": feature, kind: {"values": values}}
    if lengths is not None:
        column["lengths"] = lengths
    return column


def column_rows(column):
    """The kind ("ints", "strings", "floats") and the rows of a column: a list of scalars, or of lists for bags."""
    for kind in ("ints", "strings", "floats"):
        if kind in column:
            break
    else:
        raise ValueError(f'column "{column.get("feature")}": it has no values')
    values = column[kind].get("values", [])
    if kind == "ints":
        values = [int(value) for value in values]
    elif kind == "floats":
        values = [float(value) for value in values]
    lengths = column.get("lengths")
    if lengths is None or len(lengths) == 0:
        return kind, list(values)
    if sum(lengths) != len(values):
        raise ValueError(f'column "{column["feature"]}": expected {sum(lengths)} values, got {len(values)}')
    rows, begin = [], 0
    for length in lengths:
        rows.append(list(values[begin : begin + length]))
        begin += length
    return kind, rows


# --- Features, as in a manifest -------------------------------------------------------------------------------------


def sequence(name, actions, max_length, keep="NEWEST", pad="NONE", skip_pad_of=None):
    message = {"name": name, "actions": list(actions), "maxLength": max_length, "keep": keep, "pad": pad}
    if skip_pad_of is not None:
        message["skipPadOf"] = skip_pad_of
    return message


def identity(rows):
    return {"identity": {"rows": rows}}


def file_vocabulary(path, first_row):
    return {"file": {"path": path, "firstRow": first_row}}


def id_feature(
    name,
    level,
    table,
    vocabulary,
    *,
    source="REQUEST",
    type="INT64",
    bag="SINGLE",
    pad_row=0,
    oov_row=1,
    unknown="OOV_ROW",
    negative="OOV_ROW",
    missing_id=None,
):
    """An id feature. `missing_id` None: a request without it is refused."""
    kind = {"type": type, "bag": bag, **vocabulary}
    if pad_row is not None:
        kind["padRow"] = pad_row
    if oov_row is not None:
        kind["oovRow"] = oov_row
    kind["unknown"] = unknown
    if type == "INT64":
        kind["negative"] = negative
    feature = _feature(name, level, source, {"id": kind})
    feature["table"] = table
    if missing_id is not None:
        feature["missingId"] = missing_id
    return feature


def numeric_feature(name, level, mean=0.0, stddev=1.0, *, source="REQUEST", missing=None):
    feature = _feature(name, level, source, {"numeric": {"mean": mean, "stddev": stddev}})
    if missing is not None:
        feature["missing"] = missing
    return feature


def vector_feature(name, level, dim, *, source="REQUEST", missing=None):
    feature = _feature(name, level, source, {"vector": {"dim": dim}})
    if missing is not None:
        feature["missing"] = missing
    return feature


def time_since_feature(name, table, boundaries_ms, first_row=0):
    feature = _feature(name, SEQUENCE, "EVENT", {"timeSince": {"boundariesMs": boundaries_ms, "firstRow": first_row}})
    feature["table"] = table
    return feature


def _feature(name, level, source, kind):
    feature = {"name": name, "level": level, "from": source, **kind}
    if level == SEQUENCE:
        feature["sequence"] = name.split(".", 1)[0]
    return feature


def table_rows(feature, tokens=0):
    """How many rows the feature's table needs at least; `tokens`: lines of its vocabulary file."""
    if "timeSince" in feature:
        return feature["timeSince"]["firstRow"] + len(feature["timeSince"]["boundariesMs"]) + 1
    kind = feature["id"]
    if "identity" in kind:
        rows = kind["identity"]["rows"]
    elif hash_vocabularies.name_in(kind):
        vocabulary = kind[hash_vocabularies.name_in(kind)]
        rows = vocabulary["firstRow"] + vocabulary["buckets"]
    else:
        rows = kind["file"]["firstRow"] + tokens
    return max([rows] + [kind[row] + 1 for row in ("padRow", "oovRow") if row in kind])


def width(feature, dims):
    """Floats a row of the feature has once embedded; `dims`: table name -> dim."""
    if "numeric" in feature:
        return 1
    if "vector" in feature:
        return feature["vector"]["dim"]
    return dims[feature["table"]]


# --- Encoding -------------------------------------------------------------------------------------------------------


class RequestError(ValueError):
    """A request that the server would refuse as INVALID_ARGUMENT."""


@dataclass
class Encoded:
    """One request. Values by feature name: ids int64 [rows]; bags int64 [rows, most ids], padded with -1;
    numbers float32 [rows, width]. USER features have one row."""

    values: dict
    lengths: dict  # behaviors by sequence, after truncation and without those left out for their pad row
    candidates: int


@dataclass
class Batch:
    """Requests side by side: USER [requests, 1, ...], SEQUENCE [requests, behaviors, ...], CANDIDATE
    [requests, candidates, ...]. Rows beyond a request's own are padding (row 0, or -1 in bags), at the end; there is
    at least one row, so that a module need not know tensors without."""

    values: dict  # feature name -> tensor
    lengths: dict  # sequence -> int64 tensor [requests]
    candidates: torch.Tensor  # int64 [requests]


class FeatureEncoder:
    """Encodes requests. Not changed by encoding, but for a memory of encoded catalog columns."""

    def __init__(self, sequences, features, item_feature, catalog=None, vocabularies=None):
        """`catalog`: a Catalog as dict; `vocabularies`: path -> tokens, of file vocabularies."""
        self.sequences = {sequence["name"]: sequence for sequence in sequences}
        self.features = list(features)
        self.item_feature = item_feature
        self._tokens = {
            path: {token: line for line, token in enumerate(tokens)} for path, tokens in (vocabularies or {}).items()
        }
        self._rows = {}  # (feature, id) -> row
        self._catalog_index = {}
        self._catalog = {}
        if catalog is not None:
            columns = {column["feature"]: column_rows(column) for column in catalog["columns"]}
            self._catalog_index = {item: row for row, item in enumerate(columns[item_feature][1])}
            for feature in self.features:
                field = self._field(feature)
                if feature.get("from") == "CATALOG" and field in columns:
                    rows = columns[field][1]
                    self._catalog[feature["name"]] = self._encode_or_missing(feature, rows, len(rows))

    def encode(self, request) -> Encoded:
        """Encodes a request whose sequences are inline; one that is left out is empty."""
        user = {c["feature"]: c for c in list(request.get("user", [])) + list(request.get("context", []))}
        candidates = {c["feature"]: c for c in request.get("candidates", [])}
        inline = {s["sequence"]: s for s in request.get("sequences", [])}
        count = len(column_rows(candidates[self.item_feature])[1]) if self.item_feature in candidates else 0
        values, lengths, columns, times = {}, {}, {}, {}
        for name, sequence in self.sequences.items():
            columns[name], times[name], lengths[name] = self._truncate(sequence, inline.get(name))
        for feature in self.features:
            name, level = feature["name"], feature["level"]
            if level == USER:
                rows = column_rows(user[name])[1] if name in user else None
                values[name] = self._encode_or_missing(feature, rows, 1)
            elif level == CANDIDATE:
                rows = column_rows(candidates[name])[1] if name in candidates else None
                items = column_rows(candidates[self.item_feature])[1] if self.item_feature in candidates else []
                values[name] = self._encode_or_catalog(feature, rows, items, count)
            else:
                sequence = feature["sequence"]
                if "timeSince" in feature:
                    if len(times[sequence]) != lengths[sequence]:
                        raise RequestError(f'sequence "{sequence}": feature "{name}" needs eventTimeMs')
                    ages = [max(0, int(request["requestTimeMs"]) - time) for time in times[sequence]]
                    values[name] = self._encode_ages(feature["timeSince"], ages)
                    continue
                rows = columns[sequence].get(self._field(feature))
                items = columns[sequence].get(self.item_feature, [])
                values[name] = self._encode_or_catalog(feature, rows, items, lengths[sequence])
        for name, sequence in self.sequences.items():
            if sequence.get("skipPadOf"):
                lengths[name] = self._leave_out_pads(sequence, values)
        return Encoded(values, lengths, count)

    def _leave_out_pads(self, sequence, values):
        """Leaves behaviors that take the pad row out of all columns of the sequence; returns how many stay."""
        of = next((feature for feature in self.features if feature["name"] == sequence["skipPadOf"]), {})
        if of.get("sequence") != sequence["name"] or _is_bag(of) or "padRow" not in of.get("id", {}):
            raise ValueError(
                f'sequence "{sequence["name"]}": skipPadOf: expected a SINGLE id feature of this sequence with a '
                f'padRow, got "{sequence["skipPadOf"]}"'
            )
        stay = values[of["name"]] != of["id"]["padRow"]
        for feature in self.features:
            if feature.get("sequence") == sequence["name"]:
                values[feature["name"]] = values[feature["name"]][stay]
        return int(stay.sum())

    @staticmethod
    def _field(feature):
        return feature["name"].split(".", 1)[1] if feature["level"] == SEQUENCE else feature["name"]

    @staticmethod
    def _truncate(sequence, data):
        if data is None:
            return {}, [], 0
        columns = {column["feature"]: column_rows(column)[1] for column in data.get("columns", [])}
        times = [int(time) for time in data.get("eventTimeMs", [])]
        sizes = {len(rows) for rows in columns.values()} | ({len(times)} if times else set())
        if len(sizes) > 1:
            raise RequestError(f'sequence "{sequence["name"]}": unequal columns, {sorted(sizes)} rows')
        length = sizes.pop() if sizes else 0
        keep = min(length, sequence["maxLength"])
        kept = slice(length - keep, length) if sequence["keep"] == "NEWEST" else slice(0, keep)
        return {field: rows[kept] for field, rows in columns.items()}, times[kept] if times else [], keep

    def _encode_or_catalog(self, feature, rows, items, count):
        if rows is None and feature["from"] == "CATALOG" and feature["name"] in self._catalog and count > 0:
            encoded = self._catalog[feature["name"]]
            found = np.array([self._catalog_index.get(item, -1) for item in items], dtype=np.int64)
            result = encoded[found]
            if (found < 0).any():
                absent = self._encode_or_missing(feature, None, int((found < 0).sum()))
                if "id" in feature and absent.ndim == 2:
                    absent = _pad_to(absent, result.shape[1])
                result[found < 0] = absent
            return result
        return self._encode_or_missing(feature, rows, count)

    def _encode_or_missing(self, feature, rows, count):
        """Rows of a feature, or what stands for `count` absent ones."""
        if rows is not None:
            if len(rows) != count:
                raise RequestError(f'column "{feature["name"]}": expected {count} rows, got {len(rows)}')
            absent = [index for index, row in enumerate(rows) if row == [] and not _is_bag(feature)]
            if absent:  # rows of length 0: missing values
                result = self._encode_or_missing(feature, None, count)
                present = [index for index in range(count) if rows[index] != []]
                result[present] = self._encode_rows(feature, [rows[index] for index in present])
                return result
            return self._encode_rows(feature, rows)
        if count == 0:
            return self._encode_rows(feature, [])
        if "id" in feature:
            policy, kind = feature.get("missingId"), feature["id"]
            if policy == "PAD_ROW" and kind["bag"] != "SINGLE":
                return np.full((count, 1), -1, dtype=np.int64)
            if policy in ("PAD_ROW", "OOV_ROW"):
                row = kind["padRow" if policy == "PAD_ROW" else "oovRow"]
                return np.full(count if kind["bag"] == "SINGLE" else (count, 1), row, dtype=np.int64)
        elif "missing" in feature:
            raw = feature["missing"]
            return self._encode_rows(feature, [[raw] * feature["vector"]["dim"] if "vector" in feature else raw] * count)
        raise RequestError(f'feature "{feature["name"]}" is missing and has no default')

    def _encode_rows(self, feature, rows):
        if "numeric" in feature:
            kind = feature["numeric"]
            raw = np.asarray(rows, dtype=np.float32).astype(np.float64)
            values = (raw.reshape(len(rows)) - kind["mean"]) / kind["stddev"]
            return values.astype(np.float32).reshape(len(rows), 1)
        if "vector" in feature:
            return np.asarray(rows, dtype=np.float32).reshape(len(rows), feature["vector"]["dim"])
        if not _is_bag(feature):
            values = [value[0] if isinstance(value, list) else value for value in rows]
            return np.array([self._row(feature, value) for value in values], dtype=np.int64)
        bags = [[self._row(feature, value) for value in (row if isinstance(row, list) else [row])] for row in rows]
        result = np.full((len(bags), max([1] + [len(bag) for bag in bags])), -1, dtype=np.int64)
        for row, bag in enumerate(bags):
            result[row, : len(bag)] = bag
        return result

    @staticmethod
    def _encode_ages(kind, ages):
        boundaries = [int(boundary) for boundary in kind["boundariesMs"]]
        return np.array([kind["firstRow"] + bisect.bisect_right(boundaries, age) for age in ages], dtype=np.int64)

    def _row(self, feature, value):
        key = (feature["name"], value)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._find_row(feature, value)
        return row

    def _find_row(self, feature, value):
        kind = feature["id"]
        if kind["type"] == "INT64" and value < 0:
            return self._policy_row(feature, kind["negative"], value)
        if "identity" in kind:
            if value < kind["identity"]["rows"]:
                return value
        elif hash_vocabularies.name_in(kind):
            return hash_vocabularies.row_of(hash_vocabularies.name_in(kind), kind[hash_vocabularies.name_in(kind)], value)
        else:
            line = self._tokens[kind["file"]["path"]].get(str(value))
            if line is not None:
                return kind["file"]["firstRow"] + line
        return self._policy_row(feature, kind["unknown"], value)

    @staticmethod
    def _policy_row(feature, policy, value):
        if policy == "REFUSE":
            raise RequestError(f'feature "{feature["name"]}": id {value!r} is not in the vocabulary')
        return feature["id"]["oovRow" if policy == "OOV_ROW" else "padRow"]


def _is_bag(feature):
    return "id" in feature and feature["id"]["bag"] != "SINGLE"


def _pad_to(bags, size):
    return np.pad(bags, ((0, 0), (0, size - bags.shape[1])), constant_values=-1)


def collate(encoded) -> Batch:
    """Puts encoded requests side by side."""
    values = {}
    for name, first in encoded[0].values.items():
        arrays = [request.values[name] for request in encoded]
        shape = tuple(max([1] + [array.shape[axis] for array in arrays]) for axis in range(first.ndim))
        bag = first.dtype == np.int64 and first.ndim == 2
        stacked = np.full((len(arrays),) + shape, -1 if bag else 0, dtype=first.dtype)
        for index, array in enumerate(arrays):
            stacked[(index,) + tuple(slice(size) for size in array.shape)] = array
        values[name] = torch.from_numpy(stacked)
    lengths = {
        name: torch.tensor([request.lengths[name] for request in encoded], dtype=torch.int64)
        for name in encoded[0].lengths
    }
    return Batch(values, lengths, torch.tensor([request.candidates for request in encoded], dtype=torch.int64))
