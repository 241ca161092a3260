"""Safetensors files of float32 tensors: an 8-byte little-endian header length, a JSON header padded with spaces to a
multiple of 8, then the data. Format: github.com/huggingface/safetensors.

    write("weights.safetensors", {"item.weight": array})
"""

import json
import struct

import numpy as np


def serialize(tensors) -> bytes:
    """The bytes of a file with `tensors` (name -> float32 array), by rising name."""
    header, blobs, offset = {}, [], 0
    for name in sorted(tensors):
        array = np.asarray(tensors[name])
        if array.dtype != np.float32:
            raise ValueError(f'tensor "{name}": expected float32, got {array.dtype}')
        if not np.isfinite(array).all():
            raise ValueError(f'tensor "{name}": it holds NaN or infinity')
        blob = array.astype("<f4").tobytes(order="C")
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def write(path, tensors) -> None:
    with open(path, "wb") as file:
        file.write(serialize(tensors))


def read(path) -> dict:
    """Tensors by name, of a file that this module wrote."""
    with open(path, "rb") as file:
        content = file.read()
    (size,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f'{path}: tensor "{name}": expected F32, got {entry["dtype"]}')
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], dtype="<f4").reshape(entry["shape"])
    return tensors
