#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
. "$RECIPES/train.sh"
ABOUT="WMT16 EN-DE from archives to scores: prepare, train (or, with --pretrained, fine-tune) with each
normalizer, average, translate newstest2016, score, count attended tokens, draw attention. The
model is what the iwslt14 recipe fine-tunes. Needs GPUs."
EXAMPLE="--gpus 3 --set accum_count=1 --normalizer softmax --jobs 16"
OUTPUT=runs/wmt16
SIZE=32000
options "$@"

prepare
REFERENCE=$OUTPUT/text/test.de
run_all test 5
