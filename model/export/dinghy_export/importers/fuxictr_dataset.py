"""What FuxiCTR's files say of a model: its configuration, the feature map, vocabularies, padding and scaling.

    params = read_params("config", "DIN_taobao")
    dataset = read_dataset("data/taobao", params, padding={}, scaling={})

The files are those that FuxiCTR 2 writes or reads: model_config.yaml and dataset_config.yaml (or the expanded
parameters as JSON, also as its log prints them), and in the dataset's folder feature_map.json, feature_vocab.json and
feature_processor.pkl, of which nothing is run.
"""

import ast
import collections
import glob
import json
import os
from dataclasses import dataclass, field

from dinghy_export.importers.unpickling import CheckpointError, Inert, InertUnpickler
from dinghy_export.importers.weights import ImportRefused

PAD, OOV = "__PAD__", "__OOV__"
_TUPLE_TAG = "tag:yaml.org,2002:python/tuple"


@dataclass
class Dataset:
    """Of feature_map.json and the files beside it. Sequences and numbers that nothing is known of are absent from
    `padding` and `scaling`."""

    features: dict  # name -> spec, in the feature map's order, as the model's use_features and feature_specs leave it
    labels: list = field(default_factory=lambda: ["click"])
    vocabularies: dict = field(default_factory=dict)  # feature -> {token: row}; empty: ids are rows already
    padding: dict = field(default_factory=dict)  # sequence -> "pre" or "post"
    scaling: dict = field(default_factory=dict)  # numeric feature -> (mean, stddev); (0, 1): none
    columns: dict = field(default_factory=dict)  # feature -> its entry in feature_cols


# --- Configuration --------------------------------------------------------------------------------------------------


def read_params(path, experiment=None) -> dict:
    """The parameters of one experiment. `path`: a folder as run_expid.py takes it, a model_config.yaml, or a YAML or
    JSON file with the expanded parameters."""
    if os.path.isdir(path):
        params = _experiment(_files(path, "model_config"), path, experiment)
        for file in _files(path, "dataset_config"):
            entry = _read(file).get(params.get("dataset_id"))
            if entry is not None:
                params.update(entry)
                break
        return params
    content = _read(path)
    if "din_target_field" in content or "model" in content:
        return {name: _literal(value) for name, value in content.items()}
    return _experiment([path], path, experiment)


def _files(folder, name):
    single = os.path.join(folder, f"{name}.yaml")
    return [single] if os.path.exists(single) else sorted(glob.glob(os.path.join(folder, name, "*.yaml")))


def _experiment(files, path, experiment):
    if experiment is None:
        raise ImportRefused(f"{path}: expected --experiment, as it holds the parameters of many, got none")
    base, own = {}, None
    for file in files:
        content = _read(file)
        base = content.get("Base") or base
        own = content.get(experiment, own)
    if own is None:
        raise ImportRefused(f'{path}: expected experiment "{experiment}", got no such entry')
    return {**base, **own}


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file) if path.endswith(".json") else _yaml(path, file)
    except (OSError, ValueError) as error:
        raise ImportRefused(f"{path}: expected YAML or JSON, got {error}") from None
    if not isinstance(content, dict):
        raise ImportRefused(f"{path}: expected parameters by name, got {type(content).__name__}")
    return content


