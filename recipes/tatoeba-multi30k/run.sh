#!/usr/bin/env bash
# Pretrained on Tatoeba with softmax, fine-tuned on Multi30k with each normalizer; made for two cores. See --help.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
exec onmt_evsoftmax corpora run "$here" "$@"
