# Training to scores, the same for every recipe: sourced by the run.sh of each after lib.sh.
# One normalizer and one seed make one folder, OUTPUT/<normalizer>-seed<seed>/.

wanted() { [[ -z $ONLY || $ONLY == "$1" ]]; }

# prepare: check the programs, then the recipe's prepare.sh with the options of this run.sh.
prepare() {
    local options=(-o "$OUTPUT" --sources "$SOURCES" --subwords "$SUBWORDS" --jobs "$JOBS")
    need onmt_train onmt_translate onmt_average_models onmt_score onmt_trace_attention \
        onmt_count_attended onmt_plot_attention
    version_options
    wanted prepare || return 0
    known_normalizers
    known_settings
    [[ -z $DATA_DIR ]] || options+=(--data-dir "$DATA_DIR")
    if [[ $SUBWORDS_FROM ]]; then options+=(--subwords-from "$SUBWORDS_FROM"); else options+=(--size "$SIZE"); fi
    [[ -z $DRY_RUN ]] || options+=(--dry-run)
    group env PYTHON="$PYTHON" "$HERE/prepare.sh" "${options[@]}"
}

# known_normalizers: a name that is wrong is told now, not after the data are prepared.
known_normalizers() {
    local wrong
    # shellcheck disable=SC2086  # one word for each
    wrong=$("$PYTHON" - $NORMALIZERS <<'PYTHON'
import sys

from onmt_evsoftmax.report.console import unknown_name
from onmt_evsoftmax.normalizers.registry import normalizer_names

known = normalizer_names()
for name in sys.argv[1:]:
    if name not in known:
        print(unknown_name("normalizer", name, known))
        break
PYTHON
    )
    [[ -z $wrong ]] || die "--normalizer: $wrong"
    ! chosen posthoc || chosen softmax || [[ -e $(run_of softmax)/trained ]] ||
        die "--normalizer posthoc makes the softmax model sparse: add --normalizer softmax"
}

# known_settings: the same for the keys of --set, by the parser of onmt_train itself.
known_settings() {
    local wrong
    ((${#CHANGES[@]})) || return 0
    wrong=$("$PYTHON" - "${CHANGES[@]}" <<'PYTHON'
import sys

from onmt.opts import train_opts
from onmt.utils.parse import ArgumentParser

from onmt_evsoftmax.report.console import UserError


class Quiet(ArgumentParser):
    def error(self, message):
        print(message)
        sys.exit()


parser = Quiet()
train_opts(parser)
required = [action.option_strings[0] for action in parser._actions if action.required]
try:
    parser.parse_args([word for option in required for word in (option, "x")] + sys.argv[1:])
except UserError as error:
    print(error)
PYTHON
    ) || die "the options of onmt_train cannot be read; see the message above"
    [[ -z $wrong ]] || die "--set: $wrong"
}

chosen() { [[ " $NORMALIZERS " == *" $1 "* ]]; }

# Training on a CPU frees and takes the same large tensors in every step. By default glibc gives them
# back to the system and gets them again page by page, a tenth of the time; let it keep them.
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-33554432}       # bytes, the most it takes
export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-1073741824}     # bytes

# What only some versions of OpenNMT-py know.
version_options() {
    local version
    version=$("$PYTHON" -c 'from importlib.metadata import version; print(version("OpenNMT-py"))')
    TRANSLATE_OPTIONS=() TRAIN_OPTIONS=()
    # 3.0 adds sinusoids to the embeddings beside relative positions, with which the recipes were
    # measured; 3.5 refuses to have both.
    [[ -z $BOTH_POSITIONS || $version != 3.0.* ]] || TRAIN_OPTIONS=(-position_encoding)
    # From 3.1 on, decoding also stops at 1.25 times the source's length: not the paper's protocol.
    [[ $version == 3.0.* ]] || TRANSLATE_OPTIONS=(-max_length_ratio 0)
}

# train TITLE RUN YAML NORMALIZER OPTION...: the step of training a model.
train() {
    local title=$1 run=$2
    remember "$run/choices" "$4, $(basename "$3")${5:+ ${*:5}}${CHANGES[*]:+ ${CHANGES[*]}}"
    remember_settings "$run/settings.yaml" "$3"
    step "$title" "$run/trained" -- train_model "${@:2}"
}

# train_model RUN YAML NORMALIZER OPTION...: train, or go on from the newest checkpoint.
train_model() {
    local run=$1 yaml=$2 normalizer=$3 newest ranks=() more=()
    shift 3
    if [[ -z $DRY_RUN ]]; then
        mkdir -p "$run"
        alone "$run"
    fi
    newest=$(newest_checkpoints "$run" 1)
    if [[ $newest ]] && (($(step_of "$newest") >= $(steps_wanted "$yaml"))); then
        say "trained to its last step before it was stopped"  # another would be one too many
        [[ $DRY_RUN ]] || : >"$run/trained"
        return 0
    fi
    if [[ $newest ]]; then
        more=(-train_from "$newest" -reset_optim none)
        say "going on from $newest"
    fi
    if ((GPUS)); then
        mapfile -t ranks < <(seq 0 $((GPUS - 1)))
        more+=(-world_size "$GPUS" -gpu_ranks "${ranks[@]}")
    fi
    ((PARALLEL == 1)) ||
        export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((JOBS > PARALLEL ? JOBS / PARALLEL : 1))}
    in_output onmt_train -config "$yaml" -attention_normalizer "$normalizer" -seed "$SEED" \
        -save_model "$run/model" -log_file "$run/train.log" "${TRAIN_OPTIONS[@]}" "$@" \
        "${CHANGES[@]}" "${more[@]}" ||
        die_with $? "$run/trained"
    [[ $DRY_RUN ]] || : >"$run/trained"
}

