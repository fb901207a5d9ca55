"""From the archives people publish to the parallel text a model is trained on.

``onmt_evsoftmax corpora VERB`` is one step of a recipe's ``prepare.sh``. Verbs stream (a corpus
need not fit in memory) and leave nothing half-written. A verb whose outputs exist says so and does
nothing; without files it reads standard input and writes standard output.
"""

#: Verb → what it does, in the order of a recipe.
VERBS = {
    "fetch": "archives from the web or a folder, checked by their sums",
    "extract": "sentences out of archives, as parallel text",
    "clean": "drop pairs that are empty, too long, lopsided or repeated",
    "split": "training and held-out sets, by line or source sentence",
    "tokenise": "Moses tokenisation",
    "learn-bpe": "learn joint BPE subwords from training text",
    "learn-sentencepiece": "learn joint SentencePiece subwords from training text",
    "encode": "split words into subwords",
    "vocabulary": "count pieces, as onmt_build_vocab does",
    "decode": "join subwords into words, and words into text",
    "check": "refuse parallel files that are not: counts, UTF-8, an empty side",
    "settings": "the YAML of one training, made from a recipe's",
    "options": "options of prepare.sh, as shell code for it to evaluate",
    "run": "run a recipe, from archives to the table",
}
