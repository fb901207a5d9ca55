#!/usr/bin/env bash
# `make release`: build the source distribution and a wheel for every Python 3, check both, and try the wheel in
# an environment that has nothing but torch. Uploads nothing; says at the end what there is to upload.
#
#   tools/release.sh TOOLS [FOLDER]    TOOLS: an environment with build, twine and auditwheel; FOLDER: dist
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(cd "$1" && pwd)/bin
dist=${2:-dist}
work=build/release
version=$("$tools/python" -c 'import re; print(re.search(r"__version__ = \"(.+)\"", open("onmt_evsoftmax/__init__.py").read())[1])')

say() { printf '\n== %s\n' "$*"; }
fail() { echo "error: $*" >&2; exit 1; }

say "version $version, the same everywhere"
grep -q "^## $version" CHANGELOG.md || fail "CHANGELOG.md has no section $version"
grep -q "^version: $version\$" CITATION.cff || fail "CITATION.cff has another version"
grep -q "version = {$version}" README.md || fail "README.md cites another version"

say "build"
rm -rf "$dist" "$work"
mkdir -p "$work"
"$tools/python" -m build --no-isolation -o "$work/built" . > "$work/build.log" 2>&1 ||
  { tail -n 40 "$work/build.log" >&2; fail "the build failed"; }

say "auditwheel: which systems the kernels run on"
raw=$(echo "$work"/built/*.whl)
"$tools/auditwheel" show "$raw"
# OpenMP's runtime is torch's own: a second one, packed into the wheel, would have its own threads.
PATH="$tools:$PATH" "$tools/auditwheel" repair --exclude libgomp.so.1 -w "$dist" "$raw"
cp "$work"/built/*.tar.gz "$dist"
wheel=$(echo "$dist"/*.whl)

say "twine"
"$tools/python" -m twine check --strict "$dist"/*

say "contents"
"$tools/python" - "$wheel" "$dist"/*.tar.gz <<'PYTHON'
import sys, tarfile, zipfile
from pathlib import Path

wheel, sdist = map(Path, sys.argv[1:])
tags = wheel.stem.split("-")[2:]
assert tags[:2] == ["py3", "none"] and "linux" in tags[2], f"tied to {tags}"
names = zipfile.ZipFile(wheel).namelist()
for needed in (
    "onmt_evsoftmax.pth",
    "onmt_evsoftmax_hook.py",
    "onmt_evsoftmax/py.typed",
    "onmt_evsoftmax/kernels/_native.abi3.so",
    "onmt_evsoftmax/plot/page/page.css",
):
    assert needed in names, f"the wheel lacks {needed}"
top = {name.split("/")[0] for name in names}
allowed = ("onmt_evsoftmax", "onmt_evsoftmax.pth", "onmt_evsoftmax_hook.py")
strangers = [name for name in top if name not in allowed and not name.endswith(".dist-info")]
assert not strangers, f"the wheel also has {strangers}"
inside = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
for needed in ("Makefile", "docs/index.md", "recipes/demo/run.sh", "SECURITY.md", "constraints.txt"):
    assert needed in inside, f"the source distribution lacks {needed}"
built = [name for name in inside if name.endswith((".so", ".pyc")) or name.startswith("docs/generated")]
assert not built, f"the source distribution has {built[:3]}"
for path in (wheel, sdist):
    assert path.stat().st_size < 10e6, f"{path} has {path.stat().st_size / 1e6:.0f} MB"
print(f"{wheel.name}: {len(names)} files; {sdist.name}: {len(inside)}")
PYTHON

say "an empty environment with only torch"
"${PYTHON:-python3}" -m venv "$work/env"
new=$(cd "$work/env" && pwd)
"$new/bin/pip" install --quiet -c constraints.txt torch
"$new/bin/pip" install --quiet -c constraints.txt "$wheel"
trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
corpus=$PWD/data/make_corpus.py
cd "$trial"
export PATH="$new/bin:$PATH" OMP_NUM_THREADS=1
onmt_evsoftmax doctor
onmt_evsoftmax --version | grep -qx "onmt_evsoftmax $version"

say "three steps of onmt_train, one translation"
python "$corpus" --train 200 -o text > /dev/null
cat > recipe.yaml <<'YAML'
data:
    train: {path_src: text/train.en, path_tgt: text/train.de}
    valid: {path_src: text/valid.en, path_tgt: text/valid.de}
save_data: vocabulary
src_vocab: vocabulary/vocab.src
tgt_vocab: vocabulary/vocab.tgt
save_model: model
attention_normalizer: evsoftmax
encoder_type: transformer
decoder_type: transformer
enc_layers: 1
dec_layers: 1
hidden_size: 32
word_vec_size: 32
heads: 2
transformer_ff: 64
train_steps: 3
save_checkpoint_steps: 3
num_workers: 0
YAML
onmt_build_vocab -config recipe.yaml -n_sample -1 > vocabulary.log 2>&1 || { cat vocabulary.log >&2; fail "vocabulary"; }
onmt_train -config recipe.yaml > train.log 2>&1 || { tail -n 30 train.log >&2; fail "training"; }
grep -i evsoftmax train.log || fail "onmt_train does not say that it trained with evsoftmax"
head -n 2 text/test.en > two.en
onmt_translate -model model_step_3.pt -src two.en -output two.de -max_length 10 > translate.log 2>&1 ||
  { tail -n 30 translate.log >&2; fail "translation"; }
test "$(wc -l < two.de)" = 2 || fail "two sentences were not translated into two"

say "uninstall: nothing is left behind"
pip uninstall --quiet --yes onmt_evsoftmax
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
left=$(find "$site" "$new/bin" -iname '*evsoftmax*' -o -iname 'onmt_score' -o -iname 'onmt_*_attention')
test -z "$left" || fail "left behind: $left"
python -c 'import sys; assert not [m for m in sys.modules if "evsoftmax" in m]; import onmt' 2> hook.log || { cat hook.log >&2; fail "OpenNMT-py does not start"; }
onmt_train -config recipe.yaml > stock.log 2>&1 || { tail -n 30 stock.log >&2; fail "OpenNMT-py alone does not train"; }
! grep -i evsoftmax stock.log || fail "onmt_train still trains with evsoftmax"

cd - > /dev/null
say "ready: upload these two files, then tag the commit v$version"
(cd "$dist" && sha256sum -- *)
