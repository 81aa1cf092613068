#!/bin/sh
# Builds deploy/Dockerfile without a registry, as root: mmdebstrap makes its base from packages of Debian, and buildah
# carries it out. `make image` writes the image into dist/image, an OCI layout, and prints its digest. The same commit,
# packages of Debian and versions of the two programs give the same digest.
set -eu
output=$(realpath -m "${1:-dist/image}")
cd "$(dirname "$0")/.."
for program in mmdebstrap buildah; do
    command -v $program >/dev/null || { echo "$program is not installed; run: apt install mmdebstrap buildah" >&2; exit 2; }
done
.venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "Debian 12 has Python 3.11, and .venv another; run: rm -r .venv && make doctor PYTHON=python3.11" >&2; exit 2; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/context/requirements" "$scratch/base"

# Python, pip, and what Triton links against; nothing that they only recommend, and no compiler. Bytecode goes, because
# the same source may be compiled to other bytes.
# shellcheck disable=SC2016 # mmdebstrap's shell expands $1
mmdebstrap --quiet --variant=essential --include=python3,python3-pip,libpython3.11,libstdc++6,zlib1g,passwd \
    --dpkgopt='path-exclude=/usr/share/doc/*/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list* "$1"/var/cache/* "$1"/var/log/* "$1"/etc/resolv.conf "$1"/etc/hostname' \
    --customize-hook='find "$1/usr" -name __pycache__ -prune -exec rm -r {} +' \
    bookworm "$scratch/base/base.tar" - </etc/apt/sources.list.d/debian.sources # where this machine has packages from
printf 'FROM scratch\nADD base.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n' >"$scratch/base/Dockerfile"

.venv/bin/python -m tools.wheel --output "$scratch/context/dist" >&2
cp requirements/run.txt "$scratch/context/requirements"
# pip finds the other packages here, with this machine's settings, and inside installs them from /mnt.
.venv/bin/python -m pip download -qq --no-deps --require-hashes --only-binary :all: --dest "$scratch/wheels" \
    --requirement requirements/run.txt

private="--root $scratch/storage --runroot $scratch/run --storage-driver vfs"
# shellcheck disable=SC2086 # several words
build() { buildah $private build --quiet --format docker --timestamp "$SOURCE_DATE_EPOCH" "$@" >&2; }
build --tag base "$scratch/base"
build --tag draftproof --isolation chroot --pull=never --build-arg BASE_IMAGE=localhost/base --file deploy/Dockerfile \
    --volume "$scratch/wheels:/mnt:ro" --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/mnt "$scratch/context"
rm -rf "$output"
# shellcheck disable=SC2086
buildah $private push --quiet draftproof "oci:$output:$version"
# shellcheck disable=SC2086
buildah $private inspect --type image draftproof | .venv/bin/python -m tools.image_configuration "$output"
