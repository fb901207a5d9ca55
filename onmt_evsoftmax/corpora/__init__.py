"""From the archives people publish to the parallel text a model is trained on.

``onmt_evsoftmax corpora VERB`` is one step of a recipe's ``prepare.sh``:

    fetch       archives from the web or a local folder, checked against checksums
    extract     sentences out of archives: IWSLT tags and XML, WMT SGML, tab-separated, plain
    clean       drop pairs that are empty, too long, lopsided, repeated or held out
    split       every n-th line, or by source sentence
    tokenise    Moses tokenisation; decode undoes it
    learn-bpe   joint subwords of the training text (or learn-sentencepiece)
    encode      words into subwords
    vocabulary  pieces with their counts, as OpenNMT-py reads them

Verbs stream (a corpus need not fit in memory) and leave nothing half-written. A verb whose outputs
exist says so and does nothing; without files it reads standard input and writes standard output.
``run`` runs a whole recipe.
"""
