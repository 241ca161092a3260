"""Reads pickles without running anything that they name.

    objects = InertUnpickler(file, persistent_load).load()

A pickle is a program: it names functions and classes, and calls them. Here none of its names is imported. The few that
stand for plain data (torch's rebuilding of tensors, OrderedDict, numpy arrays, builtin containers) have stand-ins in
this file; any other name becomes a class of its own that records what it is given, an Inert:

    config = objects["config"]      # <Inert recbole.config.Config>
    config.args, config.state       # what the pickle calls it with, and its __dict__

Tensors become StoredTensor, whose array() is a numpy array.
"""

import pickle
import re

import numpy as np


class CheckpointError(ValueError):
    """A file that cannot be read, and why."""


class Inert:
    """Stands for an object, or for the result of a call, that a pickle describes. Nothing of it was run.

    `path`: the full name of its class or function; `args`, `kwargs`: what that was called with; `state`: what the
    object was to restore itself from, mostly its __dict__; `items`: what was appended or set on it, where it is a list
    or a dict.
    """

    path = ""

    def __new__(cls, *args, **kwargs):
        self = object.__new__(cls)
        self.args = args
        self.kwargs = kwargs
        self.state = None
        self.items = []
        return self

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        self.state = state

    def __repr__(self):
        return f"<Inert {self.path}>"

    def __reduce__(self):
        raise TypeError(f"{self!r}: what a file describes is not pickled again")

    def attribute(self, name, default=None):
        """An attribute as the object's __dict__ would hold it."""
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        return next((state[name] for state in states if isinstance(state, dict) and name in state), default)

    # What a pickle does to lists, sets and dicts.
    def append(self, item):
        self.items.append(item)

    def extend(self, items):
        self.items.extend(items)

    def add(self, item):
        self.items.append(item)

    def __setitem__(self, key, value):
        self.items.append((key, value))


class PickledDict(dict):
    """An OrderedDict, with what the pickle hangs on it (a state dict's `_metadata`)."""

    metadata = None

    def __setstate__(self, state):
        self.metadata = state


# --- Tensors --------------------------------------------------------------------------------------------------------

# Storage classes and dtypes of torch -> numpy's type, little endian; bfloat16 is read by its bits.
DTYPES = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "bfloat16",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "<i1",
    "uint8": "<u1",
    "bool": "?",
}
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "untyped",
}
_DTYPE_NAMES = {
    **{name: name for name in DTYPES},
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
}


class _StandIn:
    """Something that all files share: no pickle may change it."""

    def __setstate__(self, state):
        raise CheckpointError("the file describes a change of torch itself")


class StorageType(_StandIn):
    """Names a storage class, torch.FloatStorage."""

    def __init__(self, dtype):
        self.dtype = dtype


class Dtype(_StandIn):
    """Names a dtype, torch.float32."""

    def __init__(self, name):
        self.name = name


class _Function(_StandIn):
    """Stands for a function that makes plain data."""

    def __init__(self, function):
        self._function = function

    def __call__(self, *args):
        return self._function(*args)


class Storage:
    """The numbers of one or more tensors; `bytes` comes later in legacy files."""

    def __init__(self, key, dtype, count):
        self.key = key
        self.dtype = dtype  # or "untyped": then the tensors say it, and `count` is in bytes
        self.count = count
        self.big_endian = False
        self.bytes = None

    def itemsize(self):
        return itemsize(self.dtype)


