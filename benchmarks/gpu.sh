#!/usr/bin/env bash
# All measurements on one GPU, under eight minutes: benchmarks/gpu.sh [OUT.json]
# A trial on a CPU with tiny sizes, in Triton's interpreter: TINY=1 benchmarks/gpu.sh [OUT.json]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-gpu.json}
python=${PYTHON:-python}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
if [ "${TINY:-0}" = 1 ]; then
    export TRITON_INTERPRET=1 PYTHONWARNINGS=ignore
    "$python" benchmarks/gpu.py --tiny --out "$out"
else
    timeout 330 "$python" benchmarks/gpu.py --out "$out" || echo "gpu.py: failed or cut short"
    timeout 140 "$python" papers_repro/tests/kernel_checks.py cuda ||
        echo "kernel_checks.py: failed or cut short"
fi
