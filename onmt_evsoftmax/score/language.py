"""Words of a language: Unicode tokenizers, stemmers and synonyms for ROUGE and METEOR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import regex  # type: ignore[import-untyped]
from nltk.corpus import wordnet
from nltk.corpus.reader.wordnet import WordNetError
from nltk.stem.porter import PorterStemmer
from nltk.stem.snowball import SnowballStemmer

from onmt_evsoftmax.report.console import UserError, unknown_name

#: ISO 639-1 code → Snowball stemmer (None: there is none) and code of its WordNet in nltk's data.
LANGUAGES: dict[str, tuple[str | None, str]] = {
    "ar": ("arabic", "arb"),
    "bg": (None, "bul"),
    "cs": (None, "ces"),
    "da": ("danish", "dan"),
    "de": ("german", "deu"),
    "el": (None, "ell"),
    "en": ("english", "eng"),
    "es": ("spanish", "spa"),
    "et": (None, "est"),
    "fa": (None, "fas"),
    "fi": ("finnish", "fin"),
    "fr": ("french", "fra"),
    "he": (None, "heb"),
    "hi": (None, "hin"),
    "hr": (None, "hrv"),
    "hu": ("hungarian", "hun"),
    "id": (None, "ind"),
    "is": (None, "isl"),
    "it": ("italian", "ita"),
    "ja": (None, "jpn"),
    "ko": (None, "kor"),
    "lt": (None, "lit"),
    "lv": (None, "lav"),
    "nb": ("norwegian", "nob"),
    "nl": ("dutch", "nld"),
    "nn": ("norwegian", "nno"),
    "no": ("norwegian", "nob"),
    "pl": (None, "pol"),
    "pt": ("portuguese", "por"),
    "ro": ("romanian", "ron"),
    "ru": ("russian", "rus"),
    "sk": (None, "slk"),
    "sl": (None, "slv"),
    "sv": ("swedish", "swe"),
    "tr": (None, "tur"),
    "uk": (None, "ukr"),
    "zh": (None, "cmn"),
}
#: Written without spaces between words: a metric over words would count whole clauses.
UNSPACED = frozenset({"ja", "zh"})

# Marks (\p{M}) belong to the letter before them: without them decomposed umlauts and every
# Indic vowel sign would cut words apart.
_WORD = r"[\p{L}\p{M}\p{N}]+"
_find_words = regex.compile(_WORD).findall
_find_words_and_signs = regex.compile(r"[\p{L}\p{M}\p{N}_]+|[^\p{L}\p{M}\p{N}_\s]+").findall

_CACHE = 1 << 17  # lines or words remembered: seeds and metrics share most of them


class Language:
    """How one language is cut into words, stemmed and looked up; every answer is remembered."""

    def __init__(self, name: str | None) -> None:
        self.code = _known_code(name)
        stemmer, self._wordnet = LANGUAGES[self.code] if self.code else (None, "")
        self.stemmer_name = f"snowball-{stemmer}" if stemmer else "no"
        self.rouge_stemmer_name = "porter" if self.code == "en" else "no"
        self._stem = lru_cache(_CACHE)(SnowballStemmer(stemmer).stem if stemmer else str)
        self._porter = lru_cache(_CACHE)(PorterStemmer().stem)
        self.rouge_words: Callable[[str], list[str]] = lru_cache(_CACHE)(self._rouge_words)
        self.meteor_words: Callable[[str], list[str]] = lru_cache(_CACHE)(_find_words_and_signs)

    def _rouge_words(self, line: str) -> list[str]:
        words: list[str] = _find_words(line.lower())
        if self.rouge_stemmer_name == "porter":
            # rouge-score leaves words of up to three letters alone
            words = [self._porter(word) if len(word) > 3 else word for word in words]
        return words

    def tokenize(self, text: str) -> list[str]:
        """rouge-score's tokenizer interface: lower-cased words without punctuation."""
        return self.rouge_words(text)

    def stem(self, word: str) -> str:
        """The stemmer interface of nltk's METEOR."""
        return str(self._stem(word))

    def moses(self, lines: Sequence[str]) -> list[str]:
        """Lines as Moses' tokenizer.perl writes them, special characters escaped."""
        from sacremoses import MosesTokenizer  # only this rarely asked-for metric needs it

        tokenizer = MosesTokenizer(lang=self.code or "en")
        return [tokenizer.tokenize(line, return_str=True) for line in lines]

    def synonyms(self) -> Synonyms:
        """The WordNet of this language if nltk's data has one, else one that knows no synonym."""
        if not self.code:
            return Synonyms(None)
        try:
            wordnet.synsets("a", lang=self._wordnet)
        except (LookupError, WordNetError):
            return Synonyms(None)
        return Synonyms(self._wordnet)


class _Lemmas:
    """What nltk's METEOR asks of a synset: its lemmas, in the language asked for."""

    def __init__(self, lemmas: list[Any]) -> None:
        self._lemmas = lemmas

    def lemmas(self) -> list[Any]:
        return self._lemmas


class Synonyms:
    """What nltk's METEOR asks of a WordNet, in any language; without one, no synonyms."""

    def __init__(self, wordnet_code: str | None) -> None:
        self.name = f"wordnet-{wordnet_code}" if wordnet_code else "no"
        self._code = wordnet_code
        self.synsets: Callable[[str], list[_Lemmas]] = lru_cache(_CACHE)(self._synsets)

    def _synsets(self, word: str) -> list[_Lemmas]:
        if self._code is None:
            return []
        synsets = wordnet.synsets(word, lang=self._code)
        return [_Lemmas(synset.lemmas(lang=self._code)) for synset in synsets]


def _known_code(name: str | None) -> str | None:
    """``de``, ``de-AT`` or ``DE`` → ``de``; an unknown language is an error."""
    if name is None:
        return None
    code = name.replace("_", "-").split("-")[0].lower()
    if code not in LANGUAGES:
        raise UserError(
            f"{unknown_name('language', name, LANGUAGES)}; "
            "without --lang words are compared as they are"
        )
    return code
