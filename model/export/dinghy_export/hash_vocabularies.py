"""Hashed vocabularies, as in a manifest, with examples that show which hash is meant.

    features.murmur3(17, 128, 2, ["Porto"], remainder="FLOOR")        # {"murmur3": {"seed": 17, ...}}
    features.murmur3(17, 128, 2, {"Porto": 119}, remainder="FLOOR")   # and the trainer gave "Porto" row 119
"""

from dinghy_export import hashing


def murmur3(seed, buckets, first_row, examples, hash_input="TEXT", *, remainder):
    """A hashed vocabulary. `remainder`: UNSIGNED; FLOOR, as `mmh3.hash(id, seed) % buckets`; or ABSOLUTE, as
    scikit-learn's FeatureHasher. `examples`, which the server checks when it loads the bundle: ids, or, as a proof, a
    dict of ids and the rows that the trainer gave them. More are added until they tell this seed, remainder and input
    apart from others."""
    vocabulary = {
        "seed": seed,
        "buckets": buckets,
        "firstRow": first_row,
        "input": hash_input,
        "remainder": remainder,
    }
    return _hashed("murmur3", vocabulary, examples)


def farm_hash(buckets, first_row, examples, hash_input="TEXT"):
    """As murmur3, by FarmHash Fingerprint64 and its unsigned remainder, as TensorFlow's to_hash_bucket_fast."""
    return _hashed("farmHash", {"buckets": buckets, "firstRow": first_row, "input": hash_input}, examples)


# The chance that a wrong seed gives all examples their rows is at most one in so many.
_SEED_ODDS = 10**6


def _hashed(name, vocabulary, examples):
    if vocabulary["buckets"] < 1:
        raise ValueError(f'{name}: buckets: expected at least 1, got {vocabulary["buckets"]}')
    if not examples:
        raise ValueError(f"{name}: examples: expected at least one id, got none")
    rows = {example: row_of(name, vocabulary, example) for example in examples}
    for example, row in rows.items():
        if isinstance(examples, dict) and examples[example] != row:
            raise ValueError(f"{name}: examples: expected row {examples[example]} of {example!r}, got {row}")
    text = isinstance(next(iter(rows)), str)
    others = _other_readings(name, vocabulary, text)
    number = 0
    while not _tell_apart(name, vocabulary, rows, others):
        number += 1
        probe = str(number) if text else number
        rows[probe] = row_of(name, vocabulary, probe)
    vocabulary["examples"] = [
        {"text" if isinstance(example, str) else "integer": example, "row": row} for example, row in rows.items()
    ]
    return {name: vocabulary}


def _other_readings(name, vocabulary, text):
    """The vocabularies that this one could be mistaken for, of those that give some id another row."""
    others = []
    if name == "murmur3":
        for remainder in hashing.REMAINDERS:
            if hashing.remainders_differ(remainder, vocabulary["remainder"], vocabulary["buckets"]):
                others.append({**vocabulary, "remainder": remainder})
    if not text and vocabulary["buckets"] > 1:
        others.append({**vocabulary, "input": "INT64_LE" if vocabulary["input"] == "TEXT" else "TEXT"})
    return others


def _tell_apart(name, vocabulary, rows, others):
    if 1 < vocabulary["buckets"] and vocabulary["buckets"] ** len(rows) < _SEED_ODDS:
        return False
    return all(any(row_of(name, other, example) != row for example, row in rows.items()) for other in others)


def name_in(id_kind):
    """"murmur3", "farmHash", or None where an IdFeature has another vocabulary."""
    return next((name for name in ("murmur3", "farmHash") if name in id_kind), None)


def row_of(name, vocabulary, value):
    """The row of an id. `name`: "murmur3" or "farmHash"."""
    data = hashing.hash_input(value, vocabulary["input"])
    if name == "farmHash":
        return vocabulary["firstRow"] + hashing.farm_fingerprint64(data) % vocabulary["buckets"]
    hashed = hashing.murmur3_32(data, vocabulary["seed"])
    return vocabulary["firstRow"] + hashing.murmur3_bucket(hashed, vocabulary["remainder"], vocabulary["buckets"])
