"""FuxiCTR's MLP_Block as Dense messages.

norm, layers = mlp_block(b, weights, "dnn.mlp", "tower", 24, [16, 8], "ReLU", 0.1, "dnn", batch_norm=True)
"""

from dinghy_export.importers import dense_layers
from dinghy_export.importers.weights import ImportRefused

DICE_EPSILON = 1e-9
BATCH_NORM_EPSILON = 1e-5


def mlp_block(
    b,
    weights,
    key,
    out,
    inputs,
    units,
    activations,
    dropout,
    option,
    *,
    batch_norm=False,
    only_once=False,
    output_activation=None,
    columns=None,
):
    """An MLP_Block with an output of width 1: the BatchNorm before it (None: none) and its Dense messages. In the state
    dict modules have running numbers, which depend on which of them there are; the configuration tells."""
    activations = activations if isinstance(activations, list) else [activations] * len(units)
    dropout = dropout if isinstance(dropout, list) else [dropout] * len(units)
    for name, values in ((f"{option} activations", activations), (f"{option} dropout", dropout)):
        if len(values) != len(units):
            raise ImportRefused(f"{name}: expected {len(units)} as hidden units, got {len(values)}")
    number, layers, norm = 0, [], None
    if batch_norm and only_once and weights.has(f"{key}.0.running_mean"):
        norm = dense_layers.batch_norm(
            b, weights, f"{key}.0", f"{out}.input", inputs, BATCH_NORM_EPSILON, columns=columns
        )
        number, batch_norm = 1, False
    for index, width in enumerate(units):
        at, own_norm = number, None
        number += 1
        if batch_norm:
            own_norm = dense_layers.batch_norm(
                b, weights, f"{key}.{number}", f"{out}.{index}.norm", width, BATCH_NORM_EPSILON
            )
            number += 1
        function, parameters = "LINEAR", None
        if activations[index]:
            function, parameters = _activation(
                b, weights, activations[index], f"{key}.{number}", f"{out}.{index}", width
            )
            number += 1
        layers.append(
            dense_layers.linear(
                b,
                weights,
                f"{key}.{at}",
                f"{out}.{index}",
                inputs,
                width,
                activation=function,
                norm=own_norm,
                parameters=parameters,
                columns=columns,
            )
        )
        inputs, columns = width, None
        number += 1 if dropout[index] > 0 else 0
    function, parameters = "LINEAR", None
    if output_activation:
        function, parameters = _activation(
            b, weights, output_activation, f"{key}.{number + 1}", f"{out}.{len(units)}", None
        )
    layers.append(
        dense_layers.linear(
            b,
            weights,
            f"{key}.{number}",
            f"{out}.{len(units)}",
            inputs,
            1,
            activation=function,
            parameters=parameters,
            columns=columns,
        )
    )
    return norm, layers


def _activation(b, weights, name, key, out, width):
    """Activation and ActivationParameters of FuxiCTR's name of an activation. `width` None: one without weights."""
    lower = name.lower() if isinstance(name, str) else None
    if lower == "dice" and width is not None:
        norm = dense_layers.batch_norm(b, weights, f"{key}.bn", f"{out}.dice.norm", width, DICE_EPSILON, affine=False)
        return "DICE", b.dice(f"{out}.dice", weights.take(f"{key}.alpha", [width]), norm)
    if lower == "prelu" and width is not None:
        return "PRELU", b.prelu(f"{out}.prelu", weights.take(f"{key}.weight", [width]))
    if lower == "leakyrelu":
        return "LEAKY_RELU", {"slope": dense_layers.LEAKY_RELU_SLOPE}
    if lower in dense_layers.PLAIN_ACTIVATIONS:
        return dense_layers.PLAIN_ACTIVATIONS[lower], None
    known = ", ".join(["Dice", "PReLU", "LeakyReLU", *dense_layers.PLAIN_ACTIVATIONS])
    raise ImportRefused(f"activation of {key.rsplit('.', 1)[0]}: expected one of {known}, got {name!r}")
