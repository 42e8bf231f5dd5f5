#!/usr/bin/env bash
# Post the message of an alarm to a webhook (Slack, Mattermost, Teams), once for each alarm.
#
#     covcal watch new.h5 --history watch.jsonl -o - | bash examples/alerts/webhook.sh URL sent.txt
#
# sent.txt contains the title of the last posted alarm, and becomes empty when the alarm ends. If the
# webhook fails, the next run tries again.
set -euo pipefail
here=$(dirname "$0")
url=${1:?give the address of the webhook} sent=${2:?give a file for the last title}
watched=$(cat)

title=$(python3 "$here/watch_json.py" title <<< "$watched")
if [[ -f "$sent" && "$title" == "$(cat "$sent")" ]]; then exit 0; fi
if [[ -n "$title" ]]; then
  python3 "$here/watch_json.py" webhook <<< "$watched" |
    curl --silent --show-error --fail --output /dev/null --max-time 30 --retry 2 \
      --header 'Content-Type: application/json' --data-binary @- "$url"
fi
echo "$title" > "$sent"
