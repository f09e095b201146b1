# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and plain weights as docs/checkpoint.md describes them, read in plain Python."""
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy

KUAFU = os.path.join(os.environ["KUAFU_BINARY_DIR"], "bin", "kuafu")
PAGE = os.path.join(os.environ["KUAFU_SOURCE_DIR"], "docs", "checkpoint.md")
PLUGIN = os.path.join(os.environ["KUAFU_BINARY_DIR"], "plugins", "macaron.so")
SMALL = ["model.hidden=16", "model.heads=2", "model.layers=2", "train.batch=4",
         "train.validation_batches=0", "data.kind=synthetic", "train.steps=2"]
SIZE = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}


def kuafu(*words, code=0):
    done = subprocess.run([KUAFU, *words], capture_output=True, text=True)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def train(folder, settings, more=()):
    words = ["run", "/dev/null", "--checkpoint", folder]
    for setting in [*SMALL, *settings]:
        words += ["--set", setting]
    return kuafu(*words, *more)


def checksum(data):
    mask, prime = 2**64 - 1, 0x9E3779B97F4A7C15
    lanes = [prime ^ len(data), 0x632BE59BD9B4E019]

    def mix(i, word):
        x = (lanes[i] ^ word) * prime & mask
        lanes[i] = x ^ x >> 29

    whole = len(data) // 8
    for i, word in enumerate(struct.unpack(f"<{whole}Q", data[:8 * whole])):
        mix(i % 2, word)
    mix(0, int.from_bytes(data[8 * whole:], "little"))
    mix(1, lanes[0])
    return f"{lanes[1]:016x}"


