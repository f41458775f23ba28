#!/usr/bin/env bash
# The trusted half of the two jobs: posts a comparison that an untrusted job wrote. It is data here, read once, never run.
#   IN_REPORT      the folder that the artifact was unpacked into
#   IN_KEY, IN_LINK
#   GITHUB_TOKEN   may write comments
# The pull request is the one whose last commit the ended run was about, as GitHub says; the artifact is not asked.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/ci/words.sh"

report=$IN_REPORT/report.json
if [ ! -f "$report" ] || [ -L "$report" ]; then
  problem 4 "the artifact holds no report.json: see the run that wrote it"
fi
"$python" -P -m venv "${RUNNER_TEMP:?}/perfscope-venv"
python=$RUNNER_TEMP/perfscope-venv/bin/python
"$python" -P -m pip install --quiet --disable-pip-version-check "$root"
arguments=(comment "$report" --key "${IN_KEY:-compare}")
[ -z "${IN_LINK:-}" ] || arguments+=(--link "$IN_LINK")
exec "$python" -P -m perfscope "${arguments[@]}"
