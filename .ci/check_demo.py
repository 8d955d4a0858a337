"""Checks the demo's JSON against its contract, and that its report opens offline.

Usage: check_demo.py DEMO.json DEMO.html
"""

import json
import re
import sys

WORKLOADS = {"full", "range", "projection", "hot"}
MODES = {"auto", "copy", "gather", "delta", "in-place"}
NUMBERS = [
    "rows_per_s",
    "bytes_per_s",
    "server_cpu_ns_per_row",
    "client_cpu_ns_per_row",
    "server_bytes_copied",
]


def check_json(path):
    with open(path, encoding="utf-8") as file:
        demo = json.load(file)
    assert demo["verified"] is True, "the demo did not verify"
    assert demo["rows"] > 0 and demo["scale"] == 0.01, (demo["rows"], demo["scale"])
    assert demo["memcpy_bytes_per_s"] > 0
    seen = set()
    for run in demo["runs"]:
        where = f"{run['workload']} {run['mode']}"
        assert run["verified"] is True, f"{where}: not verified"
        for name in NUMBERS:
            assert isinstance(run[name], (int, float)) and run[name] >= 0, f"{where}: {name}"
        assert run["rows_per_s"] > 0 and run["bytes_per_s"] > 0, where
        assert {"copy", "gather", "delta", "in_place"} <= set(run["chosen"]), f"{where}: chosen"
        seen.add((run["workload"], run["mode"]))
    missing = {(w, m) for w in WORKLOADS for m in MODES} - seen
    assert not missing, f"no run of {sorted(missing)}"


def check_html(path):
    with open(path, encoding="utf-8") as file:
        html = file.read()
    assert "<svg" in html, "the report has no chart"
    loads = re.findall(r"""(?:src|href)\s*=\s*["']?\s*((?:https?:)?//[^"'\s>]+)""", html)
    loads += re.findall(r"""@import|url\(\s*["']?(?:https?:)?//[^)]*""", html)
    # A link that a reader may follow is fine; something that the page loads is not.
    anchors = set(re.findall(r"""<a\s[^>]*href\s*=\s*["']([^"']+)""", html))
    foreign = [load for load in loads if load not in anchors]
    assert not foreign, f"the report loads from elsewhere: {foreign}"
    assert "<script src" not in html


check_json(sys.argv[1])
check_html(sys.argv[2])
print("demo: verified, report self-contained")
