#!/usr/bin/env bash
# The main job on the embedded corpus, from the grammar to the table; made for two cores. See --help.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
exec onmt_evsoftmax corpora run "$here" "$@"