def _yaml(path, file):
    try:
        import yaml
    except ImportError:
        raise ImportRefused(
            f"{path}: expected PyYAML (Debian: python3-yaml) to read it, got none; JSON needs nothing"
        ) from None

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor(_TUPLE_TAG, lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))
    try:
        return yaml.load(file, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _literal(value):
    """FuxiCTR's log prints every parameter as text."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


# --- The dataset ----------------------------------------------------------------------------------------------------


def read_dataset(folder, params, padding, scaling) -> Dataset:
    """`padding` and `scaling`: what the user says, above what the files say."""
    content = _read_json(os.path.join(folder, "feature_map.json"))
    dataset = dataset_of(content, params)
    vocabulary_file = os.path.join(folder, "feature_vocab.json")
    if os.path.exists(vocabulary_file):
        dataset.vocabularies = _read_json(vocabulary_file)
    columns = params.get("feature_cols") or []
    processor_file = os.path.join(folder, "feature_processor.pkl")
    if os.path.exists(processor_file):
        processor = _read_pickle(processor_file)
        columns = processor.attribute("feature_cols") or columns
        _add_processors(dataset, processor_file, processor.attribute("processor_dict") or {})
    for column in columns:
        names = column["name"] if isinstance(column["name"], list) else [column["name"]]
        for name in names:
            dataset.columns[name] = column
    _add_columns(dataset)
    dataset.padding.update(padding)
    dataset.scaling.update(scaling)
    return dataset


def dataset_of(feature_map, params) -> Dataset:
    """`feature_map`: the content of feature_map.json."""
    if "feature_specs" in feature_map:
        raise ImportRefused(
            "feature_map.json: expected one of FuxiCTR 2, got one of FuxiCTR 1, which pads with the last id"
        )
    if not isinstance(feature_map.get("features"), list):
        raise ImportRefused("feature_map.json: expected a list of features, got none")
    specs = {name: dict(spec) for entry in feature_map["features"] for name, spec in entry.items()}
    if params.get("use_features"):
        missing = [name for name in params["use_features"] if name not in specs]
        if missing:
            raise ImportRefused(f'use_features: expected features of feature_map.json, got "{missing[0]}"')
        specs = {name: specs[name] for name in params["use_features"]}
    for override in params.get("feature_specs") or ():
        names = override["name"] if isinstance(override["name"], list) else [override["name"]]
        for name in names:
            if name not in specs:
                raise ImportRefused(f'feature_specs: expected features of feature_map.json, got "{name}"')
            specs[name].update({key: value for key, value in override.items() if key != "name"})
    return Dataset(specs, list(feature_map.get("labels") or ["click"]))


def _read_json(path):
    def unique(pairs):
        content = dict(pairs)
        if len(content) != len(pairs):
            twice = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
            rows = [value for name, value in pairs if name == twice]
            raise ImportRefused(
                f'{path}: expected each token once, got "{twice}" with rows {rows}: a column of numbers that '
                "shares its table with one of texts; which of the two a request means is not known"
            )
        return content

    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file, object_pairs_hook=unique)
    except ImportRefused:
        raise
    except (OSError, ValueError) as error:
        raise ImportRefused(f"{path}: expected JSON, got {error}") from None
    if not isinstance(content, dict):
        raise ImportRefused(f"{path}: expected an object, got {type(content).__name__}")
    return content


def _read_pickle(path):
    try:
        with open(path, "rb") as file:
            processor = InertUnpickler(file).load()
    except (CheckpointError, OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ImportRefused(f"{path}: expected a pickled feature processor, got {error}") from None
    if not isinstance(processor, Inert):
        raise ImportRefused(f"{path}: expected a pickled feature processor, got {type(processor).__name__}")
    return processor


def _add_processors(dataset, path, processors):
    for name, spec in dataset.features.items():
        tokenizer = processors.get(f"{name}::tokenizer")
        if spec["type"] == "sequence" and isinstance(tokenizer, Inert):
            dataset.padding[name] = tokenizer.attribute("padding")
        if spec["type"] == "numeric":
            normalizer = processors.get(f"{name}::normalizer")
            dataset.scaling[name] = (0.0, 1.0) if normalizer is None else _scaling(path, name, normalizer)


def _scaling(path, name, normalizer):
    """(x - mean) / stddev of a fitted scikit-learn scaler."""
    scaler = normalizer.attribute("normalizer") if isinstance(normalizer, Inert) else None
    kind = scaler.path.rsplit(".", 1)[-1] if isinstance(scaler, Inert) else None
    if kind == "StandardScaler":
        mean, scale = scaler.attribute("mean_"), scaler.attribute("scale_")
        if mean is not None and scale is not None:
            return float(mean[0]), float(scale[0])
    if kind == "MinMaxScaler" and not scaler.attribute("clip"):  # x * scale_ + min_
        scale, offset = scaler.attribute("scale_"), scaler.attribute("min_")
        if scale is not None and offset is not None:
            return float(-offset[0] / scale[0]), float(1 / scale[0])
    raise ImportRefused(
        f'{path}: normalizer of "{name}": expected a fitted StandardScaler or MinMaxScaler, got {kind}; '
        f"--scaling {name}=MEAN,STDDEV says it otherwise"
    )


def _add_columns(dataset):
    """What feature_cols say where no processor was read."""
    for name, column in dataset.columns.items():
        spec = dataset.features.get(name)
        if spec is None:
            continue
        if spec["type"] == "sequence":
            dataset.padding.setdefault(name, column.get("padding", "post"))
        if spec["type"] == "numeric" and not column.get("normalizer"):
            dataset.scaling.setdefault(name, (0.0, 1.0))
