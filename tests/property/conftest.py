"""One profile for all properties; in CI the examples are the same in every run."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("laws", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("laws"), derandomize=True)
settings.register_profile("deep", settings.get_profile("laws"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "laws"))
