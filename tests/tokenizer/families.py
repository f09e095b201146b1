# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of every family, trained with the `tokenizers` package on this tree's own text."""
import json
import random
import struct
import unicodedata
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

LLAMA_3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT_4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
          r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
# Text that the tree has not: vocabularies should know a little of other scripts.
OTHER_TEXT = ["Größe, Straße, naïve café: œuvre façade", "Привет, мир! Как дела? Ещё раз", "你好，世界。自然言語処理",
              "こんにちは世界、トークナイザー", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก",
              "안녕하세요 세계", "👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ ☕", "ﬁne ½ ① Ⅷ ㎏ ｆｕｌｌ", "e\u0301 a\u0308 n\u0303"] * 20


def text_of_tree(root):
    """Lines of the tree's pages and sources, the same on every machine that has the commit."""
    files = sorted(Path(root).glob("*.md")) + sorted(Path(root, "src/kuafu").glob("*/README.md"))
    files += sorted(Path(root, "src/kuafu/base").glob("*.h"))
    lines = []
    for file in files:
        lines += file.read_text(encoding="utf-8").splitlines()
    return lines[:4000] + OTHER_TEXT


class Maker:
    """Trains each model once and dresses it as each family does."""

    def __init__(self, root):
        self.lines = text_of_tree(root)
        self.trained = {}

    def model(self, name, tokenizer, trainer):
        """The model of the file that training gives, as JSON."""
        if name not in self.trained:
            tokenizer.train_from_iterator(self.lines, trainer)
            self.trained[name] = json.loads(tokenizer.to_str())["model"]
        return json.loads(json.dumps(self.trained[name]))

    def byte_level(self, size=1500):
        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return self.model("byte_level", bpe, trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))

    def characters(self, size=1200, **more):
        bpe = Tokenizer(models.BPE(unk_token="<unk>"))
        bpe.pre_tokenizer = pre_tokenizers.Metaspace()
        model = self.model("characters", bpe, trainers.BpeTrainer(
            vocab_size=size, limit_alphabet=150, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
        model.update(more)
        return model

    def word_pieces(self, lowercase):
        name = "lower" if lowercase else "cased"
        piece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        piece.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return self.model(name, piece, trainers.WordPieceTrainer(
            vocab_size=1500, limit_alphabet=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            show_progress=False))

    def unigram(self):
        unigram = Tokenizer(models.Unigram())
        unigram.normalizer = normalizers.NFKC()
        unigram.pre_tokenizer = pre_tokenizers.Metaspace()
        return self.model("unigram", unigram, trainers.UnigramTrainer(
            vocab_size=900, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))


def with_byte_tokens(model):
    """The model with <0x00> ... <0xFF> behind its tokens."""
    if isinstance(model["vocab"], dict):
        first = len(model["vocab"])
        model["vocab"].update({f"<0x{b:02X}>": first + b for b in range(256)})
    else:
        model["vocab"] += [[f"<0x{b:02X}>", -12.0] for b in range(256)]
    model["byte_fallback"] = True
    return model


def dressed(model, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None, added=()):
    """A file of the model and these parts."""
    empty = Tokenizer(models.BPE())
    for name, part in [("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer),
                       ("post_processor", post_processor), ("decoder", decoder)]:
        if part is not None:
            setattr(empty, name, part)
    document = json.loads(empty.to_str())
    document["model"] = model
    whole = Tokenizer.from_str(json.dumps(document))
    for token in added:
        whole.add_special_tokens([token]) if token.special else whole.add_tokens([token])
    return json.loads(whole.to_str())


def special(content, **more):
    return AddedToken(content, special=True, normalized=False, **more)


def template(single, tokens, model):
    ids = {name: model["vocab"][name] if isinstance(model["vocab"], dict)
           else [row[0] for row in model["vocab"]].index(name) for name in tokens}
    return processors.TemplateProcessing(single=single, special_tokens=list(ids.items()))


def gpt2(maker):
    return dressed(maker.byte_level(), None, pre_tokenizers.ByteLevel(add_prefix_space=False),
                   processors.ByteLevel(trim_offsets=False), decoders.ByteLevel(), [special("<|endoftext|>")])


def gpt2_old_merges(maker):
    """Merges as strings, as files of before 2024 have them."""
    document = gpt2(maker)
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    return document


def opt(maker):
    model = maker.byte_level()
    for token in ["<s>", "<pad>", "</s>", "<unk>"]:
        model["vocab"][token] = len(model["vocab"])
    added = [AddedToken(token, special=True, normalized=True) for token in ["<s>", "<pad>", "</s>", "<unk>"]]
    return dressed(model, None, pre_tokenizers.ByteLevel(add_prefix_space=False),
                   template("</s> $A", ["</s>"], model), decoders.ByteLevel(), added)


def roberta(maker):
    model = maker.byte_level()
    for token in ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]:
        model["vocab"][token] = len(model["vocab"])
    ends = {token: (token, model["vocab"][token]) for token in ["<s>", "</s>"]}
    added = [special(token) for token in ["<s>", "<pad>", "</s>", "<unk>"]] + [special("<mask>", lstrip=True)]
    return dressed(model, None, pre_tokenizers.ByteLevel(add_prefix_space=True),
                   processors.RobertaProcessing(ends["</s>"], ends["<s>"]), decoders.ByteLevel(), added)


def bert(maker, lowercase, post=None, **more):
    model = maker.word_pieces(lowercase)
    added = [special(token) for token in ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]]
    post = post or template("[CLS] $A [SEP]", ["[CLS]", "[SEP]"], model)
    return dressed(model, normalizers.BertNormalizer(lowercase=lowercase, **more),
                   pre_tokenizers.BertPreTokenizer(), post, decoders.WordPiece(), added)


def bert_processing(maker):
    return bert(maker, False, processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), strip_accents=True,
                clean_text=False, handle_chinese_chars=False)


