"""Reads checkpoints: PyTorch's files, zip and legacy, and safetensors. Nothing that a file names is imported or run.

    checkpoint = read_checkpoint("model.pth")
    checkpoint.tensors["item_emb.weight"]    # a numpy array
    checkpoint.objects["config"]             # what else the file holds; unknown classes as Inert

The state dict is looked for where trainers put it: the object itself, its "state_dict" or its "model_state_dict"; a
module that was pickled whole gives its parameters and buffers.
"""

import io
import json
import os
import struct
import zipfile
from dataclasses import dataclass, field

import numpy as np

from dinghy_export.importers.unpickling import (
    CheckpointError,
    Inert,
    InertUnpickler,
    PickledArray,
    Storage,
    StorageType,
    StoredTensor,
    decode,
    itemsize,
)

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_WRAPPERS = ("module.", "_orig_mod.")
_STATE_DICTS = ("state_dict", "model_state_dict")
_SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
# Modules whose result is another in training.
_TRAINING_MATTERS = ("BatchNorm", "Dropout", "Dice")


@dataclass
class Checkpoint:
    """What a file holds."""

    path: str
    tensors: dict  # name -> array: the state dict, flat; arrays are contiguous, bfloat16 is float32
    objects: object = None  # the whole of it, tensors as StoredTensor
    unread: dict = field(default_factory=dict)  # names in the state dict that are no plain tensors -> what they are
    notes: list = field(default_factory=list)
    training: list = field(default_factory=list)  # of a whole module: names of those in training mode where it matters


def read_checkpoint(path) -> Checkpoint:
    """Raises CheckpointError, naming the file, for one that is no checkpoint, is cut off or contradicts itself."""
    try:
        with open(path, "rb") as file:
            start = file.read(16)
        if start[:4] == b"PK\x03\x04":
            objects = _read_zip(path)
        elif start[8:9] == b"{":
            tensors = _read_safetensors(path)
            return Checkpoint(path, tensors, tensors)
        else:
            objects = _read_legacy(path)
        return _checkpoint_of(path, objects)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # a damaged file may fail anywhere in pickle, zipfile, zlib, numpy
        raise CheckpointError(
            f"{path}: expected a PyTorch or safetensors file, got one that is damaged or of another kind "
            f"({type(error).__name__}: {error})"
        ) from None


# --- Formats --------------------------------------------------------------------------------------------------------


def _read_zip(path):
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        pickles = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise CheckpointError(f"expected one data.pkl, got {len(pickles)}")
        folder = pickles[0][: -len("data.pkl")]
        if f"{folder}constants.pkl" in names:
            raise CheckpointError("expected a state dict, got a TorchScript program; save the module's state_dict()")
        order = archive.read(f"{folder}byteorder") if f"{folder}byteorder" in names else b"little"
        if order not in (b"little", b"big"):
            raise CheckpointError(f"byteorder: expected little or big, got {order!r}")
        storages = {}

        def persistent_load(pid):
            storage = _storage_of(pid, storages)
            if storage.bytes is None:
                name = f"{folder}data/{storage.key}"
                if name not in names:
                    raise CheckpointError(f'storage "{storage.key}": the file does not hold it')
                storage.bytes = archive.read(name)
                storage.big_endian = order == b"big"
                _check_size(storage)
            return storage

        return InertUnpickler(io.BytesIO(archive.read(pickles[0])), persistent_load).load()


def _read_legacy(path):
    """Pickles in a row: magic number, protocol, the machine, the object, the storages' keys; then the storages."""
    with open(path, "rb") as file:
        magic = InertUnpickler(file).load()
        if magic != _LEGACY_MAGIC:
            raise CheckpointError(
                "expected a PyTorch or safetensors file, got a pickle of something else"
                if not isinstance(magic, int)
                else f"expected PyTorch's magic number, got {magic:#x}"
            )
        protocol = InertUnpickler(file).load()
        if protocol != _LEGACY_PROTOCOL:
            raise CheckpointError(f"expected protocol {_LEGACY_PROTOCOL}, got {protocol}")
        machine = InertUnpickler(file).load()
        big_endian = not machine.get("little_endian", True)
        storages, views = {}, {}

        def persistent_load(pid):
            if pid[0] == "module":  # a class with its source, which is not looked at
                return pid[1]
            storage = _storage_of(pid[:5], storages)
            if len(pid) < 6 or pid[5] is None:
                return storage
            key, offset, count = pid[5]
            view = views.setdefault(key, (Storage(key, storage.dtype, count), storage, offset))
            return view[0]

        objects = InertUnpickler(file, persistent_load).load()
        for key in InertUnpickler(file).load():
            (count,) = struct.unpack(">q" if big_endian else "<q", _exactly(file, 8))
            if key not in storages:
                raise CheckpointError(f'storage "{key}": no tensor names it')
            storage = storages[key]
            if count != storage.count:
                raise CheckpointError(f'storage "{key}": expected {storage.count} numbers, got {count}')
            storage.bytes = _exactly(file, count * storage.itemsize())
            storage.big_endian = big_endian
        for view, storage, offset in views.values():
            size = storage.itemsize()
            view.bytes = storage.bytes[offset * size : (offset + view.count) * size]
            view.big_endian = big_endian
            _check_size(view)
        return objects


def _exactly(file, count):
    if count < 0 or count > os.fstat(file.fileno()).st_size:
        raise CheckpointError(f"expected {count} more bytes, got the end of the file")
    data = file.read(count)
    if len(data) != count:
        raise CheckpointError(f"expected {count} more bytes, got {len(data)}: the file is cut off")
    return data


