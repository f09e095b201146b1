# SPDX-License-Identifier: Apache-2.0
"""`kuafu generate` and `kuafu perplexity` as commands: the same under every plan and world, what they print, what they refuse."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["KUAFU_SOURCE_DIR"], "tests", "checkpoint"))
import format_test as page

SEQUENCE = 30
MODEL = ["model.sequence=30", "model.hidden=24", "model.heads=6", "model.dtype=f64", "train.batch=12"]
PLANS = [
    ["parallel.tensor.mode=1d", "parallel.tensor.size=3"], ["parallel.tensor.mode=2d", "parallel.tensor.size=4"],
    ["parallel.data.size=2", "parallel.zero=3"], ["parallel.pipeline.size=3", "train.micro_batch=2"],
    ["parallel.sequence.mode=ring-zigzag", "parallel.sequence.size=5"],
]


def alphabet():
    """GPT-2's character of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(rest)) for b in range(256)]


class Trained(page.Trips):
    """A model that has learnt lines of one kind."""

    @classmethod
    def setUpClass(cls):
        own = page.tempfile.TemporaryDirectory()
        cls.addClassCleanup(own.cleanup)
        cls.saved = os.path.join(own.name, "saved")
        corpus = os.path.join(own.name, "corpus")
        with open(corpus, "w", encoding="utf-8") as file:
            file.writelines(f"the {n}th line of a text that a small model learns\n" for n in range(200))
        page.train(cls.saved, [*MODEL, "data.kind=text", "data.path=" + corpus, "optimizer.lr=0.02", "train.steps=30"])

    command = ""

    def words(self, *more, settings=()):
        return [self.command, "/dev/null", "--checkpoint", self.saved,
                *(w for s in [*page.SMALL, *MODEL, *settings] for w in ("--set", s)), *more]


