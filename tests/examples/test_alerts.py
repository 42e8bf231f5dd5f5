"""``examples/alerts``: what watch prints as Prometheus text, GitHub issue and webhook message."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from covcal_cli.estimators.metrics import MetricEstimate
from covcal_cli.records import document_text
from covcal_cli.watch.period import ColumnDrift, Period, Segment, Watched
from tests.examples import EXAMPLES
from tests.report.made_history import period

ALERTS = EXAMPLES / "alerts"
NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
VALUE = r'"(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})\{{({NAME}={VALUE}(?:,{NAME}={VALUE})*)\}} (-?[0-9.e+-]+)")
COLUMN = ColumnDrift(
    name='a "b"\\c',
    rows=250,
    psi=0.25,
    statistic=0.2,
    p=1e-6,
    missing=0.04,
    missing_before=0.0,
    new=0.0,
    new_categories=(),
    measure="median",
    now="41",
    before="18",
)
RECALL = MetricEstimate("recall", "fraud", 0.75, 0.5, 0.875, 40.0, "a range")
GH = """#!/usr/bin/env bash
echo "$*" >> "$GH_LOG"
case "$1 $2" in
  "issue list") cat "$GH_TITLES" ;;
  "issue create") echo "$6" >> "$GH_TITLES"; cat >> "$GH_LOG" ;;
esac
"""


def watched(*periods: Period) -> str:
    """What watch -o - prints."""
    result = Watched(periods, ("a", "b"), "week", 0.05, 0.05, 0, (), ())
    return document_text(result, Path("watch.json"))


def with_column(known: Period) -> Period:
    measured = replace(known.measured, columns=(COLUMN,), metrics=(RECALL,))
    return replace(known, measured=measured)


OFF = period("2026-W31", verdict="off", accuracy=0.6, confidence=0.8, evidence=4.0)
GOOD = period("2026-W30")


def script(name: str, stdin: str, *arguments: object, **more: str) -> str:
    """Run a script of the folder; its folder of python3 comes first on PATH."""
    command = [sys.executable] if name.endswith(".py") else ["bash"]
    done = subprocess.run(
        [*command, ALERTS / name, *map(str, arguments)],
        input=stdin,
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def exposition() -> str:
    return script("watch_json.py", watched(GOOD, with_column(OFF)), "prometheus")


class TestPrometheus:
    def test_every_line_is_of_the_text_format(self, exposition: str) -> None:
        """Samples follow the help and the type of their metric, and no metric comes twice."""
        assert exposition.endswith("\n")
        current, seen = "", set()
        for line in exposition.splitlines():
            if line.startswith("# HELP "):
                current = line.split(" ")[2]
                assert current not in seen
                seen.add(current)
            elif line.startswith("# "):
                assert line == f"# TYPE {current} gauge"
            else:
                sample = SAMPLE.fullmatch(line)
                assert sample is not None, line
                assert sample[1] == current
                float(sample[3])

    def test_numbers_are_those_of_the_last_period(self, exposition: str) -> None:
        values = dict(re.findall(r"^(covcal_\S+|covcal_.*\}) (\S+)$", exposition, re.MULTILINE))
        common = 'calibration="cal.json"'
        assert float(values[f"covcal_confidence_ratio{{{common}}}"]) == OFF.measured.confidence
        assert OFF.gap is not None
        assert float(values[f'covcal_gap_ratio{{{common},bound="low"}}']) == OFF.gap.low
        assert values[f'covcal_verdict{{{common},verdict="off"}}'] == "1"
        assert values[f'covcal_verdict{{{common},verdict="holds"}}'] == "0"
        assert values[f"covcal_rows_changed{{{common}}}"] == "1"
        assert float(values[f'covcal_column_psi{{{common},column="a \\"b\\"\\\\c"}}']) == 0.25
        recall = f'covcal_metric_ratio{{{common},metric="recall",class="fraud",bound="low"}}'
        assert float(values[recall]) == 0.5

    def test_the_client_of_prometheus_reads_it(self, exposition: str) -> None:
        parser = pytest.importorskip("prometheus_client.parser")
        families = {one.name: one for one in parser.text_string_to_metric_families(exposition)}
        (psi,) = families["covcal_column_psi"].samples
        assert (psi.labels["column"], psi.value) == (COLUMN.name, COLUMN.psi)

    def test_the_panels_ask_for_metrics_that_exist(self, exposition: str) -> None:
        dashboard = json.loads((ALERTS / "grafana.json").read_text(encoding="utf-8"))
        expressions = [
            target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
        ]
        asked = {name for text in expressions for name in re.findall(r"covcal_\w+", text)}
        assert asked
        assert asked <= set(re.findall(r"^# TYPE (\w+)", exposition, re.MULTILINE))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
class TestOnce:
    def test_an_issue_is_opened_once(self, tmp_path: Path) -> None:
        """Another night of the alarm opens none; a good night asks nothing; a new segment does."""
        (tmp_path / "gh").write_text(GH)
        (tmp_path / "gh").chmod(0o755)
        titles, log = tmp_path / "titles", tmp_path / "log"
        titles.write_text("an older issue\n")
        more = {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "GH_LOG": str(log),
            "GH_TITLES": str(titles),
        }
        script("github_issue.sh", watched(GOOD), **more)
        assert not log.exists()
        later = period("2026-W32", verdict="off", accuracy=0.55, confidence=0.8, evidence=5.0)
        for night in (OFF, later):
            script("github_issue.sh", watched(night), **more)
        accepted = replace(later, segment=Segment("2026-W32", "accepted: a new camera"))
        script("github_issue.sh", watched(accepted), **more)
        title = "covcal: the confidence is off (cal.json aaaaaaaa"
        opened = titles.read_text().splitlines()[1:]
        assert opened == [f"{title})", f"{title} since 2026-W32)"]
        assert "Verdict: off by about 20 points" in log.read_text()
        assert "--acknowledge REASON" in log.read_text()

    def test_a_webhook_is_posted_once(self, tmp_path: Path) -> None:
        """The message is JSON with a text; after a good night the next alarm is posted again."""
        sent = tmp_path / "sent.txt"
        with listening() as (url, messages):
            for night in (OFF, OFF, GOOD, OFF):
                script("webhook.sh", watched(night), url, sent, NO_PROXY="127.0.0.1")
        assert len(messages) == 2
        assert messages[0]["text"].startswith("covcal: the confidence is off (cal.json")
        assert "Rows: changed since 2026-W31: the logits differ" in messages[0]["text"]

    def test_a_webhook_that_fails_is_tried_again(self, tmp_path: Path) -> None:
        sent = tmp_path / "sent.txt"
        command = ["bash", str(ALERTS / "webhook.sh"), "file:///nowhere", str(sent)]
        done = subprocess.run(command, input=watched(OFF), capture_output=True, text=True)
        assert done.returncode != 0
        assert not sent.exists()


class listening:
    """A server on this machine that keeps the JSON it is sent."""

    def __enter__(self) -> tuple[str, list[Any]]:
        messages: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/json"
                messages.append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}/", messages

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
