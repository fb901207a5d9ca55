#!/usr/bin/env bash
ABOUT="Prepare Multi30k EN-DE (29 000 image captions) for training: fetch, extract, subwords, vocabulary."
EXAMPLE="--data-dir ~/corpora/multi30k -o runs/multi30k"
OUTPUT=runs/multi30k
SUBWORDS=sentencepiece
SIZE=4000
. "$(dirname "$0")/../lib.sh"
options "$@"

for pair in train:train valid:val test:test_2016_flickr; do
    name=${pair%%:*} file=${pair##*:}
    text "$name" "$file.en.gz" "$file.de.gz" -- --format plain \
        --source "$ARCHIVES/$file.en.gz" --target "$ARCHIVES/$file.de.gz"
done
encode_text train "valid test"
[[ $DRY_RUN ]] || say "ready: $OUTPUT/data"