class Commands(Trained):
    command = "generate"

    def made(self, *more, settings=()):
        """What is printed, and the document's member `generation`."""
        out = self.path("made.json")
        done = subprocess.run([page.KUAFU, *self.words("--json", out, *more, settings=settings)], capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, encoding="utf-8") as file:
            document = json.load(file)
        self.assertEqual(document["status"], "ok")
        return done.stdout.decode("utf-8"), document["generation"]

    def tokens(self, *more, settings=()):
        return [p["tokens"] for p in self.made(*more, settings=settings)[1]["prompts"]]

    def prompts(self, lines):
        with open(self.path("prompts"), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        return ["--file", self.path("prompts")]

    def test_tokens_are_those_of_one_rank(self):
        uneven = self.prompts(["a", "a longer prompt", "ünïcode", "12345678901234567890123456789"])
        for how in ([], ["--temperature", "1.2", "--top-k", "50", "--top-p", "0.9", "--seed", "3"]):
            expected = self.tokens(*uneven, *how)
            self.assertEqual([len(t) for t in expected], [29, 15, 21, 1])
            for plan in PLANS:
                self.assertEqual(self.tokens(*uneven, *how, settings=plan), expected, plan)
            self.assertEqual(self.tokens(*uneven, *how, settings=["train.batch=2"]), expected)

    def test_tokens_under_mpi_are_those_of_threads(self):
        uneven = self.prompts(["a", "a longer prompt", "xyz"])
        expected = self.tokens(*uneven)
        for plan in (PLANS[0], PLANS[1], PLANS[3]):
            self.assertEqual(self.tokens(*uneven, "--world", "mpi", settings=plan), expected, plan)

    def test_prints_prompts_in_their_order_with_what_follows(self):
        lines = ["second comes later", "b", "third"]
        said, generation = self.made(*self.prompts(lines), "--tokens", "5")
        self.assertEqual(said, "".join(p["prompt"] + p["text"] + "\n" for p in generation["prompts"]))
        self.assertEqual([p["prompt"] for p in generation["prompts"]], lines)
        self.assertEqual({p["ended_by"] for p in generation["prompts"]}, {"--tokens"})
        self.assertEqual(generation["tokens"], 15)
        for name in ("seconds", "tokens_per_s", "first_token_s"):
            self.assertGreater(generation[name], 0)

    def test_a_cache_changes_no_token_and_is_told_of(self):
        uneven = self.prompts(["a", "a longer prompt", "xyz"])
        expected = self.tokens(*uneven, "--cache", "off")
        _, made = self.made(*uneven)
        self.assertEqual([p["tokens"] for p in made["prompts"]], expected)
        # Keys and values of 2 layers, 3 samples of 30 positions of 24 columns, in f64.
        self.assertEqual((made["cache"], made["cache_bytes"]), ("on", 2 * 2 * 3 * 30 * 24 * 8))
        _, made = self.made(*uneven, "--cache", "off")
        self.assertEqual((made["cache"], made["cache_bytes"]), ("off", 0))
        _, made = self.made(*uneven, settings=PLANS[-1])
        self.assertIn('parallel.sequence.mode = "ring-zigzag" shares the positions', made["cache"])
        self.assertEqual(made["cache_bytes"], 0)

    def test_what_tiers_move_is_in_the_document(self):
        out = self.path("moved.json")

        def moved(tokens, *settings):
            page.kuafu(*self.words("--prompt", "hello", "--tokens", str(tokens), "--json", out, settings=settings))
            with open(out, encoding="utf-8") as file:
                return json.load(file).get("moves")

        self.assertIsNone(moved(5))
        for ranks in (1, 2):
            tiers = ["memory.policy=host", "memory.chunk_size=4096", "memory.prefetch=0", f"parallel.data={ranks}", "train.batch=2"]
            one, three, five, seven = (moved(n, *tiers)["to_device_bytes"] for n in (1, 3, 5, 7))
            self.assertEqual(len(one), ranks)
            for a, b, c, d in zip(one, three, five, seven):    # each forward brings the same, but that the head's table stays for the next
                self.assertGreater(c - b, a)
                self.assertLess(c - b, 2 * a)
                self.assertEqual(d - c, c - b)

    def test_what_a_simulated_world_foretells_is_what_moves(self):
        out = self.path("moved.json")
        keep = [w for s in [*page.SMALL, *MODEL, "memory.policy=static", "memory.chunk_size=4096", "memory.device=300KB", "train.batch=3"] for w in ("--set", s)]
        for cache in ("on", "host", "off"):
            asked = ["generate", "/dev/null", *keep, "--tokens", "7", "--cache", cache, "--json", out]
            page.kuafu(*asked, *self.prompts(["a prompt", "b", "ccc"]))
            with open(out, encoding="utf-8") as file:
                real = json.load(file)
            said = page.kuafu(*asked, "--world", "simulated", "--prompt-tokens", "8")
            with open(out, encoding="utf-8") as file:
                foretold = json.load(file)
            self.assertEqual(foretold["moves"]["to_device_bytes"], real["moves"]["to_device_bytes"], cache)
            self.assertEqual(foretold["generation"]["cache_bytes"], real["generation"]["cache_bytes"])
            self.assertEqual((foretold["generation"]["cache"], foretold["generation"]["tokens"]), (cache, 21))
            self.assertIn("simulated: 3 prompts of 8 tokens, 7 tokens of each", said)
            if cache == "host":
                for name in ("cache_to_device_bytes", "cache_to_host_bytes"):
                    self.assertEqual(foretold["moves"][name], real["moves"][name])
        for policy in (["memory.policy=belady"], ["memory.policy=auto", "memory.horizon=cycle"]):    # which need not repeat the moves of a forward
            keys = [w for s in policy for w in ("--set", s)]
            asked = ["generate", "/dev/null", *keep, *keys, "--tokens", "20", "--json", out]
            page.kuafu(*asked, *self.prompts(["a prompt", "b", "ccc"]))
            with open(out, encoding="utf-8") as file:
                real = json.load(file)["moves"]
            page.kuafu(*asked, "--world", "simulated", "--prompt-tokens", "8")
            with open(out, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["moves"], real, policy)
        for words, says in ((["--prompt-tokens", "30"], "--prompt-tokens 30: allowed: 1 to 29"), ([], "reads no text; give --prompt-tokens N"),
                            (["--prompt-tokens", "5", "--prompt", "a"], "neither --prompt nor --file"),
                            (["--prompt-tokens", "5", "--temperature", "1"], "--temperature has no effect with --world simulated")):
            self.assertIn(says, page.kuafu("generate", "/dev/null", *keep, "--world", "simulated", *words, code=2))

    def test_weights_on_a_disk_are_those_in_memory(self):
        out, text = self.path("made.json"), ["--prompt", "hello", "--tokens", "7"]
        tiers = ["memory.policy=host", "memory.chunk_size=4096", "train.batch=2", "memory.disk_path=/var/tmp"]
        for plan in ([], ["parallel.data=2", "parallel.zero=1"], ["parallel.data=2", "parallel.zero=3"], ["parallel.pipeline=2"]):
            _, expected = self.made(*text, settings=plan)
            worlds = [()] + ([("--world", "mpi", "--ranks", "2")] if plan else [])
            for world in worlds:
                _, made = self.made(*text, "--weights", "disk", *world, settings=[*tiers, *plan])
                self.assertEqual(made["prompts"][0]["tokens"], expected["prompts"][0]["tokens"], (plan, world))
        keep = [w for s in [*page.SMALL, *MODEL, *tiers] for w in ("--set", s)]
        asked = ["generate", "/dev/null", *keep, "--weights", "disk", "--tokens", "7", "--json", out]
        page.kuafu(*asked, *self.prompts(["a prompt", "b"]))
        with open(out, encoding="utf-8") as file:
            real = json.load(file)["moves"]
        said = page.kuafu(*asked, "--world", "simulated", "--prompt-tokens", "8")
        with open(out, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["moves"], real)
        self.assertGreaterEqual(real["from_disk_bytes"][0], real["to_device_bytes"][0])
        self.assertLess(real["from_disk_bytes"][0], 1.1 * real["to_device_bytes"][0])    # rows of whole lines of 64 bytes
        self.assertIn("of them read from the disk", said)
        self.assertEqual([n for n in os.listdir("/var/tmp") if "kuafu" in n], [])

    def test_a_simulated_token_waits_for_the_one_before_it(self):
        out = self.path("foretold.json")

        def foretold(*settings):
            keys = [w for s in [*page.SMALL, *MODEL, "model.layers=4", "train.batch=1", *settings] for w in ("--set", s)]
            page.kuafu("generate", "/dev/null", *keys, "--world", "simulated", "--prompt-tokens", "5", "--tokens", "9", "--json", out)
            with open(out, encoding="utf-8") as file:
                return json.load(file)["generation"]

        one, stages, replicas = foretold(), foretold("parallel.pipeline=4"), foretold("parallel.data=4")
        self.assertGreater(stages["token_s"], one["token_s"])
        self.assertEqual((one["tokens"], replicas["batch"], replicas["tokens"]), (9, 4, 9))    # the rest of a batch is no prompt

    def test_a_plug_ins_model_generates_without_a_cache(self):
        out = self.path("made.json")
        plugin = os.path.join(os.environ["KUAFU_BINARY_DIR"], "plugins", "macaron.so")
        keys = [w for s in [*page.SMALL, *MODEL, "model.kind=macaron"] for w in ("--set", s)]
        asked = ["generate", "/dev/null", *keys, "--plugin", plugin, "--prompt", "hello", "--tokens", "6", "--json", out]
        tokens = []
        for plan in ([], PLANS[0], PLANS[3]):
            page.kuafu(*asked, *(w for s in plan for w in ("--set", s)))
            with open(out, encoding="utf-8") as file:
                made = json.load(file)["generation"]
            self.assertIn('model.kind = "macaron" is a plug-in\'s', made["cache"])
            tokens.append(made["prompts"][0]["tokens"])
        self.assertEqual(tokens, [tokens[0]] * 3)

    def test_fit_takes_the_most_prompts_that_the_device_holds(self):
        texts = self.prompts(["the 1th", "line of", "a text", "model", "learns", "small", "that", "the 9th"])
        tight = ["memory.policy=host", "memory.chunk_size=2KiB", "memory.device=150KB"]
        asked = [*texts, "--tokens", "4"]
        fitted = self.made(*asked, "--fit", settings=tight)[1]
        self.assertIn(fitted["batch"], range(2, 8))
        all_of = lambda generation: [p["tokens"] for p in generation["prompts"]]
        self.assertEqual(all_of(fitted), all_of(self.made(*asked, settings=["train.batch=1"])[1]))
        self.assertEqual(self.made(*asked, "--fit", settings=[*tight[:2], "memory.device=1GB"])[1]["batch"], 8)
        more = page.kuafu(*self.words(*asked, settings=[*tight, f"train.batch={fitted['batch'] + 1}"]), code=4)
        self.assertIn("out_of_memory", more)
        none = page.kuafu(*self.words(*asked, "--fit", settings=[*tight[:2], "memory.device=1KB"]), code=4)
        self.assertIn("out_of_memory", none)
        self.assertIn("--fit takes the largest batch that memory.device holds, and the plan gives none", page.kuafu(*self.words(*asked, "--fit"), code=2))

    def started(self, *more):
        """A generation that takes long: of 4,000 positions by whole forwards, and where its document will be."""
        out = self.path("stopped.json")
        words = [page.KUAFU, *self.words("--cache", "off", "--json", out, *more, settings=["model.sequence=4000"])]
        words[words.index("--checkpoint"):words.index("--checkpoint") + 2] = ["--prompt", "hello"]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE), out

    def test_a_signal_ends_it_after_a_token_and_says_how_many_there_are(self):
        for number, more in ((signal.SIGINT, ()), (signal.SIGTERM, ()),
                             (signal.SIGINT, ("--world", "mpi", "--ranks", "2", "--set", "parallel.data.size=2"))):
            process, out = self.started(*more)
            with process:
                process.stdout.read(6)    # the prompt, and something of what follows
                process.send_signal(number)
                _, said = process.communicate(timeout=60)
            with open(out, encoding="utf-8") as file:
                document = json.load(file)
            words = re.search(r"stopped by (SIG\w+); (\d+) tokens? w", said.decode())
            self.assertIsNotNone(words, said)
            self.assertEqual((words[1], process.returncode), (number.name, 128 + number))
            self.assertEqual((document["status"], document["generation"]["tokens"]), ("interrupted", int(words[2])))

    def test_ends_quietly_where_nobody_reads(self):
        for more in ((), ("--world", "mpi", "--ranks", "2", "--set", "parallel.data.size=2")):
            process, out = self.started(*more)
            with process:
                process.stdout.read(6)
                process.stdout.close()
                said = process.stderr.read().decode()
            self.assertEqual(process.returncode, 141, said)
            self.assertEqual([line for line in said.splitlines() if "warning" not in line], [])
            with open(out, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["status"], "interrupted")

    def test_text_that_finds_no_room_is_told(self):
        for more in ((), ("--world", "mpi", "--ranks", "2", "--set", "parallel.data.size=2")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([page.KUAFU, *self.words("--prompt", "hello", "--tokens", "3", *more)], stdout=full,
                                      stderr=subprocess.PIPE, timeout=60, text=True, check=False)
            self.assertEqual(done.returncode, 7, done.stderr)
            self.assertIn("cannot write all of the standard output", done.stderr)

    def test_a_damaged_checkpoint_is_wrong_usage_on_every_world(self):
        damaged = self.path("damaged")
        shutil.copytree(self.saved, damaged)
        newest = sorted(n for n in os.listdir(damaged) if n.startswith("step-"))[-1]
        part = next(n for n in sorted(os.listdir(os.path.join(damaged, newest))) if n.endswith(".safetensors"))
        with open(os.path.join(damaged, newest, part), "r+b") as file:
            file.truncate(os.path.getsize(file.name) - 5)
        words = self.words("--prompt", "hello")
        words[words.index("--checkpoint") + 1] = damaged
        for world in ("threads", "mpi"):
            said = page.kuafu(*words, "--world", world, "--set", "parallel.data.size=2", code=2)
            self.assertRegex(said, f"^kuafu: rank [01]: checkpoint file .*{part} is damaged: .*\n$")

    def test_takes_any_seed_and_no_mark_of_an_editor(self):
        self.made("--prompt", "a", "--tokens", "2", "--temperature", "1", "--seed", str(2**64 - 1))
        with open(self.path("marked"), "wb") as file:
            file.write(b"\xef\xbb\xbfone\r\ntwo\n")
        _, made = self.made("--file", self.path("marked"), "--tokens", "1")
        self.assertEqual([p["prompt"] for p in made["prompts"]], ["one", "two"])

    def test_ends_where_it_is_told_to(self):
        whole, generation = self.made("--prompt", "ab")
        self.assertEqual(generation["prompts"][0]["ended_by"], "model.sequence")
        self.assertEqual(len(generation["prompts"][0]["tokens"]), SEQUENCE - 2)
        text = generation["prompts"][0]["text"]
        stop = text[4:7].replace("�", "") or text[4]
        said, generation = self.made("--prompt", "ab", "--stop", "never said", "--stop", stop)
        self.assertEqual(generation["prompts"][0]["ended_by"], "--stop")
        self.assertEqual(said, "ab" + text[:text.index(stop)] + "\n")
        self.assertTrue(whole.startswith(said.rstrip("\n")))

    def test_speaks_the_plans_tokenizer_up_to_its_end_token(self):
        vocab = {c: 255 - i for i, c in enumerate(alphabet())}    # ids are no bytes
        step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
        file = self.path("tokenizer.json")

        def write(end):
            kept = {c: i for c, i in vocab.items() if i != end} | {"<end>": end}
            with open(file, "w", encoding="utf-8") as out:
                json.dump({"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": step,
                           "post_processor": None, "decoder": step,
                           "added_tokens": [{"id": end, "content": "<end>", "single_word": False, "lstrip": False,
                                             "rstrip": False, "normalized": False, "special": True}],
                           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                                     "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": kept,
                                     "merges": []}}, out)
        settings = ["data.kind=text", f"data.tokenizer={file}", "data.end_token=<end>"]
        write(255)    # of byte 0
        said, generation = self.made("--prompt", "Hé", settings=settings)
        one = generation["prompts"][0]
        self.assertEqual(one["prompt_tokens"], [255 - b for b in "Hé".encode()])
        self.assertEqual(one["text"], bytes(255 - t for t in one["tokens"] if t < 255).decode("utf-8", "replace"))
        self.assertEqual(said, "Hé" + one["text"] + "\n")
        first = next(t for t in one["tokens"] if t not in one["prompt_tokens"])
        write(first)
        _, generation = self.made("--prompt", "Hé", settings=settings)
        self.assertEqual(generation["prompts"][0]["ended_by"], "data.end_token")
        self.assertEqual(generation["prompts"][0]["tokens"], one["tokens"][:one["tokens"].index(first) + 1])

    def test_what_cannot_be_generated_is_one_line_and_leaves_nothing(self):
        hello = ["--prompt", "hello"]
        with open(self.path("bad"), "wb") as file:
            file.write(b"good\nb\xff\n")
        with open(self.path("blank"), "w", encoding="utf-8") as file:
            file.write("good\n\n")
        open(self.path("empty"), "wb").close()
        wrong = [
            ([], (), "there is no prompt"), ([*hello, "--file", self.path("bad")], (), "--prompt and --file both give prompts"),
            (["--prompt", ""], (), "--prompt: an empty value"), (["--file", self.path("blank")], (), "blank:2: it is empty"),
            (["--file", self.path("empty")], (), "empty has no prompt"), (["--file", self.path("none")], (), "none"),
            (["--file", self.path("bad")], (), "bad:2: \"b�\" is no UTF-8"),
            (["--prompt", "x" * 30], (), "it has 30 tokens, and model.sequence = 30"),
            ([*hello, "--temperature", "-0.5"], (), "--temperature -0.5: allowed"),
            ([*hello, "--temperature", "1", "--top-p", "0"], (), "--top-p 0: allowed"),
            ([*hello, "--temperature", "1", "--top-p", "1.5"], (), "--top-p 1.5: allowed"),
            ([*hello, "--temperature", "1", "--top-k", "0"], (), "--top-k 0: allowed"),
            ([*hello, "--top-k", "3"], (), "--top-k has no effect without --temperature"),
            ([*hello, "--tokens", "0"], (), "--tokens 0: allowed"), ([*hello, "--stop", "\udcff"], (), "no text in UTF-8"),
            (["--world", "simulated", "--prompt-tokens", "5"], (), "--world simulated reads no weights; leave --checkpoint out"),
            ([*hello, "--prompt-tokens", "5"], (), "--prompt-tokens is of --world simulated"),
            ([*hello, "--cache", "host"], (), "--cache host keeps keys and values on the host, and the plan has no tiers"),
            ([*hello, "--weights", "disk"], (), "--weights disk says where weights lie between their uses, and the plan has no tiers"),
            ([*hello, "--weights", "disk"], ["memory.policy=host"], "--weights disk, and the plan names no disk; set memory.disk_path"),
            ([*hello, "--weights", "disk"], ["memory.policy=host", "memory.disk_path=/dev/shm"], "memory.disk_path = \"/dev/shm\""),
            ([*hello, "--weights", "disc"], (), "is none of host, disk; did you mean"),
            ([*hello, "--init", self.saved], (), "--checkpoint and --init both"),
            (hello, ["model.kind=bert"], "kinds that do are gpt, moe_gpt, opt"),
            (hello, ["model.kind=moe_gpt", "model.router=expert_choice"], "routers that do are top1, top2 and topk"),
            ([*hello, "--temperature", "warm"], (), "\"warm\" is no number"),
            (hello, ["model.vocab=255"], "model.vocab = 255"),
            (hello, ["model.layers=3"], f"--checkpoint {self.saved} has weights of a model with model.layers"),
            (["--prompt", "a", "--prompt", "b"], (), "--prompt is given 2 times"), ([*hello, "--cache", "no"], (), "is none of on, host, off"),
            ([*hello, "--temperature", "1", "--seed", "-1"], (), "no whole number from 0 to 18446744073709551615"),
            ([*hello, "--temperature", "1", "--seed", "18446744073709551616"], (), "no whole number from 0 to"),
        ]
        before = sorted(os.listdir(self.folder.name))
        for words, settings, says in wrong:
            said = page.kuafu(*self.words("--json", self.path("made.json"), *words, settings=settings), code=2)
            self.assertIn(says, said)
            self.assertEqual(len([line for line in said.splitlines() if "--help` shows" not in line]), 1, said)
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)
        said = page.kuafu(*self.words(*hello, "--json", "/proc/x"), code=2)
        self.assertIn("--json: cannot write /proc/x", said)


