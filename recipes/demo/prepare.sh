#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
ABOUT="Prepare the embedded English-German corpus with gold word alignments: write it (20 000 pairs), joint
BPE, vocabulary."
EXAMPLE="-o runs/demo"
OUTPUT=runs/demo
SIZE=2000
options "$@"
[[ $SUBWORDS == bpe ]] || die "the embedded corpus is written as tokens, to which its alignments refer: use bpe"

# The corpus is written as tokens, to which its alignments refer; there is nothing left to tokenise.
step "write the corpus" "$OUTPUT/tokenised/train.en" "$OUTPUT/tokenised/test.align" -- \
    "$PYTHON" "$RECIPES/../data/make_corpus.py" -o "$OUTPUT/tokenised" --seed 1
encode_text train "valid test test-hard"
[[ $DRY_RUN ]] || say "ready: $OUTPUT/data"
