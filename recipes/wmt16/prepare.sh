#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
ABOUT="Prepare WMT16 EN-DE (4.5 million pairs, 1.7 GB of archives) for training:
fetch, extract Common Crawl, Europarl v7, News Commentary v11 and newstest, clean, tokenise, 32 000
joint BPE merges (or SentencePiece), vocabulary. Validates on newstest2015, tests on newstest2016."
EXAMPLE="-o runs/wmt16 --jobs 16"
OUTPUT=runs/wmt16
SIZE=32000
options "$@"

text=$OUTPUT/text raw=$OUTPUT/raw
sgm() {  # sgm NAME ARCHIVE SET
    text "$1" "$2" -- --format segments --source "$ARCHIVES/$2::$3-ende-src.en.sgm" \
        --target "$ARCHIVES/$2::$3-ende-ref.de.sgm"
}
sgm valid dev.tgz newstest2015
sgm test test.tgz newstest2016

corpus() {  # corpus NAME ARCHIVE STEM
    raw "$1" "$2" -- --format plain --source "$ARCHIVES/$2::$3.de-en.en" --target "$ARCHIVES/$2::$3.de-en.de"
    step "clean $1" "$text/$1.en" "$text/$1.de" -- corpora clean "$raw/$1.en" "$raw/$1.de" \
        -o "$text/$1.en" "$text/$1.de" --max-words 150 --max-ratio 1.5 \
        --exclude "$text/valid.en" "$text/test.en"
}
corpus commoncrawl training-parallel-commoncrawl.tgz commoncrawl
corpus europarl training-parallel-europarl-v7.tgz europarl-v7
corpus newscommentary training-parallel-nc-v11.tgz news-commentary-v11

encode_text "commoncrawl europarl newscommentary" "valid test"
[[ $DRY_RUN ]] || say "ready: $OUTPUT/data"
