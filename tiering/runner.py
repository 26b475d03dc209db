"""See `disks.runner`."""

from disks.runner import LocalRunner as LocalRunner
from disks.runner import Runner as Runner
