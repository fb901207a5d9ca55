#!/usr/bin/env bash
# Multi30k: 29 000 image captions, 4000 joint SentencePiece pieces; test is that of 2016. See --help.
# shellcheck disable=SC2154,SC2086  # the variables come from `settings`; language codes are single words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
settings=$(onmt_evsoftmax corpora options "$here" "$@")
eval "$settings"  # $src $tgt $subwords $size … from recipe.yaml and the options; steps into the output folder

onmt_evsoftmax corpora fetch --sources "$sources" --data-dir "$data_dir" -o downloads \
    {train,val,test_2016_flickr}.{$src,$tgt}.gz
onmt_evsoftmax corpora extract --source downloads/train.$src.gz --target downloads/train.$tgt.gz \
    -o text/train.{$src,$tgt}
onmt_evsoftmax corpora extract --source downloads/val.$src.gz --target downloads/val.$tgt.gz \
    -o text/valid.{$src,$tgt}
onmt_evsoftmax corpora extract --source downloads/test_2016_flickr.$src.gz \
    --target downloads/test_2016_flickr.$tgt.gz -o text/test.{$src,$tgt}

# SentencePiece takes text as it is; for BPE ($words is then tokenised/) punctuation is set apart first.
if [[ $subwords == bpe ]]; then
    onmt_evsoftmax corpora tokenise --lang $src --jobs "$jobs" -o tokenised text/{train,valid,test}.$src
    onmt_evsoftmax corpora tokenise --lang $tgt --jobs "$jobs" -o tokenised text/{train,valid,test}.$tgt
fi
onmt_evsoftmax corpora learn-$subwords --size "$size" --subwords-from "$subwords_from" -o "data/$model" \
    $words/train.{$src,$tgt}
onmt_evsoftmax corpora encode --model "data/$model" --jobs "$jobs" -o data $words/{train,valid,test}.{$src,$tgt}
onmt_evsoftmax corpora vocabulary --subwords-from "$subwords_from" -o data/vocab.shared data/train.{$src,$tgt}
