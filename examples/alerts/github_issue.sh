#!/usr/bin/env bash
# Open one GitHub issue for each alarm, even if the alarm lasts for several nights. The script needs
# the GitHub CLI (gh), logged in or with GH_TOKEN. Run the script in a clone, or set GH_REPO.
#
#     covcal watch new.h5 --history watch.jsonl -o - | bash examples/alerts/github_issue.sh
set -euo pipefail
here=$(dirname "$0")
watched=$(cat)

title=$(python3 "$here/watch_json.py" title <<< "$watched")
if [[ -z "$title" ]]; then exit 0; fi

opened=$(gh issue list --label covcal --state all --limit 1000 --json title --jq '.[].title')
if grep --quiet --fixed-strings --line-regexp "$title" <<< "$opened"; then exit 0; fi

gh label create covcal --description "Alarms of covcal watch" --force > /dev/null
python3 "$here/watch_json.py" text <<< "$watched" |
  gh issue create --label covcal --title "$title" --body-file -
