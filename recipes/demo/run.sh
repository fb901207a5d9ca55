#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
. "$RECIPES/train.sh"
ABOUT="The main job on the embedded corpus: prepare, train softmax and ev-softmax side by side, translate,
score, count attended tokens, alignment error against the gold alignments, figures. Made for two
cores; nothing is downloaded."
EXAMPLE="-o runs/demo"
OUTPUT=runs/demo
SIZE=2000
NORMALIZERS="softmax evsoftmax"
PARALLEL=2
TRUECASED=yes                           # the corpus is: translations get their first capital again
BOTH_POSITIONS=yes                      # sinusoids beside the distances, where OpenNMT-py takes both
options "$@"

prepare
REFERENCE=$OUTPUT/tokenised/test.detok.de
GOLD=$OUTPUT/tokenised/test.align
run_all test 3
