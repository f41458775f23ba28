#!/usr/bin/env bash
# Posts the comparison on its pull request, or replaces what was posted before. It never fails the job.
#   IN_COMMENT     no: nothing is posted
#   IN_KEY         comments of different keys stand beside each other
#   REPORT         the folder with report.json
#   ARTIFACT_URL   where all of it can be downloaded
#   GITHUB_TOKEN   the job's; from a fork it may not comment, and then nothing is tried
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/words.sh"

[ "${IN_COMMENT:-yes}" != no ] || exit 0
if [ "${GITHUB_EVENT_NAME:-}" != pull_request ]; then
  echo "perfscope: this job is not of a pull request: nothing to comment on"
  exit 0
fi
arguments=(comment "$REPORT/report.json" --key "${IN_KEY:-compare}" --unless-fork)
[ -z "${ARTIFACT_URL:-}" ] || arguments+=(--link "$ARTIFACT_URL")
"$python" -P -m perfscope "${arguments[@]}" ||
  echo "::warning title=perfscope::the comment was not posted; the line above says why (docs/ci.md)"
