"""The modules of a PyTorch state dict that most models are made of, as messages of the manifest.

    norm = batch_norm(b, weights, "dnn.mlp.1", "tower.0.norm", 16, epsilon=1e-5)
    dense = linear(b, weights, "dnn.mlp.0", "tower.0", 24, 16, norm=norm)

`b`: the Builder that keeps the tensors, `weights`: the Weights that they are taken from, the third argument: the
module's name in the state dict, the fourth: the name that its tensors get in the bundle. Shapes are checked.
"""

from dinghy_export.importers.weights import ImportRefused

# PyTorch's activations without parameters, by the name of their class in lower case.
PLAIN_ACTIVATIONS = {
    "identity": "LINEAR",
    "relu": "RELU",
    "sigmoid": "SIGMOID",
    "tanh": "TANH",
    "silu": "SILU",
    "gelu": "GELU_ERF",
}
INT64_MAX = 2**63 - 1
LEAKY_RELU_SLOPE = 0.01  # torch.nn.LeakyReLU()


def linear(
    b, weights, key, out, inputs, outputs, *, bias=True, activation="LINEAR", norm=None, parameters=None, columns=None
) -> dict:
    """Dense of a torch.nn.Linear. `bias`: True, False, or the name of the tensor; `columns`: the order in which the
    manifest's inputs stand in the weight's columns, None where it is the same."""
    weight = weights.take(f"{key}.weight", [outputs, inputs])
    if columns is not None:
        weight = weight[:, columns]
    offset = None
    if bias:
        offset = weights.take(f"{key}.bias" if bias is True else bias, [outputs])
    return b.dense(out, weight, offset, activation, norm, parameters)


def batch_norm(b, weights, key, out, width, epsilon, *, affine=True, columns=None) -> dict:
    """BatchNorm of a torch.nn.BatchNorm1d with the running statistics of training."""
    for statistic in ("running_mean", "running_var"):
        if not weights.has(f"{key}.{statistic}"):
            raise ImportRefused(
                f'tensor "{key}.{statistic}": expected the running statistics of training, got none; without them '
                "(track_running_stats=False) the model normalizes by whatever batch it scores"
            )
    names = ("running_mean", "running_var") + (("weight", "bias") if affine else ())
    arrays = [weights.take(f"{key}.{name}", [width]) for name in names]
    if columns is not None:
        arrays = [array[columns] for array in arrays]
    return b.batch_norm(out, *arrays, epsilon=epsilon)


def is_number(token) -> bool:
    """Whether a vocabulary of type INT64 takes the token."""
    return (
        token.isascii()
        and token.isdigit()
        and len(token) <= 19
        and str(int(token)) == token
        and int(token) <= INT64_MAX
    )
