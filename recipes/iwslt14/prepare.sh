#!/usr/bin/env bash
# IWSLT14 (TED talks) as in the paper: 10 000 joint BPE merges; every 23rd line validates; dev2010,
# TEDX.dev2012 and tst2010-2012 test. To fine-tune a WMT16 model take its subwords (--subwords-from).
# shellcheck disable=SC2154,SC2086  # the variables come from `settings`; language codes are single words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
settings=$(onmt_evsoftmax corpora options "$here" "$@")
eval "$settings"  # $src $tgt $subwords $size … from recipe.yaml and the options; steps into the output folder

# The archives of both directions hold the same talks; the names inside follow the direction.
[[ -e $data_dir/$pair.tgz || ! -e $data_dir/en-de.tgz ]] || pair=en-de
archive=downloads/$pair.tgz
onmt_evsoftmax corpora fetch --sources "$sources" --data-dir "$data_dir" -o downloads $pair.tgz
onmt_evsoftmax corpora extract --format segments -o text/test.{$src,$tgt} \
    --source $archive::IWSLT14.{TED.dev2010,TEDX.dev2012,TED.tst2010,TED.tst2011,TED.tst2012}.$pair.$src.xml \
    --target $archive::IWSLT14.{TED.dev2010,TEDX.dev2012,TED.tst2010,TED.tst2011,TED.tst2012}.$pair.$tgt.xml
onmt_evsoftmax corpora extract --format tags -o raw/all.{$src,$tgt} \
    --source $archive::train.tags.$pair.$src --target $archive::train.tags.$pair.$tgt
onmt_evsoftmax corpora clean --max-words 175 --max-ratio 1.5 --keep-repeated --exclude text/test.$src \
    -o raw/clean.{$src,$tgt} raw/all.{$src,$tgt}
onmt_evsoftmax corpora split --every 23 -o text raw/clean.{$src,$tgt}

# SentencePiece takes text as it is; for BPE ($words is then tokenised/) punctuation is set apart first.
if [[ $subwords == bpe ]]; then
    onmt_evsoftmax corpora tokenise --lang $src --jobs "$jobs" -o tokenised text/{train,valid,test}.$src
    onmt_evsoftmax corpora tokenise --lang $tgt --jobs "$jobs" -o tokenised text/{train,valid,test}.$tgt
fi
onmt_evsoftmax corpora learn-$subwords --size "$size" --subwords-from "$subwords_from" -o "data/$model" \
    $words/train.{$src,$tgt}
onmt_evsoftmax corpora encode --model "data/$model" --jobs "$jobs" -o data $words/{train,valid,test}.{$src,$tgt}
onmt_evsoftmax corpora vocabulary --subwords-from "$subwords_from" -o data/vocab.shared data/train.{$src,$tgt}
