# Training to scores, the same for every recipe: sourced by the run.sh of each after lib.sh.
# One normalizer and one seed make one folder, OUTPUT/<normalizer>-seed<seed>/.

# What only some versions of OpenNMT-py know.
version_options() {
    local version
    version=$("$PYTHON" -c 'from importlib.metadata import version; print(version("OpenNMT-py"))')
    TRANSLATE_OPTIONS=()
    # From 3.1 on, decoding also stops at 1.25 times the source's length: not the paper's protocol.
    [[ $version == 3.0.* ]] || TRANSLATE_OPTIONS=(-max_length_ratio 0)
}

# train_model RUN YAML NORMALIZER OPTION...: train, or go on from the newest checkpoint.
train_model() {
    local run=$1 yaml=$2 normalizer=$3 newest ranks=() more=()
    shift 3
    mkdir -p "$run"
    newest=$(newest_checkpoints "$run" 1)
    if [[ $newest ]]; then
        more=(-train_from "$newest" -reset_optim none)
        say "going on from $newest"
    fi
    if ((GPUS)); then
        mapfile -t ranks < <(seq 0 $((GPUS - 1)))
        more+=(-world_size "$GPUS" -gpu_ranks "${ranks[@]}")
    fi
    in_output onmt_train -config "$yaml" -attention_normalizer "$normalizer" -seed "$SEED" \
        -save_model "$run/model" -log_file "$run/train.log" "$@" "${more[@]}"
    : >"$run/trained"
}

# newest_checkpoints RUN COUNT: the last checkpoints by step, one a line.
newest_checkpoints() {
    find "$1" -maxdepth 1 -name 'model_step_*.pt' 2>/dev/null | sort -t_ -k"$(steps_field "$1")"n | tail -n "$2"
}

# The step is the last field between underscores, and the path may have some of its own.
steps_field() { local path="$1/model_step_1"; path=${path//[^_]/}; echo $((${#path} + 1)); }

# average RUN COUNT: RUN/average.pt is the mean of the last COUNT checkpoints.
average() {
    local models
    mapfile -t models < <(newest_checkpoints "$1" "$2")
    ((${#models[@]})) || die "$1 has no checkpoint; delete $1/trained and run again"
    renamed "$1/average.pt" onmt_average_models -models "${models[@]}" -output @
}

# translate RUN SET: RUN/SET.pieces is what the model writes, RUN/SET.de the text of it.
translate() {
    local run=$1 set=$2 gpu=()
    ((GPUS == 0)) || gpu=(-gpu 0)
    step "translate $set" "$run/$set.pieces" -- renamed "$run/$set.pieces" in_output \
        onmt_translate -config "$HERE/translate.yaml" -model "$run/average.pt" \
        -src "data/$set.en" -output @ "${TRANSLATE_OPTIONS[@]}" "${gpu[@]}"
    step "join the subwords of $set" "$run/$set.de" -- \
        corpora decode "${DECODE[@]}" "$run/$set.pieces" -o "$run/$set.de"
}

# run_all SET CHECKPOINTS: for every normalizer train, average, translate, trace and count; then one
# table of them all.
run_all() {
    local set=$1 checkpoints=$2 normalizer run yaml=$HERE/train.yaml more=() systems=() traces=() name
    need onmt_train onmt_translate onmt_average_models onmt_score onmt_trace_attention \
        onmt_count_attended onmt_plot_attention
    version_options
    if [[ $PRETRAINED ]]; then
        yaml=$OUTPUT/finetune.yaml
        step "settings: train.yaml and finetune.yaml" "$yaml" -- \
            corpora merge "$HERE/train.yaml" "$HERE/finetune.yaml" -o "$yaml"
        more=(-train_from "$PRETRAINED")
    fi
    for normalizer in $NORMALIZERS; do
        name=$normalizer-seed$SEED
        [[ -z $PRETRAINED ]] || name=$normalizer-finetuned-seed$SEED
        run=$OUTPUT/$name
        step "train $name" "$run/trained" -- train_model "$run" "$yaml" "$normalizer" "${more[@]}"
        step "average $checkpoints checkpoints" "$run/average.pt" -- average "$run" "$checkpoints"
        translate "$run" "$set"
        step "trace the attention" "$run/$set.trace" -- trace_attention "$run" "$set"
        step "count attended tokens" "$run/attended.json" -- count_attended "$run" "$set"
        step "draw the attention" "$run/attention.svg" -- draw_attention "$run" "$set"
        systems+=("$normalizer=$run/$set.de")
        traces+=("$run/$set.trace")
    done
    report "$set" "${systems[@]}"
}
