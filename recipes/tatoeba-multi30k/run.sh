#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
. "$RECIPES/train.sh"
ABOUT="The paper's protocol at laptop scale: pretrain on Tatoeba with softmax, then fine-tune on Multi30k with
each normalizer, average, translate test 2016, score, count attended tokens, draw attention. With
--pretrained the first step is left out. --data-dir has the files of both corpora."
EXAMPLE="--data-dir ~/corpora --normalizer softmax --normalizer evsoftmax"
OUTPUT=runs/tatoeba-multi30k
SUBWORDS=sentencepiece
SIZE=4000
NORMALIZERS="softmax evsoftmax"
BOTH_POSITIONS=yes                      # sinusoids beside the distances, where OpenNMT-py takes both
options "$@"

prepare
if [[ -z $PRETRAINED ]]; then
    pretrained=$OUTPUT/pretrained-seed$SEED
    if wanted pretrain; then
        train "pretrain on Tatoeba with softmax" "$pretrained" "$HERE/train.yaml" softmax
        step "average 3 checkpoints" "$pretrained/average.pt" -- average "$pretrained" 3
    fi
    PRETRAINED=$pretrained/average.pt
fi
REFERENCE=$OUTPUT/text/test.de
run_all test 3
