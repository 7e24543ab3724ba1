"""`python -m firewall_cleanup` is the command `firewall-cleanup`."""

import sys

from .cli import main

sys.exit(main())
