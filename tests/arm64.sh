#!/usr/bin/env bash
# Make an emulated arm64 Python with the packages of shmppo, for tests/system/test_processors.py. As root on Debian 12;
# it takes about 3 minutes and 1 GB.
#
#     bash tests/arm64.sh DIRECTORY
#     SHMPPO_ARM64_PYTHON=DIRECTORY/python python -m pytest -m slow tests/system/test_processors.py -k arm64
#
# DIRECTORY/python is an arm64 Python, which QEMU emulates. It sees this repository with kernels that are compiled for
# it. It starts no workers, because the fork server would start the Python of this machine.
set -euo pipefail
repository=$(realpath "$(dirname "$0")/..")
mkdir -p "${1:?the directory}" && cd "$1"
packages=(qemu-user-static debootstrap gcc-aarch64-linux-gnu)
dpkg --status "${packages[@]}" > /dev/null 2>&1 || { apt-get update -qq; apt-get install -y -qq "${packages[@]}" > /dev/null; }
if [ ! -x root/usr/bin/python3.11 ]; then  # packages are unpacked, not installed: nothing has to run as arm64
    mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' | awk '$2 == "bookworm" {print $1; exit}')
    debootstrap --foreign --arch=arm64 --variant=minbase --include=python3,libgomp1 bookworm root "$mirror" > debootstrap.log
    for package in root/var/cache/apt/archives/*.deb; do dpkg -x "$package" root; done
fi
if [ ! -d site ]; then
    platforms=(--platform manylinux2014_aarch64)
    for version in 17 27 28; do platforms+=(--platform "manylinux_2_${version}_aarch64"); done
    python3 -m pip install --quiet --target site.new --only-binary=:all: --python-version 3.11 --implementation cp \
        "${platforms[@]}" torch==2.9.1 numpy==2.4.6 gymnasium==1.4.0 mujoco==4.0.0 rich tyro pytest psutil setuptools
    mv site.new site
fi
mkdir -p build
flags=(-std=c11 -O3 -fPIC -fno-fast-math -fno-math-errno -ffp-contract=off -Wno-psabi)
for variant in neon "generic -DGENERIC_LANES=4" "scalar -DGENERIC_LANES=1"; do
    # shellcheck disable=SC2086
    aarch64-linux-gnu-gcc "${flags[@]}" -DVARIANT=$variant -c "$repository/shmppo/kernels/network.c" -o "build/${variant%% *}.o"
done
aarch64-linux-gnu-gcc "${flags[@]}" -c "$repository/shmppo/kernels/float64.c" -o build/float64.o
library=$repository/shmppo/kernels/network.cpython-311-aarch64-linux-gnu.so
aarch64-linux-gnu-gcc -shared build/*.o -lm -o "$library"
cat > python << EOF
#!/bin/bash
PYTHONPATH=$repository:$PWD/site:\$PYTHONPATH exec qemu-aarch64-static -L $PWD/root $PWD/root/usr/bin/python3.11 "\$@"
EOF
chmod +x python
