# What the recipes' prepare.sh and run.sh share. A script sources this file, sets ABOUT (for --help),
# OUTPUT and other defaults of its own, and calls `options "$@"`.
#
# A step is skipped when its outputs exist. Outputs appear under their names only when complete:
# `python -m onmt_evsoftmax.corpora` does that itself, `renamed` does it for other programs. So an
# interrupted script is started again with the same command.

set -euo pipefail
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || {
    echo "error: bash $BASH_VERSION is too old for the recipes; install 4.4 or newer" >&2
    exit 2
}

RECIPES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
HERE=$(cd "$(dirname "$0")" && pwd)     # the folder of the recipe that is running
PROGRAM="$(basename "$HERE")/$(basename "$0")"

# Options and their defaults; a script may set its own before it calls `options`.
DATA_DIR=                               # archives that are here already
SOURCES=$HERE/sources.tsv               # addresses and checksums
SUBWORDS=bpe                            # bpe or sentencepiece
SIZE=                                   # of the subwords; each recipe has its own
SUBWORDS_FROM=                          # output folder of another recipe whose subwords to use
JOBS=$(nproc 2>/dev/null || echo 1)
DRY_RUN=
NORMALIZERS=evsoftmax                   # one training run for each
SEED=1
GPUS=0
PARALLEL=1                              # models that train at the same time
PRETRAINED=                             # checkpoint that finetune.yaml starts from
ONLY=                                   # one stage of run.sh, for workflow engines; all if empty
GOLD=                                   # gold alignments of the test set, where there are any
TRUECASED=                              # yes: translations get their first capital again
BOTH_POSITIONS=                         # yes: see version_options in train.sh
CHANGES=()                              # settings of the YAML to overrule
STAGES="prepare pretrain train average translate attended report"

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

usage() {
    cat <<TEXT
usage: recipes/$PROGRAM [options]

$ABOUT

  -o, --output DIR       where everything goes (default: $OUTPUT)
  --data-dir DIR         use the archives in this folder instead of downloading them
  --sources FILE         other addresses and checksums, for a mirror (default: sources.tsv)
  --subwords KIND        bpe, or sentencepiece (default: $SUBWORDS)
  --size N               merges (bpe) or pieces (sentencepiece)${SIZE:+ (default: $SIZE)}
  --subwords-from DIR    subwords and vocabulary of another recipe's output, for fine-tuning its model
  --jobs N               processes that prepare text, and cores that the trainings of --parallel
                         share (default: $JOBS)
  --dry-run              say what would be done, and do nothing
TEXT
    [[ $0 != *run.sh ]] || cat <<TEXT
  --normalizer NAME      what turns attention scores into probabilities; repeat it to compare
                         several (default: $NORMALIZERS); posthoc is the softmax model made
                         sparse at test time only
  --seed N               of initialisation, order and dropout (default: $SEED)
  --pretrained FILE.pt   start from this checkpoint, with what finetune.yaml changes
  --set KEY=VALUE        overrule a setting of the training YAML; repeat it for several
  --only STAGE           do one stage of: $STAGES
  --parallel N           train so many models at the same time (default: $PARALLEL)
  --gpus N               train on so many GPUs of this machine (default: $GPUS, the CPU)
TEXT
    cat <<TEXT

Interrupt it at any time; the same command goes on where it stopped.

example:
  \$ recipes/$PROGRAM $EXAMPLE
TEXT
}

