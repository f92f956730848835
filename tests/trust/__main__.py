"""What ``python -m tests.trust`` runs."""

import sys

from tests.trust.page import main

sys.exit(main())
