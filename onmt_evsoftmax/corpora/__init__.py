"""From the archives people publish to the parallel text a model is trained on.

The recipes' shell scripts call ``onmt_evsoftmax corpora VERB``; each verb is one module:

    fetch      archives from the web or a local folder, checked against checksums
    extract    sentences out of archives: IWSLT tags and XML, WMT SGML, tab-separated, plain
    clean      drop pairs that are empty, too long, lopsided, repeated or held out
    split      every n-th line, or by source sentence
    tokenise   Moses tokenisation, and back
    subwords   joint byte pair encoding or SentencePiece, learnt on training text only

Every verb reads and writes whole files, streams (a corpus need not fit in memory), and leaves
nothing half-written.
"""