class StoredTensor:
    """A tensor: a view of a storage. `offset` and `strides` are in elements."""

    def __init__(self, storage, offset, shape, strides, dtype=None):
        self.storage = storage
        self.offset = offset
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.dtype = dtype or storage.dtype

    def __repr__(self):
        return f"<StoredTensor {self.dtype} {list(self.shape)}>"

    def array(self) -> np.ndarray:
        """A contiguous copy in the logical order; bfloat16 becomes float32."""
        storage = self.storage
        size = itemsize(self.dtype)
        if storage.bytes is None:
            raise CheckpointError(f'storage "{storage.key}": the file does not hold it')
        last = self.offset + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))
        if 0 not in self.shape and (last + 1) * size > len(storage.bytes):
            raise CheckpointError(
                f'storage "{storage.key}": expected at least {(last + 1) * size} bytes for a tensor '
                f"{list(self.shape)}, got {len(storage.bytes)}"
            )
        if 0 in self.shape:
            return np.zeros(self.shape, dtype="<f4" if self.dtype == "bfloat16" else DTYPES[self.dtype])
        base = decode(storage.bytes, self.dtype, storage.big_endian)
        view = np.lib.stride_tricks.as_strided(
            base[self.offset :], self.shape, [stride * base.itemsize for stride in self.strides], writeable=False
        )
        return np.array(view, order="C")


def itemsize(dtype):
    if dtype == "untyped":
        return 1
    return 2 if dtype == "bfloat16" else np.dtype(DTYPES[dtype]).itemsize


def decode(data, dtype, big_endian=False) -> np.ndarray:
    """The numbers of `data`, little endian in memory; bfloat16 as float32. What is left over at the end is ignored."""
    size = itemsize(dtype)
    data = memoryview(data)[: len(data) // size * size]
    if dtype == "bfloat16":
        halves = np.frombuffer(data, dtype=">u2" if big_endian else "<u2")
        return (halves.astype("<u4") << 16).view("<f4")
    numpy_type = np.dtype(DTYPES[dtype])
    return np.frombuffer(data, dtype=numpy_type.newbyteorder(">") if big_endian else numpy_type).astype(
        numpy_type, copy=False
    )


def _rebuild_tensor(storage, offset, shape, strides, *rest):
    _check(isinstance(storage, Storage), "a tensor without a storage")
    metadata = rest[2] if len(rest) > 2 and isinstance(rest[2], dict) else {}
    _check(not metadata.get("neg") and not metadata.get("conj"), "a tensor that is a conjugate or negative view")
    _check(
        all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)), "a tensor with a negative size or stride"
    )
    _check(len(shape) == len(strides), "a tensor with fewer strides than dimensions")
    _check(storage.dtype != "untyped", "a tensor without a type")
    return StoredTensor(storage, offset, shape, strides)


def _rebuild_tensor_v3(storage, offset, shape, strides, requires_grad, hooks, dtype, *rest):
    if isinstance(dtype, type) and issubclass(dtype, Inert):  # a type that is not read here, such as torch.float8_e5m2
        return _inert(f"a tensor of {dtype.path}")()
    _check(isinstance(storage, Storage) and isinstance(dtype, Dtype), "a tensor without a storage or type")
    tensor = _rebuild_tensor(Storage(storage.key, dtype.name, 0), offset, shape, strides, requires_grad, hooks, *rest)
    tensor.storage = storage
    return tensor


def _rebuild_parameter(data, *_):
    return data


def _rebuild_from_type(function, kind, args, state):
    if isinstance(function, _Function):
        return function(*args)
    return _class_of("torch._tensor", "_rebuild_from_type_v2")(function, kind, args, state)


# --- numpy ----------------------------------------------------------------------------------------------------------


class NumpyType:
    """A numpy dtype of plain numbers, text or objects."""

    def __init__(self, name, *_):
        _check(
            isinstance(name, str) and re.fullmatch(r"[<>|=]?[?biufcSUOMm]\d{0,9}", name),
            f"a numpy array of type {name!r}",
        )
        self.dtype = np.dtype(name)

    def __setstate__(self, state):
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class PickledArray(np.ndarray):
    """A numpy array; the state is checked before numpy sees it."""

    def __setstate__(self, state):
        _check(isinstance(state, tuple) and len(state) == 5, "a numpy array without its state")
        _, shape, kind, fortran, data = state
        _check(
            isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape), "a numpy array without a shape"
        )
        _check(isinstance(kind, NumpyType), "a numpy array without a type")
        count = int(np.prod(shape, dtype=object)) if shape else 1
        if kind.dtype.hasobject:
            _check(isinstance(data, list) and len(data) == count, "a numpy array of objects that is cut off")
        else:
            _check(
                isinstance(data, bytes) and len(data) == count * kind.dtype.itemsize, "a numpy array that is cut off"
            )
        super().__setstate__((1, shape, kind.dtype, bool(fortran), data))


