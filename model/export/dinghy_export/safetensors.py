"""Safetensors files of tensors in float32, float16 or int8: an 8-byte little-endian header length, a JSON header padded with spaces to a
multiple of 8, then the data. Format: github.com/huggingface/safetensors.

    write("weights.safetensors", {"item.weight": array})
"""

import json
import struct

import numpy as np

DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "I8": np.dtype("i1")}


def serialize(tensors) -> bytes:
    """The bytes of a file with `tensors` (name -> array), by rising name."""
    header, blobs, offset = {}, [], 0
    for name in sorted(tensors):
        array = np.asarray(tensors[name])
        dtype = next((dtype for dtype in DTYPES if DTYPES[dtype] == array.dtype), None)
        if dtype is None:
            raise ValueError(f'tensor "{name}": expected float32, float16 or int8, got {array.dtype}')
        if not np.isfinite(array).all():
            raise ValueError(f'tensor "{name}": it holds NaN or infinity')
        blob = array.tobytes(order="C")
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
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
        if entry["dtype"] not in DTYPES:
            raise ValueError(f'{path}: tensor "{name}": expected {", ".join(DTYPES)}, got {entry["dtype"]}')
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors
