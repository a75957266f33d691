"""
Components in other languages and other environments, which speak Storm's multi-language protocol
over pipes, and topologies that were written for C{streamparse}.
"""

from pylogbroker.topologies.multilang.components import ShellBolt, ShellSpout

__all__ = ["ShellBolt", "ShellSpout"]
