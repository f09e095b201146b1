# SPDX-License-Identifier: Apache-2.0
"""The weights and samples that Kuafu starts from, for the model of gpt.py: what `kuafu-bench-step
--start FILE` writes. Two programs that start from one file must find the same losses."""

import json
import struct

import torch

KINDS = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}


def read(path):
    """{name: tensor} of a safetensors file: 8 bytes of header length, a JSON header, the data."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(memoryview(data)[begin:end], dtype=KINDS[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def kuafu_name(name):
    """Of a parameter of gpt.Gpt; Kuafu numbers its blocks as the model does."""
    words = name.split(".")
    if words[0] != "blocks":
        return {"tokens": "embedding.tokens", "positions": "embedding.positions",
                "norm": "head.norm"}[words[0]] + ("" if words[0] != "norm" else "." + words[1])
    inside = {"attention": "attn", "up": "mlp.up", "down": "mlp.down"}
    return ".".join(["blocks", words[1], inside.get(words[2], words[2]), *words[3:]])


def load(model, tensors):
    """Gives a gpt.Gpt the weights. Linear layers hold (out, in) here and (in, out) there."""
    linear = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = tensors[kuafu_name(name)]
            parameter.copy_(value.t() if name in linear else value)
    unused = {n for n in tensors if not n.startswith("data.")} - {
        kuafu_name(n) for n, _ in model.named_parameters()}
    if unused:
        raise ValueError(f"the model has no place for {', '.join(sorted(unused))}")


def batches(tensors, options):
    """Global batches of the file: [(tokens, targets)], each (B, S)."""
    inputs, targets = tensors["data.inputs"], tensors["data.targets"]
    return list(zip(inputs.split(options.batch), targets.split(options.batch)))
