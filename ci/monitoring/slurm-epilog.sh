#!/bin/bash
# Attaches the account of a job to it: EpilogSlurmctld in slurm.conf (docs/jobs.md). It runs once per job on the head node,
# which needs perfscope and the file system of the runs. The report is perfscope-job-ID.md in the job's working folder, and
# its first line is the job's AdminComment, which `sacct -o JobID,AdminComment%120` shows where slurmdbd keeps accounts.
#
# Always 0: another exit code of an epilog is an error of the job. Slurm runs it without a search path.
set -euo pipefail
trap 'exit 0' EXIT
export PATH=${PERFSCOPE_PATH:-/opt/perfscope/bin}:/usr/local/bin:/usr/bin:/bin
exec 2>/dev/null
job=${SLURM_JOB_ID:-}
work=${SLURM_JOB_WORK_DIR:-$(scontrol show job "$job" | sed -n 's/^ *WorkDir=//p')}
runs=${PERFSCOPE_RUNS:-$work/perfscope-runs}
[ -n "$job" ] || exit 0
for run in "$runs/slurm-$job.0"{,-r*} "$runs"/*-"$job"{,-r*}; do
  [ -d "$run/ledger" ] && break
done
[ -d "$run/ledger" ] || exit 0

report=$work/perfscope-job-$job.md
timeout 300 perfscope job "$run" --quiet --markdown - >"$report.part" && mv "$report.part" "$report"
rm -f "$report.part"
[ -s "$report" ] && sacctmgr --immediate modify job where jobid="$job" \
  set AdminComment="perfscope: $(head -n 1 "$report" | tr -d '*')"
exit 0
