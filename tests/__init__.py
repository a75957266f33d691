"""The tests of pylogbroker. Each room of the package has a folder here."""

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    # tests/run imports tests.gate to learn what to install, before there is an environment.
    pass
else:
    # No deadline, since a busy machine is no reason to fail. The same examples each time: a gate
    # that passes, passes again.
    settings.register_profile(
        "pylogbroker", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("pylogbroker")