def llama(maker):
    model = with_byte_tokens(maker.characters(fuse_unk=True))
    return dressed(model, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
                   template("<s> $A", ["<s>"], model),
                   decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)]),
                   [special("<unk>"), special("<s>"), special("</s>")])


def llama_metaspace(maker, scheme="first", split=False):
    model = with_byte_tokens(maker.characters(fuse_unk=True))
    return dressed(model, None, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split),
                   template("<s> $A </s>", ["<s>", "</s>"], model),
                   decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme, split=split)]),
                   [special("<unk>"), special("<s>"), special("</s>")])


def split_regex(maker, pattern, normalizer=None):
    model = maker.byte_level()
    model["ignore_merges"] = True
    begin = len(model["vocab"])
    post = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])
    return dressed(model, normalizer, pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), post, decoders.ByteLevel(),
        [special("<|begin_of_text|>"), special("<|end_of_text|>"), special("<|im_start|>")])


def deepseek(maker):
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK)]
    return dressed(maker.byte_level(), None, pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        processors.ByteLevel(trim_offsets=False), decoders.ByteLevel(), [special("<｜end▁of▁sentence｜>")])


def clip(maker):
    model = maker.byte_level()
    ending = {token + "</w>": len(model["vocab"]) + i for i, token in enumerate(list(model["vocab"]))}
    model["vocab"].update(ending)
    model["merges"] += [[a, b + "</w>"] for a, b in model["merges"] if a + b + "</w>" in ending]
    model["end_of_word_suffix"] = "</w>"
    model["unk_token"] = "<|endoftext|>"
    model["vocab"]["<|endoftext|>"] = len(model["vocab"])
    return dressed(model, normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "),
                                                normalizers.Lowercase()]),
                   pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CLIP), "removed", invert=True),
                                            pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                   None, decoders.Sequence([decoders.BPEDecoder("</w>"), decoders.ByteLevel()]),
                   [special("<|endoftext|>")])


def double_array(rules):
    """Rules as sentencepiece compiles them: a double array of their strings, then what they become."""
    texts, children = b"", {0: {}}
    ends = {}
    for string, becomes in sorted(rules.items()):
        node = 0
        for byte in string.encode():
            if byte not in children[node]:
                children[len(children)] = {}
                children[node][byte] = len(children) - 1
            node = children[node][byte]
        ends[node] = len(texts)
        texts += becomes.encode() + b"\0"
    units, used, places, free = {0: 0}, {0}, {0: 0}, 1
    for node in range(len(children)):
        labels = sorted(children[node]) + ([0] if node in ends else [])
        if not labels:
            continue
        at, offset = places[node], free
        while offset >= 1 << 21 or any(at ^ offset ^ label in used for label in labels):
            offset += 1
        while all(free ^ low in used for low in range(256)):
            free += 256
        units[at] |= offset << 10
        for label, child in children[node].items():
            places[child] = at ^ offset ^ label
            units[places[child]] = label
            used.add(places[child])
        if node in ends:
            units[at] |= 1 << 8
            units[at ^ offset] = 1 << 31 | ends[node]
            used.add(at ^ offset)
    array = b"".join(struct.pack("<I", units.get(i, 0xFF)) for i in range(max(units) + 256))
    return struct.pack("<I", len(array)) + array + texts


