"""Writes bundle folders, <model_root>/<model>/<version>/, as proto/bundle.proto describes them.

    write_bundle("models", 1, manifest, tensors, goldens, catalog=catalog)

The folder appears whole or not at all: it is written beside its place and renamed. The same arguments give the same
bytes.
"""

import hashlib
import json
import os
import shutil
import tempfile

import numpy as np

from dinghy_export import safetensors

COMPLETE = "COMPLETE"


def write_bundle(model_root, version, manifest, tensors, goldens, catalog=None, vocabularies=None) -> str:
    """Writes a version of a model and returns its folder.

    `manifest`: BundleManifest, `goldens`: ScoreLogs, `catalog`: Catalog, each as a dict of its protobuf JSON;
    `tensors`: name -> float32 array, those of tables also float16 or int8; `vocabularies`: path -> tokens. A version that is there is never replaced: a
    running server may hold it. Raises FileExistsError.
    """
    name = manifest["name"]
    if not name or os.path.basename(name) != name or name.startswith(".") or "\0" in name:
        raise ValueError(f"name: expected one that a folder can have, got {name!r}")
    if not 0 < int(version) < 2**63:
        raise ValueError(f"version: expected 1 or more, of 64 bits, got {version}")
    parent = os.path.join(model_root, manifest["name"])
    folder = os.path.join(parent, str(int(version)))
    if os.path.exists(folder):
        raise FileExistsError(f"{folder}: this version exists; choose a new one")
    os.makedirs(parent, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f".{int(version)}.", dir=parent)
    try:
        os.chmod(temporary, 0o755)
        for path, content in _files(manifest, tensors, goldens, catalog, vocabularies or {}).items():
            _write(os.path.join(temporary, path), content)
        _write(os.path.join(temporary, COMPLETE), _complete(temporary))
        _sync_folder(temporary)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(parent)
    return folder


def to_json(message) -> str:
    """One line of protobuf JSON; numpy values become plain ones, float32 with as few digits as tell them apart."""
    return json.dumps(plain(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def write_lines(path, messages) -> None:
    """Writes messages as JSON lines; the file appears whole or not at all."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        for message in messages:
            file.write(to_json(message) + "\n")
    os.replace(path + ".new", path)


def digest(folder) -> str:
    """The bundle digest: SHA-256 of COMPLETE, in hex."""
    with open(os.path.join(folder, COMPLETE), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _files(manifest, tensors, goldens, catalog, vocabularies):
    table_names = {table[part] for table in manifest.get("tables", []) for part in ("tensor", "scale") if table.get(part)}
    missing = sorted(table_names - set(tensors))
    if missing:
        raise ValueError(f'table tensor "{missing[0]}": it is not among the tensors')
    tables = {name: tensor for name, tensor in tensors.items() if name in table_names}
    weights = {name: tensor for name, tensor in tensors.items() if name not in table_names}
    for name, tensor in weights.items():
        if np.asarray(tensor).dtype != np.float32:
            raise ValueError(f'tensor "{name}": expected float32, since it is no table, got {np.asarray(tensor).dtype}')
    files = {
        "bundle.json": (json.dumps(plain(manifest), ensure_ascii=False, indent=1) + "\n").encode("utf-8"),
        "weights.safetensors": safetensors.serialize(weights),
        "golden.jsonl": "".join(to_json(golden) + "\n" for golden in goldens).encode("utf-8"),
    }
    if tables:
        files["tables.safetensors"] = safetensors.serialize(tables)
    if catalog is not None:
        files["catalog.json"] = (to_json(catalog) + "\n").encode("utf-8")
    for path, tokens in vocabularies.items():
        if os.path.basename(path) != path or path in files or path == COMPLETE or path.startswith("."):
            raise ValueError(f'vocabulary file "{path}": expected a free name without folders')
        files[path] = "".join(f"{token}\n" for token in tokens).encode("utf-8")
    return files


def _complete(folder):
    entries = []
    for path in sorted(os.listdir(folder)):
        with open(os.path.join(folder, path), "rb") as file:
            content = file.read()
        entries.append({"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    return (json.dumps({"files": entries}, indent=1) + "\n").encode("utf-8")


def _write(path, content):
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value):
    """`value` with lists and plain numbers in place of numpy's."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.float32):
        return float(str(value))
    if isinstance(value, np.generic):
        return value.item()
    return value
