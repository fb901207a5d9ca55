#!/usr/bin/env bash
# WMT16: Common Crawl, Europarl v7 and News Commentary v11 (4.5 million pairs, 1.7 GB of archives), 32 000 joint
# BPE merges; newstest2015 validates, newstest2016 tests. See --help.
# shellcheck disable=SC2154,SC2086  # the variables come from `settings`; language codes are single words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
settings=$(onmt_evsoftmax corpora options "$here" "$@")
eval "$settings"  # $src $tgt $subwords $size … from recipe.yaml and the options; steps into the output folder

onmt_evsoftmax corpora fetch --sources "$sources" --data-dir "$data_dir" -o downloads
onmt_evsoftmax corpora extract --format segments -o text/valid.{$src,$tgt} \
    --source downloads/dev.tgz::newstest2015-$src$tgt-src.$src.sgm \
    --target downloads/dev.tgz::newstest2015-$src$tgt-ref.$tgt.sgm
onmt_evsoftmax corpora extract --format segments -o text/test.{$src,$tgt} \
    --source downloads/test.tgz::newstest2016-$src$tgt-src.$src.sgm \
    --target downloads/test.tgz::newstest2016-$src$tgt-ref.$tgt.sgm

for corpus in commoncrawl:commoncrawl europarl:europarl-v7 newscommentary:news-commentary-v11; do
    name=${corpus%%:*} file=${corpus##*:}
    onmt_evsoftmax corpora extract -o raw/$name.{$src,$tgt} \
        --source downloads/training-parallel-${file/#news-commentary/nc}.tgz::$file.$pair.$src \
        --target downloads/training-parallel-${file/#news-commentary/nc}.tgz::$file.$pair.$tgt
    onmt_evsoftmax corpora clean --max-words 150 --max-ratio 1.5 --exclude text/{valid,test}.$src \
        -o text/$name.{$src,$tgt} raw/$name.{$src,$tgt}
done

# SentencePiece takes text as it is; for BPE ($words is then tokenised/) punctuation is set apart first.
if [[ $subwords == bpe ]]; then
    onmt_evsoftmax corpora tokenise --lang $src --jobs "$jobs" -o tokenised \
        text/{commoncrawl,europarl,newscommentary,valid,test}.$src
    onmt_evsoftmax corpora tokenise --lang $tgt --jobs "$jobs" -o tokenised \
        text/{commoncrawl,europarl,newscommentary,valid,test}.$tgt
fi
onmt_evsoftmax corpora learn-$subwords --size "$size" --subwords-from "$subwords_from" -o "data/$model" \
    $words/{commoncrawl,europarl,newscommentary}.{$src,$tgt}
onmt_evsoftmax corpora encode --model "data/$model" --jobs "$jobs" -o data \
    $words/{commoncrawl,europarl,newscommentary,valid,test}.{$src,$tgt}
onmt_evsoftmax corpora vocabulary --subwords-from "$subwords_from" -o data/vocab.shared \
    data/{commoncrawl,europarl,newscommentary}.{$src,$tgt}
