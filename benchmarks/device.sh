#!/usr/bin/env bash
# Packages for a machine without network: `fetch` downloads the wheels (where there is one), `pack` puts what trainings
# need of them into one archive of about 35 MB, `unpack` makes it and this checkout importable by that machine's python3,
# whose own numpy and torch stay in use.
#   benchmarks/device.sh fetch && benchmarks/device.sh pack     here: build/wheels/*.whl -> wheels/site.tar.xz
#   benchmarks/device.sh unpack                                 there
# MuJoCo Warp's library is 90 MB even when packed, so it travels in parts, from the environment that is installed here:
#   benchmarks/device.sh pack-warp                              here: wheels/warp.00, wheels/warp.01, ...
#   benchmarks/device.sh unpack-warp FOLDER                     there, with all parts in FOLDER, after unpack
set -euo pipefail
cd "$(dirname "$0")/.."

NAMES="gymnasium farama-notifications cloudpickle mujoco==3.17.0 ale-py==0.12.1 pyyaml rich markdown-it-py mdurl pygments
absl-py etils importlib-resources zipp glfw imageio psutil minatar minigrid pygame-ce box2d stable-baselines3 sb3-contrib
pytest pluggy iniconfig pytest-xdist execnet tyro docstring-parser typeguard h5py minari typing_extensions matplotlib contourpy cycler fonttools kiwisolver pyparsing packaging pillow python-dateutil six tensorboard protobuf"

case "${1:-}" in
fetch)
    for name in $NAMES; do
        .venv/bin/pip download --no-deps --python-version "${PYTHON_VERSION:-3.12}" --only-binary=:all: -d build/wheels \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 "$name"
    done
    ;;
pack)
    site=$(mktemp -d)
    for wheel in build/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
    # Left out: an experimental renderer (41 MB), web pages, tests, documentation, headers.
    (cd "$site" && rm -rf numpy* mujoco/experimental mujoco/include mujoco/_render_filament* tensorboard/webfiles.zip \
        pygame/docs pygame/tests pygame/examples && find . -name tests -type d -prune -exec rm -rf {} + &&
        find . \( -name '*.pyi' -o -name '*.h' -o -name '*.pyx' -o -name '*.pxd' \) -delete)
    mkdir -p wheels
    tar -cJf wheels/site.tar.xz -C "$site" .
    rm -rf "$site"
    ls -l wheels/site.tar.xz
    ;;
unpack)
    site=${SITE:-/tmp/site}
    mkdir -p "$site"
    # Python's tarfile, because a machine may have no xz.
    python3 -c "import sys, tarfile; tarfile.open('wheels/site.tar.xz').extractall(sys.argv[1])" "$site"
    python3 -c "import sys, sysconfig, pathlib
pathlib.Path(sysconfig.get_path('purelib'), 'benchmarks.pth').write_text(sys.argv[1] + '\n' + sys.argv[2] + '\n')" "$site" "$PWD"
    python3 -c "import gymnasium, torch; print('python packages in', gymnasium.__path__, 'torch', torch.__version__)"
    ;;
pack-warp)
    site=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    mkdir -p wheels
    # Left out: what compiles for a CPU, tests, examples.
    tar -C "$site" -c --exclude=warp-clang.so --exclude=__pycache__ --exclude=warp/tests --exclude=warp/examples \
        --exclude=test_data --exclude='*_test.py' warp mujoco_warp | xz -T2 -6 | split -b 45M -d - wheels/warp.
    ls -l wheels/warp.*
    ;;
unpack-warp)
    site=${SITE:-/tmp/site}
    cat "${2:-wheels}"/warp.* > /tmp/warp.tar.xz
    python3 -c "import sys, tarfile; tarfile.open('/tmp/warp.tar.xz').extractall(sys.argv[1])" "$site"
    python3 -c "import mujoco_warp, warp; warp.init(); print('warp', warp.__version__, warp.get_cuda_devices())"
    ;;
*)
    echo "usage: $0 fetch | pack | unpack | pack-warp | unpack-warp FOLDER" >&2
    exit 2
    ;;
esac
