"""``serve`` as a process of its own: serve_alone.py LAUNCH_FOLDER LAUNCHER_PID SETTINGS (JSON); key by environment."""

import asyncio
import json
import os
import sys
from pathlib import Path

from rolloutgen.config.reading import read_settings
from rolloutgen.knobs import Value
from rolloutgen.serving.serve import serve

if __name__ == "__main__":
    folder, launcher, texts = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    settings = read_settings({key: Value(text, "test") for key, text in texts.items()}, Path("/")).settings
    sys.exit(asyncio.run(serve(settings, folder, launcher, os.environ["ROLLOUTGEN_MODEL_KEY"])))
