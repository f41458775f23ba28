#!/usr/bin/env bash
# Draws the comparison: report.md, report.html, junit.xml beside it; the job's summary and annotations.
#   REPORT   the folder with report.json
# A face that cannot be drawn is a warning: the comparison is kept all the same, and the gate is another step.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/words.sh"

for face in markdown:report.md html:report.html junit:junit.xml; do
  "$python" -P -m perfscope report "$REPORT/report.json" --to "${face%%:*}" -o "$REPORT/${face#*:}" ||
    echo "::warning title=perfscope::${face#*:} could not be written; the line above says why"
done
"$python" -P -m perfscope report "$REPORT/report.json" --to github ||
  echo "::warning title=perfscope::the job's summary could not be written; the line above says why"
