#!/bin/sh
# Installs the Debian packages of debian.txt, where this is Debian and we may.
set -u
here=$(dirname "$0")
missing=""
for name in $(grep -v '^#' "$here/debian.txt"); do
    dpkg -s "$name" >/dev/null 2>&1 || missing="$missing $name"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$missing ..."
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends $missing >/dev/null && exit 0
fi
echo "not installed:$missing; the tests that need them are skipped"
