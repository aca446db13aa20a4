#!/bin/sh
# deploy/install.sh IMAGE FOLDER: make the environment of an image in FOLDER, with the packages and hashes of requirements.lock.
# Nothing that is not in the lock is downloaded: what comes as source alone is built with /tools, not with the newest tools.
set -eu
image=$1 folder=$2 tools=${TOOLS:-/tools}/bin

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$tools/python" deploy/locked.py "$image" > "$work/lock"
"$tools/pip" wheel --quiet --no-deps --no-build-isolation --require-hashes --requirement "$work/lock" --wheel-dir "$work/wheels"
"$tools/python" -m venv --without-pip "$folder"
"$tools/pip" --python "$folder/bin/python" install --quiet --no-deps --no-index "$work"/wheels/*.whl

# Image layers keep a file's time only in seconds, but the archive of Spark's classes compares the full time.
find "$folder" \( -name '*.jar' -o -name 'libjvm.*' \) -exec touch -d '@1577836800' {} +
