# SPDX-License-Identifier: Apache-2.0
"""Random and hostile strings of a seed."""
import random
import unicodedata

# Assigned since Unicode 14, whose tables the oldest of the libraries have: never drawn.
YOUNG = """897 cf3 ece 1b4e-1b4f 1b7f 1c89-1c8a 2427-2429 2ffc-2fff 31e4-31e5 31ef a7cb-a7cf a7d2 a7d4 a7da-a7dc a7f1 105c0-105f3
10940-10959 10d40-10d65 10d69-10d85 10d8e-10d8f 10ec2-10ec7 10ed0-10ed8 10efa-10eff 1123f-11241 11380-11389 1138b
1138e 11390-113b5 113b7-113c0 113c2 113c5 113c7-113ca 113cc-113d5 113d7-113d8 113e1-113e2 116d0-116e3 11b00-11b09
11b60-11b67 11bc0-11be1 11bf0-11bf9 11db0-11ddb 11de0-11de9 11f00-11f10 11f12-11f3a 11f3e-11f5a 1342f 13439-13455
13460-143fa 16100-16139 16d40-16d79 16ea0-16eb8 16ebb-16ed3 16ff2-16ff6 187f8-187ff 18cff 18d09-18d1e 18d80-18df2
1b132 1b155 1cc00-1ccfc 1cd00-1ceb3 1ceba-1ced0 1cee0-1cef0 1d2c0-1d2d3 1df25-1df2a 1e030-1e06d 1e08f 1e4d0-1e4f9
1e5d0-1e5fa 1e5ff 1e6c0-1e6ff 1f6d8 1f6dc 1f774-1f77f 1f7d9 1f8b2-1f8bb 1f8c0-1f8c1 1f8d0-1f8d8 1fa54-1fa57
1fa75-1fa77 1fa87-1fa8f 1faad-1faaf 1fabb-1fabf 1fac6-1fac8 1facd-1facf 1fada-1fadf 1fae8-1faef 1faf7-1faf8
1fbcb-1fbef 1fbfa 2b739-2b73f 2b81e-2b81f 2cea2-2ceaf 2ebf0-2ee5d 31350-33479"""
WORDS = ["Tokenizers", "the", "don't", "we'll", "I'M", "word", "Word", "Größe", "naïve", "left", "right", " both ",
         "ab", "abc", "Straße", "İstanbul", "ΟΔΟΣ", "ǅ", "ﬁne", "½", "①", "12345", "3.14", "٣٤", "Ⅷ", "你好", "世界", "한국어",
         "नमस्ते", "สวัสดี", "مرحبا", "e\u0301", "A\u030a", "'ſ", "K", "do not", " n't", " 's", "a|b", "x=y", "_", "--", "..."]
SPECIAL = ["<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "<|im_start|>",
           "<|begin_of_text|>", "<extra_id_0>", "<0x41>", "<0xE4>", "<0x0A>", "</w>", "##ing", "▁", "▁the", "<|", "|>", "<s"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff"]
EMOJI = ["👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "❤️", "☕", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣", "🧑🏿‍🚀", "\U0001f468\u200d"]
EDGES = [0x0, 0x1, 0x1f, 0x7f, 0x80, 0xad, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xf8ff, 0xfdd0, 0xfffd, 0xfffe, 0xffff, 0x10000, 0x1fffe,
         0xe0001, 0xe0100, 0xf0000, 0x10fffd, 0x10ffff]


def ranges(words):
    for word in words.split():
        first, _, last = word.partition("-")
        yield range(int(first, 16), int(last or first, 16) + 1)


class Strings:
    """Draws without an end, after begin(seed)."""

    def __init__(self):
        self.random = random.Random(0)
        young = {c for span in ranges(YOUNG) for c in span}
        self.assigned = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c not in young
                         and unicodedata.category(chr(c)) != "Cn"]
        self.small = [c for c in self.assigned if c < 0x3000]
        self.marks = [c for c in self.assigned if unicodedata.category(chr(c)).startswith("M")]
        self.controls = [c for c in self.assigned if unicodedata.category(chr(c)) in ("Cc", "Cf")]
        self.punctuation = [c for c in self.assigned if unicodedata.category(chr(c))[0] in "PS" and c < 0x20000]
        self.numbers = [c for c in self.assigned if unicodedata.category(chr(c))[0] == "N"]
        self.cased = [c for c in self.assigned if chr(c).lower() != chr(c) or chr(c).upper() != chr(c)]

    def begin(self, seed):
        self.random.seed(seed)

    def pick(self):
        """A few characters."""
        r = self.random
        kind = r.randrange(16)
        if kind < 3:
            return "".join(chr(r.randrange(0x20, 0x7f)) for _ in range(r.randrange(1, 8)))
        if kind == 3:
            return r.choice(WORDS)
        if kind == 4:
            return r.choice(SPACES) * r.choice([1, 1, 1, 2, 3, 7])
        if kind == 5:
            return chr(r.choice(self.assigned))
        if kind == 6:
            return r.choice("aeounA가क") + "".join(chr(r.choice(self.marks)) for _ in range(r.randrange(0, 4)))
        if kind == 7:
            return chr(r.choice(EDGES))
        if kind == 8:
            return r.choice(EMOJI)
        if kind == 9:
            return r.choice(SPECIAL)
        if kind == 10:
            return r.choice(WORDS) + r.choice(SPACES)
        pool = [self.small, self.controls, self.punctuation, self.numbers, self.cased][kind - 11]
        return "".join(chr(r.choice(pool)) for _ in range(r.randrange(1, 4)))

    def draw(self):
        """A string: mostly short, some of one long run, some of words."""
        r = self.random
        kind = r.randrange(40)
        if kind == 0:
            return r.choice([" ", "\n", "a", "e", "▁", "\u0301", "é", "0", "'", "<s>", "\u3000", "👍"]) * r.randrange(1, 400)
        if kind < 12:
            return " ".join(r.choice(WORDS) for _ in range(r.randrange(0, 12)))
        return "".join(self.pick() for _ in range(r.randrange(0, 14)))
