"""The metrics: each turns a line into numbers that add up over lines, and sums into a score.

Because a score depends on its corpus only through those sums, a bootstrap sample or a shuffle
costs one matrix product instead of a new corpus. sacreBLEU, rouge-score and nltk do the counting
and hold the formulas; nothing here computes them a second time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import ClassVar

import numpy as np
from nltk.translate.meteor_score import meteor_score
from numpy.typing import NDArray
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.base import Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from onmt_evsoftmax.report.console import UserError, unknown_name
from onmt_evsoftmax.score.language import UNSPACED, Language

Array = NDArray[np.float64]
References = Sequence[Sequence[str]]


class Metric(ABC):
    """One metric against fixed references (one sequence of lines per reference)."""

    def __init__(self, label: str, higher_is_better: bool = True) -> None:
        self.label = label
        self.higher_is_better = higher_is_better

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str]) -> Array:
        """Numbers of every line, (lines, width), whose sums over lines determine the score."""

    @abstractmethod
    def score(self, sums: Sequence[float]) -> float:
        """The score, in per cent, of a corpus whose statistics add up to ``sums``, (width,)."""

    def sentence(self, statistics: Sequence[float]) -> float:
        """The score of one line with these ``statistics``, (width,)."""
        return self.score(statistics)

    @abstractmethod
    def signature(self) -> Signature:
        """How the score was made, in sacreBLEU's form."""


class Sacre(Metric):
    """A metric of sacreBLEU, through its own extraction of statistics and its own formula."""

    def __init__(self, label: str, metric: SacreMetric, higher_is_better: bool = True) -> None:
        super().__init__(label, higher_is_better)
        self._metric = metric

    def statistics(self, hypotheses: Sequence[str]) -> Array:
        """Counted by sacreBLEU from its cached references."""
        return np.array(self._metric._extract_corpus_statistics(hypotheses, None), dtype=float)

    def score(self, sums: Sequence[float]) -> float:
        """By sacreBLEU's own formula."""
        return float(self._metric._compute_score_from_stats(list(sums)).score)

    def signature(self) -> Signature:
        """sacreBLEU's own."""
        return self._metric.get_signature()


class Bleu(Sacre):
    """BLEU on detokenised text, cased unless ``lowercase``."""

    def __init__(self, references: References, language: Language, lowercase: bool = False) -> None:
        try:
            metric = BLEU(
                lowercase=lowercase,
                force=True,  # we warn of tokenised text ourselves, naming the file
                trg_lang=language.code or "",
                references=references,
            )
        except RuntimeError as error:  # Japanese and Korean need a tokenizer not installed here
            raise UserError(f"BLEU for {language.code}: {' '.join(str(error).split())}") from error
        super().__init__("BLEU", metric)
        self._sentence = Sacre("", BLEU(effective_order=True))

    def sentence(self, statistics: Sequence[float]) -> float:
        """As sacrebleu --sentence-level: an order the line is too short for does not count."""
        return self._sentence.score(statistics)


class TokenisedBleu(Bleu):
    """BLEU as the paper's public scripts computed it: on Moses-tokenised, lower-cased text.

    ``tokenised`` True says the text is so already. sacreBLEU's 13a tokenizer runs on top, as it
    did there.
    """

    def __init__(self, references: References, language: Language, tokenised: bool) -> None:
        if language.code is None:
            raise UserError("bleu-tok-lc needs the language: add --lang, for example --lang de")
        self._before = "given" if tokenised else f"moses-{version('sacremoses')}"
        self._tokenise = list if tokenised else language.moses
        super().__init__([self._tokenise(lines) for lines in references], language, lowercase=True)
        self.label = "BLEU (tokenised, lower-cased)"

    def statistics(self, hypotheses: Sequence[str]) -> Array:
        """The counts of the tokenised lines."""
        return super().statistics(self._tokenise(hypotheses))

    def signature(self) -> Signature:
        """sacreBLEU's own, naming what ran before its tokenizer."""
        signature = super().signature()
        signature.update("tok", f"{self._before}+{signature.info['tok']}")
        return signature


