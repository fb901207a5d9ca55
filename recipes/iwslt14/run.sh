#!/usr/bin/env bash
# IWSLT14 from archives to the table, from scratch or (--pretrained) fine-tuned; needs a GPU. See --help.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
exec onmt_evsoftmax corpora run "$here" "$@"
