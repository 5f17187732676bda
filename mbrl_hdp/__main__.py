"""`python -m mbrl_hdp` is `mbrl-hdp`."""

import sys

from mbrl_hdp.cli import main

sys.exit(main())
