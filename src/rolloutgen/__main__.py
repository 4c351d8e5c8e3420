"""``python -m rolloutgen``."""

import sys

from rolloutgen.cli import main

sys.exit(main())
