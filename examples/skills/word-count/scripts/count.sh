#!/bin/sh
# Print lines, words and bytes of the files named, as wc counts them.
if [ "$#" -eq 0 ]; then
  echo "usage: count.sh FILE..." >&2
  exit 2
fi
echo "lines words bytes file"
exec wc -l -w -c -- "$@"
