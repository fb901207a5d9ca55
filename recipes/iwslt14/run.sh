#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
. "$RECIPES/train.sh"
ABOUT="IWSLT14 EN-DE from archives to scores: prepare, train or (with --pretrained) fine-tune with each
normalizer, average, translate the five test sets, score, count attended tokens, draw attention.
The paper's models are fine-tuned from a WMT16 model, in its subwords. Needs a GPU."
EXAMPLE="--subwords-from runs/wmt16 --pretrained runs/wmt16/softmax-seed1/average.pt --gpus 1 \\
        --normalizer softmax --normalizer evsoftmax --seed 1"
OUTPUT=runs/iwslt14
SIZE=10000
options "$@"

prepare
REFERENCE=$OUTPUT/text/test.de
run_all test 5
