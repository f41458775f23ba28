#!/usr/bin/env bash
# Installs perfscope into the Python that runs the program, with what else the program needs.
#   IN_PYTHON         that Python
#   IN_REQUIREMENTS   more for pip: requirements and options, shell words
#   IN_INSTALL        no: perfscope is there already, in the image of the runner
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/words.sh"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  problem 2 "the Python of the job (input python) does not start, or is older than 3.11"
if [ "${IN_INSTALL:-yes}" = no ]; then
  "$python" -P -m perfscope --version
  exit
fi
words "${IN_REQUIREMENTS:-}" || problem 2 "requirements: a quote is not closed"
"$python" -P -m pip install --quiet --disable-pip-version-check "$(dirname "$here")" "${words[@]}"
"$python" -P -m perfscope --version
