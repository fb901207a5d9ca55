#!/usr/bin/env bash
# Tatoeba, 170 000 everyday sentences to pretrain on, and Multi30k, 29 000 captions to fine-tune on, in joint
# subwords of both. See --help.
# shellcheck disable=SC2154,SC2086  # the variables come from `settings`; language codes are single words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
settings=$(onmt_evsoftmax corpora options "$here" "$@")
eval "$settings"  # $src $tgt $subwords $size … from recipe.yaml and the options; steps into the output folder

onmt_evsoftmax corpora fetch --sources "$sources" --data-dir "$data_dir" -o downloads \
    {train,val,test_2016_flickr}.{$src,$tgt}.gz deu-eng.zip
onmt_evsoftmax corpora extract --source downloads/train.$src.gz --target downloads/train.$tgt.gz \
    -o text/train.{$src,$tgt}
onmt_evsoftmax corpora extract --source downloads/val.$src.gz --target downloads/val.$tgt.gz \
    -o text/valid.{$src,$tgt}
onmt_evsoftmax corpora extract --source downloads/test_2016_flickr.$src.gz \
    --target downloads/test_2016_flickr.$tgt.gz -o text/test.{$src,$tgt}

# Captions that are validated or tested on must not be pretrained on, however unlikely they are in Tatoeba.
# All translations of a sentence are on one side of the split.
swap=()
[[ $src == en ]] || swap=(--swap)  # the first column is English
onmt_evsoftmax corpora extract --format columns --source downloads/deu-eng.zip::deu.txt "${swap[@]}" \
    -o raw/tatoeba.{$src,$tgt}
onmt_evsoftmax corpora clean --max-words 100 --exclude text/{valid,test}.$src -o raw/clean.{$src,$tgt} \
    raw/tatoeba.{$src,$tgt}
onmt_evsoftmax corpora split --by-source 1000 --prefix tatoeba- -o text raw/clean.{$src,$tgt}

# SentencePiece takes text as it is; for BPE ($words is then tokenised/) punctuation is set apart first.
if [[ $subwords == bpe ]]; then
    onmt_evsoftmax corpora tokenise --lang $src --jobs "$jobs" -o tokenised text/{,tatoeba-}{train,valid,test}.$src
    onmt_evsoftmax corpora tokenise --lang $tgt --jobs "$jobs" -o tokenised text/{,tatoeba-}{train,valid,test}.$tgt
fi
onmt_evsoftmax corpora learn-$subwords --size "$size" --subwords-from "$subwords_from" -o "data/$model" \
    $words/{tatoeba-,}train.{$src,$tgt}
onmt_evsoftmax corpora encode --model "data/$model" --jobs "$jobs" -o data \
    $words/{,tatoeba-}{train,valid,test}.{$src,$tgt}
onmt_evsoftmax corpora vocabulary --subwords-from "$subwords_from" -o data/vocab.shared \
    data/{tatoeba-,}train.{$src,$tgt}
