"""What ``python -m tests.fuzz`` runs."""

import sys

from tests.fuzz.run import main

sys.exit(main())
