#!/usr/bin/env bash
# Multi30k from archives to the table; made for two cores. See --help.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
command -v onmt_evsoftmax >/dev/null || PATH=$here/../../.venv/bin:$PATH
exec onmt_evsoftmax corpora run "$here" "$@"