def _numpy_reconstruct(*_):
    return np.ndarray.__new__(PickledArray, (0,), np.int8)


def _numpy_frombuffer(data, kind, shape, order):
    _check(
        isinstance(kind, NumpyType) and order in ("C", "F") and not kind.dtype.hasobject, "a numpy array without a type"
    )
    return np.frombuffer(bytes(data), dtype=kind.dtype).reshape(shape, order=order)


def _numpy_scalar(kind, data=b""):
    _check(isinstance(kind, NumpyType), "a numpy number without a type")
    if kind.dtype.hasobject:
        return data
    if isinstance(data, str):
        data = data.encode("latin1")
    _check(isinstance(data, bytes) and len(data) == kind.dtype.itemsize, "a numpy number that is cut off")
    return np.frombuffer(data, dtype=kind.dtype)[0]


def _encode(text, encoding="latin1"):
    _check(isinstance(text, str) and encoding == "latin1", "bytes in another form than latin1")
    return text.encode("latin1")


def _reconstruct_object(kind, *_):
    _check(isinstance(kind, type) and issubclass(kind, Inert), "an object of a builtin class")
    return kind()


# --- Names ----------------------------------------------------------------------------------------------------------

_BUILTINS = {
    "set": set,
    "frozenset": frozenset,
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "bytes": bytes,
    "bytearray": bytearray,
    "complex": complex,
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "slice": slice,
    "range": range,
}
_FUNCTIONS = {
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("_codecs", "encode"): _encode,
    ("copyreg", "_reconstructor"): _reconstruct_object,
    ("copy_reg", "_reconstructor"): _reconstruct_object,
    **{
        (f"{package}.multiarray", name): function
        for package in ("numpy.core", "numpy._core")
        for name, function in (("_reconstruct", _numpy_reconstruct), ("scalar", _numpy_scalar))
    },
    **{(f"{package}.numeric", "_frombuffer"): _numpy_frombuffer for package in ("numpy.core", "numpy._core")},
}
_STAND_INS = {
    **{name: _Function(function) for name, function in _FUNCTIONS.items()},
    **{(module, name): kind for module in ("builtins", "__builtin__") for name, kind in _BUILTINS.items()},
    **{
        (module, name): StorageType(dtype)
        for module in ("torch", "torch.storage", "torch.cuda")
        for name, dtype in _STORAGES.items()
    },
    **{("torch", name): Dtype(dtype) for name, dtype in _DTYPE_NAMES.items()},
    ("torch.storage", "_UntypedStorage"): StorageType("untyped"),
    ("collections", "OrderedDict"): PickledDict,
    ("torch", "Size"): tuple,
    ("numpy", "dtype"): NumpyType,
}


def _class_of(module, name):
    return _inert(f"{module}.{name}")


def _inert(path):
    return type(path.rsplit(".", 1)[-1] or "unnamed", (Inert,), {"path": path, "__module__": __name__})


class InertUnpickler(pickle.Unpickler):
    """One pickle of a file. `persistent_load`: what torch's references to storages become."""

    def __init__(self, file, persistent_load=None):
        super().__init__(file, encoding="latin1")
        self._persistent_load = persistent_load
        self._classes = {}

    def find_class(self, module, name):
        stand_in = _STAND_INS.get((module, name))
        if stand_in is not None:
            return stand_in
        key = (module, name)
        if key not in self._classes:
            self._classes[key] = _class_of(module, name)
        return self._classes[key]

    def persistent_load(self, pid):
        if self._persistent_load is None:
            raise CheckpointError(f"a pickle that refers to {pid!r} outside itself")
        return self._persistent_load(pid)


def _check(condition, what):
    if not condition:
        raise CheckpointError(f"the file describes {what}")
