"""The tests of pylogbroker; they mirror the package file for file."""

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: no deadline an example, no complaint about slow ones. The same examples each time: a gate that passes, passes again.
settings.register_profile(
    "pylogbroker", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("pylogbroker")
