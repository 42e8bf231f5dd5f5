"""Convert the JSON of ``covcal watch -o -`` to Prometheus text, or to the message of an alarm.

    covcal watch new.h5 -o - | python examples/alerts/watch_json.py prometheus > covcal.prom

Only the last period in the JSON is used. An alarm means that the confidence of this period is
wrong, or that its rows have changed. The other formats are ``title``, ``text`` and ``webhook``,
which print nothing if there is no alarm. The title stays the same while an alarm lasts, so a script
can recognise an old alarm. The script needs only Python's standard library.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

VERDICTS = ("holds", "off", "not known")
Json = Mapping[str, Any]


def alarm_title(period: Json) -> str:
    """Return the title of the alarm, or an empty string if there is no alarm."""
    if period["verdict"] == "off":
        kind = "the confidence is off"
    elif period["alarm"]["raised"]:
        kind = "the rows have changed"
    else:
        return ""
    calibration, segment = period["calibration"], period["segment"]
    since = "" if segment is None else f" since {segment['since']}"
    return f"covcal: {kind} ({calibration['path']} {calibration['sha256'][:8]}{since})"


def alarm_text(period: Json) -> str:
    """Return a text with the verdict, the change of the rows, and the next step."""
    measured, alarm, verdict = period["measured"], period["alarm"], period["verdict"]
    if verdict == "off":
        verdict += f" by about {100 * abs(period['gap']['value']):.0f} points"
    lines = [
        f"Period {measured['period']} ({measured['rows']} rows of {measured['file']})",
        f"Verdict: {verdict}: {period['why']}",
    ]
    if alarm["raised"]:
        lines.append(f"Rows: changed since {alarm['since']}: {alarm['change']}")
    lines.append(
        "Next: label about fifty rows with covcal pick, or calibrate again. To accept the new "
        "rows as normal, run covcal watch --history FILE --acknowledge REASON."
    )
    return "\n\n".join(lines)


def prometheus(period: Json) -> Iterator[str]:
    """Yield lines in the Prometheus text format, with the name of the calibration as a label."""
    measured, alarm, gap = period["measured"], period["alarm"], period["gap"]
    common = {"calibration": period["calibration"]["path"]}
    accuracy = period["by_labels"] or measured["estimate"] or {}
    bounds = {"value": "accuracy", "low": "low", "high": "high"}
    evidence, threshold = (
        alarm[f"log_{name}"] / math.log(10) for name in ("evidence", "threshold")
    )
    metrics: dict[str, tuple[str, list[tuple[dict[str, str], Any]]]] = {
        "period_info": ("Name of the last period.", [({"period": measured["period"]}, 1)]),
        "rows": ("Rows of the period.", [({}, measured["rows"])]),
        "confidence_ratio": ("Mean calibrated confidence.", [({}, measured["confidence"])]),
        "accuracy_ratio": (
            "Measured or estimated accuracy, with the ends of the interval.",
            [({"bound": name}, accuracy[key]) for name, key in bounds.items() if accuracy],
        ),
        "gap_ratio": (
            "Mean confidence minus accuracy, with the ends of the interval.",
            [({"bound": name}, gap[name]) for name in bounds if gap],
        ),
        "tolerance_ratio": ("Largest tolerated gap.", [({}, period["tolerance"])]),
        "verdict": (
            "1 for the verdict on the last period, 0 for other verdicts.",
            [({"verdict": name}, int(name == period["verdict"])) for name in VERDICTS],
        ),
        "rows_changed": ("1 if the rows have changed, else 0.", [({}, int(alarm["raised"]))]),
        "evidence_log10": ("Evidence for a change.", [({}, evidence)]),
        "evidence_threshold_log10": (
            "Alarm threshold.",
            [({}, threshold)],
        ),
        "metric_ratio": (
            "Measured or estimated metric of a class, with the ends of the interval.",
            [
                ({"metric": metric["metric"], "class": metric["class"] or "", "bound": name}, value)
                for metric in measured["metrics"]
                for name in bounds
                if (value := metric[name]) is not None
            ],
        ),
        "column_psi": (
            "Population stability index of a column, compared with the calibration.",
            [({"column": column["name"]}, column["psi"]) for column in measured["columns"]],
        ),
        "column_missing_ratio": (
            "Share of missing values in a column.",
            [({"column": column["name"]}, column["missing"]) for column in measured["columns"]],
        ),
    }
    for name, (help_text, samples) in metrics.items():
        if samples:
            yield f"# HELP covcal_{name} {help_text}"
            yield f"# TYPE covcal_{name} gauge"
        for labels, value in samples:
            pairs = ",".join(f'{key}="{escaped(text)}"' for key, text in (common | labels).items())
            yield f"covcal_{name}{{{pairs}}} {value}"


def escaped(text: str) -> str:
    """Return the value of a Prometheus label with special characters escaped."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def main() -> None:
    """Read the JSON from standard input, and print it in the format that the user asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("form", choices=("prometheus", "title", "text", "webhook"))
    form = parser.parse_args().form
    try:
        periods = json.load(sys.stdin)["periods"]
    except (ValueError, KeyError, TypeError):
        parser.error("standard input is not the JSON that covcal watch -o - prints")
    if not periods:  # no new period
        return
    period = periods[-1]
    title = alarm_title(period)
    if form == "prometheus":
        print("\n".join(prometheus(period)))
    elif title and form == "title":
        print(title)
    elif title and form == "text":
        print(alarm_text(period))
    elif title:  # the format of Slack, Mattermost and Teams
        print(json.dumps({"text": f"{title}\n\n{alarm_text(period)}"}))


if __name__ == "__main__":
    main()
