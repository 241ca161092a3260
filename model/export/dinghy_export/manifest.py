"""From a ReferenceModel to what a bundle holds: the manifest and the tensors; and the encoder of its requests.

    encoder = encoder_of(spec, catalog)
    model.probabilities(collate([encoder.encode(request) for request in requests]))
    write_bundle(root, 1, manifest_of(model, provenance), tensors_of(model), goldens, catalog)
"""

import numpy as np

from dinghy_export.features import FeatureEncoder
from dinghy_export.layers import AutoTargetAttention
from dinghy_export.models import manifest_inputs

FORMAT_VERSION = 1


def manifest_of(model, provenance) -> dict:
    """BundleManifest of a ReferenceModel. `provenance`: Provenance, as dict."""
    spec = model.spec
    sequences, inputs = manifest_inputs(spec)
    return {
        "formatVersion": FORMAT_VERSION,
        "name": spec.name,
        "provenance": provenance,
        "sequences": sequences,
        "features": inputs,
        "tables": [
            {"name": name, "tensor": f"{name}.weight", "dim": table.weight.shape[1]}
            for name, table in model.tables.items()
        ],
        "layers": [_layer(node) for node in model.nodes],
        "outputs": [
            {"name": output, "input": layer, "link": "SIGMOID"} for output, layer in model.output_layers.items()
        ],
        "itemFeature": spec.item_feature,
    }


def provenance(trainer, data, created, **details) -> dict:
    """Provenance: `created` in RFC 3339; details are text or numbers, such as seed, epochs and metrics."""
    return {
        "trainer": trainer,
        "data": data,
        "created": created,
        "details": {name: str(value) for name, value in details.items()},
    }


def tensors_of(model) -> dict:
    """All weights that manifest_of names, float32."""
    named = [(f"{name}.weight", table.weight) for name, table in model.tables.items()]
    for node in model.nodes:
        if node.module is not None:
            named += [(f"{node.name}.{name}", weight) for name, weight in node.module.named_parameters()]
    return {name: weight.detach().cpu().numpy().astype(np.float32) for name, weight in named}


def encoder_of(spec, catalog=None) -> FeatureEncoder:
    """Encodes requests as the spec's variant reads them."""
    sequences, inputs = manifest_inputs(spec)
    return FeatureEncoder(sequences, inputs, spec.item_feature, catalog, spec.files)


# --- Layers ---------------------------------------------------------------------------------------------------------


def _layer(node):
    layer = {"name": node.name}
    if node.kind in ("dense", "mlp", "self_attention", "pooling"):
        layer["inputs"] = list(node.inputs)
    name, module = node.name, node.module
    if node.kind == "dense":
        layer["dense"] = _dense(name, module)
    elif node.kind == "mlp":
        layer["mlp"] = {"layers": _dense_list(f"{name}.layers", module.layers)}
    elif node.kind in ("add", "multiply"):
        layer[node.kind] = {"terms": [{"inputs": list(term)} for term in node.terms]}
    elif node.kind == "pooling":
        layer["pooling"] = {"method": module.method}
    elif node.kind == "self_attention":
        layer["selfAttention"] = _self_attention(name, module)
    elif node.kind == "target_attention":
        layer["targetAttention"] = {
            "query": list(node.inputs),
            "keys": list(node.keys),
            "values": list(node.keys),
            **_score(name, module),
            "normalization": module.normalization,
            "empty": "ZEROS",
            "scale": module.scale,
        }
    else:
        raise ValueError(f'layer "{name}": the exporter does not know kind {node.kind!r}')
    return layer


def _score(name, module):
    din = {"din": {"parts": list(module.parts), "layers": _dense_list(f"{name}.layers", module.layers)}}
    if not isinstance(module, AutoTargetAttention):
        return din
    return {"auto": {
        "maxShort": module.max_short,
        "shortHistory": {**din, "scale": 1.0},
        "longHistory": {"bilinear": {"weight": f"{name}.long"}, "scale": module.long_scale},
    }}


def _dense(name, module):
    return {
        "weight": f"{name}.weight",
        "bias": "" if module.bias is None else f"{name}.bias",
        "activation": module.activation,
    }


def _dense_list(name, modules):
    return [_dense(f"{name}.{index}", module) for index, module in enumerate(modules)]


def _layer_norm(name, module):
    return {"weight": f"{name}.weight", "bias": f"{name}.bias", "epsilon": module.eps}


def _self_attention(name, module):
    blocks = []
    for index, block in enumerate(module.blocks):
        prefix = f"{name}.blocks.{index}"
        entry = {"attentionNorm": _layer_norm(f"{prefix}.attention_norm", block.attention_norm)}
        for part in ("query", "key", "value", "out"):
            entry[part] = _dense(f"{prefix}.{part}", getattr(block, part))
        entry["ffnNorm"] = _layer_norm(f"{prefix}.ffn_norm", block.ffn_norm)
        entry["ffn"] = _dense_list(f"{prefix}.ffn", block.ffn)
        blocks.append(entry)
    message = {
        "blocks": blocks,
        "heads": module.heads,
        "wiring": module.wiring,
        "causal": module.causal,
        "inputScale": module.input_scale,
    }
    if module.positions is not None:
        message["positions"] = {"tensor": f"{name}.positions", "origin": module.position_origin}
    if module.final_norm is not None:
        message["finalNorm"] = _layer_norm(f"{name}.final_norm", module.final_norm)
    return message
