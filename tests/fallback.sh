#!/usr/bin/env bash
# Installs the package as on a machine without a compiler and runs what depends on the backend.
#
#   tests/fallback.sh VENV [pytest arguments]
#
# VENV is an environment with the package's dependencies. They are borrowed from there; the package
# itself is installed from a fresh copy of the sources, which has no kernels that could be found.
set -euo pipefail
cd "$(dirname "$0")/.."
lender=$(realpath -s "$1")
shift
copy=$PWD/build/fallback/source
venv=$PWD/build/fallback/venv

rm -rf build/fallback
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy"

"$lender/bin/python" -m venv --without-pip "$venv"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# As a line of a .pth file: so the lender's own .pth files, that of our package among them, are not read.
"$lender/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/lent.pth"
for script in "$lender"/bin/*; do
  if head -c 200 "$script" | grep -q "^#!$lender/bin/python"; then
    sed "1s|$lender/bin|$venv/bin|" "$script" > "$venv/bin/$(basename "$script")"
    chmod +x "$venv/bin/$(basename "$script")"
  fi
done

cd "$copy"
CC=no-compiler-here "$venv/bin/python" -m pip install --quiet --no-index --no-deps \
  --no-build-isolation --disable-pip-version-check --ignore-installed .
cd /
"$venv/bin/python" - <<PYTHON
import onmt_evsoftmax
from onmt_evsoftmax import kernels
assert onmt_evsoftmax.__file__.startswith("$venv/"), onmt_evsoftmax.__file__
assert kernels.backend() == "torch", kernels.backend()
print("installed without a compiler:", onmt_evsoftmax.__file__)
PYTHON

cd "$copy"
rm -rf build  # what pip left; the tests see the sources of a fresh clone
# Whatever computes with normalizers or asks which kernels there are; the rest does not change.
"$venv/bin/python" -m pytest "$@" tests/normalizers tests/attention tests/kernels tests/bench \
  tests/paper/test_properties.py tests/vae/test_vae_losses.py tests/vae/test_vae_estimators.py \
  tests/opennmt/test_attention_in_models.py tests/opennmt/test_modules.py tests/opennmt/test_fused.py \
  tests/opennmt/test_generator.py tests/opennmt/test_hook.py tests/opennmt/test_legacy.py
