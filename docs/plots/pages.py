"""Photograph the pages of reports for the documentation: run from the checkout's root, with Chromium in the path.

python docs/plots/pages.py
"""

import json
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

import fairsched as fs
from fairsched.engines.analysis.audit import audit_log, write_audit
from fairsched.engines.simulation import simulate_events
from fairsched.engines.workloads import generate
from fairsched.model.events import Arrived, Event, Finished, Prefilled
from fairsched.model.machine import DEFAULT_PRESET, PRESETS
from fairsched.model.request import Request
from fairsched.policies.registry import LOCAL_POLICIES
from fairsched.policies.routers import RoundRobin

FOLDER = Path(__file__).parent
COLOURS = 64
START = datetime(2026, 11, 21, 18, 0, tzinfo=timezone(timedelta(hours=1)))
"""When the log of the audit begins, on its server's clock."""


def access_log(path: Path) -> None:
    """Write what a server would log of the showcase under LPM: a flood, and three clients that ask for little."""
    workload = generate("showcase")
    names = [client.name for client in workload.clients]
    events: list[Event] = simulate_events(workload, LOCAL_POLICIES["lpm"], RoundRobin(), PRESETS[DEFAULT_PRESET])
    asked: dict[int, Request] = {}
    first_ns: dict[int, int] = {}
    rows = []
    for event in events:
        if isinstance(event, Arrived):
            asked[event.request.id] = event.request
        elif isinstance(event, Prefilled) and not event.remaining_tokens:
            first_ns.setdefault(event.request_id, event.time_ns)
        elif isinstance(event, Finished):
            request = asked[event.request_id]
            came = START + timedelta(microseconds=request.arrival_ns // 1_000)
            rows.append(
                {
                    "start": came.isoformat(timespec="milliseconds"),
                    "user": names[request.client],
                    "ttft_ms": (first_ns[request.id] - request.arrival_ns) / 1e6,
                    "latency_ms": (event.time_ns - request.arrival_ns) / 1e6,
                    "usage": {"prompt_tokens": request.prompt.tokens, "completion_tokens": event.output_tokens},
                    "status": 200,
                }
            )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def photograph(page: Path, width: int, height: int) -> Image.Image:
    """Return the first so many pixels of a page in a window of that width."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("chromium is not in the path")
    with TemporaryDirectory() as folder:
        # A frame, since a browser's window is at least 500 pixels wide.
        frame, picture = Path(folder, "frame.html"), Path(folder, "page.png")
        frame.write_text(
            f'<body style="margin:0"><iframe src="{page.resolve().as_uri()}" '
            f'style="border:0;width:{width}px;height:{height}px"></iframe>'
        )
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
        options += [f"--user-data-dir={folder}/profile", f"--screenshot={picture}", "--force-device-scale-factor=1.5"]
        options += [f"--window-size={max(width, 500)},{height}"]
        subprocess.run([browser, *options, frame.as_uri()], check=True, capture_output=True, timeout=300)
        whole = Image.open(picture).convert("RGB")
    return whole.crop((0, 0, round(1.5 * width), whole.height))


def save(picture: Image.Image, name: str) -> None:
    """Write a picture with few colours, so that it is small."""
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)
    print(FOLDER / f"{name}.png")


def main() -> None:
    """Draw the pages of an audit and of a comparison, as a laptop shows them."""
    with TemporaryDirectory() as folder:
        log = Path(folder, "access.jsonl")
        access_log(log)
        audit = write_audit(Path(folder, "audit"), audit_log(log), "fairsched audit access.jsonl --report out/audit")
        save(photograph(audit, 1280, 1150), "audit-page")
        compared = fs.compare(generate("showcase"), command="fairsched compare showcase --report out/report")
        save(photograph(compared.report(Path(folder, "compare")), 1280, 1250), "report")


if __name__ == "__main__":
    main()
