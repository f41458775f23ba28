#!/usr/bin/env bash
# Compares, and keeps the outcome for the steps behind: this step fails only where it was asked wrongly.
#   IN_MODE        ab: launches of both commits in turns; programs: both compiled for a machine that is not here; runs: two
#                  recordings that are there
#   IN_PROGRAM     (ab, programs) script.py ARGUMENTS, -m module or (ab) any command: shell words
#   IN_BASE        (ab, programs) branch, tag or commit, or empty; (runs) the recording
#   IN_HEAD        (ab, programs) likewise; (runs) the recording
#   IN_TARGET      (programs) the machine to compile for
#   IN_PAIRS, IN_LEAST, IN_PROFILE, IN_FAIL_ON, IN_OPTIONS
#   BASE_SHA       what the event says the base is: pull_request.base.sha, or before
# Writes to GITHUB_OUTPUT: code, verdict, and, where there is something to report, report (a folder).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/words.sh"

[ "${GITHUB_EVENT_NAME:-}" != pull_request_target ] ||
  problem 2 "pull_request_target runs a stranger's code beside your secrets: use pull_request (docs/ci.md, forks)"

# known REF: its commit, where it is one here.
known() { git rev-parse --verify --quiet --end-of-options "$1^{commit}"; }

# The base, by a name that a person knows it by where there is one: what was asked for, also where the checkout has only
# one branch. Else, for a pull request, the first parent of the merge that GitHub checks out: then the difference is what
# merging would change. Else where the branch began.
base_of() {
  local commit depth=()
  if [ -n "$IN_BASE" ]; then
    known "$IN_BASE" >/dev/null && echo "$IN_BASE" && return
    known "refs/remotes/origin/$IN_BASE" >/dev/null && echo "origin/$IN_BASE" && return
    [ "$(git rev-parse --is-shallow-repository)" = false ] || depth=(--depth=1)
    git fetch --quiet --no-tags "${depth[@]}" -- origin "$IN_BASE" && git rev-parse --short=12 FETCH_HEAD
    return
  fi
  if [ "${GITHUB_EVENT_NAME:-}" = pull_request ] && known 'HEAD^2' >/dev/null; then
    commit=$(known 'HEAD^1')
  elif [ -n "${BASE_SHA:-}" ] && known "$BASE_SHA" >/dev/null; then
    commit=$(git merge-base "$BASE_SHA" HEAD) || return
  else
    commit=$(known 'HEAD^1') || return
  fi
  if [ "$(known "refs/remotes/origin/${GITHUB_BASE_REF:-}")" = "$commit" ]; then
    echo "origin/$GITHUB_BASE_REF"
  else
    git rev-parse --short=12 "$commit"
  fi
}

folder=${RUNNER_TEMP:?}/perfscope-report
runs=$RUNNER_TEMP/perfscope-runs
rm -rf "$folder" "$runs"
mkdir -p "$folder"
: "${IN_BASE:=}" "${IN_HEAD:=}" "${IN_TARGET:=}" "${IN_PAIRS:=}" "${IN_LEAST:=}" "${IN_PROFILE:=}" "${IN_FAIL_ON=auto}"

arguments=(compare)
program=()
own=regression

# two_commits FLAG: the arguments and the program of a comparison of two commits.
two_commits() {
  local base
  [ -n "$IN_BASE" ] && plain base "$IN_BASE"
  plain head "${IN_HEAD:=HEAD}"
  base=$(base_of) ||
    problem 2 "the base is not in this checkout: give actions/checkout \`fetch-depth: 0\`, or the input base"
  known "$IN_HEAD" >/dev/null || problem 2 "head is no commit of this checkout"
  arguments+=("$1" --base "$base" --head "$IN_HEAD" --output "$runs")
  words "${IN_PROGRAM:-}" || problem 2 "program: a quote is not closed"
  [ "${#words[@]}" -gt 0 ] || problem 2 "program: what is to be run?"
  program=("${words[@]}")
  [ "${words[0]}" = -m ] || program=(-- "${words[@]}") # a module stands without
}

[ -z "$IN_TARGET" ] || [ "${IN_MODE:-ab}" = programs ] || problem 2 "target is of mode programs"
case ${IN_MODE:-ab} in
  ab)
    two_commits --ab
    [ -z "$IN_PAIRS" ] || arguments+=(--pairs "$IN_PAIRS")
    [ -z "$IN_LEAST" ] || arguments+=(--least "$IN_LEAST")
    [ -z "$IN_PROFILE" ] || arguments+=(--profile "$IN_PROFILE")
    ;;
  programs)
    [ -z "$IN_PAIRS$IN_LEAST$IN_PROFILE" ] || problem 2 "pairs, least and profile are of mode ab: nothing is launched"
    two_commits --programs
    own=programs
    if [ -n "$IN_TARGET" ]; then
      plain target "$IN_TARGET"
      arguments+=(--target "$IN_TARGET")
    fi
    plugins=$RUNNER_TEMP/perfscope-plugins
    [ ! -d "$plugins" ] || export PERFSCOPE_PLUGINS="$plugins${PERFSCOPE_PLUGINS:+:$PERFSCOPE_PLUGINS}"
    ;;
  runs)
    plain base "$IN_BASE"
    plain head "$IN_HEAD"
    arguments+=("$IN_BASE" "$IN_HEAD")
    ;;
  *) problem 2 "mode is ab, programs or runs" ;;
esac
[ "$IN_FAIL_ON" != auto ] || IN_FAIL_ON=$own
[ -n "$IN_FAIL_ON" ] || [ "$own" != programs ] || IN_FAIL_ON=none # programs have gates of their own accord
words "${IN_FAIL_ON//,/ }" || problem 2 "fail-on: a quote is not closed"
for gate in "${words[@]}"; do arguments+=(--fail-on "$gate"); done
words "${IN_OPTIONS:-}" || problem 2 "options: a quote is not closed"
arguments+=("${words[@]}" --json "$folder/report.json" "${program[@]}")

# What the program or a recording says is no order to GitHub, and the files that steer the steps behind are not its own.
stop=$("$python" -P -c 'import secrets; print(secrets.token_hex(16))')
echo "::stop-commands::$stop"
code=0
env -u GITHUB_ENV -u GITHUB_PATH -u GITHUB_OUTPUT -u GITHUB_STATE -u GITHUB_STEP_SUMMARY \
  "$python" -P -m perfscope "${arguments[@]}" || code=$?
if [ ! -s "$folder/report.json" ]; then
  for log in "$runs"/*/launch.log "$runs"/programs-*/*.log; do
    [ ! -s "$log" ] || { echo "perfscope: the last lines of the program:" && tail -n 40 "$log"; }
  done
fi
echo "::$stop::"

echo "code=$code" >>"$GITHUB_OUTPUT"
if [ -s "$folder/report.json" ]; then
  echo "report=$folder" >>"$GITHUB_OUTPUT"
  "$python" -P -c 'import json, re, sys
said = json.load(open(sys.argv[1], encoding="utf-8")).get("headline")
known = isinstance(said, str) and re.fullmatch("[a-z ]{1,40}", said)
print("verdict=" + (said if known else "unknown"))' "$folder/report.json" >>"$GITHUB_OUTPUT"
fi
