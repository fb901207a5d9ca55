"""The marks of subwords, known here and nowhere else: ``@@``, ``▁``, ``￭``, ``##`` and ``Ġ``."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

#: What the model adds around a text. Such a token belongs to no word.
SPECIAL_TOKENS = frozenset({"<s>", "</s>", "<blank>", "<pad>"})
#: A token's word index when it belongs to no word.
NO_WORD = -1

SPACE = "▁"  # SentencePiece: opens a word
JOIN = "@@"  # subword-nmt: the next token continues this word
JOINER = "￭"  # OpenNMT Tokenizer: glue to the neighbour on this side
CASE_MARK = "｟mrk_"  # OpenNMT Tokenizer: a case mark, which belongs to the word that follows
CONTINUES = "·"  # in figures: this token continues the word before it
SCHEMES = ("sentencepiece", "bpe", "joiner", "none")
PIECE = "##"  # WordPiece: continues the word before
BYTE_SPACE = "Ġ"  # byte-level BPE: the byte of a space, which opens a word


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side of a sentence and, for each, the index of its word (or NO_WORD)."""

    tokens: tuple[str, ...]
    words: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def word_count(self) -> int:
        """Number of words; special tokens are none."""
        return max(self.words, default=NO_WORD) + 1

    @property
    def special(self) -> tuple[bool, ...]:
        """True where the token was added by the model and is not part of the text."""
        return tuple(word == NO_WORD for word in self.words)


def detect_scheme(vocabulary: Iterable[str]) -> str:
    """How these tokens mark word boundaries: the scheme whose marks occur most often."""
    counts = dict.fromkeys(SCHEMES, 0)
    for token in vocabulary:
        counts["sentencepiece"] += token.startswith(SPACE)
        counts["bpe"] += token.endswith(JOIN) and token != JOIN
        counts["joiner"] += JOINER in token
    return max(counts, key=lambda scheme: counts[scheme]) if any(counts.values()) else "none"


def group(tokens: Sequence[str], scheme: str, special: Collection[str] = SPECIAL_TOKENS) -> Tokens:
    """Give every token its word; ``scheme`` is one of SCHEMES, ``special`` belong to no word."""
    words: list[int] = []
    current, glued = NO_WORD, False
    for token in tokens:
        if token in special:
            words.append(NO_WORD)
            glued = False
            continue
        first = current == NO_WORD or (words and words[-1] == NO_WORD)
        if first or not (glued or _continues(token, scheme)):
            current += 1
        words.append(current)
        glued = _holds_next(token, scheme)
    return Tokens(tuple(tokens), tuple(words))


def _continues(token: str, scheme: str) -> bool:
    """Whether the token continues the word before it."""
    if scheme == "sentencepiece":
        return not token.startswith(SPACE)
    return scheme == "joiner" and token.startswith(JOINER)


def _holds_next(token: str, scheme: str) -> bool:
    """Whether the token keeps the word open for the token after it."""
    if scheme == "bpe":
        return token.endswith(JOIN)
    return scheme == "joiner" and (token.endswith(JOINER) or token.startswith(CASE_MARK))


def word_texts(side: Tokens, scheme: str) -> list[str]:
    """The words of a line as a reader would write them, without subword marks."""
    texts = [""] * side.word_count
    for token, word in zip(side.tokens, side.words, strict=True):
        if word != NO_WORD:
            texts[word] += surface(token, scheme)
    return texts


def labels(side: Tokens, scheme: str) -> tuple[str, ...]:
    """Tokens as figures show them, whatever the scheme: ``cur``, ``·ious``.

    The dot says that a token continues the word before it; without subwords there are no dots.
    """
    shown, last = [], NO_WORD
    for token, word in zip(side.tokens, side.words, strict=True):
        text = (surface(token, scheme) or token) if word != NO_WORD else token
        shown.append(CONTINUES + text if word != NO_WORD and word == last else text)
        last = word
    return tuple(shown)


def surface(token: str, scheme: str) -> str:
    """One token without its subword marks."""
    if scheme == "sentencepiece":
        return token.replace(SPACE, "")
    if scheme == "bpe":
        return token.removesuffix(JOIN)
    if scheme == "joiner":
        return "" if token.startswith(CASE_MARK) else token.replace(JOINER, "")
    return token


def joined(line: str, scheme: str) -> str:
    """A line of subwords, separated by spaces, as words again."""
    if scheme == "sentencepiece":
        return line.replace(" ", "").replace(SPACE, " ").strip()
    if scheme == "bpe":
        return f"{line} ".replace(f"{JOIN} ", "").rstrip()
    return line


def undo_subwords(lines: Sequence[str]) -> list[str]:
    """Lines with their subwords joined; text that has none stays as it is."""
    scheme = "sentencepiece" if _share(SPACE in line for line in lines if line) > 0.5 else "bpe"
    return [joined(line, scheme) for line in lines]


def looks_split(lines: Sequence[str]) -> bool:
    """Whether many lines have the marks of subwords."""
    return _share(SPACE in line or f"{JOIN} " in line for line in lines if line) > 0.1


def foreign_style(vocabulary: Collection[str]) -> str | None:
    """``wordpiece`` (``play ##ing``) or ``bytes`` (``Ġplay ing``), if the tokens are of those."""
    marks = {"wordpiece": PIECE, "bytes": BYTE_SPACE}
    counts = {style: sum(t.startswith(m) for t in vocabulary) for style, m in marks.items()}
    style = max(counts, key=lambda name: counts[name])
    ours = sum(t.startswith(SPACE) or t.endswith(JOIN) or JOINER in t for t in vocabulary)
    return style if counts[style] > ours else None


def as_sentencepiece(tokens: Sequence[str], style: str, special: Collection[str]) -> list[str]:
    """Tokens of a foreign style as ``▁play ing``; ``special`` ones stay as they are.

    Bytes that are no whole letter become ``�``.
    """
    result, first = [], True
    for token in tokens:
        if token not in special:
            if style == "wordpiece":
                token = token.removeprefix(PIECE) if token.startswith(PIECE) else SPACE + token
            else:
                token = _from_bytes(token).replace(" ", SPACE)
                if first and not token.startswith(SPACE):  # a line starts with a word
                    token = SPACE + token
            first = False
        result.append(token)
    return result


def _from_bytes(token: str) -> str:
    """What a token of byte-level BPE stands for: every letter is one byte, printable ones as is."""
    letters = _byte_letters()
    if any(letter not in letters for letter in token):
        return token
    return bytes(letters[letter] for letter in token).decode(errors="replace")


@functools.cache
def _byte_letters() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): b for n, b in enumerate(rest)}


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / max(len(values), 1)
