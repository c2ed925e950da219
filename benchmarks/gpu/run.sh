#!/usr/bin/env bash
# Builds covey from this working tree and measures it on a machine with a GPU, which may be offline.
#
# Usage: benchmarks/gpu/run.sh CARRY [build|decode|arrays|resnet18|resnet50|jax ...]   (default: all)
#
# CARRY holds wheels/ (for this machine's Python), deps/ (include and lib of libjpeg-turbo, libpng
# and zlib, where the machine has no headers) and photos/. Results go to $OUT as JSON; tables to the
# standard output. Data goes to $SCRATCH (default: /tmp/covey-gpu).
set -u
carry=$(realpath "${1:?directory with wheels, deps and photos}"); shift
root=$(cd "$(dirname "$0")/../.." && pwd); cd "$root"
parts=${*:-build decode arrays resnet18 resnet50 jax}
export SCRATCH=${SCRATCH:-/tmp/covey-gpu} COVEY_PHOTOS=$carry/photos PYTHONUNBUFFERED=1
export OUT=${OUT:-$SCRATCH}
site=$SCRATCH/site; deps=$carry/deps
export PYTHONPATH=$site:$root
export COVEY_BENCH_FLAGS="-I$deps/include -L$deps/lib"
mkdir -p "$SCRATCH" "$OUT"

build() (
  set -e  # effective in a subshell that is not part of a condition
  pip="python3 -m pip --disable-pip-version-check install -q --no-index --no-deps"
  # An old copy of the extension would stay beside the new one.
  rm -rf "$site" "$SCRATCH/build"
  $pip --find-links "$carry/wheels" --target="$site" \
    simplejpeg pytorch-metric-learning nanobind scikit-build-core pathspec packaging
  $pip --no-build-isolation --target="$site" -C build-dir="$SCRATCH/build" \
    -C cmake.define.CMAKE_PREFIX_PATH="$deps" -C cmake.define.CMAKE_INSTALL_RPATH="$deps/lib" \
    -C cmake.define.nanobind_DIR="$(python3 -m nanobind --cmake_dir)" .
  cd /
  python3 -c "import covey; print('covey', covey.__version__, covey.__file__)"
  # Says which decoders were built; older builds have no such option.
  python3 -c "from covey.cli import main; main(['info', '--build'])" 2>&1 | head -20
)

part() {  # seconds, module, arguments
  echo "== $2, at $SECONDS s"
  timeout "$1" python3 -m "benchmarks.gpu.$2" "${@:3}" || echo "== $2 ended with status $?"
}

for name in $parts; do
  case $name in
    build) build; [ $? = 0 ] || exit 1 ;;
    decode) part 150 decode ;;
    resnet18) part 120 jpeg resnet18 --rounds 3 ;;
    resnet50) part 180 jpeg resnet50 --rounds 2 ;;
    arrays) part 120 arrays ;;
    jax) part 90 feed_jax ;;
    *) echo "unknown part '$name'"; exit 2 ;;
  esac
done
echo "== finished at $SECONDS s"
