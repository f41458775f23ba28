#!/usr/bin/env bash
# Installs perfscope into the Python that runs the program, with what else the program needs.
#   IN_PYTHON         that Python
#   IN_REQUIREMENTS   more for pip: requirements and options, shell words
#   IN_INSTALL        no: perfscope is there already, in the image of the runner
#   IN_PLUGINS        compilers for machines that are not there, for pip: they lie in a folder of their own, because a jax
#                     without a GPU prints errors at every start where they lie beside it
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/words.sh"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  problem 2 "the Python of the job (input python) does not start, or is older than 3.11"
if [ "${IN_INSTALL:-yes}" = no ]; then
  "$python" -P -m perfscope --version
else
  words "${IN_REQUIREMENTS:-}" || problem 2 "requirements: a quote is not closed"
  "$python" -P -m pip install --quiet --disable-pip-version-check "$(dirname "$here")" "${words[@]}"
  "$python" -P -m perfscope --version
fi
words "${IN_PLUGINS:-}" || problem 2 "plugins: a quote is not closed"
if [ "${#words[@]}" -gt 0 ]; then
  plugins=${RUNNER_TEMP:?}/perfscope-plugins
  rm -rf "$plugins"
  "$python" -P -m pip install --quiet --disable-pip-version-check --no-deps --target "$plugins" "${words[@]}"
fi
