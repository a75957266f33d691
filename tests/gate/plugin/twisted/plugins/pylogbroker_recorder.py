"""Makes L{tests.gate.recorder.Recorder} known to trial, when the folder above C{twisted} is on C{PYTHONPATH}."""

from twisted.plugins.twisted_trial import _Reporter

Recorder = _Reporter(
    "Recorder",
    "tests.gate.recorder",
    description="like the tree reporter, and writes the outcome of each test to a file",
    longOpt="record",
    shortOpt=None,
    klass="Recorder",
)
