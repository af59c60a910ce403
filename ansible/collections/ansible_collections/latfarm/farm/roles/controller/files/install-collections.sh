#!/bin/sh
# Puts the collections of FOLDER/collections.tar into FOLDER/collections, in place of those that were there.
# The file with the name HASH tells which they are; it is there only when they are complete.
# Usage: install-collections.sh FOLDER HASH
set -eu
cd "$1"
umask 022
rm -rf collections.part
mkdir collections.part
tar -C collections.part --no-same-owner -xf collections.tar
: >"collections.part/$2"
rm -rf collections
mv collections.part collections
rm -f collections.tar
