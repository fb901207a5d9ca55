#!/usr/bin/env bash
. "$(dirname "$0")/../lib.sh"
ABOUT="Prepare IWSLT14 EN-DE (TED talks) for training, as in the paper: fetch, extract the tag files and the
XML sets, clean, validate on every 23rd line, test on dev2010, TEDX.dev2012 and tst2010-2012, tokenise,
10 000 joint BPE merges (or SentencePiece), vocabulary. To fine-tune a WMT16 model, give its subwords
with --subwords-from. Takes the archive of either direction: de-en.tgz or en-de.tgz."
EXAMPLE="-o runs/iwslt14 --subwords-from runs/wmt16"
OUTPUT=runs/iwslt14
SIZE=10000
options "$@"

# The archives of both directions have the same talks; the names inside follow the direction.
pair=de-en
[[ -z $DATA_DIR || -e $DATA_DIR/de-en.tgz || ! -e $DATA_DIR/en-de.tgz ]] || pair=en-de
archive=$ARCHIVES/$pair.tgz

members() {  # members LANG: the test sets in that language, in the order of the protocol
    local set
    for set in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
        printf '%s\n' "$archive::IWSLT14.$set.$pair.$1.xml"
    done
}
mapfile -t english < <(members en)
mapfile -t german < <(members de)
text test "$pair.tgz" -- --format segments --source "${english[@]}" --target "${german[@]}"
raw all "$pair.tgz" -- --format tags \
    --source "$archive::train.tags.$pair.en" --target "$archive::train.tags.$pair.de"

raw=$OUTPUT/raw text=$OUTPUT/text
step "clean" "$raw/clean.en" "$raw/clean.de" -- corpora clean "$raw/all.en" "$raw/all.de" \
    -o "$raw/clean.en" "$raw/clean.de" --max-words 175 --max-ratio 1.5 --keep-repeated \
    --exclude "$text/test.en"
step "validate on every 23rd line" "$text/train.en" "$text/train.de" "$text/valid.en" "$text/valid.de" \
    -- corpora split "$raw/clean.en" "$raw/clean.de" --every 23 -o "$text"
encode_text train "valid test"
[[ $DRY_RUN ]] || say "ready: $OUTPUT/data"
