#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
ABOUT="Prepare Tatoeba EN-DE (170 000 pairs, to pretrain on) and Multi30k (29 000, to fine-tune on):
fetch, extract, split Tatoeba by English sentence, joint subwords of both, vocabulary."
EXAMPLE="--data-dir ~/corpora -o runs/tatoeba-multi30k"
OUTPUT=runs/tatoeba-multi30k
SUBWORDS=sentencepiece
SIZE=4000
options "$@"

captions

# Captions that are tested on must not be pretrained on, however unlikely they are in Tatoeba.
text=$OUTPUT/text raw=$OUTPUT/raw
raw tatoeba deu-eng.zip -- --format columns --source "$ARCHIVES/deu-eng.zip::deu.txt"
step "clean Tatoeba" "$raw/clean.en" "$raw/clean.de" -- corpora clean "$raw/tatoeba.en" "$raw/tatoeba.de" \
    -o "$raw/clean.en" "$raw/clean.de" --max-words 100 --exclude "$text/valid.en" "$text/test.en"
step "split Tatoeba by English sentence" "$raw/split/train.en" "$raw/split/valid.de" -- \
    corpora split "$raw/clean.en" "$raw/clean.de" --by-source 1000 -o "$raw/split"
for set in train valid test; do for lang in en de; do
    step "tatoeba-$set.$lang" "$text/tatoeba-$set.$lang" -- \
        renamed "$text/tatoeba-$set.$lang" cp "$raw/split/$set.$lang" @
done; done

encode_text "tatoeba-train train" "tatoeba-valid tatoeba-test valid test"
[[ $DRY_RUN ]] || say "ready: $OUTPUT/data"
