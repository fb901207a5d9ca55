#!/usr/bin/env bash
ABOUT="Prepare the embedded English-German corpus with gold word alignments: write it, vocabulary. Its
words are few, so they are the vocabulary and every alignment is one between tokens."
EXAMPLE="-o runs/demo"
OUTPUT=runs/demo
. "$(dirname "$0")/../lib.sh"
options "$@"

step "write the corpus" "$OUTPUT/data/train.en" "$OUTPUT/data/test.align" -- \
    "$PYTHON" "$RECIPES/../data/make_corpus.py" -o "$OUTPUT/data" --seed 1
vocabulary
[[ $DRY_RUN ]] || say "ready: $OUTPUT/data"
