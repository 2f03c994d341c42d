"""Builds the orchestrator's monitor from the deploy file: the recorder, its journal and the file's path; or none.

In: MonitorDeploy, a look at the host. Out: a LoopMonitor. Does not know: the loop.
"""

import time
from collections.abc import Callable
from pathlib import Path

from antiphon import env
from antiphon.config.deploy import MonitorDeploy
from antiphon.monitor.faults import Faults
from antiphon.monitor.journal import Journal
from antiphon.monitor.recorder import NO_MONITOR, LoopMonitor, Recorder
from antiphon.monitor.sampler import Sampler
from antiphon.monitor.windows import HostSnapshot


def make_monitor(deploy: MonitorDeploy, look: Callable[[], HostSnapshot]) -> LoopMonitor:
    """A monitor that is not started yet; NO_MONITOR if it is off."""
    if not deploy.enabled:
        return NO_MONITOR
    faults = Faults()
    journal = Journal(target_path(), deploy.window_s, Sampler().sample, faults, write_deadline_s=deploy.write_s)
    return Recorder(deploy.window_s, look, journal, faults)


def target_path() -> Path:
    """ANTIPHON_ORCH_MONITOR_PATH, else `antiphon_orch_monitor_<MMDDHHMM>.json` in the working directory."""
    name = env.orch_monitor_path() or time.strftime("antiphon_orch_monitor_%m%d%H%M.json")
    return Path(name).absolute()
