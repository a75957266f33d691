"""
The long form of C{tests.integration.test_mirror}::

    python -m tests.long.mirror --messages 1000000 --kills 5

prints the seed, the versions, and what the run was made of; the exit status is 0 if nothing is missing, what is there twice was to be
expected, and the audit agrees, also after holes were planted.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from random import SystemRandom
from time import monotonic

from pylogbroker import __version__
from tests.integration.mirroraudit import AuditError, MirrorAudit
from tests.integration.mirrortrial import BROKER, MirrorError, MirrorTrial
from tests.integration.zookeeperprocess import sharedZookeeper


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.mirror", description="Kill a mirror and restart its target, and look for what is missing.")
    parser.add_argument("--messages", type=int, default=1_000_000, help="how many numbered messages (1000000)")
    parser.add_argument("--kills", type=int, default=5, help="how often the mirror is killed (5)")
    parser.add_argument("--restarts", type=int, default=1, help="how often the target's broker is restarted (1)")
    parser.add_argument("--seed", type=int, help="of the moments (random; they depend on the machine, too)")
    options = parser.parse_args()
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    out = sys.stdout
    out.write(f"seed {seed}, {options.messages} messages, {options.kills} kills, {options.restarts} restarts\n")
    out.write(f"pylogbroker {__version__}, Twisted {version('Twisted')}, Python {platform.python_version()}, {platform.system()} {platform.release()}\n")
    out.write("".join(f"{key}={value}\n" for key, value in BROKER.items()))
    out.flush()
    folder = tempfile.mkdtemp()
    begun = monotonic()
    trial = MirrorTrial(folder, sharedZookeeper(), f"mirror{seed}", seed)

    def show(figures: dict[str, int]) -> None:
        out.write("".join(f"{name:>20} {value:>12,}\n" for name, value in figures.items()))
        out.flush()

    try:
        trial.run(options.messages, options.kills, options.restarts)
        show(trial.figures._asdict())
        out.write("nothing is missing, and what is there twice had been sent and not committed at a kill, or was told of\n")
        show(MirrorAudit(trial).run()._asdict())
        out.write("the audit of source and target agrees in every window, before and after holes were planted, and names these and no others\n")
    except (MirrorError, AuditError) as error:
        show(trial.figures._asdict())
        out.write(f"WRONG: {error}\nthe directory is {folder}\n")
        return 1
    finally:
        trial.end()
        out.write(f"{'seconds':>20} {monotonic() - begun:>12,.0f}\n")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
