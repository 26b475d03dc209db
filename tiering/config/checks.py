"""What a well-typed configuration can still get wrong: names that point nowhere, volumes without disks. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from disks.config import DiskConfig
from disks.registry import DISK_TYPES
from oplog.errors import UsageError
from tiering.config import jobs, macros
from tiering.config.settings import Config, PolicyConfig

Complain = Callable[[tuple[str | int, ...], str, str], UsageError]
_Text = tuple[str, Callable[[str], object]]
_WINDOW: _Text = ("window", jobs.parse_window)
_ZONE: _Text = ("timezone", jobs.parse_zone)
_SHORTEST_SECRET = 16
FILE_KEYS = ("ca_bundle", "certificate", "certificate_key")
"""Of a disk, of Keeper and of the interserver: files that are read where a connection is encrypted."""
_NAME = re.compile(r"\w+\Z", re.ASCII)
_URL = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?(?:[/?][!-~]*)?\Z", re.ASCII)
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}\Z", re.ASCII)


def check_references(config: Config, complain: Complain) -> None:
    """Raise what `complain(key path, problem, hint)` makes of the first mistake."""
    if not config.disks:
        raise complain(("disks",), "a store needs at least one disk", "")
    for name, disk in config.disks.items():
        _check_name(name, ("disks", name), complain)
        _check_disk(name, disk, complain)
    if not config.policies:
        raise complain(("policies",), "a store needs at least one policy", "")
    for name, policy in config.policies.items():
        _check_name(name, ("policies", name), complain)
        _check_policy(name, policy, config, complain)
    _check_keeper(config, complain)
    _check_jobs(config, complain)
    for name in config.prices.disks.keys() - config.disks.keys():
        raise complain(("prices", "disks", name), f"no such disk: {name}", _nearest(name, config))
    for name, hook in config.hooks.items():
        _check_name(name, ("hooks", name), complain)
        if bool(hook.command) == bool(hook.url):
            raise complain(("hooks", name), "a hook is either a command or a url", "")
        if hook.url and not _URL.match(hook.url):
            raise complain(("hooks", name, "url"), "not the address of a webhook", "such as https://example.org/path")
    if config.tracing.endpoint is not None and not _URL.match(config.tracing.endpoint):
        raise complain(("tracing", "endpoint"), "not the address of a collector", "such as http://127.0.0.1:4318")


def check_files(config: Config, complain: Complain) -> None:
    """That the files of certificates and keys which the configuration names can be read. They are looked at only when
    somebody asks: they may come and go while verbs that need none of them run."""
    holders: list[tuple[tuple[str, ...], object]] = [
        (("keeper",), config.keeper),
        (("interserver",), config.interserver),
    ]
    holders += [(("disks", name), disk) for name, disk in config.disks.items()]
    for here, holder in holders:
        given = {key: getattr(holder, key, None) for key in FILE_KEYS}
        for key, path in given.items():
            if path and (why := _why_unreadable(path)):
                raise complain((*here, key), f"{why}: {path}", "name a PEM file that this user can read")
        if given["ca_bundle"] and (why := _why_no_certificates(given["ca_bundle"])):
            raise complain((*here, "ca_bundle"), why, "name a PEM file with certificates")


def _why_unreadable(path: str) -> str:
    if not Path(path).exists():
        return "no such file"
    if not Path(path).is_file():
        return "not a file"
    return "" if os.access(path, os.R_OK) else "this user cannot read the file"


def _why_no_certificates(path: str) -> str:
    import ssl

    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        return f"{path} has no certificates that can be read: {error}"
    return ""


def _check_keeper(config: Config, complain: Complain) -> None:
    keeper = config.keeper
    for index, host in enumerate(keeper.hosts):
        if not _HOST.match(host):
            raise complain(("keeper", "hosts", index), f"not a host and port: {host!r}", "such as zookeeper-1:2181")
    if not macros.is_path(keeper.root):
        raise complain(("keeper", "root"), f"not a path: {keeper.root!r}", "such as /frostline")
    if bool(keeper.user) != bool(keeper.password):
        raise complain(("keeper",), "user and password belong together", "")
    if bool(keeper.certificate) != bool(keeper.certificate_key):
        raise complain(("keeper",), "certificate and certificate_key belong together", "")
    if not keeper.tls and (keeper.ca_bundle or keeper.certificate):
        raise complain(("keeper", "tls"), "certificates are of no use without TLS", "set tls: true")
    shown = (config.interserver.certificate, config.interserver.certificate_key, config.interserver.ca_bundle)
    if any(shown) and not all(shown):
        raise complain(
            ("interserver",),
            "certificate, certificate_key and ca_bundle belong together",
            "each replica shows its own, and knows by the authority that of the others",
        )
    if 0 < len(config.interserver.secret) < _SHORTEST_SECRET:
        raise complain(("interserver", "secret"), f"fewer than {_SHORTEST_SECRET} characters", "openssl rand -hex 32")
    _check_merge_workers(config, complain)
    for name, value in config.macros.items():
        _check_name(name, ("macros", name), complain)
        if name in macros.OF_A_TABLE:
            raise complain(("macros", name), "each table says itself what this stands for", "choose another name")
        if not macros.is_step(value):
            raise complain(("macros", name), f"not a name in a path: {value!r}", "letters, digits, '_', '-' and '.'")


def _check_merge_workers(config: Config, complain: Complain) -> None:
    for index, name in enumerate(config.replicas.merge_workers):
        here = ("replicas", "merge_workers", index)
        if not macros.is_step(name):
            raise complain(here, f"not the name of a replica: {name!r}", "letters, digits, '_', '-' and '.'")
        if not config.replicas.merges and name == config.macros.get("replica"):
            raise complain(
                here,
                f"{name} is this machine, which makes no merges",
                "the others would wait for it: drop merges: false",
            )


def _check_jobs(config: Config, complain: Complain) -> None:
    for number, ingest in enumerate(config.daemon.ingests):
        if not ingest.files:
            raise complain(("daemon", "ingests", number, "files"), "no files are named", "paths, globs or URLs")
    for name, job in config.daemon.jobs.items():
        here = ("daemon", "jobs", name)
        if name not in jobs.JOB_NAMES:
            nearest = get_close_matches(name, jobs.JOB_NAMES, 1)
            known = f"the jobs are: {', '.join(jobs.JOB_NAMES)}"
            raise complain(here, f"no such job: {name}", f"did you mean {nearest[0]!r}?" if nearest else known)
        if job.cron is not None and job.every_seconds is not None:
            raise complain(here, "every_seconds and cron exclude each other", "")
        if name == "policy" and job.options:
            raise complain((*here, "options"), "the passes of the policy are no verb of their own", "")
        _check_times(job, here, (("cron", jobs.parse_cron), _WINDOW, _ZONE), complain)


def _check_times(given: object, here: tuple[str | int, ...], texts: tuple[_Text, ...], complain: Complain) -> None:
    for key, parse in texts:
        if (text := getattr(given, key)) is not None:
            try:
                parse(text)
            except UsageError as error:
                raise complain((*here, key), error.message, error.hint) from error


def _check_name(name: str, path: tuple[str | int, ...], complain: Complain) -> None:
    if not _NAME.match(name):
        raise complain(path, f"not a name: {name!r}", "letters, digits and '_' only")


def _check_disk(name: str, disk: DiskConfig, complain: Complain) -> None:
    if (fault := DISK_TYPES[disk.type].fault(disk)) is not None:
        raise complain(("disks", name) if fault.key is None else ("disks", name, fault.key), fault.problem, fault.hint)


def _nearest(disk: str, config: Config) -> str:
    nearest = get_close_matches(disk, list(config.disks), 1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"the configuration has: {', '.join(config.disks)}"


def _check_policy(name: str, policy: PolicyConfig, config: Config, complain: Complain) -> None:
    here = ("policies", name, "volumes")
    if not policy.volumes:
        raise complain(here, "a policy needs at least one volume", "")
    if policy.move_until is not None and policy.move_until < (policy.move_factor or 0):
        raise complain(("policies", name, "move_until"), "less than move_factor: moves would never begin", "")
    _check_times(policy.pacing, ("policies", name, "pacing"), (_WINDOW, _ZONE), complain)
    seen_volumes: set[str] = set()
    seen_disks: set[str] = set()
    for index, volume in enumerate(policy.volumes):
        _check_name(volume.name, (*here, index, "name"), complain)
        if volume.name in seen_volumes:
            raise complain((*here, index, "name"), f"two volumes are called {volume.name!r}", "")
        seen_volumes.add(volume.name)
        if not volume.disks:
            raise complain((*here, index, "disks"), f"the volume {volume.name!r} has no disk", "")
        for disk in volume.disks:
            if disk not in config.disks:
                raise complain((*here, index, "disks"), f"no such disk: {disk}", _nearest(disk, config))
            if disk in seen_disks:
                raise complain((*here, index, "disks"), f"the disk {disk!r} is in the policy twice", "")
            seen_disks.add(disk)
        if volume.max_data_part_size_ratio is not None and volume.max_data_part_size_bytes is not None:
            raise complain(
                (*here, index), "max_data_part_size_bytes and max_data_part_size_ratio exclude each other", ""
            )
    _check_priorities(here, policy, complain)


def _check_priorities(here: tuple[str | int, ...], policy: PolicyConfig, complain: Complain) -> None:
    given = [volume.volume_priority for volume in policy.volumes if volume.volume_priority is not None]
    if not given:
        return
    if len(given) != len(policy.volumes):
        raise complain(here, "either every volume has a volume_priority or none", "")
    if sorted(given) != list(range(1, len(given) + 1)):
        shown = ", ".join(str(number) for number in sorted(given))
        raise complain(here, f"volume_priority must be 1 to {len(given)} without gaps, got {shown}", "1 is the hottest")
