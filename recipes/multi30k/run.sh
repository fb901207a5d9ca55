#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
. "$RECIPES/train.sh"
ABOUT="Multi30k EN-DE from archives to scores: prepare, train with each normalizer, average, translate
test 2016, score, count attended tokens, draw attention."
EXAMPLE="--normalizer softmax --normalizer evsoftmax --data-dir ~/corpora/multi30k"
OUTPUT=runs/multi30k
SUBWORDS=sentencepiece
SIZE=4000
BOTH_POSITIONS=yes                      # sinusoids beside the distances, where OpenNMT-py takes both
options "$@"

prepare
REFERENCE=$OUTPUT/text/test.de
run_all test 5