class Perplexity(Trained):
    command = "perplexity"

    def found(self, *more, settings=()):
        out = self.path("found.json")
        page.kuafu(*self.words("--json", out, *more, settings=settings))
        with open(out, encoding="utf-8") as file:
            return json.load(file)["perplexity"]

    def text(self, words):
        path = self.path(f"text-{len(words)}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(words)
        return ["--file", path]

    def test_is_that_of_one_rank(self):
        learnt = self.text("the 7th line of a text that a small model learns\n" * 3)
        one = self.found(*learnt)
        self.assertEqual((one["tokens"], one["windows"], one["text_tokens"]), (142, 5, 147))
        self.assertLess(one["value"], 20)
        for plan in PLANS:
            self.assertAlmostEqual(self.found(*learnt, settings=plan)["value"] / one["value"], 1, delta=1e-12, msg=plan)
        self.assertAlmostEqual(self.found(*learnt, "--world", "mpi", settings=PLANS[2])["value"] / one["value"], 1, delta=1e-12)
        on_disk = ["memory.policy=static", "memory.chunk_size=4096", "memory.device=1GB", "memory.disk_path=/var/tmp"]
        self.assertEqual(self.found(*learnt, "--weights", "disk", settings=on_disk)["value"], one["value"])
        near = self.found(*learnt, "--stride", "10")
        self.assertEqual((near["tokens"], near["windows"]), (146, 13))
        self.assertLess(near["value"], one["value"])
        self.assertGreater(self.found(*self.text("Q{}^%$#@!~`+=|<>" * 9))["value"], 5 * one["value"])

    def test_what_is_wrong_is_told_before_anything_runs(self):
        for more, words in ((["--file", "/nowhere"], 'cannot read the text "/nowhere"'), (self.text("a"), "it has 1 token"), (self.text(""), "it is empty"),
                            ([*self.text("abc"), "--stride", "31"], "--stride 31: allowed: from 1 to model.sequence = 30; nearest: 30"),
                            ([*self.text("abc"), "--stride", "0"], "--stride 0: allowed"),
                            ([*self.text("abc"), "--stride", "abc"], '--stride: "abc" is no whole number'), ([], "--file is required"),
                            ([*self.text("abc"), "--json", "/proc/x"], "--json: cannot write /proc/x"),
                            ([*self.text("abc"), "--world", "simulated"], "foretells no token")):
            with self.subTest(words=words):
                self.assertIn(words, page.kuafu(*self.words(*more), code=2))


class Embed(page.Trips):
    MODEL = ["model.kind=bert", *MODEL, "train.batch=4"]

    @classmethod
    def setUpClass(cls):
        own = page.tempfile.TemporaryDirectory()
        cls.addClassCleanup(own.cleanup)
        cls.saved = os.path.join(own.name, "saved")
        page.train(cls.saved, [*cls.MODEL, "data.kind=synthetic", "train.steps=2"])

    def words(self, *more, settings=()):
        return ["embed", "/dev/null", "--checkpoint", self.saved, *(w for s in [*page.SMALL, *self.MODEL, *settings] for w in ("--set", s)), *more]

    def vectors(self, *more, settings=()):
        out = self.path("found.json")
        done = subprocess.run([page.KUAFU, *self.words("--json", out, *more, settings=settings)], capture_output=True, check=False, encoding="utf-8")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, encoding="utf-8") as file:
            document = json.load(file)
        printed = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([t["vector"] for t in document["embedding"]["texts"]], printed)
        return printed, document["embedding"]

    def texts(self, *lines):
        with open(self.path("texts"), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        return ["--file", self.path("texts")]

    def near(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for a, b in zip(ours, theirs):
            self.assertEqual(len(a), 24)
            self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 1e-12)

    def test_are_those_of_one_rank_in_the_order_of_the_texts(self):
        some = self.texts("a text", "ünïcode", "b text", "x", "c text", "d text", "e text", "a text")
        one, told = self.vectors(*some)
        on_disk = ["memory.policy=host", "memory.chunk_size=4096", "memory.disk_path=/var/tmp"]
        self.assertEqual(self.vectors(*some, "--weights", "disk", settings=on_disk)[0], one)
        self.assertEqual([t["tokens"] for t in told["texts"]], [6, 9, 6, 1, 6, 6, 6, 6])
        self.assertEqual((told["forwards"], told["batch"], told["pooling"], told["unit"]), (4, 4, "mean", False))
        self.near([one[0]], [one[7]])
        for plan in (PLANS[0], PLANS[1], [*PLANS[2], "train.batch=2"], ["parallel.pipeline.size=2", "train.micro_batch=2"]):
            self.near(self.vectors(*some, settings=plan)[0], one)
        self.near(self.vectors(*some, "--world", "mpi", settings=PLANS[0])[0], one)
        self.near(self.vectors("--text", "x")[0], [one[3]])

    def test_bytes_in_place_of_a_models_tokens_are_warned_of(self):
        words = ["embed", "/dev/null", "--text", "a", "--set", "model.kind=bert", "--set", "model.vocab=300"]
        self.assertIn("model.vocab = 300 and no data.tokenizer: a token is a byte, of 259", page.kuafu(*words))
        self.assertNotIn("data.tokenizer", page.kuafu(*words[:-1], "model.vocab=259"))

    def test_unit_first_and_cut(self):
        long = self.texts("twenty bytes of text", "short")
        for vector in self.vectors(*long, "--unit")[0]:
            self.assertAlmostEqual(sum(x * x for x in vector), 1, delta=1e-12)
        cut, told = self.vectors(*long, "--cut", "6")
        self.assertEqual([t["tokens"] for t in told["texts"]], [6, 5])
        self.near([cut[0]], self.vectors("--text", "twenty")[0])
        self.assertNotEqual(self.vectors(*long, "--pooling", "first")[0], self.vectors(*long)[0])

    def test_what_is_wrong_is_told_before_anything_runs(self):
        for more, words in (([], "there is no text; give --text TEXT, or --file FILE"), (["--text", "a", "--file", "b"], "--text and --file both give texts"),
                            (["--text", "a" * 31], "--text: it has 31 tokens, and model.sequence = 30"), (self.texts("a", ""), "texts:2: it is empty"),
                            (["--text", "a", "--cut", "0"], "--cut 0: allowed"), (["--text", "a", "--cut", "few"], '--cut: "few" is no whole number'),
                            (["--text", "a", "--pooling", "max"], '"max" is none of mean, first'), (["--text", "a", "--world", "simulated"], "it embeds nothing"),
                            (["--text", "a", "--json", "/proc/x"], "--json: cannot write /proc/x"),
                            (["--text", "a", "--set", "model.kind=gpt"], 'model.kind = "gpt" embeds no text'),
                            (["--text", "a", "--set", "parallel.tensor.mode=1d-sp", "--set", "parallel.tensor.size=2"], "shares the positions of a sequence among ranks")):
            with self.subTest(words=words):
                self.assertIn(words, page.kuafu(*self.words(*more), code=2))


if __name__ == "__main__":
    unittest.main()
