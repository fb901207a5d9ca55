# What the recipes' prepare.sh and run.sh share. A script sets USAGE, OUTPUT (its default) and what
# else it needs, then sources this file and calls `options "$@"`.
#
# A step is skipped when its outputs exist. Outputs appear under their names only when complete:
# `python -m onmt_evsoftmax.corpora` does that itself, `renamed` does it for other programs. So an
# interrupted script is started again with the same command.

set -euo pipefail

RECIPES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
HERE=$(cd "$(dirname "$0")" && pwd)     # the folder of the recipe that is running
PROGRAM="$(basename "$HERE")/$(basename "$0")"

# Options and their defaults; a script may set its own before it calls `options`.
DATA_DIR=${DATA_DIR:-}                  # archives that are here already
SOURCES=${SOURCES:-$HERE/sources.tsv}   # addresses and checksums
SUBWORDS=${SUBWORDS:-bpe}               # bpe or sentencepiece
SUBWORDS_FROM=${SUBWORDS_FROM:-}        # output folder of another recipe whose subwords to use
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 1)}
DRY_RUN=${DRY_RUN:-}
NORMALIZERS=${NORMALIZERS:-evsoftmax}   # one training run for each
SEED=${SEED:-1}
GPUS=${GPUS:-0}
PRETRAINED=${PRETRAINED:-}              # checkpoint that finetune.yaml starts from

# The programs of `make install`, when no environment is active.
if [[ -z ${VIRTUAL_ENV:-} && -x $RECIPES/../.venv/bin/onmt_train ]] && ! command -v onmt_train >/dev/null
then PATH=$(cd "$RECIPES/../.venv/bin" && pwd):$PATH
fi
PYTHON=${PYTHON:-$(command -v python || command -v python3 || echo python)}
export PYTHONWARNINGS=${PYTHONWARNINGS:-ignore::FutureWarning}  # OpenNMT-py's imports are loud

say() { printf '%s\n' "$*" >&2; }

# die SENTENCE: what is wrong, where, and what to do.
die() { say "$PROGRAM: error: $*"; exit 2; }

need() {
    local program
    for program; do
        command -v "$program" >/dev/null ||
            die "the program $program is missing; run 'make install' and put .venv/bin on the PATH"
    done
}

