#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
ABOUT="Prepare Multi30k EN-DE (29 000 image captions) for training: fetch, extract, subwords, vocabulary."
EXAMPLE="--data-dir ~/corpora/multi30k -o runs/multi30k"
OUTPUT=runs/multi30k
SUBWORDS=sentencepiece
SIZE=4000
options "$@"

captions
encode_text train "valid test"
[[ $DRY_RUN ]] || say "ready: $OUTPUT/data"
