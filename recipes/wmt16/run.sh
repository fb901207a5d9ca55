#!/usr/bin/env bash
# WMT16 from archives to the table: the model that iwslt14 fine-tunes; needs GPUs. See --help.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
exec onmt_evsoftmax corpora run "$here" "$@"
