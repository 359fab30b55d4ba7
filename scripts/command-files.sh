#!/bin/sh
# command-files.sh FOLDER   writes the manual pages and the completions of FOLDER/redis-lock below
#                           FOLDER/share, with the names that they have below a prefix
set -eu

cd "$1"
rm -rf share
mkdir -p share/man/man1 share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d
./redis-lock man share/man/man1
gzip -n -9 share/man/man1/*.1
./redis-lock completions bash >share/bash-completion/completions/redis-lock
./redis-lock completions zsh >share/zsh/site-functions/_redis-lock
./redis-lock completions fish >share/fish/vendor_completions.d/redis-lock.fish
