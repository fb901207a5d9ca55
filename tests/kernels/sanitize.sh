#!/usr/bin/env bash
# Compiles the kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs their tests.
#
#   tests/kernels/sanitize.sh VENV [pytest arguments]
#
# With WIDE_WITHOUT_AVX512 the code of sixteen lanes runs on any processor, as plain instructions.
# Left out are tests that start processes of their own, and those that measure memory, which the
# sanitizer holds back on purpose.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(realpath -s "$1")
shift
CC=${CC:-gcc}
copy=$PWD/build/sanitize

rm -rf "$copy"
mkdir -p "$copy"
cp -r onmt_evsoftmax "$copy"
rm -f "$copy"/onmt_evsoftmax/kernels/_native*
objects=()
for source in onmt_evsoftmax/kernels/c/*.c; do
  object=$copy/$(basename "$source" .c).o
  "$CC" -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
    -DWIDE_WITHOUT_AVX512 -fopenmp -fPIC -fvisibility=hidden -fno-math-errno \
    -Wall -Wextra -Werror -Wno-psabi -c "$source" -o "$object" &
  objects+=("$object")
done
for job in $(jobs -p); do wait "$job"; done
"$CC" -shared -fsanitize=address,undefined -fopenmp "${objects[@]}" -lm \
  -o "$copy/onmt_evsoftmax/kernels/_native.abi3.so"

export LD_PRELOAD="$("$CC" -print-file-name=libasan.so) $("$CC" -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0  # Python's own; ours are tested by memory use
export PYTHONPATH=$copy
cd tests
"$venv/bin/python" -c "
from onmt_evsoftmax import kernels
assert kernels.__file__.startswith('$copy/'), kernels.__file__
assert kernels.backend() == 'avx512', kernels.backend()"
files=(kernels/test_row_values.py kernels/test_row_specials.py kernels/test_row_layouts.py kernels/test_row_alpha.py
  kernels/test_leaks_and_threads.py attention/test_attention_values.py attention/test_attention_specials.py
  attention/test_attention_dropout.py attention/test_attention_lists.py attention/test_attention_terms.py
  attention/test_attention_single.py)
chosen=(-k 'not do_not_leak' "${files[@]}")  # the names of the tests, not of their file
collected=$("$venv/bin/python" -m pytest --collect-only -qq "${chosen[@]}")
for file in "${files[@]}"; do
  grep -q "$file" <<<"$collected" || { echo "no test of $file is left to run" >&2; exit 1; }
done
"$venv/bin/python" -m pytest "$@" "${chosen[@]}"
