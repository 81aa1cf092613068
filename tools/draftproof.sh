#!/bin/sh
# Makefile copies this to .venv/bin/draftproof. The checkout is not installed as a package, so the command
# finds it two folders above itself, wherever it is called from.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit
program='import sys; sys.path[0] = sys.argv.pop(1); from pipelines.__main__ import main; sys.exit(main())'
exec "$root/.venv/bin/python" -c "$program" "$root" "$@"
