"""``gateway`` as a process: gateway_alone.py LAUNCH_FOLDER LAUNCHER_PID SETTINGS (JSON); key by environment."""

import json
import os
import sys
from pathlib import Path

import uvloop

from rolloutgen.config.reading import read_settings
from rolloutgen.gateway.process import gateway
from rolloutgen.knobs import Value

if __name__ == "__main__":
    folder, launcher, texts = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    settings = read_settings({key: Value(text, "test") for key, text in texts.items()}, Path("/")).settings
    sys.exit(uvloop.run(gateway(settings, folder, launcher, os.environ["ROLLOUTGEN_MODEL_KEY"])))
