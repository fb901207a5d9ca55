#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
ABOUT="Prepare the embedded English-German corpus with gold word alignments: write it (20 000 pairs), joint
BPE, vocabulary."
EXAMPLE="-o runs/demo"
OUTPUT=runs/demo
SIZE=2000
options "$@"
[[ -z $DATA_DIR ]] || say "the embedded corpus needs no archives: --data-dir is not used"
[[ $SUBWORDS == bpe ]] || die "the embedded corpus is written as tokens, to which its alignments refer: use bpe"

# The corpus is written as tokens, to which its alignments refer; there is nothing left to tokenise.
mapfile -t corpus < <(files "$OUTPUT/tokenised" "train valid test test-hard" en de align)
step "write the corpus" "${corpus[@]}" -- \
    "$PYTHON" "$RECIPES/../data/make_corpus.py" -o "$OUTPUT/tokenised" --seed 1
encode_text train "valid test test-hard"
[[ $DRY_RUN ]] || say "ready: $OUTPUT/data"
