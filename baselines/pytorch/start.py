# SPDX-License-Identifier: Apache-2.0
"""Where another program begins: `kuafu-bench-step --export FILE` writes its plan, its parameters before the
first step, by Kuafu's names and with (in, out) weights, and the samples of its first steps, as safetensors."""

import json

import numpy
import torch

_NAMES = {"embedding.tokens": "tokens.weight", "embedding.positions": "positions.weight",
          "head.norm.weight": "norm.weight", "head.norm.bias": "norm.bias"}
_TYPES = {"F32": numpy.float32, "I64": numpy.int64}


def _parts(path):
    """Header and data of a safetensors file: header length, JSON header, data."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), file.read()


def metadata(path):
    """The strings that travel in the header: "plan" is Kuafu's plan as TOML."""
    return _parts(path)[0].get("__metadata__", {})


def read(path):
    """{name: tensor}"""
    header, data = _parts(path)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(data[begin:end], _TYPES[entry["dtype"]])
        tensors[name] = torch.from_numpy(values.reshape(entry["shape"]).copy())
    return tensors


def _name_here(name):
    """Kuafu's name of a parameter -> that of gpt.Gpt."""
    if name in _NAMES:
        return _NAMES[name]
    return name.replace(".attn.", ".attention.").replace(".mlp.", ".")


def load(model, path):
    """Sets every parameter of `model`; raises where one is missing, left over or of another shape."""
    own, left = dict(model.named_parameters()), read(path)
    with torch.no_grad():
        for name, value in left.items():
            if name.startswith("batches."):
                continue
            parameter = own.pop(_name_here(name), None)
            if parameter is None:
                raise ValueError(f"{path}: the model has no {name}")
            is_matrix = value.dim() == 2 and not name.startswith("embedding.")
            value = value.t() if is_matrix else value
            if value.shape != parameter.shape:
                raise ValueError(f"{path}: {name} is {tuple(value.shape)}, the model's is "
                                 f"{tuple(parameter.shape)}")
            parameter.copy_(value)
    if own:
        raise ValueError(f"{path}: without {', '.join(own)}")


def batches(path):
    """Global batches, one a step: [(tokens, targets)], each (B, S)."""
    tensors = read(path)
    return list(zip(tensors["batches.inputs"], tensors["batches.targets"]))