def compatibility_rules():
    """Something like sentencepiece's own: NFKC of the first planes' characters and of some with an accent."""
    rules = {chr(c): unicodedata.normalize("NFKC", chr(c)) for c in range(0x80, 0x3400)}
    rules |= {a + m: unicodedata.normalize("NFKC", a + m) for a in "aeiouncAEIOU" for m in "\u0300\u0301\u0308\u0303"}
    rules |= {"\u200d": "", "\t": " ", "\n": " ", "\r": " ", "\u3000": " ", "\u2581": "\u2581"}
    return {string: becomes for string, becomes in rules.items() if becomes != string}


def t5(maker):
    model = maker.unigram()
    rules = normalizers.Precompiled(double_array(compatibility_rules()))
    return dressed(model, normalizers.Sequence([rules, normalizers.Replace(Regex(" {2,}"), " ")]),
                   pre_tokenizers.Metaspace(prepend_scheme="always"), template("$A </s>", ["</s>"], model),
                   decoders.Metaspace(prepend_scheme="always"),
                   [special("<pad>"), special("</s>"), special("<unk>"), special("<extra_id_0>", rstrip=True)])


def unigram_bytes(maker):
    model = with_byte_tokens(maker.unigram())
    return dressed(model, normalizers.Sequence([normalizers.Nmt(), normalizers.NFKD(), normalizers.Strip(True, True)]),
                   pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
                   None, decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]),
                   [special("<unk>")])


def prefixed_bpe(maker, fuse):
    """Tokens that go on with a prefix, and unknown characters."""
    bpe = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
    bpe.pre_tokenizer = pre_tokenizers.Whitespace()
    model = maker.model("prefixed", bpe, trainers.BpeTrainer(
        vocab_size=1000, limit_alphabet=90, continuing_subword_prefix="##", special_tokens=["[UNK]"],
        show_progress=False))
    model["fuse_unk"] = fuse
    return dressed(model, None, pre_tokenizers.Whitespace(), None, decoders.WordPiece(cleanup=False), [special("[UNK]")])


def words(maker):
    level = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    level.pre_tokenizer = pre_tokenizers.Whitespace()
    model = maker.model("words", level, trainers.WordLevelTrainer(vocab_size=2000, special_tokens=["[UNK]"],
                                                                  show_progress=False))
    return dressed(model, normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(),
                                                normalizers.Strip(left=True, right=False)]),
                   pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("|"), pre_tokenizers.Whitespace(),
                                            pre_tokenizers.Digits(individual_digits=True)]), None, None, [special("[UNK]")])


def behaviors(maker, behavior):
    """Splits of every behavior, one after the other."""
    return dressed(maker.byte_level(), None, pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation(behavior), pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split("e", behavior), pre_tokenizers.Split(Regex(r"\w+\b|\W\d?"), behavior, invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True)]), None, decoders.ByteLevel(), [])


def added(maker):
    """Tokens that were added by hand in every way."""
    model = maker.byte_level()
    tokens = [AddedToken("Word", single_word=True), AddedToken("Größe", normalized=True), AddedToken("left", lstrip=True),
              AddedToken("right", rstrip=True), AddedToken(" both ", lstrip=True, rstrip=True, normalized=False),
              AddedToken("ab", normalized=False), AddedToken("abc", normalized=False), AddedToken("the", single_word=True,
              normalized=False), AddedToken("e\u0301"), special("<s>", single_word=True, lstrip=True, rstrip=True)]
    return dressed(model, normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
                   pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True)]), None,
                   decoders.ByteLevel(), tokens)


def byte_normalizer(maker):
    return dressed(maker.byte_level(), normalizers.Sequence([normalizers.NFKC(), normalizers.ByteLevel()]),
                   pre_tokenizers.FixedLength(7), None, decoders.ByteLevel(), [AddedToken("né")])


def visible(maker, normalizer, *splits):
    """Byte tokens of what is left of a text: what a normalizer or split does is seen of every character."""
    return dressed(maker.byte_level(), normalizer, pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), None, decoders.ByteLevel(), [])