# alone RUN: hold RUN's lock as long as this shell or a program of its lives, where locks exist.
alone() {
    command -v flock >/dev/null || return 0
    exec {LOCK}>"$1/.lock"
    flock -n "$LOCK" || die "another process trains in $1; wait for it, or end it"
}

step_of() { local name=${1##*_}; echo "${name%.pt}"; }

# steps_wanted YAML: its train_steps, unless --set overrules them.
steps_wanted() {
    local index steps
    steps=$(sed -n 's/^train_steps: *\([0-9]*\).*/\1/p' "$1")
    for ((index = 0; index < ${#CHANGES[@]}; index += 2)); do
        [[ ${CHANGES[index]} != -train_steps ]] || steps=${CHANGES[index + 1]}
    done
    echo "$steps"
}

# newest_checkpoints RUN COUNT: the last checkpoints by step, one a line.
newest_checkpoints() {
    [[ -d $1 ]] || return 0
    find "$1" -maxdepth 1 -name 'model_step_*.pt' | sort -t_ -k"$(steps_field "$1")"n | tail -n "$2"
}

# The step is the last field between underscores, and the path may have some of its own.
steps_field() { local path="$1/model_step_1"; path=${path//[^_]/}; echo $((${#path} + 1)); }

# average RUN COUNT: RUN/average.pt is the mean of the last COUNT checkpoints.
average() {
    local models
    if [[ $DRY_RUN ]]
    then mapfile -t models < <(seq -f "$1/model_step_LAST-%.0f.pt" $(($2 - 1)) -1 0)
    else mapfile -t models < <(newest_checkpoints "$1" "$2")
    fi
    ((${#models[@]})) || die "$1 has no checkpoint; delete $1/trained and run again"
    renamed "$1/average.pt" onmt_average_models -models "${models[@]}" -output @
}

# translate RUN SET: RUN/SET.pieces is what the model writes, RUN/SET.de the text of it.
translate() {
    local run=$1 set=$2 gpu=() sparse=()
    ((GPUS == 0)) || gpu=(-gpu 0)
    ! is_posthoc "$run" || sparse=(-attention_normalizer evsoftmax)
    remember_settings "$run/translate.yaml" "$HERE/translate.yaml"
    step "translate $set" "$run/$set.pieces" -- renamed "$run/$set.pieces" in_output \
        onmt_translate -config "$HERE/translate.yaml" -model "$run/average.pt" \
        -src "data/$set.en" -output @ "${TRANSLATE_OPTIONS[@]}" "${sparse[@]}" "${gpu[@]}"
    step "join the subwords of $set" "$run/$set.de" -- \
        corpora decode $(how_to_decode) "$run/$set.pieces" -o "$run/$set.de"
}

# By the subwords that were prepared: SentencePiece keeps spaces, BPE is of tokenised text.
how_to_decode() {
    local kind=$SUBWORDS
    [[ ! -e $OUTPUT/data/subwords ]] || read -r kind _ <"$OUTPUT/data/subwords"
    case $kind in
        sentencepiece) echo --kind sentencepiece ;;
        *) echo --kind bpe --detokenise de ${TRUECASED:+--truecased} ;;
    esac
}

# Post-hoc evidential: the softmax model, which ev-softmax makes sparse where it is used.
is_posthoc() { [[ $(basename "$1") == posthoc* ]]; }

# attended RUN SET: what the model attends to while the reference is forced, counted over the whole
# set, and as a page and a figure for its first sentences.
attended() {
    local run=$1 set=$2 gold=() gpu=() sparse=()
    ((GPUS == 0)) || gpu=(--gpu 0)
    ! is_posthoc "$run" || sparse=(--attention-normalizer evsoftmax)
    [[ -z $GOLD ]] || gold=(--align "$GOLD" --level word)
    step "count attended tokens" "$run/attended.json" "$run/attended.txt" -- onmt_count_attended \
        --model "$(basename "$run")=$run/average.pt" --src "$OUTPUT/data/$set.en" \
        --tgt "$OUTPUT/data/$set.de" --by kind layer "${gold[@]}" "${gpu[@]}" "${sparse[@]}" \
        -o "$run/attended.txt" -o "$run/attended.json"
    for language in en de; do
        step "first sentences ($language)" "$run/first.$language" -- renamed "$run/first.$language" \
            head_of "$OUTPUT/data/$set.$language" @
    done
    step "trace the attention of the first sentences" "$run/first.trace" -- onmt_trace_attention \
        --model "$run/average.pt" --src "$run/first.en" --tgt "$run/first.de" "${sparse[@]}" \
        -o "$run/first.trace"
}

head_of() {
    if [[ $DRY_RUN ]]; then say "    head -n 20 $1 > $2"; else head -n 20 "$1" >"$2"; fi
}

# run_all SET CHECKPOINTS: for every normalizer train, average CHECKPOINTS, translate SET, count what
# is attended to; then one table of them all. The table and the figures are always made anew: they
# are quick, and belong to the models of this call.
run_all() {
    local checkpoints=$2 normalizer run yaml=$HERE/train.yaml from=() systems=() traces=() runs=()
    SET=$1
    if [[ $PRETRAINED ]]; then
        yaml=$OUTPUT/finetune.yaml
        [[ $DRY_RUN ]] || corpora merge "$HERE/train.yaml" "$HERE/finetune.yaml" -o "$yaml"
        from=(-train_from "$PRETRAINED")
    fi
    ! wanted train || train_all "$yaml" "${from[@]}"
    for normalizer in $(posthoc_last); do
        run=$(run_of "$normalizer")
        if ! wanted average; then :
        elif is_posthoc "$run"; then
            step "softmax, to be made sparse" "$run/average.pt" -- \
                renamed "$run/average.pt" cp "$(run_of softmax)/average.pt" @
        else
            step "average $checkpoints checkpoints" "$run/average.pt" -- average "$run" "$checkpoints"
        fi
        ! wanted translate || translate "$run" "$SET"
        ! wanted attended || attended "$run" "$SET"
        runs+=("$normalizer=$run")
    done
    ! wanted report || report "${runs[@]}"
}

# The chosen normalizers, posthoc behind softmax, whose model it takes.
posthoc_last() {
    local name
    for name in $NORMALIZERS; do [[ $name == posthoc ]] || echo "$name"; done
    ! chosen posthoc || echo posthoc
}

run_of() { printf '%s\n' "$OUTPUT/$1${PRETRAINED:+-finetuned}-seed$SEED"; }

# train_all YAML OPTION...: train every normalizer, PARALLEL of them at a time, sharing the cores. If
# one fails the others still finish.
train_all() {
    local normalizer run yaml=$1 started=()
    shift
    for normalizer in $NORMALIZERS; do
        [[ $normalizer != posthoc ]] || continue  # nothing is trained with it
        run=$(run_of "$normalizer")
        if ((PARALLEL == 1)); then
            train "train $normalizer" "$run" "$yaml" "$normalizer" "$@"
            continue
        fi
        set -m  # a group for each training; see `group`
        (GROUPED=yes; train "train $normalizer" "$run" "$yaml" "$normalizer" "$@") \
            2> >(sed -u "s/^/$normalizer: /" >&2) </dev/null &
        set +m
        started+=($!)
        if ((${#started[@]} == PARALLEL)); then wait_for_all "${started[@]}"; started=(); fi
    done
    wait_for_all "${started[@]}"
}

wait_for_all() {
    local process failed=
    for process; do wait "$process" || failed=yes; done
    [[ -z $failed ]] || exit 2  # the one that failed has said why
}

# report NAME=RUN...: one table and the figures of all models. They are always made anew: they are
# quick, and belong to the models of this call.
report() {
    local named systems=() traces=() counts=() gold=() baseline=()
    for named; do
        systems+=("$named/$SET.de") traces+=("$named/first.trace") counts+=("$named/attended.json")
    done
    if [[ $DRY_RUN ]]; then say "[step] table and figures of: $*"; return; fi
    [[ -z $GOLD ]] || gold=(--align "$GOLD" --level word)
    say "[step] table and figures"
    (($# == 1)) || baseline=(--baseline "${NORMALIZERS%% *}")  # one alone has nothing to differ from
    onmt_score --hyp "${systems[@]}" --ref "$REFERENCE" --lang de "${baseline[@]}" \
        --metrics bleu bleu-tok-lc chrf++ --quiet -o "$OUTPUT/scores.txt" -o "$OUTPUT/scores.json"
    onmt_plot_attention "${traces[@]}" "${gold[@]}" --sentence 1 --quiet -o "$OUTPUT/attention.png"
    onmt_plot_attention "${traces[@]}" "${gold[@]}" --quiet -o "$OUTPUT/attention.html"
    "$PYTHON" -m onmt_evsoftmax.paper.study --scores "$OUTPUT/scores.json" --attended "${counts[@]}" \
        -o "$OUTPUT/table.txt" -o "$OUTPUT/table.md" -o "$OUTPUT/table.tex" -o "$OUTPUT/tradeoff.png"
    cat "$OUTPUT/table.txt"
    printf '%s\n' "table      $OUTPUT/table.txt (.md, .tex)" "scores     $OUTPUT/scores.txt" \
        "attention  $OUTPUT/attention.png" "page       $OUTPUT/attention.html (open it in a browser)" \
        "tradeoff   $OUTPUT/tradeoff.png"
}
