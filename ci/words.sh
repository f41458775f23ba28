# shellcheck shell=bash
# Sourced by the steps. Inputs arrive in the environment and are never put into a command's text.

# python: the interpreter of the job; -P: a file of the checkout does not stand in for one of its modules.
python=${IN_PYTHON:-python}

# words TEXT: sets the array `words` to the shell words of TEXT. Quotes group; nothing is expanded or run.
words() {
  local held
  held=$(mktemp)
  "$python" -P -c 'import shlex, sys
try:
    sys.stdout.write("".join(word + "\0" for word in shlex.split(sys.argv[1])))
except ValueError as error:
    sys.exit(f"perfscope: {sys.argv[1]!r}: {error}")' "$1" >"$held" || { rm -f "$held"; return 1; }
  # shellcheck disable=SC2034 # for whoever sources this
  mapfile -d '' -t words <"$held"
  rm -f "$held"
}

# problem CODE TEXT: an annotation of the job, and the end of the step.
problem() {
  printf '::error title=perfscope::%s\n' "$2"
  exit "$1"
}

# plain NAME TEXT: an input that is one word and no option.
plain() {
  case $2 in
    -* | *[[:space:]]* | '') problem 2 "$1 is not given as one word" ;;
  esac
}
