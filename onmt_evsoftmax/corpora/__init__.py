"""From the archives people publish to the parallel text a model is trained on.

``onmt_evsoftmax corpora VERB`` is one step of a recipe's ``prepare.sh``. Verbs stream (a corpus
need not fit in memory) and leave nothing half-written. A verb whose outputs exist says so and does
nothing; without files it reads standard input and writes standard output.
"""

#: Verb → what it does, in the order of a recipe.
VERBS = {
    "fetch": "get archives from the web or a folder, and check their checksums",
    "extract": "take sentences out of archives, as parallel text",
    "clean": "drop pairs that are empty, too long, lopsided or repeated",
    "split": "make training and held-out sets, by line or source sentence",
    "tokenise": "tokenise as Moses does",
    "learn-bpe": "learn joint BPE subwords from training text",
    "learn-sentencepiece": "learn joint SentencePiece subwords from training text",
    "encode": "split words into subwords",
    "vocabulary": "count subwords, as onmt_build_vocab does",
    "decode": "join subwords into words, and words into text",
    "check": "check that files are parallel: as many lines, UTF-8, no empty side",
    "settings": "write the YAML of one training, from a recipe's",
    "options": "turn the options of prepare.sh into shell code (for prepare.sh)",
    "run": "run a recipe, from archives to the table",
}