class MeanOfLines(Metric):
    """A metric defined per line; the corpus score is the mean. Statistics are (score, 1)."""

    def __init__(self, label: str, references: References, language: Language) -> None:
        if language.code in UNSPACED:
            raise UserError(
                f"{label} counts words, and {language.code} puts no spaces between them; "
                "choose others, for example --metrics bleu chrf++"
            )
        super().__init__(label)
        self._references = list(zip(*references, strict=True))
        self._language = language

    @abstractmethod
    def line(self, hypothesis: str, references: Sequence[str]) -> float:
        """Score of one line, 0–1, against the best of its references."""

    def statistics(self, hypotheses: Sequence[str]) -> Array:
        """(score, 1) of every line."""
        pairs = zip(hypotheses, self._references, strict=True)
        return np.array([(self.line(hypothesis, lines), 1.0) for hypothesis, lines in pairs])

    def score(self, sums: Sequence[float]) -> float:
        """The mean, in per cent."""
        return 100 * sums[0] / sums[1]

    def _describe(self, **details: str | float) -> Signature:
        signature = Signature({"num_refs": len(self._references[0])})
        for key, value in {"case": "lc", **details, "agg": "mean"}.items():
            signature.update(key, value)
        return signature


class Rouge(MeanOfLines):
    """ROUGE F1 of rouge-score with words of any script; the English stemmer for English only."""

    def __init__(self, kind: str, references: References, language: Language) -> None:
        super().__init__(f"ROUGE-{kind[-1]}", references, language)
        self._kind = kind
        self._scorer = RougeScorer([kind], tokenizer=language)

    def line(self, hypothesis: str, references: Sequence[str]) -> float:
        """F1 by rouge-score."""
        return float(self._scorer.score_multi(references, hypothesis)[self._kind].fmeasure)

    def signature(self) -> Signature:
        """Words, stemmer and version."""
        return self._describe(
            tok="unicode-words",
            stem=self._language.rouge_stemmer_name,
            version=f"rouge-score-{version('rouge-score')}",
        )


class Meteor(MeanOfLines):
    """METEOR of nltk: exact and stem modules, and synonyms where nltk has a WordNet for them."""

    PARAMETERS: ClassVar = {"alpha": 0.9, "beta": 3.0, "gamma": 0.5}  # nltk's own defaults

    def __init__(self, references: References, language: Language) -> None:
        super().__init__("METEOR", references, language)
        self._synonyms = language.synonyms()

    def line(self, hypothesis: str, references: Sequence[str]) -> float:
        """METEOR by nltk."""
        words = self._language.meteor_words
        return float(
            meteor_score(
                [words(reference) for reference in references],
                words(hypothesis),
                stemmer=self._language,
                wordnet=self._synonyms,
                **self.PARAMETERS,
            )
        )

    def signature(self) -> Signature:
        """Words, stemmer, synonyms, parameters and version."""
        return self._describe(
            tok="unicode-wordpunct",
            stem=self._language.stemmer_name,
            syn=self._synonyms.name,
            **self.PARAMETERS,
            version=f"nltk-{version('nltk')}",
        )


#: Name for ``--metrics`` → what makes the metric of (references, language, whether the text is
#: tokenised already), in the order of the table.
METRICS: dict[str, Callable[[References, Language, bool], Metric]] = {
    "bleu": lambda references, language, _: Bleu(references, language),
    "bleu-tok-lc": TokenisedBleu,
    "chrf++": lambda references, *_: Sacre("chrF2++", CHRF(word_order=2, references=references)),
    "ter": lambda references, *_: Sacre("TER", TER(references=references), higher_is_better=False),
    "rouge-1": lambda references, language, _: Rouge("rouge1", references, language),
    "rouge-2": lambda references, language, _: Rouge("rouge2", references, language),
    "rouge-l": lambda references, language, _: Rouge("rougeL", references, language),
    "meteor": lambda references, language, _: Meteor(references, language),
}
#: What is computed unless asked otherwise: all but the figure that only old papers need.
DEFAULT_METRICS = tuple(name for name in METRICS if name != "bleu-tok-lc")


def metric_name(name: str) -> str:
    """The name in METRICS that a user's spelling (``ROUGE1``, ``chrF``) means, or an error."""
    for known in METRICS:
        if _letters(known) == _letters(name):
            return known
    raise UserError(unknown_name("metric", name, METRICS))


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