options() {
    local chosen=() size= parallel=
    while (($#)); do
        case $1 in
            --help | -h) usage; exit 0 ;;
            --dry-run) DRY_RUN=yes; shift; continue ;;
            --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
        esac
        (($# > 1)) || die "the option $1 is unknown or needs a value; see --help"
        case $1 in
            --normalizer | --seed | --gpus | --parallel | --only | --set | --pretrained)
                [[ $0 == *run.sh ]] || die "the option $1 is one of run.sh; $0 only prepares the data"
                ;;
        esac
        case $1 in
            --data-dir) DATA_DIR=$2 ;;
            --output | -o) OUTPUT=$2 ;;
            --sources) SOURCES=$2 ;;
            --subwords) SUBWORDS=$2 ;;
            --size) SIZE=$2 size=$2 ;;
            --subwords-from) SUBWORDS_FROM=$2 ;;
            --jobs) JOBS=$2 ;;
            --normalizer) chosen+=("$2") ;;
            --seed) SEED=$2 ;;
            --gpus) GPUS=$2 ;;
            --parallel) PARALLEL=$2 parallel=$2 ;;
            --only) ONLY=$2 ;;
            --set)
                [[ $2 == ?*=* ]] || die "--set takes KEY=VALUE, not $2"
                CHANGES+=("-${2%%=*}" "${2#*=}")
                ;;
            --pretrained) PRETRAINED=$2 ;;
            *) die "the option $1 is unknown; see --help" ;;
        esac
        shift 2
    done
    if ((${#chosen[@]})); then NORMALIZERS=${chosen[*]}; fi
    [[ -z $(printf '%s\n' "${chosen[@]}" | sort | uniq -d) ]] ||
        die "--normalizer: $(printf '%s\n' "${chosen[@]}" | sort | uniq -d | head -n 1) is given twice"
    [[ -z $size || -z $SUBWORDS_FROM ]] ||
        die "--size is that of the subwords in --subwords-from $SUBWORDS_FROM: leave it out"
    [[ $SUBWORDS == bpe || $SUBWORDS == sentencepiece ]] ||
        die "--subwords is bpe or sentencepiece, not $SUBWORDS"
    [[ -z $ONLY || " $STAGES " == *" $ONLY "* ]] || die "--only is one of $STAGES, not $ONLY"
    [[ -z $DATA_DIR || -d $DATA_DIR ]] || die "--data-dir $DATA_DIR is not a folder"
    [[ -z $SUBWORDS_FROM || -d $SUBWORDS_FROM ]] || die "--subwords-from $SUBWORDS_FROM is not a folder"
    [[ -z $PRETRAINED || -f $PRETRAINED ]] || die "--pretrained $PRETRAINED does not exist"
    number --jobs "$JOBS" 1
    number --parallel "$PARALLEL" 1
    number --gpus "$GPUS" 0
    number --seed "$SEED" 0
    if ((GPUS)); then
        ((${parallel:-1} == 1)) ||
            die "--parallel $PARALLEL would put all trainings on the same GPUs: with --gpus leave it out"
        PARALLEL=1
    fi
    [[ -z $SIZE ]] || number --size "$SIZE" 1
    need "$PYTHON"
    "$PYTHON" -c 'import onmt_evsoftmax' 2>/dev/null ||
        die "$PYTHON has no package onmt_evsoftmax; run 'make install' and put .venv/bin on the PATH"
    if [[ -z $DRY_RUN ]]; then
        mkdir -p "$OUTPUT" 2>/dev/null || die "cannot make the folder $OUTPUT; choose another -o"
    fi
    if [[ -d $OUTPUT ]]; then OUTPUT=$(cd "$OUTPUT" && pwd)
    elif [[ $OUTPUT != /* ]]; then OUTPUT=$PWD/$OUTPUT
    fi
    [[ -z $DATA_DIR ]] || DATA_DIR=$(cd "$DATA_DIR" && pwd)
    [[ -z $PRETRAINED ]] || PRETRAINED=$(cd "$(dirname "$PRETRAINED")" && pwd)/$(basename "$PRETRAINED")
    [[ -z $SUBWORDS_FROM ]] || SUBWORDS_FROM=$(cd "$SUBWORDS_FROM" && pwd)
    ARCHIVES=${DATA_DIR:-$OUTPUT/downloads}
}

# number OPTION VALUE LEAST: refuse what is not a whole number, or less than LEAST.
number() {
    [[ $2 =~ ^[0-9]{1,9}$ ]] && ((10#$2 >= $3)) || die "$1 is a whole number from $3 on, not $2"
}

# remember FILE CHOICES: what the files beside FILE are made with; other choices than last time are
# refused, since steps that are done would silently keep the old ones.
remember() {
    local before now=${2//"$OUTPUT/"/}  # so that the output can be moved
    if [[ -e $1 ]]; then
        before=$(<"$1")
        [[ $before == "$now" ]] ||
            die "$(dirname "$1") was made with '$before', not with '$now'; choose another -o, or delete it"
    elif [[ -z $DRY_RUN ]]; then
        renamed "$1" written "$now" @
    fi
}

# remember_settings FILE YAML: the same for a YAML, whose settings are kept in FILE.
remember_settings() {
    local now change
    [[ -e $2 ]] || return 0  # in a dry run it is still to be made
    now=$(sed -e 's/[[:space:]]*#.*//' -e '/^[[:space:]]*$/d' "$2")
    if [[ -e $1 ]]; then
        change=$({ diff "$1" - <<<"$now" || true; } | grep -m 1 '^[<>]') || return 0
        die "$(basename "$2") has changed since $(dirname "$1") was made (${change#* }); choose another -o, or delete it"
    elif [[ -z $DRY_RUN ]]; then
        renamed "$1" written "$now" @
    fi
}
written() { printf '%s\n' "$1" >"$2"; }

# step TITLE OUTPUT... -- COMMAND...: run COMMAND unless every OUTPUT exists.
step() {
    local title=$1 outputs=() output complete=yes
    shift
    while [[ $1 != -- ]]; do outputs+=("$1"); shift; done
    shift
    for output in "${outputs[@]}"; do [[ -e $output || ${PLANNED[$output]:-} ]] || complete=; done
    if [[ $complete ]]; then say "[done] $title"; return; fi
    say "[step] $title"
    execute "$@"
    for output in "${outputs[@]}"; do
        if [[ $DRY_RUN ]]; then PLANNED[$output]=yes; continue; fi
        [[ -e $output ]] || die "'$title' did not write $output; see its messages above"
    done
}

declare -A PLANNED=()                   # what the steps of a dry run would have written

# execute COMMAND...: run it, or with --dry-run only say it; a function of ours is entered either way,
# and executes the programs that it stands for.
execute() {
    if declare -F "$1" >/dev/null; then "$@"
    elif [[ $DRY_RUN ]]; then show "$@"
    else group "$@"
    fi
}

# group COMMAND...: run it as a process group of its own, which `stop` can end with all it has started.
# (Left alone, bash ends at once when it is told to and leaves its programs running.)
group() {
    if [[ $GROUPED ]]; then ("$@"); return; fi
    set -m
    "$@" </dev/null &
    set +m
    wait $!
}
GROUPED=                                # yes: this shell is in such a group already

stop() {
    local job
    trap '' INT TERM HUP
    for job in $(jobs -p); do kill -TERM -- "-$job" 2>/dev/null || true; done
    wait
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 129' HUP

show() { say "   $(printf ' %q' "$@")"; }

# renamed FILE COMMAND... @ ...: let COMMAND write to a temporary name where it says @, then rename.
renamed() {
    local file=$1 temporary argument command=()
    temporary=$(dirname "$1")/.tmp.$$.$(basename "$1")  # keeps the ending: programs go by it
    [[ -z $DRY_RUN ]] || temporary=$file
    shift
    for argument; do command+=("${argument/#@/"$temporary"}"); done
    if [[ $DRY_RUN ]]; then execute "${command[@]}"; return; fi
    mkdir -p "$(dirname "$file")"
    UNFINISHED=$temporary
    execute "${command[@]}" || { local code=$?; rm -f "$temporary"; die_with "$code" "$file"; }
    mv "$temporary" "$file"
    UNFINISHED=
}
UNFINISHED=
trap '[[ -z $UNFINISHED ]] || rm -f "$UNFINISHED"' EXIT

die_with() {
    ((${1} == 2)) && exit 2  # it has said its sentence
    die "the command for $2 failed with exit code $1; see its messages above"
}

corpora() { execute "$PYTHON" -m onmt_evsoftmax.corpora "$@"; }

# fetch NAME...: download these files of sources.tsv, or find them in --data-dir; check them.
fetch() {
    local local_copy=()
    [[ -z $DATA_DIR ]] || local_copy=(--data-dir "$DATA_DIR")
    corpora fetch --sources "$SOURCES" -o "$OUTPUT/downloads" "${local_copy[@]}" "$@"
}

# text NAME ARCHIVE... -- EXTRACTION...: text/NAME.{en,de} out of archives that are fetched first.
text() { extracted "$OUTPUT/text" "$@"; }
# raw NAME ...: the same into raw/, for text that is still to be cleaned or split.
raw() { extracted "$OUTPUT/raw" "$@"; }

# captions: text/{train,valid,test} of Multi30k, test being that of 2016.
captions() {
    local pair name file
    for pair in train:train valid:val test:test_2016_flickr; do
        name=${pair%%:*} file=${pair##*:}
        text "$name" "$file.en.gz" "$file.de.gz" -- --format plain \
            --source "$ARCHIVES/$file.en.gz" --target "$ARCHIVES/$file.de.gz"
    done
}

extracted() {
    local folder=$1 name=$2 archives=()
    shift 2
    while [[ $1 != -- ]]; do archives+=("$1"); shift; done
    shift
    step "extract $name from ${archives[*]}" "$folder/$name.en" "$folder/$name.de" -- \
        fetch_and_extract "${archives[@]}" -- -o "$folder/$name.en" "$folder/$name.de" "$@"
}

fetch_and_extract() {
    local archives=()
    while [[ $1 != -- ]]; do archives+=("$1"); shift; done
    shift
    fetch "${archives[@]}"
    corpora extract "$@"
}

# encode_text TRAIN_SETS HELD_OUT_SETS: text/NAME.{en,de} → data/NAME.{en,de} in subwords that
# are learnt on the training sets only, and data/vocab.shared.
encode_text() {
    local train=$1 sets="$1 $2" data=$OUTPUT/data text=$OUTPUT/text model=spm.model lang file
    local from to
    remember "$data/subwords" "$SUBWORDS ${SUBWORDS_FROM:-$SIZE}"
    if [[ $SUBWORDS == bpe ]]; then
        model=bpe.codes text=$OUTPUT/tokenised
        for lang in en de; do
            mapfile -t from < <(files "$OUTPUT/text" "$sets" $lang)
            mapfile -t to < <(files "$text" "$sets" $lang)
            step "tokenise ($lang)" "${to[@]}" -- \
                corpora tokenise --lang $lang --jobs "$JOBS" -o "$text" "${from[@]}"
        done
    fi
    if [[ $SUBWORDS_FROM ]]; then
        for file in "$model" vocab.shared; do
            [[ -f $SUBWORDS_FROM/data/$file ]] ||
                die "$SUBWORDS_FROM has no data/$file; prepare that recipe first, with the same --subwords"
            step "$file of $SUBWORDS_FROM" "$data/$file" -- \
                renamed "$data/$file" cp "$SUBWORDS_FROM/data/$file" @
        done
    fi
    mapfile -t from < <(files "$text" "$train" en de)
    step "learn $SIZE joint subwords ($SUBWORDS) on $train" "$data/$model" -- \
        corpora learn --kind "$SUBWORDS" --size "$SIZE" -o "$data/$model" "${from[@]}"
    mapfile -t from < <(files "$text" "$sets" en de)
    mapfile -t to < <(files "$data" "$sets" en de)
    step "encode" "${to[@]}" -- \
        corpora encode --jobs "$JOBS" --model "$data/$model" -o "$data" "${from[@]}"
    mapfile -t from < <(files "$data" "$train" en de)
    step "vocabulary" "$data/vocab.shared" -- \
        corpora vocabulary "${from[@]}" -o "$data/vocab.shared"
}

# files FOLDER NAMES LANGUAGE...: FOLDER/NAME.LANGUAGE of each, one a line.
files() {
    local folder=$1 name language
    for name in $2; do for language in "${@:3}"; do printf '%s\n' "$folder/$name.$language"; done; done
}

# in_output COMMAND...: run it there, since the paths in the YAMLs are relative to the output.
in_output() {
    if [[ $DRY_RUN ]]; then show cd "$OUTPUT"; show "$@"; else group from_output "$@"; fi
}
from_output() { cd "$OUTPUT" && exec "$@"; }
