"""The tensors of a checkpoint, of which an importer takes each and leaves none behind unseen.

weights = Weights.of_file("model.pth")
table = weights.take("item_emb.weight", [None, 50])
builder.notes += weights.finish(ignore=["*.num_batches_tracked"])   # refuses what nobody read
"""

import fnmatch

import numpy as np

from dinghy_export.importers.checkpoint import read_checkpoint


class ImportRefused(ValueError):
    """What an importer cannot take, and why."""


class Weights:
    def __init__(self, tensors, unread=None, source="", notes=()):
        """`tensors`: name -> array; `unread`: names that hold no plain tensor -> what they hold; `notes`: what the user
        should know of the file."""
        self._tensors = dict(tensors)
        self._unread = dict(unread or {})
        self._taken = set()
        self._notes = list(notes)
        self._source = f"{source}: " if source else ""

    @staticmethod
    def of_checkpoint(checkpoint) -> "Weights":
        """Refuses a module that was pickled whole in training mode: it would not be the module that was trained for
        serving, and nobody said which is meant."""
        if checkpoint.training:
            raise ImportRefused(
                f"{checkpoint.path}: expected a model in evaluation mode, got one pickled in training mode, "
                f"where {checkpoint.training[0]} computes something else; call eval() before saving, or "
                f"save its state_dict()"
            )
        return Weights(checkpoint.tensors, checkpoint.unread, checkpoint.path, checkpoint.notes)

    @staticmethod
    def of_file(path) -> "Weights":
        return Weights.of_checkpoint(read_checkpoint(path))

    def has(self, name) -> bool:
        return name in self._tensors

    def names(self, prefix="") -> list:
        """In the checkpoint's order."""
        return [name for name in self._tensors if name.startswith(prefix)]

    def take(self, name, shape=None) -> np.ndarray:
        """A tensor of finite floats. `shape`: what it must be, None in it for any extent."""
        if name in self._unread:
            raise ImportRefused(f'{self._source}tensor "{name}": expected a plain tensor, got {self._unread[name]}')
        if name not in self._tensors:
            raise ImportRefused(
                f'{self._source}tensor "{name}": expected in the checkpoint, got none of that name{self._near(name)}'
            )
        array = self._tensors[name]
        if shape is not None and not _fits(array.shape, shape):
            expected = ", ".join("any" if extent is None else str(extent) for extent in shape)
            raise ImportRefused(f'{self._source}tensor "{name}": expected shape [{expected}], got {list(array.shape)}')
        if array.dtype.kind != "f":
            raise ImportRefused(f'{self._source}tensor "{name}": expected floats, got {array.dtype}')
        if not np.isfinite(array).all():
            raise ImportRefused(
                f'{self._source}tensor "{name}": expected finite numbers, got {array[~np.isfinite(array)].flat[0]}'
            )
        self._taken.add(name)
        return array

    def optional(self, name, shape=None):
        """As take; None where there is no such tensor."""
        return self.take(name, shape) if name in self._tensors or name in self._unread else None

    def finish(self, ignore=()) -> list:
        """Refuses tensors that nobody took; returns the notes. `ignore`: patterns of names that may stay behind."""
        left = [
            name
            for name in list(self._tensors) + list(self._unread)
            if name not in self._taken and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignore)
        ]
        if left:
            raise ImportRefused(
                f'{self._source}tensor "{left[0]}": expected only tensors of the model as the options describe it, '
                f"got one that it does not have" + (f" (and {len(left) - 1} more)" if len(left) > 1 else "")
            )
        return self._notes

    def _near(self, name):
        last = name.rsplit(".", 1)[-1]
        near = [other for other in self._tensors if other.rsplit(".", 1)[-1] == last][:3]
        return f"; there are {', '.join(near)}" if near else ""


def _fits(shape, expected):
    return len(shape) == len(expected) and all(want is None or got == want for got, want in zip(shape, expected))