def line(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def read_file(test, path):
    """Header (its strings apart) and data of a safetensors file, every checksum checked."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = file.read()
    own = header["__metadata__"].pop("header_checksum")
    test.assertEqual(own, checksum(line(header)))
    strings = header.pop("__metadata__")
    end = 0
    for key, tensor in header.items():
        begin, stop = tensor["data_offsets"]
        test.assertEqual(begin, end)
        test.assertEqual(strings["checksum." + key], checksum(data[begin:stop]))
        end = stop
    test.assertEqual(end, len(data))
    return header, strings, data


def volume(extent):
    n = 1
    for e in extent:
        n *= e
    return n


def rows(slice_, shape):
    """First element in the whole tensor of each run along the last dim of a box."""
    starts = [0]
    for d, (offset, extent) in enumerate(zip(slice_["offset"], slice_["extent"])):
        last = d == len(shape) - 1
        inner = volume(shape[d + 1:])
        steps = [offset] if last else range(offset, offset + extent)
        starts = [s + i * inner for s in starts for i in steps]
    return starts


def walk(test, folder):
    """All tensors of a checkpoint: name -> (dtype, shape, bytes)."""
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
        index = json.load(file)
    own = index.pop("checksum")
    test.assertEqual(own, checksum(line(index)))
    test.assertEqual((index["kind"], index["format"]), ("kuafu checkpoint", 2))
    test.assertEqual(os.path.basename(folder), f"step-{index['step']:08d}")
    files = {f"rank-{r:05d}.safetensors" for r in range(index["ranks"])}
    test.assertEqual(set(os.listdir(folder)), files | {"index.json"})
    read = {name: read_file(test, os.path.join(folder, name)) for name in files}
    tensors = {}
    for name, tensor in index["tensors"].items():
        size = SIZE[tensor["dtype"]]
        whole, held = bytearray(size * volume(tensor["global"])), 0
        for piece in tensor["pieces"]:
            header, strings, data = read[piece["file"]]
            row = header[piece["key"]]
            test.assertEqual(row["shape"], piece["slice"]["extent"])
            test.assertEqual(row["dtype"].lower(), tensor["dtype"])
            test.assertEqual(piece["checksum"], strings["checksum." + piece["key"]])
            at, run = row["data_offsets"][0], size * piece["slice"]["extent"][-1]
            for start in rows(piece["slice"], tensor["global"]):
                whole[size * start:size * start + run] = data[at:at + run]
                at += run
            held += volume(piece["slice"]["extent"])
        test.assertEqual(held, volume(tensor["global"]), name)
        tensors[name] = (tensor["dtype"], tensor["global"], bytes(whole))
    return index, tensors


def plain(test, path):
    header, strings, data = read_file(test, path)
    return strings, {name: (t["dtype"].lower(), t["shape"], data[slice(*t["data_offsets"])])
                     for name, t in header.items()}


class Trips(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def round_trip(self, settings, more=()):
        saved, begun, again = self.path("saved"), self.path("begun"), self.path("again")
        first, second = self.path("a.safetensors"), self.path("b.safetensors")
        train(saved, settings, more)
        kuafu("export", saved, "--out", first)
        kuafu("import", first, "--out", begun, *more)
        kuafu("export", os.path.join(begun, "step-00000000"), "--out", second)
        (one, a), (two, b) = plain(self, first), plain(self, second)
        self.assertEqual(a, b)
        self.assertEqual(one["model"], two["model"])
        with open(self.path("a.json"), encoding="utf-8") as file:
            about = json.load(file)
        self.assertEqual(about["model"], json.loads(one["model"]))
        self.assertEqual({n: (t["dtype"], t["shape"]) for n, t in about["tensors"].items()},
                         {n: t[:2] for n, t in a.items()})
        self.assertEqual(about["parameters"], sum(volume(t[1]) for t in a.values()))
        return begun

    def round_trip_of(self, kind, dtype):
        with self.subTest(kind=kind, dtype=dtype), tempfile.TemporaryDirectory() as own:
            kept = self.folder.name
            self.folder.name = own
            more = ["--plugin", PLUGIN] if kind == "macaron" else []
            try:
                settings = [f"model.kind={kind}", f"model.dtype={dtype}"]
                self.round_trip(settings, more)
                if more:    # totals of a model that this tree has not
                    words = [w for s in [*SMALL, *settings] for w in ("--set", s)]
                    explained = json.loads(kuafu("explain", "/dev/null", "--json", "-", *words, *more))["parameters"]
                    held = sum(volume(t[1]) for t in plain(self, self.path("a.safetensors"))[1].values())
                    self.assertEqual((explained["total"], sum(explained["by_kind"].values())), (held, held))
            finally:
                self.folder.name = kept


class Format(Trips):
    def test_page_and_checkpoint_agree(self):
        train(self.path("saved"), ["parallel.tensor.mode=2d", "parallel.tensor.size=4"])
        step = self.path("saved/step-00000002")
        index, tensors = walk(self, step)
        self.assertIn("adamw.m.embedding.tokens", tensors)
        with open(PAGE, encoding="utf-8") as file:
            page = file.read()
        told = set(re.findall(r"^\| `([^`]+)` \|", page, re.M))
        for field in [*index, *(f"tensors.*.{key}" for key in index["tensors"]["embedding.tokens"])]:
            self.assertIn(field, told)
        for key in index["state"]:
            self.assertIn(f"`{key}`", page)
        # Exported, it is the same to the bit; so it is by the page's own program.
        kuafu("export", self.path("saved"), "--out", self.path("w.safetensors"))
        strings, exported = plain(self, self.path("w.safetensors"))
        weights = {n: t for n, t in tensors.items() if not n.startswith("adamw.")}
        self.assertEqual(exported, weights)
        try:
            import numpy
        except ImportError:
            return
        program = {}
        exec(re.search(r"```python\n(.*?)```", page, re.S)[1], program)
        model, arrays = program["weights"](self.path("w.safetensors"))
        self.assertEqual(model["hidden"], 16)
        self.assertEqual({n: a.tobytes() for n, a in arrays.items()},
                         {n: t[2] for n, t in weights.items()})

    def test_round_trip_of_every_model_and_type(self):
        for kind, dtype in [("gpt", "f32"), ("bert", "bf16"), ("vit", "f16"), ("moe_gpt", "f64"),
                            ("macaron", "f32")]:
            self.round_trip_of(kind, dtype)

    def test_any_plan_begins_from_the_same_weights(self):
        self.round_trip(["model.dtype=f64"])
        losses = []
        for plan in [[], ["parallel.tensor.mode=2d", "parallel.tensor.size=4", "optimizer.kind=sgd"],
                     ["parallel.pipeline.size=2", "train.micro_batch=2", "optimizer.lr=0.5"]]:
            folder, out = self.path(f"begun{len(losses)}"), self.path("out.json")
            kuafu("import", self.path("a.safetensors"), "--out", folder)
            said = train(folder, ["model.dtype=f64", *plan], ["--resume", "--json", out])
            self.assertIn("resumed from    step 0", said)
            with open(out, encoding="utf-8") as file:
                document = json.load(file)
            self.assertEqual(document["resumed_from"], 0)
            self.assertIsNone(document["resume_changes"])
            losses.append(document["loss"][0])
        for loss in losses:
            self.assertAlmostEqual(loss / losses[0], 1, delta=1e-12)
        untrained = self.path("untrained.json")
        train(self.path("new"), ["model.dtype=f64"], ["--json", untrained])
        with open(untrained, encoding="utf-8") as file:
            self.assertNotAlmostEqual(json.load(file)["loss"][0], losses[0], delta=1e-6)

    def rewrite(self, change, name="bad.safetensors"):
        """The exported file without checksums, as other programs write it, with a change."""
        with open(self.path("a.safetensors"), "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header, data = json.loads(file.read(length)), file.read()
        strings = {"model": header.pop("__metadata__")["model"]}
        tensors = {n: [t["dtype"], t["shape"], data[slice(*t["data_offsets"])]]
                   for n, t in header.items()}
        change(tensors, strings)
        header, body = {"__metadata__": strings}, b""
        for key, (dtype, shape, part) in tensors.items():
            header[key] = {"dtype": dtype, "shape": shape,
                           "data_offsets": [len(body), len(body) + len(part)]}
            body += part
        head = line(header)
        with open(self.path(name), "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head + body)
        return self.path(name)

    def refused(self, change, *parts):
        out = self.path("none")
        said = kuafu("import", self.rewrite(change), "--out", out, code=2)
        self.assertEqual(len(said.strip().splitlines()), 1, said)
        for part in parts:
            self.assertIn(part, said)
        self.assertFalse(os.path.exists(os.path.join(out, "step-00000000")))

    def test_bad_files_are_one_error_that_names_the_tensor(self):
        self.round_trip([])
        name = "blocks.1.mlp.up.bias"
        good = self.rewrite(lambda t, s: None, "good.safetensors")
        kuafu("import", good, "--out", self.path("good"))
        self.refused(lambda t, s: t.pop(name), "has no tensor " + name, "(64)")
        self.refused(lambda t, s: t.update({"blocks.1.mlp.up.bia": t[name]}),
                     '"blocks.1.mlp.up.bia" is none of the model (gpt)', "nearest: " + name)
        self.refused(lambda t, s: t[name].__setitem__(1, [8, 8]), name, "(8, 8)", "(64)")
        self.refused(lambda t, s: t[name].__setitem__(0, "I32"), name, "i32", "f32")
        self.refused(lambda t, s: t[name].__setitem__(0, "I16"), name, "I16")
        self.refused(lambda t, s: s.pop("model"), "metadata has no \"model\"")
        self.refused(lambda t, s: s.update(model="{"), "metadata model", "not JSON")
        self.refused(lambda t, s: s.update(model='{"kind":"gtp"}'), "model.kind", '"gpt"')
        self.refused(lambda t, s: s.update(model='{"hiden":4}'), "model.hiden", "model.hidden")
        self.refused(lambda t, s: s.update(format="other"), "format", "kuafu weights 1")
        with open(self.path("a.safetensors"), "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
        said = kuafu("import", self.path("a.safetensors"), "--out", self.path("none"), code=2)
        self.assertIn("do not match their checksum", said)
        self.assertIn("head.norm.weight", said)
        self.assertIn("/nowhere", kuafu("import", "/nowhere", "--out", self.path("x"), code=2))
        self.assertIn("holds checkpoints", kuafu("import", good, "--out", self.path("saved"), code=2))

    def test_a_full_disk_leaves_no_folder(self):
        self.round_trip(["model.hidden=64", "model.heads=4"])    # a file of 400 KiB
        words = [KUAFU, "import", self.path("a.safetensors"), "--out", self.path("nest/a/b")]
        done = subprocess.run(["sh", "-c", 'ulimit -f 100; exec "$@"', "-", *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertFalse(os.path.exists(self.path("nest")))

    def test_bad_checkpoints_are_one_error(self):
        train(self.path("saved"), [])
        step, out = self.path("saved/step-00000002"), self.path("w.safetensors")
        os.mkdir(self.path("empty"))
        os.makedirs(self.path("cut/step-00000007.partial"))
        for given, part in [(self.path("nothing"), "is no folder"),
                            (self.path("empty"), "holds no complete checkpoint"),
                            (self.path("cut"), "step-00000007.partial did not end"),
                            (self.path("cut/step-00000007.partial"), "did not end")]:
            said = kuafu("export", given, "--out", out, code=2)
            self.assertIn(given, said)
            self.assertIn(part, said)
        for name, part in [("w.bin", ".safetensors"), ("none/w.safetensors", "No such file")]:
            self.assertIn(part, kuafu("export", step, "--out", self.path(name), code=2))
        file = os.path.join(step, "rank-00000.safetensors")
        header, _, data = read_file(self, file)
        key = next(k for k in header if k.startswith("embedding.positions@"))
        with open(file, "r+b") as opened:
            opened.seek(os.path.getsize(file) - len(data) + header[key]["data_offsets"][0])
            opened.write(b"\xff\x00\xff")
        said = kuafu("export", step, "--out", out, code=2)
        self.assertIn("embedding.positions", said)
        self.assertIn("checksum", said)
        self.assertEqual([n for n in os.listdir(self.folder.name) if n.startswith("w.")], [])

    def test_another_model_cannot_begin_from_them(self):
        begun = self.round_trip([])
        words = ["run", "/dev/null", "--checkpoint", begun, "--resume"]
        for setting in [*SMALL, "model.hidden=32"]:
            words += ["--set", setting]
        said = kuafu(*words, code=2)
        self.assertIn("model.hidden = 16, the plan has model.hidden = 32", said)


class Random:
    """base/philox.h: numbers as a function of (seed, site, index)."""

    def __init__(self, seed, site):
        self.key = (seed & 0xffffffff, seed >> 32)
        self.site = (site & 0xffffffff, site >> 32 & 0xffffffff)

    def block(self, index):
        c, k = [index & 0xffffffff, index >> 32, *self.site], list(self.key)
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [q >> 32 ^ c[1] ^ k[0], q & 0xffffffff, p >> 32 ^ c[3] ^ k[1], p & 0xffffffff]
            k = [k[0] + 0x9E3779B9 & 0xffffffff, k[1] + 0xBB67AE85 & 0xffffffff]
        return c

    def bits(self, index):
        c = self.block(index)
        return c[0] << 32 | c[1]

    def uniform(self, index):
        return (self.bits(index) >> 11) / 2.0**53

    def normal(self, index):
        a, b, c, d = self.block(index)
        u, v = 1 - ((a << 32 | b) >> 11) / 2.0**53, ((c << 32 | d) >> 11) / 2.0**53
        return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


def hash_name(name):
    h = 0xcbf29ce484222325
    for c in name.encode():
        h = (h ^ c) * 0x100000001b3 % 2**64
    return h


def permuted(size, site, position):
    """dataset/permutation.h of seed 0."""
    random, half = Random(0, site), max(1, ((size - 1).bit_length() + 1) // 2)
    x = position
    while True:
        left, right = x >> half, x & 2**half - 1
        for i in range(8):
            left, right = right, left ^ random.bits(i << 32 | right) & 2**half - 1
        x = left << half | right
        if x < size:
            return x


def image(model, sample, part="validation"):
    """Patches (row by row) of one image of seed 0, pixels (row, column, channel), and its class."""
    width, patch = model["image"], model["patch"]
    size, per_row = 3 * width * width, width // patch
    random, pattern = Random(0, hash_name("dataset.images." + part)), Random(0, hash_name("dataset.images.pattern"))
    start = sample * (size + 1)
    label = int(random.uniform(start) * model["classes"])
    pixels = numpy.array([pattern.normal(label * size + i) + random.normal(start + 1 + i) for i in range(size)])
    pixels = pixels.astype("float32").astype("float64").reshape(width, width, 3)
    patches = [pixels[r * patch:(r + 1) * patch, c * patch:(c + 1) * patch].ravel() for r in range(per_row) for c in range(per_row)]
    return numpy.array(patches), label


def pair(model, sample, window):
    """Tokens, targets (-1: none), segments and label of a validation pair of a text whose windows are all this one."""
    s, vocab = model["sequence"], model["vocab"]
    half = (s - 3) // 2
    tokens = [vocab - 3, *window[:half], vocab - 2, *window[half:], vocab - 2]
    label = int(Random(0, hash_name("dataset.pairs")).uniform(2 * sample) < 0.5)
    random, targets = Random(0, hash_name("dataset.masks")), [-1] * s
    for i in range(max(1, math.floor(0.15 * s + 0.5))):
        token = permuted(s - 3, hash_name("dataset.masked") + sample, i)
        at, draw = token + (1 if token < half else 2), 2 * (sample * s + i)
        targets[at] = tokens[at]
        if random.uniform(draw) < 0.8:
            tokens[at] = vocab - 1
        elif random.uniform(draw) < 0.9:
            tokens[at] = int(random.uniform(draw + 1) * (vocab - 3))
    return tokens, targets, [int(i >= half + 2) for i in range(s)], label


def softmax(x):
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def surprise(logits, target):
    """Cross entropy of each row."""
    return -numpy.log(softmax(logits)[numpy.arange(len(logits)), target])


def gelu(x):
    return 0.5 * x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


erf = numpy.vectorize(math.erf)
ACTIVATIONS = {"gelu": gelu, "gelu_exact": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), "relu": lambda x: numpy.maximum(x, 0)}


class Forward:
    """The rules of the page. `t`: tensors by name; rows x are those of one sample, (S, H)."""

    def __init__(self, model, t):
        self.model, self.t, self.sees_all = model, t, model["kind"] in ("bert", "vit")
        self.kv_heads = model["heads"] if model["kv_heads"] == "auto" else model["kv_heads"]

    def linear(self, x, name):
        y = x @ self.t[name + ".weight"]
        return y + self.t[name + ".bias"] if self.model["bias"] else y

    def norm(self, x, name):
        is_rms = self.model["norm"] == "rms"
        x = x if is_rms else x - x.mean(-1, keepdims=True)
        y = x / numpy.sqrt((x * x).mean(-1, keepdims=True) + self.model["norm_epsilon"]) * self.t[name + ".weight"]
        return y if is_rms or not self.model["bias"] else y + self.t[name + ".bias"]

    def rotated(self, x):    # (S, N, D)
        half = x.shape[2] // 2
        angle = numpy.arange(len(x))[:, None, None] * self.model["rotary_base"] ** (-numpy.arange(half) / half)
        a, b = x[:, :, :half], x[:, :, half:]
        return numpy.concatenate([a * numpy.cos(angle) - b * numpy.sin(angle), b * numpy.cos(angle) + a * numpy.sin(angle)], 2)

    def attention(self, x, name):
        (rows, width), heads, kv_heads = x.shape, self.model["heads"], self.kv_heads
        d = width // heads
        if kv_heads == heads:
            q, k, v = numpy.moveaxis(self.linear(x, name + ".qkv").reshape(rows, heads, 3, d), 2, 0)
        else:
            q = self.linear(x, name + ".q").reshape(rows, heads, d)
            kv = numpy.moveaxis(self.linear(x, name + ".kv").reshape(rows, kv_heads, 2, d), 2, 0)
            k, v = numpy.repeat(kv, heads // kv_heads, 2)
        if self.model["positions"] == "rotary":
            q, k = self.rotated(q), self.rotated(k)
        scores = numpy.einsum("inD,jnD->nij", q, k) / math.sqrt(d)
        if not self.sees_all:
            scores = numpy.where(numpy.tri(rows), scores, -numpy.inf)
        return self.linear(numpy.einsum("nij,jnD->inD", softmax(scores), v).reshape(rows, width), name + ".out")

    def activation(self, up):
        if self.model["mlp"] != "swiglu":
            return ACTIVATIONS[self.model["mlp"]](up)
        gate, value = up[:, 0::2], up[:, 1::2]
        return gate / (1 + numpy.exp(-gate)) * value

    def mlp(self, x, name):
        return self.linear(self.activation(self.linear(x, name + ".up")), name + ".down")

    def mixture(self, x, name):    # of two choices, all of which have room
        gates = softmax(x @ self.t[name + ".router.weight"])
        y = self.mlp(x, name + ".shared") if self.model["shared_experts"] else 0 * x
        for row, gate in enumerate(gates):
            best = numpy.argsort(-gate, kind="stable")[:2]
            for e in best:
                of_expert = Forward(self.model, {n: t[e] for n, t in self.t.items() if n.startswith(name + ".experts.")})
                y[row] += gate[e] / gate[best].sum() * of_expert.mlp(x[row:row + 1], name + ".experts")[0]
        return y

    def layers(self, x):
        for layer in range(self.model["layers"]):
            name = f"blocks.{layer}."
            feed = (lambda y, n=name: self.mixture(y, n + "moe")) if self.model["kind"] == "moe_gpt" else (lambda y, n=name: self.mlp(y, n + "mlp"))
            if self.model["kind"] == "bert" or self.model.get("post_norm"):
                x = self.norm(x + self.attention(x, name + "attn"), name + "norm1")
                x = self.norm(x + feed(x), name + "norm2")
            elif self.model["parallel_blocks"]:
                y = self.norm(x, name + "norm1")
                x = x + self.attention(y, name + "attn") + feed(y)
            else:
                x = x + self.attention(self.norm(x, name + "norm1"), name + "attn")
                x = x + feed(self.norm(x, name + "norm2"))
        return x

    def of_text(self, window):
        t, is_projected = self.t, self.model.get("embedding", "auto") not in ("auto", self.model["hidden"])
        x = t["embedding.tokens"][window]
        if is_projected:
            x = x @ t["embedding.project.weight"]
        if self.model["positions"] == "learned":
            x = x + t["embedding.positions"][2 if self.model["kind"] == "opt" else 0:]
        x = self.layers(x)
        if not self.model.get("post_norm"):
            x = self.norm(x, "head.norm")
        if is_projected:
            x = x @ t["head.project.weight"]
        logits = x @ t["embedding.tokens" if self.model["tied"] else "head.tokens"].T
        return surprise(logits, [*window[1:], window[0]]).mean()

    def of_pair(self, tokens, targets, segments, label):
        t = self.t
        x = t["embedding.tokens"][tokens] + t["embedding.positions"] + t["embedding.segments"][segments]
        x = self.layers(self.norm(x, "embedding.norm"))
        y = self.norm(ACTIVATIONS.get(self.model["mlp"], gelu)(self.linear(x, "head.transform")), "head.norm")
        hidden = [i for i, target in enumerate(targets) if target >= 0]
        logits = y[hidden] @ t["embedding.tokens"].T + t["head.bias"]
        answer = self.linear(numpy.tanh(self.linear(x[:1], "head.pooler")), "head.answer")
        return surprise(logits, [targets[i] for i in hidden]).mean() + surprise(answer, [label])[0]

    def of_image(self, patches, label):
        x = numpy.concatenate([self.t["embedding.class"][None], self.linear(patches, "embedding.patches")])
        x = self.layers(x + self.t["embedding.positions"])
        return surprise(self.linear(self.norm(x[:1], "head.norm"), "head.classes"), [label])[0]

    def loss(self, window, samples):
        if self.model["kind"] == "vit":
            return numpy.mean([self.of_image(*image(self.model, i)) for i in range(samples)])
        if self.model["kind"] == "bert":
            return numpy.mean([self.of_pair(*pair(self.model, i, window)) for i in range(samples)])
        return self.of_text(window)    # all samples are the same


class Meaning(Trips):
    """What the page says that the tensors are: a forward in numpy alone has the loss of the run."""

    def losses_of(self, settings):
        corpus, saved, out, run = (self.path(n) for n in ("corpus", "saved", "w.safetensors", "run.json"))
        is_image, length = "model.kind=vit" in settings, 61 if "model.kind=bert" in settings else 64
        text = [97 + (7 * i * i + 3 * i) % 26 for i in range(length)] * 64    # so that every window is the same
        with open(corpus, "wb") as file:
            file.write(bytes(text))
        start = len(text) - len(text) // 10
        own = ["model.dtype=f64", "model.heads=4", "train.validation_batches=1", "optimizer.lr=0.02", "train.steps=3", *settings]
        own += [] if is_image else ["data.kind=text", "data.path=" + corpus]
        words = [w for s in [*SMALL, *own] for w in ("--set", s)]
        kuafu("run", "/dev/null", *words, "--checkpoint", saved, "--json", run)
        kuafu("export", saved, "--out", out)
        strings, raw = plain(self, out)
        t = {n: numpy.frombuffer(data, "<f8").reshape(shape) for n, (_, shape, data) in raw.items()}
        with open(run, encoding="utf-8") as file:
            theirs = json.load(file)["validation_loss"]
        return Forward(json.loads(strings["model"]), t).loss(text[start - length:start], 4), theirs

    def test_forward_by_the_page_has_the_loss_of_the_run(self):
        llama = ["model.positions=rotary", "model.norm=rms", "model.mlp=swiglu", "model.kv_heads=2", "model.bias=false"]
        mixture = ["model.kind=moe_gpt", "model.experts=3", "model.capacity_factor=4", "model.shared_experts=1", "model.mlp=swiglu"]
        untied = ["model.tied=false", "model.mlp=gelu_exact", "model.positions=rotary", "model.rotary_base=300", "model.norm_epsilon=0.01"]
        opt = ["model.kind=opt", "model.mlp=relu"]
        for settings in ([], llama, untied, opt, [*opt, "model.post_norm=true", "model.embedding=8"], [*opt, "model.embedding=24", "model.tied=false"],
                         ["model.kind=bert", "model.mlp=gelu_exact"], ["model.parallel_blocks=true", "model.kv_heads=1"], mixture, ["model.kind=bert"],
                         ["model.kind=vit", "model.image=12", "model.patch=4", "model.classes=5"]):
            with self.subTest(settings=settings), tempfile.TemporaryDirectory() as own:
                kept, self.folder.name = self.folder.name, own
                try:
                    mine, theirs = self.losses_of(settings)
                finally:
                    self.folder.name = kept
                self.assertLess(abs(mine - theirs), 1e-12 * theirs)


class Large(Trips):
    def test_round_trip_of_every_model_in_every_type(self):
        for kind in ["gpt", "bert", "vit", "moe_gpt", "opt", "macaron"]:
            for dtype in ["f64", "f32", "bf16", "f16"]:
                self.round_trip_of(kind, dtype)

    def test_export_streams(self):
        """A model of 64 MB whose tensors are 8 MB at most passes in far less memory."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        saved, out = os.path.join(folder.name, "saved"), os.path.join(folder.name, "w.safetensors")
        settings = ["model.hidden=512", "model.layers=5", "train.steps=1", "train.batch=1",
                    "model.sequence=16", "optimizer.kind=sgd"]
        train(saved, settings)
        script = ("import resource,subprocess,sys;code=subprocess.call(sys.argv[1:]);"
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss);sys.exit(code)")
        said = subprocess.run(
            [sys.executable, "-c", script, KUAFU, "export", saved, "--out",
             out], capture_output=True, text=True, check=True).stdout
        size = os.path.getsize(out)
        self.assertGreater(size, 60 << 20)
        self.assertLess(int(said.split()[-1]) * 1024, 40 << 20, said)


if __name__ == "__main__":
    unittest.main()
