#!/usr/bin/env bash
# The embedded English-German corpus with gold word alignments: 20 000 pairs, 2000 BPE merges. See --help.
# shellcheck disable=SC2154,SC2086  # the variables come from `settings`; language codes are single words
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
settings=$(onmt_evsoftmax corpora options "$here" "$@")
eval "$settings"  # $src $tgt $subwords $size … from recipe.yaml and the options; steps into the output folder

# The corpus is written as tokens, to which its alignments refer; there is nothing left to tokenise.
[[ $subwords == bpe ]] || { echo "error: the alignments refer to tokens: use --subwords bpe" >&2; exit 2; }
python "$here/../../data/make_corpus.py" --seed 1 --if-missing -o tokenised

onmt_evsoftmax corpora learn-bpe --size "$size" --subwords-from "$subwords_from" -o "data/$model" \
    tokenised/train.{$src,$tgt}
onmt_evsoftmax corpora encode --model "data/$model" --jobs "$jobs" -o data \
    tokenised/{train,valid,test,test-hard}.{$src,$tgt}
onmt_evsoftmax corpora vocabulary --subwords-from "$subwords_from" -o data/vocab.shared data/train.{$src,$tgt}
