#!/usr/bin/env bash
# Lint, check types and run all tests, in .venv, which is made if need be.
# With arguments, `bash scripts/test.sh tests/cli -k caption`, only pytest with these arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh

install dev
if ! command -v java > /dev/null; then
    say "installing Java, which METEOR and the PTB tokenizer run on"
    apt_get default-jre-headless ||
        echo "Java could not be installed (as root: apt-get install default-jre-headless): its tests are skipped"
fi

if [ $# -gt 0 ]; then
    exec .venv/bin/python -m pytest "$@"
fi
say "ruff"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
say "mypy"
.venv/bin/mypy captioner
say "pytest"
.venv/bin/python -m pytest