def drawn(maker, seed):
    """Parts of any kind in any order."""
    draw = random.Random(seed)

    def some(*makers, most=3):
        return [draw.choice(makers)() for _ in range(draw.randrange(0, most + 1))]

    def flip():
        return draw.random() < 0.5

    def behavior():
        return draw.choice(["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"])

    def scheme():
        return draw.choice(["always", "first", "never"])

    def pattern():
        return draw.choice(["a", " ", "▁", "the", Regex(r"\s"), Regex(r"\w+"), Regex(r"[^\s\w]|\d+"), Regex(r"\S{2}"),
                            Regex(LLAMA_3), Regex(r"(?<=\p{Lu})\p{Ll}*"), Regex(r" ?\bt?")])

    def metaspace():
        return pre_tokenizers.Metaspace(prepend_scheme=scheme(), split=flip())

    normalizer = some(normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD, normalizers.Lowercase,
                      normalizers.StripAccents, normalizers.Nmt, lambda: normalizers.Strip(flip(), flip()),
                      lambda: normalizers.Replace(pattern(), draw.choice(["", "x", "▁", " "])), lambda: normalizers.Prepend("▁"),
                      lambda: normalizers.BertNormalizer(flip(), flip(), draw.choice([None, True, False]), flip()))
    splits = some(pre_tokenizers.Whitespace, pre_tokenizers.WhitespaceSplit, pre_tokenizers.BertPreTokenizer, metaspace, metaspace,
                  lambda: pre_tokenizers.Punctuation(behavior()), lambda: pre_tokenizers.Digits(flip()),
                  lambda: pre_tokenizers.Split(pattern(), behavior(), flip()), lambda: pre_tokenizers.CharDelimiterSplit("e"),
                  lambda: pre_tokenizers.ByteLevel(flip(), use_regex=flip()))
    kind = draw.randrange(4)
    if kind == 0:
        model = maker.byte_level()
        splits.append(pre_tokenizers.ByteLevel(flip(), use_regex=flip()))
    elif kind == 1:
        model = maker.characters(fuse_unk=flip(), ignore_merges=flip(), unk_token=draw.choice([None, "<unk>"]))
        model = with_byte_tokens(model) if flip() else model
    elif kind == 2:
        model = with_byte_tokens(maker.unigram()) if flip() else maker.unigram()
    else:
        model = maker.word_pieces(flip())
    decoder = some(decoders.ByteLevel, decoders.ByteFallback, decoders.Fuse, lambda: decoders.Metaspace(prepend_scheme=scheme()),
                   lambda: decoders.WordPiece(cleanup=flip()), lambda: decoders.Replace(pattern(), draw.choice(["", " "])),
                   lambda: decoders.CTC("e", "t", flip()), lambda: decoders.Strip("e", draw.randrange(3), 0))
    tokens = [AddedToken(content, single_word=flip(), lstrip=flip(), rstrip=flip(), normalized=flip(), special=flip())
              for content in draw.sample(["word", "<s>", "the", "left ", "Größe", "▁", "ab", "abc", "12"], draw.randrange(0, 5))]
    return dressed(model, normalizers.Sequence(normalizer) if normalizer else None,
                   pre_tokenizers.Sequence(splits) if splits else None, None,
                   decoders.Sequence(decoder) if decoder else None, tokens)


VISIBLE = {
    "visible_bert": lambda maker: visible(maker, normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "visible_cased": lambda maker: visible(maker, normalizers.BertNormalizer(lowercase=False)),
    "visible_nfd": lambda maker: visible(maker, normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
    "visible_nfkd": lambda maker: visible(maker, normalizers.Sequence([normalizers.NFKD(), normalizers.Nmt()])),
    "visible_nfc": lambda maker: visible(maker, normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
    "visible_nfkc": lambda maker: visible(maker, normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])),
    "visible_rules": lambda maker: visible(maker, normalizers.Precompiled(double_array(compatibility_rules()))),
    "visible_words": lambda maker: visible(maker, None, pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)),
}
FAMILIES = {
    "gpt2": gpt2, "gpt2_old_merges": gpt2_old_merges, "opt": opt, "roberta": roberta,
    "bert_uncased": lambda maker: bert(maker, True), "bert_cased": lambda maker: bert(maker, False),
    "bert_processing": bert_processing, "llama": llama, "llama_metaspace": llama_metaspace,
    "llama_always": lambda maker: llama_metaspace(maker, "always", True),
    "llama_never": lambda maker: llama_metaspace(maker, "never", True),
    "llama3": lambda maker: split_regex(maker, LLAMA_3), "gpt4o": lambda maker: split_regex(maker, GPT_4O),
    "qwen2": lambda maker: split_regex(maker, LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}"), normalizers.NFC()),
    "deepseek": deepseek, "clip": clip, "t5": t5, "unigram_bytes": unigram_bytes,
    "prefixed_bpe": lambda maker: prefixed_bpe(maker, False), "prefixed_fused": lambda maker: prefixed_bpe(maker, True),
    "words": words, "added": added, "byte_normalizer": byte_normalizer,
    **{f"split_{behavior}": (lambda maker, behavior=behavior: behaviors(maker, behavior))
       for behavior in ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]},
    **VISIBLE,
}
