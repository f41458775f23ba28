#!/usr/bin/env bash
# The last step: the job ends as the comparison did, after everything was kept and said.
#   CODE   of perfscope compare
set -euo pipefail
case ${CODE:-} in
  0) ;;
  1) echo "::error title=perfscope::a gate was not met (input fail-on); the report says which" ;;
  3) echo "::error title=perfscope::a metric could not be judged, and --strict was asked for" ;;
  '') echo "::error title=perfscope::nothing was compared"; exit 2 ;;
  *) echo "::error title=perfscope::the comparison ended with code $CODE; its last lines say why (docs/ci.md)" ;;
esac
exit "$CODE"