options() {
    local chosen=()
    while (($#)); do
        case $1 in
            --help | -h) printf '%s\n' "$USAGE"; exit 0 ;;
            --dry-run) DRY_RUN=yes; shift; continue ;;
            --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
        esac
        (($# > 1)) || die "the option $1 is unknown or needs a value; see --help"
        case $1 in
            --data-dir) DATA_DIR=$2 ;;
            --output | -o) OUTPUT=$2 ;;
            --sources) SOURCES=$2 ;;
            --subwords) SUBWORDS=$2 ;;
            --subwords-from) SUBWORDS_FROM=$2 ;;
            --jobs) JOBS=$2 ;;
            --normalizer) chosen+=("$2") ;;
            --seed) SEED=$2 ;;
            --gpus) GPUS=$2 ;;
            --pretrained) PRETRAINED=$2 ;;
            *) die "the option $1 is unknown; see --help" ;;
        esac
        shift 2
    done
    if ((${#chosen[@]})); then NORMALIZERS=${chosen[*]}; fi
    [[ $SUBWORDS == bpe || $SUBWORDS == sentencepiece ]] ||
        die "--subwords is bpe or sentencepiece, not $SUBWORDS"
    [[ -z $DATA_DIR || -d $DATA_DIR ]] || die "--data-dir $DATA_DIR is not a folder"
    [[ -z $PRETRAINED || -f $PRETRAINED ]] || die "--pretrained $PRETRAINED does not exist"
    need "$PYTHON"
    if [[ -z $DRY_RUN ]]; then
        mkdir -p "$OUTPUT" 2>/dev/null || die "cannot make the folder $OUTPUT; choose another -o"
        OUTPUT=$(cd "$OUTPUT" && pwd)
    fi
    [[ -z $DATA_DIR ]] || DATA_DIR=$(cd "$DATA_DIR" && pwd)
    [[ -z $PRETRAINED ]] || PRETRAINED=$(cd "$(dirname "$PRETRAINED")" && pwd)/$(basename "$PRETRAINED")
    [[ -z $SUBWORDS_FROM ]] || SUBWORDS_FROM=$(cd "$SUBWORDS_FROM" && pwd)
    ARCHIVES=${DATA_DIR:-$OUTPUT/downloads}
}

# step TITLE OUTPUT... -- COMMAND...: run COMMAND unless every OUTPUT exists.
step() {
    local title=$1 outputs=() output complete=yes
    shift
    while [[ $1 != -- ]]; do outputs+=("$1"); shift; done
    shift
    for output in "${outputs[@]}"; do [[ -e $output ]] || complete=; done
    if [[ $complete ]]; then say "[done] $title"; return; fi
    say "[step] $title"
    if [[ $DRY_RUN ]]; then say "    $*"; return; fi
    "$@"
    for output in "${outputs[@]}"; do
        [[ -e $output ]] || die "'$title' did not write $output; see its messages above"
    done
}

# renamed FILE COMMAND... @ ...: let COMMAND write to a temporary name where it says @, then rename.
renamed() {
    local file=$1 temporary argument command=()
    temporary=$(dirname "$1")/.tmp.$$.$(basename "$1")  # keeps the ending: programs go by it
    shift
    for argument; do command+=("${argument/#@/$temporary}"); done
    mkdir -p "$(dirname "$file")"
    UNFINISHED=$temporary
    "${command[@]}" || { local code=$?; rm -f "$temporary"; die_with "$code" "$file"; }
    mv "$temporary" "$file"
    UNFINISHED=
}
UNFINISHED=
trap '[[ -z $UNFINISHED ]] || rm -f "$UNFINISHED"' EXIT

die_with() {
    ((${1} == 2)) && exit 2  # it has said its sentence
    die "the command for $2 failed with exit code $1; see its messages above"
}

corpora() { "$PYTHON" -m onmt_evsoftmax.corpora "$@"; }

# fetch_then OUTPUT... -- NAME...: check (or download) the archives unless the text made from them
# exists already.
fetch() {
    local local_copy=()
    [[ -z $DATA_DIR ]] || local_copy=(--data-dir "$DATA_DIR")
    corpora fetch --sources "$SOURCES" -o "$OUTPUT/downloads" "${local_copy[@]}" "$@"
}

# encode_text SIZE TRAIN_SETS HELD_OUT_SETS: text/NAME.{en,de} → data/NAME.{en,de} in subwords that
# are learnt on the training sets only, and data/vocab.shared.
encode_text() {
    local size=$1 train=$2 sets="$2 $3" text=$OUTPUT/text data=$OUTPUT/data name lang learn_on=()
    local model=bpe.codes
    [[ $SUBWORDS == bpe ]] || model=spm.model
    if [[ $SUBWORDS == bpe ]]; then
        text=$OUTPUT/tokenised
        for name in $sets; do for lang in en de; do
            step "tokenise $name.$lang" "$text/$name.$lang" -- corpora tokenise --lang $lang \
                --jobs "$JOBS" "$OUTPUT/text/$name.$lang" -o "$text/$name.$lang"
        done; done
    fi
    for name in $train; do learn_on+=("$text/$name.en" "$text/$name.de"); done
    if [[ $SUBWORDS_FROM ]]; then
        [[ -f $SUBWORDS_FROM/data/$model && -f $SUBWORDS_FROM/data/vocab.shared ]] ||
            die "$SUBWORDS_FROM has no data/$model and data/vocab.shared; prepare that recipe first"
        step "subwords of $SUBWORDS_FROM" "$data/$model" -- \
            renamed "$data/$model" cp "$SUBWORDS_FROM/data/$model" @
        step "vocabulary of $SUBWORDS_FROM" "$data/vocab.shared" -- \
            renamed "$data/vocab.shared" cp "$SUBWORDS_FROM/data/vocab.shared" @
    fi
    step "learn $size joint subwords ($SUBWORDS) on: $train" "$data/$model" -- corpora learn \
        --kind "$SUBWORDS" --size "$size" -o "$data/$model" "${learn_on[@]}"
    for name in $sets; do for lang in en de; do
        step "encode $name.$lang" "$data/$name.$lang" -- corpora encode --jobs "$JOBS" \
            --model "$data/$model" "$text/$name.$lang" -o "$data/$name.$lang"
    done; done
    vocabulary
}

# vocabulary: data/vocab.shared of the training text that train.yaml names.
vocabulary() {
    step "vocabulary" "$OUTPUT/data/vocab.shared" -- \
        renamed "$OUTPUT/data/vocab.shared" in_output onmt_build_vocab -config "$HERE/train.yaml" \
        -n_sample -1 -num_threads 1 -src_vocab @ -save_data "$OUTPUT/data/vocab"
}

in_output() { (cd "$OUTPUT" && "$@"); }
