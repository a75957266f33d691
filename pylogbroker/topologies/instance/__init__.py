"""
Instances: one object of a component, in a process of its own, between the stream manager of its
container and the author's code.

The I{gateway} speaks with the stream manager, on the reactor. The I{executor} calls the I{runner},
on a thread of its own, and the runner calls the author's code, which emits through the
I{collector}.
"""

from pylogbroker.topologies.instance.executors import InlineExecutor, ThreadExecutor
from pylogbroker.topologies.instance.gateway import Gateway
from pylogbroker.topologies.instance.runners import InstanceSettings

__all__ = ["Gateway", "InlineExecutor", "InstanceSettings", "ThreadExecutor"]