def _storage_of(pid, storages):
    if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
        raise CheckpointError(f"expected a reference to a storage, got {pid!r}")
    _, kind, key, _, count = pid
    if not isinstance(kind, StorageType):
        raise CheckpointError(f'storage "{key}": its type {getattr(kind, "path", kind)} is not supported')
    if type(count) is not int or count < 0:
        raise CheckpointError(f'storage "{key}": expected a count, got {count!r}')
    storage = storages.setdefault(key, Storage(key, kind.dtype, count))
    if (storage.dtype, storage.count) != (kind.dtype, count):
        raise CheckpointError(
            f'storage "{key}": expected {storage.count} of {storage.dtype} as before, got {count} of {kind.dtype}'
        )
    return storage


def _check_size(storage):
    expected = storage.count * storage.itemsize()
    if len(storage.bytes) < expected:
        raise CheckpointError(f'storage "{storage.key}": expected {expected} bytes, got {len(storage.bytes)}')


def _read_safetensors(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", _exactly(file, 8))
        header = json.loads(_exactly(file, size), object_pairs_hook=_without_twice)
        data = file.read()
    tensors, ranges = {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype = _SAFETENSORS_DTYPES.get(entry["dtype"])
        if dtype is None:
            raise CheckpointError(f'tensor "{name}": type {entry["dtype"]} is not supported')
        begin, end = entry["data_offsets"]
        shape = [int(extent) for extent in entry["shape"]]
        expected = int(np.prod(shape, dtype=object)) * itemsize(dtype)
        if not 0 <= begin <= end <= len(data) or end - begin != expected:
            raise CheckpointError(f'tensor "{name}": expected {expected} bytes, got {min(end, len(data)) - begin}')
        tensors[name] = decode(data[begin:end], dtype).reshape(shape)
        ranges.append((begin, end, name))
    at = 0
    for begin, end, name in sorted(ranges):  # as the format demands: no holes, nothing shared
        if begin != at:
            raise CheckpointError(f'tensor "{name}": expected to begin at byte {at}, got {begin}')
        at = end
    if at != len(data):
        raise CheckpointError(f"expected {at} bytes of tensors, got {len(data)}")
    return tensors


def _without_twice(pairs):
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        raise CheckpointError(f'expected "{next(name for name in names if names.count(name) > 1)}" once, got it twice')
    return content


# --- The state dict -------------------------------------------------------------------------------------------------


def _checkpoint_of(path, objects):
    found = Checkpoint(path, {}, objects)
    holder = objects
    names = [
        name for name in _STATE_DICTS if isinstance(objects, dict) and isinstance(objects.get(name), (dict, Inert))
    ]
    if isinstance(objects, dict) and (names or not _is_state_dict(objects)):
        if len(names) != 1:
            raise CheckpointError(
                f"expected tensors, or one of {', '.join(_STATE_DICTS)}, got a dict with the keys "
                f"{', '.join(sorted(map(str, objects)))[:300] or '(none)'}"
            )
        holder = objects[names[0]]
    if isinstance(holder, Inert):
        if not isinstance(holder.attribute("_modules"), dict):
            raise CheckpointError(f"expected a state dict, got an object of class {holder.path}")
        found.notes.append(
            f"the file is a module pickled whole ({holder.path}); only its parameters and buffers are read"
        )
        _read_module(holder, "", found, set())
    elif isinstance(holder, dict):
        for name, value in holder.items():
            if not isinstance(name, str):
                raise CheckpointError(f"expected names of tensors, got {name!r}")
            _keep(found, name, value)
    else:
        raise CheckpointError(f"expected a state dict, got {type(holder).__name__}")
    _leave_out_wrappers(found)
    return found


def _leave_out_wrappers(found):
    """torch.compile and DataParallel put their own name before every name of the module that they wrap."""
    names, prefix = [*found.tensors, *found.unread], ""
    while names:
        wrapper = next((w for w in _WRAPPERS if all(name.startswith(prefix + w) for name in names)), None)
        if wrapper is None:
            break
        prefix += wrapper
    if prefix:
        found.tensors = {name[len(prefix) :]: value for name, value in found.tensors.items()}
        found.unread = {name[len(prefix) :]: value for name, value in found.unread.items()}
        found.notes.append(f'every tensor is named "{prefix}...", as by torch.compile or DataParallel; it is left out')


def _is_state_dict(objects):
    return not objects or any(isinstance(value, (StoredTensor, PickledArray)) for value in objects.values())


def _keep(found, name, value):
    if isinstance(value, StoredTensor):
        found.tensors[name] = value.array()
    elif isinstance(value, np.ndarray):
        found.tensors[name] = np.array(value, order="C", subok=False)
    elif value is not None:
        found.unread[name] = value.path if isinstance(value, Inert) else type(value).__name__


def _read_module(module, prefix, found, above):
    if id(module) in above:
        raise CheckpointError(f'module "{prefix[:-1]}": it holds itself')
    transient = module.attribute("_non_persistent_buffers_set") or ()
    for group in ("_parameters", "_buffers"):
        for name, value in (module.attribute(group) or {}).items():
            if name not in transient:
                _keep(found, f"{prefix}{name}", value)
    if module.attribute("training") and any(kind in module.path for kind in _TRAINING_MATTERS):
        found.training.append(f"{prefix[:-1]} ({module.path.rsplit('.', 1)[-1]})")
    for name, child in (module.attribute("_modules") or {}).items():
        if isinstance(child, Inert):
            _read_module(child, f"{prefix}{name}.", found, above | {id(module)})
